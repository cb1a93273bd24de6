"""Messages of the log on their way into a member's mind, and the way on where none can be read.

The rule it keeps: what is wrong with a message is nobody's request; and whether one is skipped says
the log, at the same place for every member. A member that cannot read message N looks for a record
that names N before it fences itself; one that reads N never looks. So the record is for messages
that nobody can read: where some could, they have taken what others skip, and their digests differ.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import structlog

from certifier.errors import (
    CorruptRecord,
    ForeignLog,
    InvalidRequest,
    InvalidSetting,
    LogServerUnavailable,
    NotServing,
    UnsupportedFormat,
)
from certifier.records import position_of
from members.convert import decode_batch, encode_batch, skips_in
from members.log_records import Skip
from members.member import Member
from members.member_state import Delivered, MemberState
from members.membership_errors import UnreadableMessage
from members.skipped_messages import Skipped
from members.total_order import Delivery, LogState, TotalOrder

if TYPE_CHECKING:
    from members.runtime import MemberRuntime

RETRY_SECONDS = 0.5
POLL_SECONDS = 0.01
TAKEN_SECONDS_MAX = 10.0
"""How long a record may take into the log: an election among its servers takes up to 9 s."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


def deliver_in_steps(member: Member, delivery: Delivery, into: Delivered) -> Generator[None]:
    """Has a mind take the next message of the log. Steps, and raises, as
    `Member.deliver_in_steps` does.

    Raises:
        CorruptRecord: What no rule of `members/log_validity.py` has foreseen is wrong with it.
    """
    try:
        yield from member.deliver_in_steps(delivery.sequence, decode_batch(delivery.payload), into)
    except InvalidRequest as error:  # For its caller to change; here nobody calls.
        position = position_of(delivery.sequence, 0)
        raise CorruptRecord(position=position, problem=str(error)) from error


async def deliver_readable(
    order: TotalOrder,
    member: Member,
    deliveries: Sequence[Delivery],
    deliver_all: Callable[[Sequence[Delivery]], Awaitable[None]],
) -> None:
    """Delivers messages; one that cannot be read is skipped if the log says so behind it.

    Raises UnreadableMessage: the log does not.
    """
    while deliveries:
        try:
            await deliver_all(deliveries)
            return
        except (ForeignLog, UnsupportedFormat) as error:
            sequence = member.log_sequence + 1
            if not await is_skip_ordered(order, sequence):
                raise UnreadableMessage(log_sequence=sequence, problem=str(error)) from error
            member.skip_sequence = sequence
            deliveries = [each for each in deliveries if each.sequence >= sequence]


async def is_skip_ordered(order: TotalOrder, log_sequence: int) -> bool:
    """Whether the log says, behind a message, that this is to be skipped; waits for the log.

    Cost: reads the log from there to its present end, in the pages that it comes in.
    """
    last_sequence = (await _state(order)).last_sequence
    if last_sequence == log_sequence:
        return False
    async with aclosing(order.read(log_sequence + 1)) as pages:
        async for page in pages:
            if any(log_sequence in skips_in(payload) for _, payload in page):
                return True
            if page[-1].sequence >= last_sequence:
                break
    return False


async def order_skip(runtime: "MemberRuntime", log_sequence: int) -> None:
    """Has the log say that a message is to be skipped; returns when the log has the record.

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


def tell_skipped(member: str, messages: Iterable[Skipped]) -> None:
    """Logs a line for each message that had no effect."""
    for log_sequence, why, claimed_member in messages:
        fields = {"member": member, "log_sequence": log_sequence, "why": why}
        log.warning("log_message_skipped", **fields, claimed_member=claimed_member)


async def _state(order: TotalOrder) -> LogState:
    while True:
        try:
            return await order.state()
        except LogServerUnavailable:
            await asyncio.sleep(RETRY_SECONDS)
