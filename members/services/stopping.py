"""Tells the calls of a process that it stops, and ends those that wait.

Without it they would be cut off with the connection, and their callers could not tell a planned
stop from a failure.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Literal, TypeVar

from ...certifier.errors import NotServing

Found = TypeVar("Found")


class Stopping:
    """The stop of one process; for the event loop's thread."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()
        self._ended = asyncio.Event()
        self._waits: set[asyncio.Timeout] = set()

    def begin(self) -> None:
        """Begins the stop: waiting calls end."""
        self._begun.set()
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            wait.reschedule(now)

    def end(self) -> None:
        """Ends the sessions: all that ran is over, and nothing more is taken."""
        self._ended.set()

    async def ended(self) -> None:
        """Waits until all that ran is over."""
        await self._ended.wait()

    async def begun(self) -> Literal[True]:
        """Waits until the stop begins."""
        return await self._begun.wait()

    def check(self, member: str) -> None:
        """Raises NotServing once the stop has begun; nothing was ordered."""
        if self._begun.is_set():
            raise NotServing(member=member, state="STOPPING", ordered="nothing")

    async def unless(self, waiting: Awaitable[Found], member: str) -> Found:
        """Returns the result of `waiting`. Raises as `check`, also while it waits."""
        wait = asyncio.timeout(0 if self._begun.is_set() else None)
        try:
            async with wait:
                self._waits.add(wait)
                return await waiting
        except TimeoutError:
            self.check(member)
            raise
        finally:
            self._waits.discard(wait)

    async def received(self, requests: AsyncIterator[Found], member: str) -> AsyncIterator[Found]:
        """Yields the requests of a caller. Raises as `check` while it waits for the next one."""
        while (request := await self.unless(anext(requests, None), member)) is not None:
            yield request
