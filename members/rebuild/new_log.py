"""Makes the log of a plan at its servers, in the place of what is left of the earlier one.

The rule it keeps: only a log that the members have read, one without messages, and one that an
earlier rebuilding has not ended is replaced; and only once it is known that it lacks something.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from ...applier.queue.relay_group import RelayEntry
from ...certifier.errors import InvalidSetting, LogServerUnavailable
from ...certifier.position import log_index_of, log_sequence_of, position_of
from ..core.log_records import LogBatch
from ..errors.rebuild import LogIsWhole
from ..runtime.state_store import message_hash
from ..total_order.etcd import EtcdOrder
from ..total_order.jetstream import JetStreamOrder
from ..total_order.log_options import LogOptions, make_order
from ..total_order.port import PUBLISHING_MAX, LogState
from ..wire.log_batches import decode_batch
from .holding import Holding
from .plan import Plan

POLL_SECONDS = 0.01
PUBLISH_SECONDS_MAX = 60.0
"""For all rebuilt messages: those of a fraction of a second."""


class Left(NamedTuple):
    """A log that is there. `differs_at`: the first message of it that is not what members have read
    there, or that they have not read; 0: there is none.
    """

    state: LogState
    differs_at: int


async def left_of_log(options: LogOptions, plan: Plan) -> Left | None:
    """Returns the log that a plan's one replaces; None: there is none.

    Raises:
        LogIsWhole: It has all that the members hold.
        InvalidSetting: It is another one, and has messages.
        LogServerUnavailable: No server answered within the limit.
    """
    asking = make_order(options)
    try:
        if not await asking.exists():
            return None
    finally:
        await asking.close()
    async with _opened(options) as (order, state):
        differs_at = await _differs_at(order, state, plan.base)
        _check_replaceable(state, differs_at, options, plan)
        return Left(state, differs_at)


async def make_log(options: LogOptions, plan: Plan, *, replaces: bool) -> LogState:
    """Makes the log of a plan, and returns its state once it has all of the plan's messages.

    Args:
        replaces: There is a log, which goes.

    Raises:
        LogServerUnavailable: A server did not answer, or did not do it.
    """
    if replaces:
        async with _opened(options) as (order, _):
            await order.remove()
    messages, continues = plan.tail.messages, plan.continues
    async with _opened(replace(options, continues=continues), create=True) as (order, state):
        left = deque(messages)
        deadline = time.monotonic() + PUBLISH_SECONDS_MAX
        while state.last_sequence < continues.last_sequence:
            while left and order.publishing() < PUBLISHING_MAX:
                order.publish(f"rebuilt-{len(left)}", left.popleft())
            if time.monotonic() > deadline:
                cause = f"it took {state.last_sequence - continues.log_sequence} of {len(messages)}"
                address = ", ".join(options.servers)
                raise LogServerUnavailable(address=address, cause=f"{cause} messages in time")
            await asyncio.sleep(POLL_SECONDS)
            state = await order.state()
    made = (state.first_sequence, state.last_sequence, state.continues)
    assert made == (continues.log_sequence + 1, continues.last_sequence, continues), made
    return state


async def _differs_at(order: JetStreamOrder | EtcdOrder, state: LogState, base: Holding) -> int:
    """Returns the first message of the log that the members have read that is another one than a
    member has read, or that it has not read; 0: there is none, or it is another log.

    Cost: reads the log, from the oldest transaction on that the member has whole.
    """
    if state.identity != base.log:
        return 0
    first, last = state.first_sequence, min(state.last_sequence, base.log_sequence)
    # Earlier messages were trimmed.
    entries = (each for each in base.entries() if each.position >= position_of(first, 0))
    by_message = groupby(entries, lambda each: log_sequence_of(each.position))
    log_sequence, held = next(by_message, (0, iter(())))
    if log_sequence and log_sequence <= last:
        async with aclosing(order.read(log_sequence)) as batches:
            async for sequence, payload in (each async for batch in batches for each in batch):
                if sequence > last:
                    break
                if sequence == log_sequence:
                    if not _has(payload, held):
                        return sequence
                    log_sequence, held = next(by_message, (0, iter(())))
                # A read never ends: behind the last message it would wait for the next one.
                if sequence == last or not log_sequence:
                    break
    found = await order.message(last) if last == base.log_sequence else None
    if found and base.last_message not in (b"", message_hash(found)):
        return last
    return base.log_sequence + 1 if state.last_sequence > base.log_sequence else 0


def _has(payload: bytes, held: Iterable[RelayEntry]) -> bool:
    """Returns whether a message of the log has the transactions that a member has read in it."""
    message = decode_batch(payload)
    transactions = message.transactions if isinstance(message, LogBatch) else ()
    return all(
        index < len(transactions) and transactions[index].payload == each.payload
        for each in held
        for index in [log_index_of(each.position)]
    )


def _check_replaceable(state: LogState, differs_at: int, options: LogOptions, plan: Plan) -> None:
    """Raises unless a log may be replaced; see `left_of_log`."""
    earlier, base = plan.base.log, plan.base
    is_whole = False
    if state.continues is not None and state.continues.log == earlier:
        # An earlier rebuilding has made it, and may have died before its last message was in it.
        is_whole = state.last_sequence >= state.continues.last_sequence
    elif state.identity == earlier:
        # Messages behind those that members have read do not make it another log.
        is_same = differs_at == 0 or differs_at > base.log_sequence
        is_whole = is_same and state.last_sequence >= plan.reach
    elif state.last_sequence >= state.first_sequence:
        first, last = state.first_sequence, state.last_sequence
        raise InvalidSetting(
            name="log_server",
            value=f"one with the log {state.identity}, messages {first} to {last}",
            expected=f"one with what is left of {earlier}, or without a log of the group; if "
            "nobody needs that log, remove it there",
        )
    if is_whole:
        raise LogIsWhole(
            group=options.group,
            address=", ".join(options.servers),
            log=str(state.identity),
            last_sequence=state.last_sequence,
            log_sequence=plan.reach,
        )


@asynccontextmanager
async def _opened(
    options: LogOptions, *, create: bool = False
) -> AsyncIterator[tuple[JetStreamOrder | EtcdOrder, LogState]]:
    order = make_order(options)
    try:
        yield order, await order.open(create=create)
    finally:
        await order.close()
