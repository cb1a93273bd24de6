"""Gives places to calls, in turns of their callers: those that a caller cannot have yet wait.

The rule it keeps: callers take turns, each within its share, so that one that asks for much makes
nobody else wait for longer than a turn.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..core.caller_shares import Shares


class Places:
    """The places that calls hold, and the calls that wait for some."""

    def __init__(self, shares: Shares) -> None:
        self.shares = shares
        self._waiting: OrderedDict[str, OrderedDict[asyncio.Future[None], int]] = OrderedDict()
        """Waiting calls by caller, the next caller first; of each one in their order, with the
        number of places."""

    async def take(self, caller: str, places: int = 1) -> None:
        """Returns once the caller has so many more places."""
        if self._waiting or not self.shares.take(caller, places):
            await self._turn(caller, places)

    def give_back(self, caller: str, places: int = 1) -> None:
        """Takes back some of the caller's places, and gives them to who waits."""
        self.shares.give_back(caller, places)
        if self._waiting:
            self._grant()

    @asynccontextmanager
    async def held(self, caller: str) -> AsyncIterator[None]:
        """Gives the caller a place for as long as the block lasts."""
        await self.take(caller)
        try:
            yield
        finally:
            self.give_back(caller)

    async def _turn(self, caller: str, places: int) -> None:
        """Waits until the caller has so many more places."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, OrderedDict())[turn] = places
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(caller, turn)
            else:
                self.give_back(caller, places)
            raise

    def _grant(self) -> None:
        """Gives free places to waiting calls. Cost: O(callers), as some may be skipped."""
        while True:
            caller = next((each for each in self._waiting if self._may_take(each)), None)
            if caller is None:
                return
            turns = self._waiting.pop(caller)
            turn, places = turns.popitem(last=False)
            if turns:
                self._waiting[caller] = turns  # Behind the others in turn.
            if turn.cancelled():  # Its call has ended, and has not left yet.
                self.shares.give_back(caller, places)
            else:
                turn.set_result(None)

    def _may_take(self, caller: str) -> bool:
        return self.shares.take(caller, next(iter(self._waiting[caller].values())))

    def _forget(self, caller: str, turn: "asyncio.Future[None]") -> None:
        turns = self._waiting.get(caller)
        if turns is not None:
            turns.pop(turn, None)
            if not turns:
                del self._waiting[caller]
