"""How a life of a member ends: what tells most of why, and what may fail then."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from certifier.errors import CorruptLog, DiskFull, Fenced, GroupcertError


def rank(ended: "asyncio.Future[None]") -> int:
    """What tells more of why a life ends comes first: others may have failed as a consequence."""
    error = ended.exception()
    if isinstance(error, (Fenced, CorruptLog)):
        return 0
    return 2 if isinstance(error, GroupcertError) else 1


def unless_full(write: Callable[[], None]) -> None:
    """What cannot be written any more is in the log."""
    with suppress(DiskFull):
        write()
