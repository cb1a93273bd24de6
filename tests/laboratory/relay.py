"""Checks how each member applied what it had certified: once, all of it, in order, one by one.

Whatever ran beside what it depends on is what `members.demo.checks` finds.
"""

from collections.abc import Iterator

from groupcert.members.demo.group_checks import Applied, overlap_problems
from tests.laboratory.findings import Finding
from tests.laboratory.history import FinalState, History


def check_relay(history: History) -> Iterator[Finding]:
    """Nothing was applied twice or skipped, and no two dependent transactions ran at once."""
    for final in history.finals:
        yield from _once(final)
        newest_writer: dict[int, Applied] = {}
        for applied in final.applied:
            for problem in overlap_problems(applied, newest_writer):
                code = "relay-skipped" if not applied.committed_tick else "relay-overlap"
                yield Finding(code=code, summary=f"{final.member}: {problem}")


def _once(final: FinalState) -> Iterator[Finding]:
    """Each version is there once, and its commit is not before that of the version before it."""
    newest: Applied | None = None
    seen = set()
    for applied in final.applied:
        if applied.version in seen:
            yield Finding(
                code="relay-twice",
                summary=f"{final.member} applied version {applied.version} twice",
            )
        elif newest is not None and 0 < applied.committed_tick < newest.committed_tick:
            yield Finding(
                code="relay-order",
                summary=f"{final.member} committed version {applied.version} at tick "
                f"{applied.committed_tick}, before version {newest.version} at "
                f"{newest.committed_tick}",
            )
        seen.add(applied.version)
        newest = applied
