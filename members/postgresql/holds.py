"""Snapshots that the companion holds at its member, so that the group remembers what it has to
compare the server's transactions with.

Without them a group collects what all its members have executed, within a second or two, and each
transaction of the server that is open for longer would be too old. A snapshot that is held at
version V protects every transaction that the server began when it had V. It is given up when all
open transactions began after the server had the version of the next one.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ...certifier.errors import GroupcertError
from ..client.async_client import AsyncClient
from ..client.async_transaction import AsyncTransaction
from .database import Database
from .standing import Standing

PERIOD_SECONDS = 1.0
RENEW_SECONDS = 15.0
"""Seconds after which a held snapshot is read, so that its lease does not end."""
_ANY_KEY = b"groupcert"


@dataclass(slots=True)
class _Held:
    snapshot: AsyncTransaction
    used: float
    reached: float | None = None


class Holds:
    """The held snapshots, oldest first."""

    def __init__(
        self,
        client: AsyncClient,
        database: Database,
        standing: Standing,
        version: Callable[[], int],
    ) -> None:
        """Takes what it asks, and what it tells whether a member answers; `version` is the
        server's.
        """
        self._client = client
        self._database = database
        self._standing = standing
        self._version = version
        self._held: deque[_Held] = deque()
        self.oldest_transaction_seconds = 0.0
        """Age of the server's oldest open transaction, when it was last looked at."""

    @property
    def oldest_version(self) -> int:
        """The oldest held snapshot's version; 0: none is held."""
        return self._held[0].snapshot.snapshot_version if self._held else 0

    async def run(self) -> None:
        """Takes a snapshot each second and gives up those that nobody needs, until cancelled."""
        while True:
            try:
                await self._take()
            except GroupcertError as error:  # No member answers: nothing is certified.
                await self._standing.leave(str(error))
            else:
                await self._standing.serve()
            await self._give_up()
            await asyncio.sleep(PERIOD_SECONDS)

    async def _take(self) -> None:
        snapshot = await self._client.transaction()
        self._held.append(_Held(snapshot, asyncio.get_running_loop().time()))

    async def _give_up(self) -> None:
        now = asyncio.get_running_loop().time()
        # `now` was read before: the answer takes its time, which makes `began` too early, never too
        # late.
        self.oldest_transaction_seconds = await self._database.oldest_transaction_seconds()
        began = now - self.oldest_transaction_seconds
        for held in self._held:
            if held.reached is None and held.snapshot.snapshot_version <= self._version():
                held.reached = now
        # The newest one stays: it protects transactions that begin from now on.
        while len(self._held) > 1:
            reached = self._held[1].reached
            if reached is None or reached >= began:
                break
            with suppress(GroupcertError, ValueError):
                await self._held.popleft().snapshot.rollback()
        for held in [*self._held]:
            if now - held.used > RENEW_SECONDS:
                held.used = now
                try:
                    await held.snapshot.get(_ANY_KEY)
                except GroupcertError:
                    self._held.remove(held)
