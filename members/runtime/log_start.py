"""Checks where a member begins to read its group's log, or why it cannot.

The rule it keeps: if the log ends before what the member has read, the member waits for some
seconds, because a server that was cut off knows less for a while; it reports this at once. Then it
fences itself.
"""

import asyncio

import structlog

from groupcert.certifier.errors import LogServerUnavailable
from groupcert.members.core.member import Member
from groupcert.members.core.recovery_plan import check_not_ahead, check_start
from groupcert.members.errors.recovery import LogCutShort
from groupcert.members.runtime.state_store import StateStore
from groupcert.members.settings.member import MemberConfig
from groupcert.members.total_order.port import SHORTER_MS_MAX, LogState, TotalOrder

SHORTER_POLL_SECONDS = 0.5
RECORD_BYTES_MAX = 7 << 20
"""Bytes of a transaction in the log without its fragments, at most."""
BESIDE_RECORD_BYTES = 256 << 10
"""Bytes of a message for what goes beside a transaction of the largest size."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


async def check_log(
    member: Member,
    state_store: StateStore,
    order: TotalOrder,
    state: LogState,
    config: MemberConfig,
    *,
    reads_long_log: bool = False,
) -> LogState:
    """Returns the log's state, once the member may read on after its last message.

    Raises:
        ForeignLog, LogRewritten: It is not the log that the member has read.
        ExtraTransactions, LogCutShort: It has lost its end.
        LogTrimmed, LogTooLong: A copy has to be put in place first.
    """
    state_store.check_identity(state.identity)
    read = member.log_sequence
    if state.last_sequence < read:
        short = LogCutShort(
            last_sequence=state.last_sequence, member=config.member, log_sequence=read
        )
        log.warning("log_cut_short", member=config.member, text=str(short))
        reading, member.reason = member.reason, str(short)
        state = await state_that_reaches(order, state, read)
        check_not_ahead(member, state.last_sequence)
        if state.last_sequence < read:
            raise short
        member.reason = reading
    if read:
        state_store.check_last(await order.message(read))
    reason = check_start(
        state,
        read,
        messages_max=0 if reads_long_log else config.recovery_log_messages_max,
        knows_members=bool(config.seeds),
    )
    log.info("recovery_by_log", member=config.member, reason=reason)
    if state.durable is not True:
        log.warning("log_not_known_durable", member=config.member, durable=state.durable)
    return state


def record_bytes_max(state: LogState) -> int:
    """Returns the bytes that a transaction may have in this log without its fragments."""
    return min(RECORD_BYTES_MAX, state.message_bytes_max - BESIDE_RECORD_BYTES)


async def state_that_reaches(order: TotalOrder, state: LogState, log_sequence: int) -> LogState:
    """Returns the log's state once it reaches message `log_sequence`; after some seconds, the state
    as it is: a log server that was cut off knows less until it has heard from the others.

    Raises:
        ForeignLog: It is not the log that was opened.
    """
    now = asyncio.get_running_loop().time
    deadline = now() + SHORTER_MS_MAX / 1000
    while state.last_sequence < log_sequence and now() < deadline:
        await asyncio.sleep(SHORTER_POLL_SECONDS)
        try:
            state = await order.state()
        except LogServerUnavailable:  # Perhaps it has just noticed; the next answer counts.
            deadline = now() + SHORTER_MS_MAX / 1000
    return state
