"""Counts transactions by verdict, for the status of a member."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...certifier.records import Outcome, Verdict
from .conflict_record import ConflictRecord
from .log_records import LogBatch


def _none_yet() -> list[int]:
    return [0] * (1 + max(Verdict))


@dataclass(slots=True)
class Counters:
    """Transactions since the start, by what became of them."""

    verdicts: list[int] = field(default_factory=_none_yet)
    """Transactions by the verdict's number."""
    earlier: list[int] = field(default_factory=_none_yet)
    """Transactions of the log before those, by verdict, counted in earlier runs or at a donor."""
    local: int = 0
    repeated: int = 0
    conflicts: ConflictRecord = field(default_factory=ConflictRecord)
    """The last of those that lost, and to whom."""
    _conflicts_noted: int = 0

    def add(self, outcomes: Iterable[Outcome], *, local: bool) -> None:
        """Counts the transactions of a message; `local`: they were executed here."""
        for outcome in outcomes:
            self.verdicts[outcome.verdict] += 1
            self.local += local and outcome.version > 0

    def note_conflicts(
        self, batch: LogBatch, outcomes: Sequence[Outcome], log_sequence: int, at_us: int
    ) -> None:
        """Notes who lost in a message of the log, whose outcomes are counted. Cost: O(1) if nobody
        did.
        """
        if self.verdicts[Verdict.CONFLICT] != self._conflicts_noted:
            self._conflicts_noted = self.verdicts[Verdict.CONFLICT]
            self.conflicts.note(batch, outcomes, log_sequence, at_us)

    @property
    def log_verdicts(self) -> list[int]:
        """Transactions of the log so far, by the verdict's number: the same at every member."""
        return [here + before for here, before in zip(self.verdicts, self.earlier, strict=True)]
