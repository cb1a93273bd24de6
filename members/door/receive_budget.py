"""Limits how many messages a member receives at a time, in turns.

The rule it keeps: of a call whose turn has not come, no more is in memory than its sender may send
ahead. Callers take turns, each within its share, and a caller that sends too slowly loses its turn.
"""

import asyncio
from typing import Protocol

from groupcert.members.core.caller_shares import Shares
from groupcert.members.door.places import Places
from groupcert.members.errors.calls import RequestIncomplete

RECEIPT_MS_MAX = 20_000
"""Milliseconds; a message of 1 MiB takes so long at 52 KB/s."""


class Readable(Protocol):
    """The part of a `grpc.aio.ServicerContext` that `Receipts` needs."""

    async def read(self) -> object:
        """Returns the next message, or gRPC's mark of the end."""
        ...


class Receipts:
    """Messages that are being received."""

    def __init__(self, receipts_max: int, time_ms_max: int = RECEIPT_MS_MAX) -> None:
        self._places = Places(Shares(receipts_max))
        self._time_ms_max = time_ms_max
        self._reading: dict[asyncio.Task[object], float] = {}
        """When each began, in seconds of the loop's clock; the first one has read for longest."""
        self._late: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def receive(self, call: str, caller: str, context: Readable) -> object:
        """Returns the message of a call with one message, once it is its turn.

        Raises RequestIncomplete if it does not come in time.
        """
        await self._places.take(caller)
        task = asyncio.current_task()
        assert task is not None
        self._watch(task)
        try:
            return await context.read()
        except asyncio.CancelledError:
            if task in self._late and not task.uncancel():
                raise RequestIncomplete(call=call, time_ms=self._time_ms_max) from None
            raise
        finally:
            del self._reading[task]
            self._late.discard(task)
            self._places.give_back(caller)

    def _watch(self, task: "asyncio.Task[object]") -> None:
        """Cancels a task if its message takes too long. One timer does for all, as an
        `asyncio.timeout` for each would cost 5 % of a call.
        """
        loop = asyncio.get_running_loop()
        self._reading[task] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._time_ms_max / 1000, self._end_late)

    def _end_late(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for task, began_s in self._reading.items():
            left_s = began_s + self._time_ms_max / 1000 - loop.time()
            if left_s > 0:
                self._timer = loop.call_later(left_s, self._end_late)
                return
            if task not in self._late:
                self._late.add(task)
                task.cancel()
