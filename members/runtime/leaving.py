"""Leaves the group on purpose, in steps, so that clients do not notice.

A member that just left would leave its clients with snapshots that are gone and commits that nobody
has decided. So transactions that run here may end first, then what they have handed in is decided
and answered, and only then does the member propose a view without itself. Each step has a limit:
neither a client that holds a snapshot for ever nor a log that is away keeps a member from stopping.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from ..core.member import Member
from ..core.views import MemberState
from .runtime import MemberRuntime

RUNNING_SECONDS = 1.5
"""Seconds for transactions that have a snapshot here, or send a large commit."""
DECIDING_SECONDS = 3.0
"""Seconds for the log to order what was handed in, and for the rows to be visible."""
POLL_SECONDS = 0.01


async def leave(runtime: MemberRuntime, timeout_s: float) -> None:
    """Leaves the view, or does not join it, if the log takes that within `timeout_s` seconds; stops
    serving in any case.
    """
    member = runtime.member
    if member.state is MemberState.ONLINE:
        await _finish(runtime)
    member.leave()
    runtime.send()
    await _until(lambda: member.state not in (MemberState.ONLINE, MemberState.JOINING), timeout_s)
    runtime.stop_serving(MemberState.LEFT, "stopped by its operator")


async def _finish(runtime: MemberRuntime) -> None:
    """Waits until running transactions end, refuses clients, and waits until all is decided."""
    member = runtime.member

    def is_over() -> bool:
        return member.state is not MemberState.ONLINE

    _hand_over(member)
    runtime.send()
    await _until(
        lambda: is_over() or not (len(runtime.snapshots) or runtime.uploads.count), RUNNING_SECONDS
    )
    member.publisher.turn_away()
    runtime.send()
    began = time.monotonic()
    await _until(lambda: is_over() or not member.publisher.undecided, DECIDING_SECONDS)
    version = member.certifier.window.newest_version
    left_s = DECIDING_SECONDS - (time.monotonic() - began)
    await _until(lambda: is_over() or runtime.committed_version >= version, left_s)


def _hand_over(member: Member) -> None:
    """Appoints the primary that would be elected next, if this member is the primary: its clients
    need not wait until the view has changed.
    """
    view = member.view
    rest = replace(view, members=view.without_member(member.me.name))
    if member.settings.single_primary and view.primary == member.me.name and rest.members:
        member.appoint(rest.with_primary("").primary)


async def _until(happened: Callable[[], bool], limit_s: float) -> None:
    """Returns once `happened` returns True, or after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not happened():
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(POLL_SECONDS)
