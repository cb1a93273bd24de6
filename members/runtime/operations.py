"""What an operator has a member do: leave its group, or order a message skipped.

A member that just left would leave its clients with snapshots that are gone and commits that nobody
has decided. So transactions that run here may end first, then what they have handed in is decided
and answered, then its certification log is written and told of, and only then does the member
propose a view without itself. Each step has a limit: neither a client that holds a snapshot for
ever nor a log that is away keeps a member from stopping.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from ...certifier.errors import InvalidSetting, LogServerUnavailable, NotServing
from ..core.log_records import Skip
from ..core.member import Member
from ..core.views import MemberState
from ..wire.log_batches import encode_batch
from .opening import unless_full
from .runtime import MemberRuntime

RUNNING_SECONDS = 1.5
"""Seconds for transactions that have a snapshot here, or send a large commit."""
WRITING_SECONDS = 2.0
"""Seconds for the certification log to have what was decided, so that the last report covers it."""
DECIDING_SECONDS = 3.0
"""Seconds for the log to order what was handed in, and for the rows to be visible."""
POLL_SECONDS = 0.01
TAKEN_SECONDS_MAX = 10.0
"""Seconds for a record to get into the log: an election among its servers takes up to 9 s."""


async def leave(runtime: MemberRuntime, timeout_s: float) -> None:
    """Leaves the view, or does not join it, if the log takes that within `timeout_s` seconds; stops
    serving in any case.
    """
    member = runtime.member
    if member.state is MemberState.ONLINE:
        await _finish(runtime)
        await _vouch(runtime)
    member.leave()
    runtime.send()
    await _until(lambda: member.state not in (MemberState.ONLINE, MemberState.JOINING), timeout_s)
    runtime.stop_serving(MemberState.LEFT, "stopped by its operator")


async def order_skip(runtime: MemberRuntime, log_sequence: int) -> None:
    """Writes a record to the log that says to skip a message that no member can read (`groupcert
    group skip`); returns when the log has it.

    Raises:
        InvalidSetting: The member is not fenced, or has read the message.
        LogServerUnavailable: The log did not take the record in time; it may take it later.
        NotServing: The member closes.
    """
    member, order = runtime.member, runtime.order
    name, state = member.me.name, member.state
    if state is not MemberState.FENCED:
        expected = f"a member that is FENCED at the message: {name} is {state.name}"
        raise InvalidSetting(name="log_sequence", value=log_sequence, expected=expected)
    if log_sequence <= member.log_sequence:
        expected = f"a message that {name} has not read: it has read those to {member.log_sequence}"
        raise InvalidSetting(name="log_sequence", value=log_sequence, expected=expected)
    if runtime.closed:
        raise NotServing(member=name, state=state.name)
    if not runtime.log_opened:
        await order.open(create=False)
        runtime.log_opened = True
    member.publisher.control(Skip(log_sequence))
    batch = member.publisher.next_batch(is_taken=True)
    assert batch is not None, "a control record goes at once"
    order.publish(f"{batch.incarnation:016x}-{batch.batch_number}", encode_batch(batch))
    now = asyncio.get_running_loop().time
    deadline = now() + TAKEN_SECONDS_MAX
    while order.publishing():
        if now() > deadline:
            cause = order.refusal() or f"no acknowledgement in {TAKEN_SECONDS_MAX:g} s"
            raise LogServerUnavailable(address="the group's log", cause=cause)
        await asyncio.sleep(POLL_SECONDS)


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


async def _vouch(runtime: MemberRuntime) -> None:
    """Writes the certification log so far, and tells the group its chain: for what this run has not
    told, its own copy is the only witness.
    """
    writer, member = runtime.history_writer, runtime.member
    if writer is None or member.state is not MemberState.ONLINE:
        return
    unless_full(runtime.save)
    writer.hurry()
    await _until(lambda: not writer.hurries, WRITING_SECONDS)
    if member.state is MemberState.ONLINE and runtime.is_whole:
        member.report_last(runtime.durable_version)
        runtime.send()


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
