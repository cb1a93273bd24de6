"""Logs a line for each call that is refused, up to a limit.

The rule it keeps: a caller that may call nothing may not fill the log either.
"""

import time
from collections.abc import Callable

import structlog

from ...certifier.errors import GroupcertError

LINES_A_SECOND_MAX = 10
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class RefusalLog:
    """Logs such lines; the first one after some that were left out says how many."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def note(self, call: str, peer: str, error: GroupcertError) -> None:
        """Logs who was refused what."""
        second = int(self._clock_s())
        if second != self._second:
            self._second, self._lines = second, 0
        if self._lines == LINES_A_SECOND_MAX:
            self._left_out += 1
            return
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        text, fields = str(error), {"left_out": left_out} if left_out else {}
        log.warning("call_refused", call=call, peer=peer, text=text, **fields)
