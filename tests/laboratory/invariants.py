"""Checks what must hold in every state: the bank's total, pairs that are held once, items of a set.

The rule it keeps: every state that anybody saw counts, also those of transactions that aborted
later, for each of them read one snapshot.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tests.laboratory.findings import Finding
from tests.laboratory.history import FinalState, History, Operation, Outcome, Workload
from tests.laboratory.plans import (
    OPENING_BALANCE,
    REGISTER_PAIRS,
    TOTAL,
    accounts,
    balance_of,
    pair_keys,
)
from tests.laboratory.transactions import KnownRows


def check_bank(history: History, workload: Workload) -> Iterator[Finding]:
    """The accounts hold the same total at every read of all of them, and in the end."""
    keys = accounts(workload)
    for reader, rows, is_whole in _states(history, workload):
        if is_whole or rows.keys() >= set(keys):
            balances = [balance_of(rows.get(key)) for key in keys]
            if sum(balances) != TOTAL:
                yield Finding(
                    code="bank-total",
                    summary=f"{reader} found {sum(balances)} in all accounts, not {TOTAL}",
                    witness=[f"balances: {', '.join(map(str, balances))}"],
                )
    for final in history.finals:
        yield from _balances(final, keys, history.of(workload))


def _balances(
    final: FinalState, keys: Sequence[bytes], operations: Sequence[Operation]
) -> Iterator[Finding]:
    """Each account holds what all transfers that committed have left there.

    It is not known where nobody can say whether a transfer committed.
    """
    certified = {each.transaction_id for each in final.applied}
    is_whole = bool(final.applied) and final.applied[0].version == 1
    expected = dict.fromkeys(keys, OPENING_BALANCE)
    for operation in operations:
        if operation.outcome is Outcome.UNKNOWN and operation.has_writes and not is_whole:
            return
        if operation.is_committed or (
            operation.outcome is Outcome.UNKNOWN and operation.transaction_id in certified
        ):
            reads = operation.external_reads()
            for is_write, key, value in operation.steps:
                if is_write:
                    expected[key] += balance_of(value) - balance_of(reads[key])
    for key, balance in expected.items():
        found = balance_of(final.rows.get(key))
        if found != balance:
            yield Finding(
                code="bank-balance",
                summary=f"{key.decode()} holds {found} at {final.member}; the transfers "
                f"that committed leave {balance}",
            )


def check_register(history: History, workload: Workload) -> Iterator[Finding]:
    """In serializable mode, no two registers of a pair are held at once."""
    if workload.serializable:
        yield from write_skews(history, workload)


def write_skews(history: History, workload: Workload) -> Iterator[Finding]:
    """Pairs of which both registers were taken, each by who had found both free."""
    operations = history.of(workload)
    takers = {
        step.value or b"": operation
        for operation in operations
        for step in operation.steps
        if step.is_write
    }
    told = set()
    for reader, rows, _ in _states(history, workload):
        for pair in range(REGISTER_PAIRS):
            keys = pair_keys(workload, pair)
            tokens = tuple(rows.get(key) or b"" for key in keys)
            if all(tokens) and tokens not in told:
                told.add(tokens)
                yield Finding(
                    code="write-skew",
                    summary=f"{reader} found both registers of pair {pair} held",
                    witness=[
                        _taken(takers.get(token), key)
                        for key, token in zip(keys, tokens, strict=True)
                    ],
                )


def check_set(history: History, workload: Workload) -> Iterator[Finding]:
    """Each acknowledged item is there once at every member, no aborted one, and any other alike."""
    items = {
        (step.value or b"").rpartition(b" ")[2]: operation
        for operation in history.of(workload)
        for step in operation.steps
        if step.is_write
    }
    unknown: dict[str, frozenset[bytes]] = {}
    for final in history.finals:
        found = Counter(
            item
            for key, value in final.rows.items()
            if key.startswith(workload.prefix)
            for item in value.split()
        )
        for item, operation in items.items():
            yield from _item_findings(final.member, item, operation, found[item])
        for item in found.keys() - items.keys():
            yield Finding(
                code="set-phantom", summary=f"{final.member} has {item.decode()}, which nobody put"
            )
        unknown[final.member] = frozenset(
            item for item in found if item in items and not items[item].is_committed
        )
    if len(set(unknown.values())) > 1:
        differing = frozenset.union(*unknown.values()) - frozenset.intersection(*unknown.values())
        yield Finding(
            code="set-differs",
            summary=f"members differ in {len(differing)} items that were not acknowledged",
            witness=[
                f"{item.decode()} of {items[item]} is at "
                + ", ".join(member for member, there in unknown.items() if item in there)
                for item in sorted(differing)
            ],
        )


def _item_findings(member: str, item: bytes, operation: Operation, times: int) -> Iterator[Finding]:
    if operation.is_committed and not times:
        yield Finding(
            code="set-lost",
            summary=f"{member} lacks item {item.decode()}",
            witness=[f"{operation} put it"],
            lost=frozenset([operation.name]),
        )
    elif operation.outcome.is_aborted and times:
        yield Finding(
            code="set-aborted",
            summary=f"{member} has item {item.decode()} of a transaction that aborted",
            witness=[f"{operation} put it"],
        )
    if times > 1:
        yield Finding(
            code="set-duplicate",
            summary=f"{member} has item {item.decode()} {times} times",
            witness=[f"{operation} put it"],
        )


def _states(history: History, workload: Workload) -> Iterator[tuple[str, KnownRows, bool]]:
    """What each transaction read, and all that each member has in the end; with who read it."""
    for operation in history.of(workload):
        yield str(operation), operation.external_reads(), False
    for final in history.finals:
        rows: Mapping[bytes, bytes | None] = {**final.rows}
        yield f"the final read at {final.member}", rows, True


def _taken(taker: Operation | None, key: bytes) -> str:
    if taker is None:
        return f"nobody is known who took {key.decode()}"
    found = ", ".join(
        f"{each.decode()} {'held' if value else 'free'}"
        for each, value in taker.external_reads().items()
    )
    return f"{taker} took {key.decode()}, having found {found}"
