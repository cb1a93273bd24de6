"""Proposes a view with this member once it is near the log's end, and sure that the log is whole.

The rule it keeps: it asks the log for its end again and again, because the end moves; a member
whose rows are ahead of what it has read (it was killed before it stored its state) reads up to
these first; and it trusts the log when other members have said how far they have read
(`witnesses.py`).

A donor may have rows that are not the group's: its copy is whole by every checksum, and would bring
them to one more member. So who starts on a copy has the group compare its rows once more, and takes
part without being in the view (`check_copy`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import structlog

from ...certifier.errors import LogServerUnavailable
from ...certifier.gtid_set import GtidSet
from ...certifier.position import log_sequence_of
from ..core.catch_up import CatchUp
from ..core.member import Member
from ..core.views import MemberState
from ..core.witnesses import Step, Witnesses
from ..errors.recovery import ExtraTransactions
from ..settings.member import MemberConfig
from ..total_order.port import LogState, TotalOrder
from ..wire.peer_status import ask_comparison, ask_progress

POLL_SECONDS = 0.05
ASK_SECONDS = 0.5
"""Seconds between two rounds of questions to other members."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()
COMPARISON_SECONDS = 1.0
"""Seconds between two requests for a comparison."""


async def check_copy(
    member: Member, config: MemberConfig, copied_position: int, trusts_group: Callable[[], bool]
) -> bool:
    """Returns True once the member's rows are those of the group; False where that is not found
    out: the group has not compared its rows within the period, has no other members, or the member
    is asked not to join, or not to wait.

    Args:
        copied_position: Up to where the rows were executed when they were copied.

    Raises:
        RowsDiffer: They are not; the copy is of no use.
    """
    compared, period_us = member.comparisons, config.compare_period_s * 1_000_000
    credentials, now = config.credentials(), asyncio.get_running_loop().time
    asked_position, asked = 0, -COMPARISON_SECONDS
    if time.time_ns() // 1000 - compared.requested_us > period_us:
        return False
    while member.state is MemberState.RECOVERING and not trusts_group():
        others = [
            each.address
            for each in member.view.members
            if each.name != member.me.name and not each.without_rows
        ]
        if not others:
            return False
        has_mine = compared.own.position == compared.position
        if has_mine and compared.is_over:
            if doubt := compared.why_doubted():
                raise doubt
            return True
        has_read = member.log_sequence >= log_sequence_of(asked_position)
        is_old = compared.position <= copied_position and not compared.waiting
        if has_read and is_old and now() - asked >= COMPARISON_SECONDS:
            asked, asked_position = now(), await ask_comparison(others, credentials)
        waits_for = ", ".join(compared.waiting) or "its own rows"
        member.reason = f"comparing the rows of its copy with the group's: waiting for {waits_for}"
        await asyncio.sleep(POLL_SECONDS)
    return False


class Applied(NamedTuple):
    """The visible state: its GTIDs, the position of the newest of them, and how many transactions
    wait for the applier.
    """

    gtid_executed: GtidSet
    position: int
    pending: int


def start_joining(
    member: Member,
    order: TotalOrder,
    config: MemberConfig,
    applied: Callable[[], Applied],
    state: LogState,
    trusts_log: Callable[[], bool],
    check_copy: Callable[[], Awaitable[None]],
    *,
    on_asked: Callable[[], None],
    on_error: Callable[[BaseException], None],
) -> "asyncio.Task[None]":
    """Starts a task in which a member that begins to read the log now joins in time.

    Args:
        state: The log's when it was opened.
        trusts_log: Whether an operator says that the log is whole.
        check_copy: Returns once the rows are the group's, if they are another member's.
        on_asked: The member has asked to join.
        on_error: It never will.
    """
    now = asyncio.get_running_loop().time
    catch_up = CatchUp(first_sequence=member.log_sequence + 1, began_ms=int(now() * 1000))

    async def join() -> None:
        await check_copy()
        await come_near(member, order, catch_up, applied, state.last_sequence)
        witnesses = Witnesses(member.me, config.group, state, int(now() * 1000))
        await be_sure(member, order, witnesses, config, trusts_log)
        member.caught_up()

    def on_ended(joining: "asyncio.Task[None]") -> None:
        if joining.cancelled():
            return
        if error := joining.exception():
            on_error(error)
        else:
            on_asked()

    task = asyncio.create_task(join())
    task.add_done_callback(on_ended)
    return task


async def come_near(
    member: Member,
    order: TotalOrder,
    catch_up: CatchUp,
    applied: Callable[[], Applied],
    last_sequence: int,
) -> None:
    """Waits until the member is near the end of the log, or was asked not to join; sets its reason
    to how far it is meanwhile.

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


async def be_sure(
    member: Member,
    order: TotalOrder,
    witnesses: Witnesses,
    config: MemberConfig,
    trusts_log: Callable[[], bool],
) -> None:
    """Waits until the log can be trusted, or the member was asked not to join; sets its reason to
    the members it waits for meanwhile.

    Raises:
        ForeignLog, LogCutShort, DigestMismatch: Members of the group have read something else.
    """
    now, credentials = asyncio.get_running_loop().time, config.credentials()
    asked = told = False
    while member.state is MemberState.RECOVERING and not trusts_log():
        step, reason = witnesses.judge(
            member.view,
            last_sequence=await _last_sequence(order),
            log_sequence=member.log_sequence,
            digest_at=member.digests.find,
            now_ms=int(now() * 1000),
        )
        if step is Step.JOIN and asked:
            return
        if step is Step.READ or asked:
            member.reason = reason
        if step is Step.READ:
            await asyncio.sleep(POLL_SECONDS)
            continue
        if asked and not told:
            log.warning("waits_for_witnesses", member=member.me.name, reason=reason)
            told = True
        await asyncio.sleep(ASK_SECONDS if asked else 0)
        for answer in await ask_progress(
            witnesses.addresses(member.view, config.seeds), credentials
        ):
            witnesses.note(*answer)
        asked = True
    if trusts_log():
        log.warning("log_trusted", member=member.me.name, log_sequence=member.log_sequence)


async def _last_sequence(order: TotalOrder) -> int | None:
    with suppress(LogServerUnavailable):
        return (await order.state()).last_sequence
    return None
