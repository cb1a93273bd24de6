"""Keeps the last report of each member, and decides when this member's own is due.

The rule it keeps: a member reports at least once a period, even without news, because others notice
by its silence that it is gone; and earlier if a commit waits for its news. Pure.
"""

from collections.abc import Container, Iterable

from .log_records import StableReport


class ProgressReports:
    """The last report of each run; the versions in it never go back."""

    def __init__(self) -> None:
        self._reports: dict[int, tuple[int, int]] = {}
        self._durable: dict[int, int] = {}

    def take(self, incarnation: int, report: StableReport) -> None:
        """Notes a report; one that was overtaken changes nothing."""
        applied, stable = self.of(incarnation)
        self._reports[incarnation] = (
            max(applied, report.applied_version),
            max(stable, report.stable_version),
        )
        self._durable[incarnation] = max(self.durable(incarnation), report.durable_log_sequence)

    def of(self, incarnation: int) -> tuple[int, int]:
        """Returns the (applied, stable) versions of a run; zeros before its first report."""
        return self._reports.get(incarnation, (0, 0))

    def durable(self, incarnation: int) -> int:
        """Returns the last message of the log that a run would not read again; 0: unknown."""
        return self._durable.get(incarnation, 0)

    def smallest(self, incarnations: Iterable[int]) -> tuple[int, int]:
        """Returns the (applied, stable) versions that all of these runs have reached."""
        reports = [self.of(each) for each in incarnations]
        return min((each for each, _ in reports), default=0), min(
            (each for _, each in reports), default=0
        )

    def keep_only(self, incarnations: Container[int]) -> None:
        """Forgets all other runs."""
        for gone in [each for each in self._reports if each not in incarnations]:
            del self._reports[gone], self._durable[gone]

    def dump(self) -> list[tuple[int, int, int]]:
        """Returns (run, applied, stable) of each run, for the store."""
        return [(who, *report) for who, report in self._reports.items()]

    def restore(self, dumped: Iterable[tuple[int, int, int]]) -> None:
        """Replaces the reports by what was stored."""
        self._reports = {who: (applied, stable) for who, applied, stable in dumped}
        self._durable = dict.fromkeys(self._reports, 0)


class ReportSchedule:
    """When this member's own report is due."""

    def __init__(self, period_ms: int, items_max: int) -> None:
        """Makes a report due each `period_ms`, or after `items_max` items since the last one."""
        self._period_ms = period_ms
        self._items_max = items_max
        self._reported = (0, 0)
        self._reported_ms = 0
        self._items = 0
        self._asked_first = 0
        self._asked_last = 0

    def recorded(self, items: int) -> None:
        """Counts the write-set items of a certified transaction."""
        self._items += items

    def ask(self, version: int) -> None:
        """Makes a report due once `version` is visible here, because a commit waits for it."""
        if self._asked_first <= self._reported[0]:
            self._asked_first = version
        self._asked_last = version

    def take_due(
        self, now_ms: int, applied_version: int, stable_version: int, versions_max: int = 0
    ) -> bool:
        """Returns whether to report now; if so, begins the next period.

        Args:
            versions_max: Versions applied since the last report that make it due at once; 0: none.
        """
        news = (applied_version, stable_version)
        late = now_ms - self._reported_ms >= self._period_ms
        asked = self._reported[0] < self._asked_first <= applied_version
        progress = applied_version - self._reported[0]
        full = self._items >= self._items_max or 0 < versions_max <= progress
        if not late and (news == self._reported or not (asked or full)):
            return False
        self._reported, self._reported_ms, self._items = news, now_ms, 0
        self._asked_first = min(self._asked_last, applied_version + 1)
        return True
