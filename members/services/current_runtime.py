"""Gives the services of a member's process its current runtime.

A process has several runtimes, one after another: after a full disk, or when it rejoins, the
services continue with the next one, and between two of them there is none. `Stopping` tells calls
that the process stops, and ends those that wait: else they would be cut off with the connection,
and their callers could not tell a planned stop from a failure.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

from ...certifier.errors import CorruptStore, NotServing
from ..core.views import MemberState
from ..runtime.observation import Observation, observe
from ..runtime.runtime import MemberRuntime

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


class CurrentRuntime:
    """Holds the member's current runtime for the services."""

    def __init__(self) -> None:
        self.runtime: MemberRuntime | None = None
        self.stopping = Stopping()

    @property
    def name(self) -> str:
        """The member's; empty before its first runtime."""
        return self.runtime.config.member if self.runtime else ""

    def get(self) -> MemberRuntime:
        """Returns the runtime for reads and writes, see `serving.py`.

        Raises:
            NotServing: There is none whose store is open, or it refuses reads.
        """
        runtime = self.operated()
        if runtime.closed or runtime.refuses_reads:
            raise NotServing(member=runtime.config.member, state=runtime.state.name)
        return runtime

    def operated(self) -> MemberRuntime:
        """Returns the runtime for its operator, open or not. Raises NotServing if there is none."""
        if self.runtime is None:
            raise NotServing(member="", state=MemberState.OFFLINE.name)
        return self.runtime

    def observed(self) -> Observation:
        """Returns an observation of the runtime; of a closed one, of its end. Raises NotServing if
        there never was one.
        """
        return observe(self.operated())

    def name_row(self, item: int, key: bytes) -> None:
        """Notes the key of a row that a client has lost over, for consoles."""
        self.operated().member.counters.conflicts.name(item, key)

    @contextmanager
    def fencing(self) -> Iterator[None]:
        """Fences the member if the block raises CorruptStore: its applier reads the same store."""
        try:
            yield
        except CorruptStore as error:
            self.operated().give_up(error)
            raise
