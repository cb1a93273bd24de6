"""The versions that open transactions of a server may read, held for them at its member."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ..core.held_versions import HeldVersions
from .database import Database

HOLD_SECONDS = 1.0


class _Held(NamedTuple):
    version: int
    since: float
    release: Callable[[], None]


class Holds:
    """The versions that open transactions of a server may read, so that the group remembers what it
    has to compare them with.

    Without them a group collects what all its members have executed, within a second or two, and
    each transaction that is open for longer would be too old. A version that is held protects every
    transaction that the server began while it had that version or a later one; it is given up when
    all open transactions began after the next one was taken.
    """

    def __init__(self, held: HeldVersions, database: Database, version: Callable[[], int]) -> None:
        """Holds the server's present version; `version` returns it."""
        self._held = held
        self._database = database
        self._version = version
        self._taken: deque[_Held] = deque()
        self._take()

    async def run(self) -> None:
        """Takes a version each second and gives up those that nobody needs, until cancelled."""
        try:
            while True:
                await asyncio.sleep(HOLD_SECONDS)
                self._take()
                await self._give_up()
        finally:
            for each in self._taken:
                each.release()

    def _take(self) -> None:
        version = self._version()
        now = asyncio.get_running_loop().time()
        self._taken.append(_Held(version, now, self._held.hold(version)))

    async def _give_up(self) -> None:
        # Read before the answer comes, which makes `began` too early, never too late.
        now = asyncio.get_running_loop().time()
        began = now - await self._database.oldest_transaction_seconds()
        # The newest one stays: it protects transactions that begin from now on.
        while len(self._taken) > 1 and self._taken[1].since < began:
            self._taken.popleft().release()
