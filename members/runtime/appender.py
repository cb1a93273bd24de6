"""Passes certified entries to the applier.

With `binlog_commit_wait_count` it holds them back until that many have arrived or
`binlog_commit_wait_usec` is over, so that they form one group commit. A timer passes on entries
that no others joined, so none is forgotten.
"""

import asyncio
from collections.abc import Callable, Sequence

from ...applier.queue.relay_group import RelayEntry
from ..core.commit_wait import CommitWait


class Appender:
    """Passes entries from one member's state machine to its applier, on the event loop's thread."""

    def __init__(
        self,
        wait: CommitWait,
        append: Callable[[Sequence[RelayEntry]], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """Passes entries to `append`; calls `on_error` with an error raised by the timer."""
        self._wait = wait
        self._append = append
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def add(self, entries: Sequence[RelayEntry]) -> None:
        """Passes entries on, or only those before them, as `CommitWait` allows."""
        self._hand_over(self._wait.add(entries, self._now_us()))

    def close(self) -> None:
        """Passes nothing on any more."""
        self._closed = True

    def _hand_over(self, entries: Sequence[RelayEntry]) -> None:
        if entries:
            self._append(entries)
        deadline_us = self._wait.deadline_us
        if deadline_us is not None and self._timer is None:
            delay_seconds = (deadline_us - self._now_us()) / 1e6
            self._timer = self._loop.call_later(delay_seconds, self._end_wait)

    def _end_wait(self) -> None:
        """Passes on the entries whose time is up; those added after the timer was set wait on."""
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
