"""Waits for versions: answers to clients, and reads that ask for a state at least so new.

The rule it keeps: versions become visible in order, so a waiter for a version that is passed is
called at once. Pure.
"""

import heapq
from collections.abc import Callable
from itertools import count


class CommitClock:
    """A version that goes forward, and the callbacks to call when it reaches theirs."""

    __slots__ = ("_numbers", "_waiting", "version")

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def wait(self, version: int, done: Callable[[], None]) -> None:
        """Calls `done` once the clock is at `version`, at once if it is there; calls those of one
        version in the order they were given. Cost: O(log waiting).
        """
        if version <= self.version:
            done()
        else:
            heapq.heappush(self._waiting, (version, next(self._numbers), done))

    def advance(self, version: int) -> None:
        """Moves the clock to `version`, if that is forward."""
        if version > self.version:
            self.version = version
            while self._waiting and self._waiting[0][0] <= version:
                heapq.heappop(self._waiting)[2]()

    def end(self) -> None:
        """Calls every callback; callers look at `version` to see whether it got there."""
        waiting, self._waiting = sorted(self._waiting), []
        for _, _, done in waiting:
            done()

    def __len__(self) -> int:
        return len(self._waiting)
