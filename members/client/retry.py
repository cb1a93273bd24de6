"""When `run` of a client runs its function again, and after which pause.

The rule it keeps: a transaction that lost is run again for as long as its caller has time: one of
those that meet at a row commits each time, so that none of them has reason to give up.
"""

import inspect
import time
from collections.abc import Awaitable
from typing import TypeVar

from groupcert.v1 import error_pb2

from ...certifier.errors import GroupcertError, Unavailable
from ..host.backoff import Backoff
from ..wire.statuses import advice_of

_REPEATED = (
    error_pb2.RETRY_ADVICE_BEGIN_AGAIN,
    error_pb2.RETRY_ADVICE_SAME_REQUEST,
    error_pb2.RETRY_ADVICE_OTHER_MEMBER,
)
Result = TypeVar("Result")
PAUSE_MS_FIRST = 4
CONFLICT_PAUSE_MS_MAX = 32
UNAVAILABLE_PAUSE_MS_MAX = 250


def checked_result(result: Result, function: object) -> Result:
    """Returns a function's result. Raises TypeError if nobody will await it."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(f"{_name(function)} is an async function: run it with an AsyncClient")
    return result


def checked_awaitable(result: "Awaitable[Result]", function: object) -> "Awaitable[Result]":
    """Returns an async function's result. Raises TypeError if it is none."""
    if not inspect.isawaitable(result):
        raise TypeError(f"{_name(function)} is no async function: give one, or use a Client")
    return result


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


class Retry:
    """The attempts of one `run`."""

    def __init__(self, timeout_s: float, attempts_max: int | None) -> None:
        """Allows `attempts_max` attempts, None: any number, begun within `timeout_s` seconds."""
        if attempts_max is not None and attempts_max < 1:
            raise ValueError(f"attempts_max is {attempts_max}: expected 1 or more, or None")
        self._ends = time.monotonic() + timeout_s
        self._attempts_max = attempts_max
        self._attempts = 0
        self._backoff = Backoff(first_ms=PAUSE_MS_FIRST, max_ms=UNAVAILABLE_PAUSE_MS_MAX)

    def pause_s(self, failure: GroupcertError) -> float:
        """Returns the seconds until the next attempt. Raises the failure if there is none, or if it
        would not help.
        """
        if advice_of(failure) not in _REPEATED:
            raise failure
        self._attempts += 1
        pause_s = self._backoff.next_s(
            UNAVAILABLE_PAUSE_MS_MAX if isinstance(failure, Unavailable) else CONFLICT_PAUSE_MS_MAX
        )
        if self._attempts == self._attempts_max or time.monotonic() + pause_s > self._ends:
            raise failure
        return pause_s
