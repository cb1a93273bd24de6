"""Hands what is certified to the applier, and lets it wait for company no longer than it may.

The rule it keeps: nothing that waits is forgotten; a timer lets go what nobody has joined.
"""

import asyncio
from collections.abc import Callable, Sequence

from applier.relay_queue import RelayEntry
from members.commit_wait import CommitWait


class Appender:
    """Between one member's mind and its applier; for the event loop's thread."""

    def __init__(
        self,
        wait: CommitWait,
        append: Callable[[Sequence[RelayEntry]], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """`on_error`: told what handing over has raised where no caller is there to hear it."""
        self._wait = wait
        self._append = append
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def add(self, entries: Sequence[RelayEntry]) -> None:
        """Hands over entries, or those before them, as the wait for company allows."""
        self._hand_over(self._wait.add(entries, self._now_us()))

    def close(self) -> None:
        """Hands over nothing any more."""
        self._closed = True

    def _hand_over(self, entries: Sequence[RelayEntry]) -> None:
        if entries:
            self._append(entries)
        deadline_us = self._wait.deadline_us
        if deadline_us is not None and self._timer is None:
            delay_seconds = (deadline_us - self._now_us()) / 1e6
            self._timer = self._loop.call_later(delay_seconds, self._end_wait)

    def _end_wait(self) -> None:
        """The time is up of what waited when the timer was set; what waits now may have more."""
        self._timer = None
        if self._closed:
            return
        deadline_us = self._wait.deadline_us
        due = deadline_us is not None and deadline_us <= self._now_us()
        try:
            self._hand_over(self._wait.release() if due else ())
        except Exception as error:
            self._on_error(error)

    def _now_us(self) -> int:
        return int(self._loop.time() * 1e6)
