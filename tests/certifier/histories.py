"""Random histories: operations in terms that suit any state, and the records that they become.

An operation says "two versions back", "all but these three GTIDs"; against the naive model, which
knows what was executed, it becomes a record. So histories stay meaningful while they shrink, and
the same records can be delivered to any number of certifiers.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from groupcert.certifier.core import Certifier, CertifierOptions
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.position import position_of
from groupcert.certifier.records import (
    Collected,
    ExecutedElsewhere,
    GarbageCollection,
    Outcome,
    Record,
    Transaction,
    ViewChange,
)
from tests.model import Decision, GtidSets, Model, ModelGtid

GROUP = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "11111111-1111-1111-1111-111111111111"
SNAPSHOT_KINDS = ("version", "prefix", "holes", "random", "own", "unknown")
LIVE_KINDS = ("transaction",) * 12 + ("collect", "view", "elsewhere")
KINDS = (*LIVE_KINDS, "collect_set")
"""What a history is made of; a live group's stable sets are versions, a trace's are GTID sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One step of a history. `back`: how many versions back a snapshot or stable set is; `holes`:
    which GTIDs it lacks, or which numbers are meant.
    """

    kind: str = "transaction"
    snapshot_kind: str = "version"
    back: int = 0
    holes: tuple[int, ...] = ()
    write_set: tuple[int, ...] = ()
    read_set: tuple[int, ...] = ()
    gtid: tuple[str, int] | None = None
    origin: int = 0


def histories(kinds: Sequence[str] = KINDS) -> st.SearchStrategy[list[Operation]]:
    """Histories of some kinds of records: odd ones that shrink well, and long and dense ones."""
    dense = st.integers(0, 2**32).map(lambda seed: random_operations(seed, 60, kinds=kinds))
    return st.one_of(_odd_operations(kinds), dense)


def _odd_operations(kinds: Sequence[str]) -> st.SearchStrategy[list[Operation]]:
    items = st.lists(st.integers(0, 8).map(item), max_size=4).map(tuple)
    gtids = st.tuples(st.sampled_from((GROUP, OTHER)), st.integers(1, 12))
    operation = st.builds(
        Operation,
        kind=st.sampled_from(kinds),
        snapshot_kind=st.sampled_from(SNAPSHOT_KINDS),
        back=st.integers(0, 6),
        holes=st.lists(st.integers(0, 20), max_size=3).map(tuple),
        write_set=items,
        read_set=st.one_of(st.just(()), items),
        gtid=st.one_of(st.none(), st.none(), gtids),
        origin=st.integers(0, 2),
    )
    return st.lists(operation, max_size=40)


def random_operations(seed: int, count: int, *, kinds: Sequence[str] = KINDS) -> list[Operation]:
    """Operations without hypothesis, the same for a seed on every machine: longer and denser, most
    of them certified.
    """
    chance = random.Random(seed)
    return [
        Operation(
            kind=chance.choice(kinds),
            snapshot_kind=chance.choice(("version", "prefix", "holes", "holes", *SNAPSHOT_KINDS)),
            back=min(chance.randrange(6), chance.randrange(6), chance.randrange(7)),
            holes=tuple(chance.sample(range(8), chance.randrange(3))),
            write_set=tuple(item(chance.randrange(9)) for _ in range(chance.randrange(4))),
            read_set=tuple(item(chance.randrange(9)) for _ in range(chance.randrange(20) // 18)),
            gtid=(chance.choice((GROUP, OTHER)), count) if chance.random() < 0.1 else None,
            origin=chance.randrange(3),
        )
        for _ in range(count)
    ]


def item(number: int) -> int:
    """A 64-bit item; they spread over the shards and go up to the largest."""
    return (number * 0x9E3779B97F4A7C15 - 1) % 2**64


def to_record(operation: Operation, model: Model, number: int) -> Record:
    """The record that an operation is, where `model` stands."""
    position = position_of(number + 1, 0)
    newest = len(model.states) - 1
    version = max(newest - operation.back, 0)
    match operation.kind:
        case "collect":
            return GarbageCollection(position, version)
        case "collect_set":
            return GarbageCollection(position, to_gtid_set(without(model, version, operation)))
        case "view":
            return ViewChange(position, operation.origin == 0)
        case "elsewhere":
            numbers = [(OTHER, 20 + hole) for hole in operation.holes]
            return ExecutedElsewhere(position, to_gtid_set([*numbers, (GROUP, 30)]))
        case _:
            return Transaction(
                position=position,
                origin=f"m{operation.origin}",
                snapshot=to_snapshot(operation, model),
                write_set=list(operation.write_set),
                read_set=list(operation.read_set),
                gtid=Gtid(*operation.gtid) if operation.gtid else None,
                local=operation.origin == 1,
            )


def to_snapshot(operation: Operation, model: Model) -> int | GtidSet:
    """The snapshot of a transaction: a version, or one of several kinds of GTID sets."""
    newest = len(model.states) - 1
    version = max(newest - operation.back, 0)
    match operation.snapshot_kind:
        case "version":
            return version if operation.back < 6 else newest + 1
        case "prefix":
            return to_gtid_set(model.states[version])
        case "holes":
            return to_gtid_set(without(model, newest, operation))
        case "random":
            chosen = [g for index, g in enumerate(sorted(model.executed)) if index not in (2, 5)]
            return to_gtid_set(chosen[operation.back :])
        case "own":
            return to_gtid_set([*model.executed, *([operation.gtid] if operation.gtid else [])])
        case _:
            unknown = [(OTHER, 50 + hole) for hole in operation.holes]
            return to_gtid_set([*model.states[version], *unknown])


def without(model: Model, version: int, operation: Operation) -> GtidSets:
    """What was executed up to a version, without some of the newest."""
    newest_first = sorted(model.states[version], reverse=True)
    return frozenset(g for i, g in enumerate(newest_first) if i not in operation.holes)


def to_gtid_set(gtids: Iterable[ModelGtid]) -> GtidSet:
    """The certifier's set for the model's."""
    return GtidSet.of(*(Gtid(*gtid) for gtid in gtids))


def to_model(gtid_set: GtidSet) -> GtidSets:
    """The model's set for the certifier's."""
    return frozenset(
        (source, number)
        for source in gtid_set.sources()
        for first, last in gtid_set.intervals(source)
        for number in range(first, last + 1)
    )


def deliver_to_model(model: Model, record: Record) -> Decision | tuple[int, int] | None:
    """What the model says of a record, in the form of `seen`."""
    match record:
        case Transaction():
            snapshot = record.snapshot
            return model.certify(
                snapshot if isinstance(snapshot, int) else to_model(snapshot),
                record.write_set,
                record.read_set,
                _pair(record.gtid),
                local=record.local,
            )
        case GarbageCollection(stable=stable):
            purged = model.collect(stable if isinstance(stable, int) else to_model(stable))
            return purged, model.last_committed_global
        case ViewChange(resets_clock=resets_clock):
            model.change_view(joiner=resets_clock)
            return 0, 0
        case ExecutedElsewhere(gtid_set=gtid_set):
            model.execute_elsewhere(to_model(gtid_set))
            return None


def seen(
    result: Outcome | Collected | tuple[int, int] | None,
) -> Decision | tuple[int, int] | None:
    """A certifier's result as the model would give it."""
    if not isinstance(result, Outcome):
        return result
    stamped = result.last_committed is not None and result.sequence_number is not None
    return Decision(
        result.verdict.name,
        gtid=_pair(result.gtid),
        stamps=(result.last_committed or 0, result.sequence_number or 0) if stamped else None,
        item=result.conflict.item if result.conflict else None,
        winner=_pair(result.conflict.winner_gtid if result.conflict else None),
    )


def _pair(gtid: Gtid | None) -> ModelGtid | None:
    return (gtid.source, gtid.number) if gtid else None


def options(
    *,
    gc_window: str = "close",
    period: int = 0,
    step: int = 64,
    learn: bool = False,
    block_size: int = 1,
) -> CertifierOptions:
    """A certifier's options, with a collection at once where nothing else is said."""
    return CertifierOptions(
        group_source=GROUP,
        gtid_assignment_block_size=block_size,
        gc_window=gc_window,
        collection_period_transactions=period,
        collection_step_transactions=step,
        learn_snapshots=learn,
    )


def records_of(history: Sequence[Operation], model: Model | None = None) -> list[Record]:
    """The records of a history, which the model has taken then."""
    model = model or Model(GROUP)
    records = []
    for number, operation in enumerate(history):
        records.append(to_record(operation, model, number))
        deliver_to_model(model, records[-1])
    return records


def fingerprint(seed: int) -> str:
    """Digest and outcomes of one history in one line; other processes must print the same."""
    certifier = Certifier(options(period=3, step=2))
    history = random_operations(seed, 300, kinds=LIVE_KINDS)
    outcomes = [certifier.deliver(record) for record in records_of(history)]
    return f"{certifier.digest().hex()} {outcomes}"
