"""Decides how far the log may be trimmed, and purges it.

The rule it keeps: the log has whatever a member of the view, or the reader of an open copy, still
has to read, and beyond that what the retention limits say. A member that was away for longer copies
a donor's state. The decision is pure; the purge has a connection of its own, with the right to
purge, closed after each trim.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import structlog

from ...certifier.errors import GroupcertError
from ..core.views import MemberState, View
from ..runtime.runtime import MemberRuntime
from ..settings.member import MemberConfig
from ..total_order.log_options import LogOptions, make_order
from ..total_order.port import LogState

PERIOD_SECONDS = 10.0
FILLING_SECONDS = 1.0
"""In place of it while half of what the log may keep of its servers' room is taken: once they are
full, no member can say any more how far it is."""
TRIM_MESSAGES_MIN = 1_000
TRIM_BYTES_MIN = 8 << 20
"""A purge of fewer messages and of fewer bytes is not worth it."""
ROOM_PARTS = 2
"""Of the servers' room the log keeps one in so many parts, whatever the retention: full servers
take nothing, and one that was full takes nothing until its operator has made room."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Messages that the log keeps even if every member has read them."""

    messages: int
    bytes: int


def trim_target(
    log_state: LogState,
    durable: Iterable[int],
    reading: Iterable[int],
    retention: Retention,
    *,
    messages_min: int = TRIM_MESSAGES_MIN,
) -> int | None:
    """Returns the first message that the log has to keep; None: it is to be left as it is.

    Args:
        durable: For each member of the view the last message that it would not read again if it
            were started anew; 0: it is not known, and nothing is trimmed.
        reading: The last message that each open copy has.
        messages_min: What a purge has to drop at least, if these are not `TRIM_BYTES_MIN`.
    """
    positions = [*durable]
    if not positions:
        return None
    needed = min([*positions, *reading]) + 1
    kept = retention.messages
    messages = log_state.last_sequence - log_state.first_sequence + 1
    if messages > 0 and log_state.bytes > 0:
        bytes_kept = min(retention.bytes, log_state.bytes_max // ROOM_PARTS or retention.bytes)
        kept = min(kept, bytes_kept * messages // log_state.bytes)
    target = min(needed, log_state.last_sequence + 1 - kept)
    dropped = target - log_state.first_sequence
    is_due = dropped >= messages_min or dropped * log_state.bytes >= TRIM_BYTES_MIN * messages
    return target if dropped > 0 and is_due else None


def reported_sequence(durable: int, reading: Iterable[int]) -> int:
    """Returns the last message that a member reports it would not read again: members that trim
    learn of the copies that it gives from this alone.
    """
    return min([durable, *reading])


def trimming_options(config: MemberConfig, options: LogOptions) -> LogOptions | None:
    """Returns options of a connection that may purge the log; None: this member has none. A log
    server that is embedded in it is its own.
    """
    if config.log_trim_servers:
        return replace(options, servers=config.log_trim_servers)
    return None if config.log_servers else options


async def keep_log(
    runtime: MemberRuntime,
    options: LogOptions,
    reading: Callable[[View], Iterable[int]],
    *,
    period_seconds: float = PERIOD_SECONDS,
    filling_seconds: float = FILLING_SECONDS,
) -> None:
    """Reports what this member needs of the log no more, and trims the log where it may; runs until
    cancelled.

    Args:
        reading: The last message that each copy has that this member gave, as long as its reader
            is not in the view.
    """
    config = runtime.config
    trimming = trimming_options(config, options)
    retention = Retention(messages=config.log_retention_messages, bytes=config.log_retention_bytes)
    pause_seconds = min(period_seconds, filling_seconds)
    while True:
        await asyncio.sleep(pause_seconds)
        if runtime.member.state is not MemberState.ONLINE:
            continue
        try:
            member = runtime.member
            await runtime.flush()  # Nothing else runs before the report is lowered.
            needed = reported_sequence(member.durable_log_sequence, reading(member.view))
            member.durable_log_sequence = needed
            state = await runtime.log_state()
            is_filling = state.bytes_max and state.bytes * 2 * ROOM_PARTS > state.bytes_max
            pause_seconds = filling_seconds if is_filling else period_seconds
            if trimming is not None:
                durable = member.durable_log_sequences()
                await trim_if_due(state, trimming, durable, reading(member.view), retention)
        except GroupcertError as error:
            log.warning("log_not_trimmed", member=config.member, text=str(error))


async def trim_if_due(
    state: LogState,
    trimming: LogOptions,
    durable: Iterable[int],
    reading: Iterable[int],
    retention: Retention,
) -> int | None:
    """Trims a log that is in this state, if `trim_target` says so, and returns its new beginning.

    Raises: as `trim_log`.
    """
    target = trim_target(state, durable, reading, retention)
    if target is not None:
        await trim_log(trimming, target)
    return target


async def trim_log(options: LogOptions, sequence: int) -> None:
    """Drops every message below a sequence.

    Raises:
        LogServerUnavailable: It could not be reached.
        InvalidSetting: The stream, or the user, may not be trimmed.
    """
    order = make_order(options)
    await order.open(create=False)
    try:
        await order.trim(sequence)
        log.info("log_trimmed", first_sequence=sequence)
    finally:
        await order.close()
