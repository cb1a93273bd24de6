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
LOG_LEAVE_SECONDS = 2.0
"""Where that can wait, for the step of its writer that is under way."""


def rank(ended: "asyncio.Future[None]") -> int:
    """What tells more of why a life ends comes first: others may have failed as a consequence."""
    error = ended.exception()
    if isinstance(error, (Fenced, CorruptLog)):
        return 0
    return 2 if isinstance(error, GroupcertError) else 1


async def end(runtime: "MemberRuntime", *, goes_on: bool) -> None:
    """Closes a runtime. What may take long before that has a thread, and reads go on meanwhile.
    `goes_on`: another life begins with the same state, and writes what the certification log lacks.
    """
    if runtime.member.state is MemberState.ONLINE:
        runtime.stop_serving(MemberState.ERROR, "its run has ended")
    writer = runtime.history_writer
    try:
        if writer:
            await asyncio.to_thread(runtime.applier.stop, STOP_SECONDS)
            unless_full(runtime.save)
            if goes_on:
                await asyncio.to_thread(writer.leave, LOG_LEAVE_SECONDS)
            else:
                await asyncio.to_thread(writer.stop, LOG_STOP_SECONDS)
    finally:
        runtime.close()


def unless_full(write: Callable[[], None]) -> None:
    """What cannot be written any more is in the log."""
    with suppress(DiskFull):
        write()
