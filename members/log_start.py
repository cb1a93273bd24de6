"""Where a member begins to read its group's log, or why it cannot.

The rule it keeps: a log that ends before what the member has read of it is waited for a little, as
a server that was cut off knows less for a while, and the member says so from the first moment; then
it fences itself.
"""

import asyncio

import structlog

from certifier.errors import LogServerUnavailable
from members.config import MemberConfig
from members.member import Member
from members.mind_store import MindStore
from members.recovery_choice import check_not_ahead, check_start
from members.recovery_errors import LogCutShort
from members.total_order import SHORTER_MS_MAX, LogState, TotalOrder

SHORTER_POLL_SECONDS = 0.5
log: structlog.stdlib.BoundLogger = structlog.get_logger()


async def check_log(
    member: Member, minds: MindStore, order: TotalOrder, state: LogState, config: MemberConfig
) -> LogState:
    """The log's state, once the member may read on after its last message.

    Raises:
        ForeignLog, LogRewritten: It is not the log that the member has read.
        ExtraTransactions, LogCutShort: It has lost its end.
        LogTrimmed, LogTooLong: A copy has to be put in place first.
    """
    minds.check_identity(state.identity)
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
        minds.check_last(await order.message(read))
    reason = check_start(state, read, config)
    log.info("recovery_by_log", member=config.member, reason=reason)
    if state.durable is not True:
        log.warning("log_not_known_durable", member=config.member, durable=state.durable)
    return state


async def state_that_reaches(order: TotalOrder, state: LogState, log_sequence: int) -> LogState:
    """The log's state once it reaches a message; as it is, if it does not for some seconds: a log
    server that was cut off knows less than the others until it has heard of them.

    Raises:
        ForeignLog: It is not the log that was opened.
    """
    now = asyncio.get_running_loop().time
    deadline = now() + SHORTER_MS_MAX / 1000
    while state.last_sequence < log_sequence and now() < deadline:
        await asyncio.sleep(SHORTER_POLL_SECONDS)
        try:
            state = await order.state()
        except LogServerUnavailable:  # Perhaps it has just noticed; who answers next is believed.
            deadline = now() + SHORTER_MS_MAX / 1000
    return state
