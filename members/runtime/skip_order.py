"""Orders members to skip a message that none of them can read (`groupcert group skip`)."""

import asyncio

from ...certifier.errors import InvalidSetting, LogServerUnavailable, NotServing
from ..core.log_records import Skip
from ..core.views import MemberState
from ..wire.log_batches import encode_batch
from .runtime import MemberRuntime

POLL_SECONDS = 0.01
TAKEN_SECONDS_MAX = 10.0
"""Seconds for a record to get into the log: an election among its servers takes up to 9 s."""


async def order_skip(runtime: MemberRuntime, log_sequence: int) -> None:
    """Writes a record to the log that says to skip a message; returns when the log has it.

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
