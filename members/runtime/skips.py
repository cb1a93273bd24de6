"""Delivers messages of the log to the state machine; skips unreadable ones if the log says so.

The rule it keeps: no client is to blame for a bad message, and the log alone says whether one is
skipped, at the same position for every member. A member that cannot read message N looks for a
record that names N before it fences itself; one that reads N never looks. So the record is for
messages that no member can read: where some could, they have taken what others skip, and their
digests differ.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import structlog

from ...certifier.errors import (
    ForeignLog,
    LogServerUnavailable,
    UnsupportedFormat,
)
from ..core.member import Member
from ..errors.membership import UnreadableMessage
from ..total_order.port import Delivery, LogState, TotalOrder
from ..wire.log_batches import skips_in

RETRY_SECONDS = 0.5
log: structlog.stdlib.BoundLogger = structlog.get_logger()


async def deliver_readable(
    order: TotalOrder,
    member: Member,
    deliveries: Sequence[Delivery],
    deliver_all: Callable[[Sequence[Delivery]], Awaitable[None]],
) -> None:
    """Delivers messages; skips one that cannot be read if a later record of the log says so.

    Raises UnreadableMessage if the log has no such record.
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
    """Returns whether a later record of the log says to skip a message; waits for the log.

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


async def _state(order: TotalOrder) -> LogState:
    while True:
        try:
            return await order.state()
        except LogServerUnavailable:
            await asyncio.sleep(RETRY_SECONDS)
