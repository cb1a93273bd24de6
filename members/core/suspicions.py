"""Measures how long members are silent, by a clock that runs only while the log answers.

The rule it keeps: a member's silence is measured between messages of our own that went through the
log. So no member is suspected because the log was away, or because this process was: neither an
election among log servers nor a process that stood still makes others look dead. Pure.
"""

from collections.abc import Container, Iterable

from .views import ViewMember

SILENT_MS_MIN = 2_500
"""Milliseconds; a shorter silence is not reported, however often a member has to report."""


class Suspicions:
    """The silence of each run of a member, measured while our own messages went through."""

    def __init__(self, gap_ms_max: int) -> None:
        """Counts a gap between two of our messages as at most `gap_ms_max`."""
        self._gap_ms_max = gap_ms_max
        self._silent_ms_min = max(SILENT_MS_MIN, gap_ms_max * 5 // 4)
        self._clock_ms = 0
        self._own_ms: int | None = None
        self._heard_ms: dict[int, int] = {}

    def heard(self, incarnation: int) -> None:
        """Notes that a message of that run was delivered."""
        self._heard_ms[incarnation] = self._clock_ms

    def heard_own(self, now_ms: int) -> None:
        """Notes that a message of our own was delivered: others could have sent one, too."""
        if self._own_ms is not None:
            self._clock_ms += min(now_ms - self._own_ms, self._gap_ms_max)
        self._own_ms = now_ms

    def silent_ms(self, incarnation: int) -> int:
        """Returns the milliseconds in which nothing came from a run; 0 if it is not watched."""
        return self._clock_ms - self._heard_ms.get(incarnation, self._clock_ms)

    def overdue_ms(self, incarnation: int) -> int:
        """Returns `silent_ms` if it is so long that an operator should know, long before an
        expulsion; else 0.
        """
        silent_ms = self.silent_ms(incarnation)
        return silent_ms if silent_ms >= self._silent_ms_min else 0

    def keep_only(self, incarnations: Container[int]) -> None:
        """Forgets all other runs."""
        for gone in [each for each in self._heard_ms if each not in incarnations]:
            del self._heard_ms[gone]

    def heard_of(
        self, members: Iterable[ViewMember], me: ViewMember, limit_ms: int
    ) -> list[ViewMember]:
        """Returns the members that were not silent for `limit_ms`, and `me`."""
        return [
            each for each in members if self.silent_ms(each.incarnation) < limit_ms or each == me
        ]
