"""The numbers of the batches that were read of each run, and the runs that left the view of late.

The rule it keeps: a batch counts once, because its number has to be above the last one read of its
run. A number may be above it by what can be on its way and no more: with any number allowed, one
forged batch would make all that its run sends later a repetition. Pure.
"""

from collections.abc import Iterable

NUMBERS_AHEAD_MAX = 65_536
"""How far a number may be above the last one read of its run. Numbers are left out where batches
were overtaken, and fewer than `total_order.PUBLISHING_MAX` of them are on their way."""
GONE_MAX = 64
"""Runs that left the view and are remembered: what they had on its way is late, and no news. These
two are part of what members agree on: no setting changes them."""


class BatchNumbers:
    """The numbers of all runs in the view."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._gone: list[int] = []

    def last(self, incarnation: int) -> int | None:
        """The number of the last batch that was read of a run; None: it is not in the view."""
        return self._last.get(incarnation)

    def has_left(self, incarnation: int) -> bool:
        """Whether a run was in the view until not long ago."""
        return incarnation in self._gone

    def is_repeated(self, incarnation: int, number: int) -> bool:
        """Whether a batch was read before, or overtaken."""
        return number <= self._last.get(incarnation, -1)

    def take(self, incarnation: int, number: int) -> None:
        """Notes a batch; of a run that is not in the view nothing."""
        if incarnation in self._last:
            self._last[incarnation] = number

    def change_view(self, here: Iterable[int], number: int) -> None:
        """Notes a new view of these runs; new ones have joined with the batch `number`."""
        before, self._last = self._last, {each: self._last.get(each, number) for each in here}
        gone = [*self._gone, *(each for each in before if each not in self._last)]
        self._gone = gone[-GONE_MAX:]

    def dump(self) -> list[tuple[int, int]]:
        """The last numbers, for JSON; see `restore`."""
        return list(self._last.items())

    def dump_gone(self) -> list[int]:
        """The runs that left, for JSON."""
        return list(self._gone)

    def restore(self, last: Iterable[tuple[int, int]], gone: Iterable[int]) -> None:
        """Goes on from what was dumped."""
        self._last = dict(last)
        self._gone = list(gone)
