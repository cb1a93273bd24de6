"""The end of a runtime: chooses the error that explains it, and sets its time limit."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from ...certifier.errors import CorruptLog, DiskFull, Fenced, GroupcertError

STOP_SECONDS = 10.0
LOG_STOP_SECONDS = 20.0
"""Seconds for writing what the certification log lacks; see also the time that
`deploy/compose.yaml` gives."""


def why_ended(ends: Iterable["asyncio.Future[None]"]) -> BaseException | None:
    """Returns, of the errors of tasks that are done, the one that best explains why a run ends:
    others may be consequences of it. Returns None if no task has failed.
    """
    errors = [error for ended in ends if ended.done() and (error := ended.exception())]
    return min(errors, key=_rank, default=None)


def _rank(error: BaseException) -> int:
    if isinstance(error, (Fenced, CorruptLog)):
        return 0
    return 2 if isinstance(error, GroupcertError) else 1


def unless_full(write: Callable[[], None]) -> None:
    """Calls `write`, and ignores DiskFull: what cannot be written is in the log."""
    with suppress(DiskFull):
        write()
