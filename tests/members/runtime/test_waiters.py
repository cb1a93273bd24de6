"""Nobody waits at a member for what does not come."""

import asyncio

import pytest

from groupcert.certifier.errors import NotServing
from groupcert.members.core.views import MemberState
from groupcert.members.runtime.waiters import Waiters
from tests.members.state_machines import new_member


@pytest.mark.parametrize("state", [MemberState.ERROR, MemberState.FENCED, MemberState.LEFT])
async def test_who_asks_once_a_life_is_over_does_not_wait(state: MemberState) -> None:
    member = new_member()
    waiters = Waiters(member, lambda: None)
    waiters.visible.advance(3)
    member.fail(state, "it is over")
    async with asyncio.timeout(1):
        await waiters.reached(waiters.visible, 3)
        with pytest.raises(NotServing, match=f"m1 is {state.name}"):
            await waiters.reached(waiters.visible, 4)


async def test_who_waits_when_it_ends_is_let_go() -> None:
    member = new_member()
    waiters = Waiters(member, lambda: None)
    here = asyncio.create_task(waiters.reached(waiters.visible, 1))
    everywhere = asyncio.create_task(waiters.reached(waiters.everywhere, 1))
    await asyncio.sleep(0)
    waiters.visible.advance(1)
    member.fail(MemberState.ERROR, "it is over")
    waiters.end()
    async with asyncio.timeout(1):
        await here
        with pytest.raises(NotServing):
            await everywhere


async def test_a_call_that_waits_for_a_version_is_counted_and_says_so() -> None:
    begun: list[int] = []
    waiters = Waiters(new_member(), lambda: begun.append(waiters.waiting))
    waiters.visible.advance(1)
    await waiters.reached(waiters.visible, 1)
    assert (waiters.waiting, begun) == (0, [])
    waiting = [asyncio.create_task(waiters.reached(waiters.visible, 2)) for _ in range(2)]
    await asyncio.sleep(0)
    assert (waiters.waiting, begun) == (2, [1, 2])
    waiting[0].cancel()
    waiters.visible.advance(2)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert waiters.waiting == 0
