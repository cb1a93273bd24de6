"""How a life of a member ends: what tells most of why, and what may fail then."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from certifier.errors import CorruptLog, DiskFull, Fenced, GroupcertError
from members.member_state import MemberState

if TYPE_CHECKING:
    from members.runtime import MemberRuntime

STOP_SECONDS = 10.0
LOG_STOP_SECONDS = 20.0
"""For what the certification log lacks; see also the time that `deploy/compose.yaml` gives."""


def rank(ended: "asyncio.Future[None]") -> int:
    """What tells more of why a life ends comes first: others may have failed as a consequence."""
    error = ended.exception()
    if isinstance(error, (Fenced, CorruptLog)):
        return 0
    return 2 if isinstance(error, GroupcertError) else 1


async def end(runtime: "MemberRuntime") -> None:
    """Closes a runtime. What may take long before that has a thread, and reads go on meanwhile."""
    if runtime.member.state is MemberState.ONLINE:
        runtime.stop_serving(MemberState.ERROR, "its run has ended")
    writer = runtime.history_writer
    try:
        if writer:
            await asyncio.to_thread(runtime.applier.stop, STOP_SECONDS)
            unless_full(runtime.save)
            await asyncio.to_thread(writer.stop, LOG_STOP_SECONDS)
    finally:
        runtime.close()


def unless_full(write: Callable[[], None]) -> None:
    """What cannot be written any more is in the log."""
    with suppress(DiskFull):
        write()
