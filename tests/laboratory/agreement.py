"""Checks members against one another, and against what clients were told of their transactions.

The rule it keeps: histories are compared wherever they overlap. A member that got its state from
another one has no history of what was before.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from groupcert.members.demo.group_checks import Applied
from tests.laboratory.findings import Finding
from tests.laboratory.history import FinalState, History, Operation


def check_agreement(history: History) -> Iterator[Finding]:
    """Verdicts and positions are equal everywhere, and at rest so are digests, GTIDs and rows."""
    yield from _at_rest(history)
    for final in history.finals:
        yield from _dense_and_once(final)
    yield from _decisions(history)
    yield from _outcomes(history)
    yield from _answers(history)


def _at_rest(history: History) -> Iterator[Finding]:
    for one, other in pairwise(history.finals):
        for what in ("digest", "gtid_executed"):
            if getattr(one, what) != getattr(other, what):
                yield Finding(
                    code=f"{what}-differs".replace("_", "-"),
                    summary=f"{one.member} and {other.member} differ in their {what}",
                    witness=[f"{each.member}: {getattr(each, what)}" for each in (one, other)],
                )
        differing = [
            key
            for key in sorted(one.rows.keys() | other.rows.keys())
            if one.rows.get(key) != other.rows.get(key)
        ]
        if differing:
            yield Finding(
                code="rows-differ",
                summary=f"{one.member} and {other.member} differ in {len(differing)} rows",
                witness=[
                    f"{key!r}: {one.rows.get(key)!r}, {other.rows.get(key)!r}"
                    for key in differing[:5]
                ],
            )


def _dense_and_once(final: FinalState) -> Iterator[Finding]:
    """Versions follow one another; no GTID and no transaction is there as two of them."""
    once = {each.version: each for each in final.applied}
    for before, applied in pairwise(once.values()):
        if applied.version != before.version + 1:
            yield Finding(
                code="versions-not-dense",
                summary=f"{final.member} has version {applied.version} after {before.version}",
            )
    newest = max(once, default=final.version)
    if newest != final.version:
        yield Finding(
            code="versions-not-dense",
            summary=f"{final.member} is at version {final.version}, its history ends at {newest}",
        )
    versions_of = Counter((each.version, each.gtid) for each in final.applied)
    for gtid, times in Counter(gtid for _, gtid in versions_of).items():
        if times > 1:
            yield Finding(
                code="gtid-twice", summary=f"{final.member} has {gtid} for {times} transactions"
            )
    ids = Counter(transaction_id for transaction_id, _ in _distinct(final))
    for transaction_id, times in ids.items():
        if times > 1:
            yield Finding(
                code="certified-twice",
                summary=f"{final.member} has transaction {transaction_id.hex()} {times} times",
                witness=[
                    f"as version {version}"
                    for each, version in _distinct(final)
                    if each == transaction_id
                ],
            )


def _distinct(final: FinalState) -> set[tuple[bytes, int]]:
    return {(each.transaction_id, each.version) for each in final.applied}


def _decisions(history: History) -> Iterator[Finding]:
    """A version is the same transaction everywhere."""
    first: dict[int, tuple[str, Applied]] = {}
    for final in history.finals:
        for applied in final.applied:
            member, known = first.setdefault(applied.version, (final.member, applied))
            if _decided(applied) != _decided(known):
                yield Finding(
                    code="decision-differs",
                    summary=f"{member} and {final.member} differ in version {applied.version}",
                    witness=[
                        f"{member}: {_shown(known)}",
                        f"{final.member}: {_shown(applied)}",
                    ],
                )


def _outcomes(history: History) -> Iterator[Finding]:
    """Verdicts and places in the log are the same at all members that remember them."""
    first: dict[tuple[str, int], tuple[str, str]] = {}
    remembered = (
        (final.member, transaction_id, part, told)
        for final in history.finals
        for transaction_id, outcome in final.outcomes.items()
        for part, told in enumerate(outcome)
        if told
    )
    for member, transaction_id, part, told in remembered:
        first_member, known = first.setdefault((transaction_id, part), (member, told))
        if told != known:
            yield Finding(
                code="outcome-differs",
                summary=f"{first_member} and {member} differ in transaction {transaction_id}",
                witness=[f"{first_member}: {known}", f"{member}: {told}"],
            )


def _answers(history: History) -> Iterator[Finding]:
    """What clients were told of a transaction is what the histories have of it."""
    for final in history.finals:
        if not final.applied:
            continue
        versions = {each.transaction_id: each.version for each in final.applied}
        first = final.applied[0].version
        for operation in history.operations:
            if not operation.has_writes or not operation.transaction_id:
                continue
            version = versions.get(operation.transaction_id)
            yield from _answer(final.member, operation, version, first)


def _answer(
    member: str, operation: Operation, version: int | None, first: int
) -> Iterator[Finding]:
    if operation.is_committed and version is None and operation.version >= first:
        yield Finding(
            code="acknowledged-lost",
            summary=f"{member} has no transaction {operation.name}, which was acknowledged",
            witness=[str(operation)],
            lost=frozenset([operation.name]),
        )
    elif operation.is_committed and version is not None and version != operation.version:
        yield Finding(
            code="version-differs",
            summary=f"{member} has {operation.name} as version {version}",
            witness=[str(operation)],
        )
    elif operation.outcome.is_aborted and version is not None:
        yield Finding(
            code="aborted-committed",
            summary=f"{member} has {operation.name}, which aborted, as version {version}",
            witness=[str(operation)],
        )


def _decided(applied: Applied) -> tuple[bytes, str, tuple[int, ...]]:
    return applied.transaction_id, applied.gtid, tuple(applied.items)


def _shown(applied: Applied) -> str:
    return f"{applied.transaction_id.hex()} as {applied.gtid}, {len(applied.items)} items"
