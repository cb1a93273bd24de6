"""Checks where a member begins to read its group's log, or why it cannot.

The rule it keeps: if the log ends before what the member has read, the member waits for some
seconds, because a server that was cut off knows less for a while; it reports this at once. Then it
fences itself. A log that operators have rebuilt from what members hold is gone on with.
"""

import asyncio
from contextlib import suppress

import structlog

from ...certifier.errors import (
    DigestMismatch,
    ForeignLog,
    GroupcertError,
    LogGap,
    LogRewritten,
    LogServerUnavailable,
)
from ..core.member import Member
from ..core.recovery_plan import check_not_ahead, check_start
from ..errors.membership import StillFenced
from ..errors.recovery import ExtraTransactions, LogCutShort
from ..settings.member import MemberConfig
from ..total_order.port import SHORTER_MS_MAX, LogState, TotalOrder
from .state_store import StateStore

SHORTER_POLL_SECONDS = 0.5
RECORD_BYTES_MAX = 7 << 20
"""Bytes of a transaction in the log without its fragments, at most."""
BESIDE_RECORD_BYTES = 256 << 10
"""Bytes of a message for what goes beside a transaction of the largest size."""
LOG_FENCES = tuple(
    each.reason for each in (ExtraTransactions, ForeignLog, LogCutShort, LogGap, LogRewritten)
)
"""Reasons of fences that the loss of the log brings, and that end where it is rebuilt."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


async def open_log(state_store: StateStore, order: TotalOrder, config: MemberConfig) -> LogState:
    """Opens the log, and returns its state. A member that the loss of its log has fenced opens it
    to see whether that was rebuilt.

    Raises:
        StillFenced: The member fenced itself before, and no operator has acted since.
    """
    fence = state_store.fence()
    if not fence:
        return await order.open(create=config.create_log)
    if fence.partition(":")[0] in LOG_FENCES:
        with suppress(GroupcertError):
            state = await order.open(create=False)
            if state.continues and state.continues.log == state_store.identity():
                return state
    raise StillFenced(member=config.member, explanation=fence)


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
        ForeignLog, LogRewritten: It is not the log that the member has read, nor one that was
            rebuilt from there.
        DigestMismatch: It was rebuilt from another state than the member's.
        ExtraTransactions, LogCutShort: It has lost its end.
        LogTrimmed, LogTooLong: A copy has to be put in place first.
    """
    _check_identity(member, state_store, state, config)
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


def _check_identity(
    member: Member, state_store: StateStore, state: LogState, config: MemberConfig
) -> None:
    """Lets a state that was made from the log that a rebuilt one continues go on with that.

    Raises:
        ForeignLog: The state was made from another log.
        ExtraTransactions: It has certified what the rebuilt log has not.
        DigestMismatch: It is another one where the rebuilt log begins.
        LogServerUnavailable: The log is not rebuilt to its end.
    """
    continues, saved = state.continues, state_store.identity()
    if continues is None or saved is None or saved != continues.log:
        state_store.check_identity(state.identity)
        return
    if state.last_sequence < continues.last_sequence:
        cause = (
            f"its log was rebuilt to message {state.last_sequence} of {continues.last_sequence}: "
            "`groupcert log rebuild` makes it whole"
        )
        raise LogServerUnavailable(address=", ".join(config.log_servers), cause=cause)
    check_not_ahead(member, continues.log_sequence)
    if member.log_sequence > continues.log_sequence:
        state_store.check_identity(state.identity)
    mine, theirs = member.certifier.digest().hex(), continues.digest
    if member.log_sequence == continues.log_sequence and mine != theirs:
        raise DigestMismatch(
            position=member.log_sequence, member=continues.member, mine=mine, theirs=theirs
        )
    state_store.follow(state.identity)
    log.warning("log_rebuilt", member=member.me.name, continues=str(continues.log))


def record_bytes_max(state: LogState | None = None) -> int:
    """Returns the bytes that a transaction may have in a log without its fragments; None: in any
    log.
    """
    if state is None:
        return RECORD_BYTES_MAX
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
