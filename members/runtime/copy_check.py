"""Compares the rows of a copy with those of the group, before the member that took it is ONLINE.

A donor may have rows that are not the group's: its copy is whole by every checksum, and would bring
them to one more member. So who starts on a copy has the group compare its rows once more, and takes
part without being in the view.
"""

import asyncio
import time
from collections.abc import Callable

from ...certifier.position import log_sequence_of
from ..core.member import Member
from ..core.states import MemberState
from ..settings.member import MemberConfig
from ..wire.peer_status import ask_comparison

POLL_SECONDS = 0.05
ASK_SECONDS = 1.0


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
    asked_position, asked = 0, -ASK_SECONDS
    if time.time_ns() // 1000 - compared.requested_us > period_us:
        return False
    while member.state is MemberState.RECOVERING and not trusts_group():
        others = [each.address for each in member.view.members if each.name != member.me.name]
        if not others:
            return False
        has_mine = compared.own.position == compared.position
        if has_mine and compared.is_over:
            if doubt := compared.why_doubted():
                raise doubt
            return True
        has_read = member.log_sequence >= log_sequence_of(asked_position)
        is_old = compared.position <= copied_position and not compared.waiting
        if has_read and is_old and now() - asked >= ASK_SECONDS:
            asked, asked_position = now(), await ask_comparison(others, credentials)
        waits_for = ", ".join(compared.waiting) or "its own rows"
        member.reason = f"comparing the rows of its copy with the group's: waiting for {waits_for}"
        await asyncio.sleep(POLL_SECONDS)
    return False
