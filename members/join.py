"""Has a member ask to be in the view when it is near enough to the log's end.

The rule it keeps: it asks the log for its end again and again, because the end moves; and a member
whose rows are ahead of what it has read (it was killed before it stored its mind) reads that first.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from certifier.errors import LogServerUnavailable
from certifier.gtid_set import GtidSet
from certifier.records import log_sequence_of
from members.catch_up import CatchUp
from members.config import MemberConfig
from members.member import Member
from members.member_state import MemberState
from members.recovery_errors import ExtraTransactions
from members.total_order import SHORTER_MS_MAX, LogState, TotalOrder

POLL_SECONDS = 0.05
SHORTER_POLL_SECONDS = 0.5


class Applied(NamedTuple):
    """What is visible: its GTIDs, the position of the newest of them, and how many transactions
    wait for the applier.
    """

    gtid_executed: GtidSet
    position: int
    pending: int


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


def start_joining(
    member: Member,
    order: TotalOrder,
    config: MemberConfig,
    applied: Callable[[], Applied],
    last_sequence: int,
    *,
    on_asked: Callable[[], None],
    on_error: Callable[[BaseException], None],
) -> "asyncio.Task[None]":
    """`join_when_near` as a task, for a member that begins to read the log now.

    Args:
        on_asked: The member has asked to join.
        on_error: It never will.
    """
    catch_up = CatchUp(
        first_sequence=member.log_sequence + 1,
        began_ms=int(asyncio.get_running_loop().time() * 1000),
        messages_max=config.join_lag_messages,
        transactions_max=config.join_lag_transactions,
    )

    def on_ended(joining: "asyncio.Task[None]") -> None:
        if joining.cancelled():
            return
        if error := joining.exception():
            on_error(error)
        else:
            on_asked()

    task = asyncio.create_task(join_when_near(member, order, catch_up, applied, last_sequence))
    task.add_done_callback(on_ended)
    return task


async def join_when_near(
    member: Member,
    order: TotalOrder,
    catch_up: CatchUp,
    applied: Callable[[], Applied],
    last_sequence: int,
) -> None:
    """Returns when the member has asked to join, or was told not to; its reason says meanwhile how
    far it is.

    Args:
        last_sequence: Where the log ended when it was opened.

    Raises:
        ForeignLog: It is not the log that was opened.
        ExtraTransactions: It has rows of transactions that the log has not.
    """
    now = asyncio.get_running_loop().time
    while True:
        if last_sequence - member.log_sequence <= catch_up.messages_max:
            with suppress(LogServerUnavailable):
                last_sequence = (await order.state()).last_sequence
        if member.state is not MemberState.RECOVERING:
            return
        rows = applied()
        rows_sequence = log_sequence_of(max(rows.position, 0))
        if catch_up.is_near(member.log_sequence, last_sequence, rows.pending, rows_sequence):
            break
        member.reason = catch_up.progress(
            member.log_sequence, last_sequence, rows.pending, int(now() * 1000)
        )
        await asyncio.sleep(POLL_SECONDS)
    extra = rows.gtid_executed - member.certifier.executed()
    if extra:
        raise ExtraTransactions(member=member.me.name, lacking="the log", extra=str(extra))
    member.caught_up()
