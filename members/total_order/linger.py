"""Lets messages of the log wait for the ones behind them, so that a member takes several in a turn.

A turn costs a member much the same for one message as for three, and most messages come from others
and answer nobody here. Where three members share two processors, their clients' longest waits are a
third shorter with it (`tests/bench/results/commit-path.json`).

The rule it keeps: a message that somebody waits for ends the wait of all before it.
"""

import asyncio
from collections.abc import Callable

HELD_MAX = 8
"""Messages that wait; the next one ends it: one that catches up is not held up."""


def _always(_payload: bytes) -> bool:
    return True


class Linger:
    """The wait of one reader of the log; for the event loop's thread."""

    def __init__(self, linger_ms: int = 0, is_urgent: Callable[[bytes], bool] = _always) -> None:
        """Lets a message for which `is_urgent(payload)` is false wait up to `linger_ms`."""
        self._seconds = linger_ms / 1000
        self._is_urgent = is_urgent
        self._held = 0
        self._over = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def arrived(self, payload: bytes) -> None:
        """Takes note of a message; an adapter calls it for each one."""
        if self._over.is_set():
            return
        self._held += 1
        if self._held > HELD_MAX or self._is_urgent(payload):
            self.end()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self.end)

    def end(self) -> None:
        """Ends the wait: somebody waits for what may have arrived, or the reader has to act."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held = 0
        self._over.set()

    async def wait(self) -> None:
        """Returns at the end of the wait, for an adapter, and begins the next one. Messages may
        have arrived or not.
        """
        await self._over.wait()
        self._over.clear()
