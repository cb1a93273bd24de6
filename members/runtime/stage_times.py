"""Measures how long a member's own commits take: each stage, and all of it by outcome."""

from collections.abc import Iterable

from ...certifier.records import Outcome, Verdict
from ..host.histogram import Histogram

STAGES = ("queued", "ordered", "committed")
"""Taken but not sent; sent but not read back; read back but not visible yet."""


class StageTimes:
    """Seconds since the start of the run: of submissions in each stage, and of transactions from
    the call to the answer by verdict; and of every member's transactions, `applied`, from the time
    that they are read from the log until they are visible here.
    """

    __slots__ = ("applied", "stages", "verdicts")

    def __init__(self) -> None:
        self.stages = {stage: Histogram() for stage in STAGES}
        self.verdicts = {verdict: Histogram() for verdict in Verdict}
        self.applied = Histogram()

    def add(self, stage: str, seconds: float) -> None:
        """Counts one submission's time in a stage."""
        self.stages[stage].add(seconds)

    def end(self, outcomes: Iterable[Outcome | None], seconds: float) -> None:
        """Counts the time that a submission took as that of each of its transactions."""
        for outcome in outcomes:
            assert outcome is not None, "a submission ended undecided"
            self.verdicts[outcome.verdict].add(seconds)
