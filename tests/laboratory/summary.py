"""What a run was and how it went in a few lines: seed, faults, counts, the longest stall."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.laboratory.findings import Finding
from tests.laboratory.history import Fault, History, Operation, Outcome

PAUSE_MS = 500
"""A client that begins again within this time was trying all the while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run. `lost` counts acknowledged transactions, `stall_ms` is the longest time without an
    acknowledgement while somebody was trying, from `stall_at_ms` on; `decisions` were compared.
    What became of the unknown ones, the members' histories tell.
    """

    seed: int
    faults: Sequence[Fault]
    operations: int
    acknowledged: int
    unknown: int
    unknown_committed: int
    aborted: Counter[Outcome]
    lost: int
    stall_ms: int
    stall_at_ms: int
    members: Sequence[str]
    decisions: int
    findings: Counter[str]

    def __str__(self) -> str:
        faults = "; ".join(f"{what} at {at_ms} ms" for at_ms, what in self.faults)
        members = ", ".join(self.members)
        aborted = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.aborted.items()))
        findings = ", ".join(f"{count} {code}" for code, count in sorted(self.findings.items()))
        return "\n".join(
            [
                f"seed          {self.seed}",
                f"faults        {faults or 'none'}",
                f"operations    {self.operations}",
                f"acknowledged  {self.acknowledged}",
                f"unknown       {self.unknown}, {self.unknown_committed} of them committed",
                f"aborted       {aborted or 'none'}",
                f"lost          {self.lost}" + ("" if self.members else ", without a final read"),
                f"longest stall {self.stall_ms} ms from {self.stall_at_ms} ms on",
                f"members       {members or 'none'}, with {self.decisions} decisions",
                f"findings      {findings or 'none'}",
            ]
        )


def summary_of(history: History, findings: Iterable[Finding]) -> Summary:
    """Sums a run up."""
    found = list(findings)
    certified = {each.transaction_id for final in history.finals for each in final.applied}
    unknown = [each for each in history.operations if each.outcome is Outcome.UNKNOWN]
    operations = history.operations
    stall_ms, stall_at_ms = longest_stall(operations)
    return Summary(
        seed=history.seed,
        faults=history.faults,
        operations=len(operations),
        acknowledged=sum(each.is_committed for each in operations),
        unknown=len(unknown),
        unknown_committed=sum(each.transaction_id in certified for each in unknown),
        aborted=Counter(each.outcome for each in operations if each.outcome.is_aborted),
        lost=len(frozenset[str]().union(*(each.lost for each in found))),
        stall_ms=stall_ms,
        stall_at_ms=stall_at_ms,
        members=[final.member for final in history.finals],
        decisions=sum(len(final.applied) for final in history.finals),
        findings=Counter(each.code for each in found),
    )


def longest_stall(operations: Iterable[Operation]) -> tuple[int, int]:
    """The longest time without an acknowledged write while somebody was trying, and its start.

    A transaction that ended before its first write counts as an attempt: it might have become one.
    """
    attempts = sorted(
        (each.invoked_ms, each.completed_ms, each.is_committed)
        for each in operations
        if each.has_writes or not each.is_committed
    )
    acknowledged = sorted(completed for _, completed, committed in attempts if committed)
    longest = (0, 0)
    place = 0
    for begin, end in _joined((invoked, completed) for invoked, completed, _ in attempts):
        first = place
        while place < len(acknowledged) and acknowledged[place] <= end:
            place += 1
        for before, after in pairwise([begin, *acknowledged[first:place], end]):
            longest = max(longest, (after - before, before), key=lambda stall: stall[0])
    return longest


def _joined(attempts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The times in which somebody was trying, from intervals in the order of their beginnings."""
    joined: list[tuple[int, int]] = []
    for begin, end in attempts:
        if joined and begin <= joined[-1][1] + PAUSE_MS:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined
