"""Calls that wait at a member: for a version to be visible, here or everywhere, or for any news.

The rule it keeps: no call waits for what does not come. The end of a run wakes all calls, and later
ones do not wait. Versions become visible in order, so whoever waits for one that is passed is
called at once (`CommitClock`).
"""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from ...certifier.errors import NotServing
from ..core.member import Member
from ..core.views import MemberState

_OVER = (MemberState.ERROR, MemberState.FENCED, MemberState.LEFT)


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


class Waiters:
    """The waiting calls of one member; for the event loop's thread."""

    def __init__(self, member: Member, on_wait: Callable[[], None]) -> None:
        """Calls `on_wait` when a call begins to wait for a version."""
        self.waiting = 0
        """Calls that wait for a version."""
        self.visible = CommitClock()
        self.everywhere = CommitClock()
        self._member = member
        self._on_wait = on_wait
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Future[None] | None = None

    async def reached(self, clock: CommitClock, version: int) -> None:
        """Waits until a clock is at `version`.

        Raises:
            NotServing: It is not, and the member's run is over, or ended meanwhile.
        """
        if clock.version < version and self._member.state not in _OVER:
            future: asyncio.Future[None] = self._loop.create_future()
            clock.wait(version, lambda: _wake(future))
            self.waiting += 1
            self._on_wait()
            try:
                await future
            finally:
                self.waiting -= 1
        if clock.version < version:
            raise NotServing(member=self._member.me.name, state=self._member.state.name)

    async def news(self, timeout_s: float) -> None:
        """Waits until something is committed here or the member closes, at most for the time."""
        self._news = self._news or self._loop.create_future()
        await asyncio.wait((self._news,), timeout=timeout_s)

    def tell_news(self) -> None:
        """Wakes those who wait for news."""
        if self._news is not None:
            self._news.set_result(None)
            self._news = None

    def end(self) -> None:
        """Wakes those who wait for a version."""
        self.visible.end()
        self.everywhere.end()


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
