"""Numbers of the batches read of each run, and the runs that left the view lately.

The rule it keeps: a batch counts once, because its number has to be above the last one read of its
run. It may be above it by at most `NUMBERS_AHEAD_MAX`, as many as can be on their way: otherwise
one forged batch with a huge number would make all that its run sends later a repetition. Pure.
"""

from collections.abc import Iterable

NUMBERS_AHEAD_MAX = 65_536
"""How far a number may be above the last one read of its run. Numbers are left out where batches
were overtaken, and fewer than `total_order.PUBLISHING_MAX` of them are on their way."""
GONE_MAX = 64
"""Runs that are remembered after they left the view: their batches still on the way are late, not
invalid. These two limits are part of what members agree on: no setting changes them."""


class BatchNumbers:
    """The numbers of all runs in the view."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._gone: list[int] = []

    def last(self, incarnation: int) -> int | None:
        """Returns the number of the last batch read of the run; None if it is not in the view."""
        return self._last.get(incarnation)

    def has_left(self, incarnation: int) -> bool:
        """Returns whether the run was in the view until lately."""
        return incarnation in self._gone

    def is_repeated(self, incarnation: int, number: int) -> bool:
        """Returns whether a batch was read before, or overtaken by a later one of its run."""
        return number <= self._last.get(incarnation, -1)

    def take(self, incarnation: int, number: int) -> None:
        """Notes that batch `number` of a run was read; ignores runs that are not in the view."""
        if incarnation in self._last:
            self._last[incarnation] = number

    def change_view(self, here: Iterable[int], number: int) -> None:
        """Notes a new view with the runs `here`; new ones have joined with the batch `number`."""
        before, self._last = self._last, {each: self._last.get(each, number) for each in here}
        gone = [*self._gone, *(each for each in before if each not in self._last)]
        self._gone = gone[-GONE_MAX:]

    def dump(self) -> list[tuple[int, int]]:
        """Returns the last numbers as JSON values; see `restore`."""
        return list(self._last.items())

    def dump_gone(self) -> list[int]:
        """Returns the runs that left as JSON values."""
        return list(self._gone)

    def restore(self, last: Iterable[tuple[int, int]], gone: Iterable[int]) -> None:
        """Replaces the numbers by those that were dumped."""
        self._last = dict(last)
        self._gone = list(gone)
