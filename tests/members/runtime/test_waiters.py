"""Nobody waits at a member for what does not come."""

import asyncio
from collections.abc import Callable

import pytest

from groupcert.certifier.errors import NotServing
from groupcert.members.core.views import MemberState
from groupcert.members.runtime.answers import Answers
from tests.members.state_machines import new_member


class Driver:
    """Sends nothing; `begins_to_wait` is told of each call that waits."""

    def __init__(self, begins_to_wait: Callable[[], None] = lambda: None) -> None:
        self.begins_to_wait = begins_to_wait

    def send(self) -> None:
        """Nothing waits for the log here."""

    def sent_at(self, batch_number: int) -> float | None:
        """Nothing was sent."""


@pytest.mark.parametrize("state", [MemberState.ERROR, MemberState.FENCED, MemberState.LEFT])
async def test_who_asks_once_a_life_is_over_does_not_wait(state: MemberState) -> None:
    member = new_member()
    answers = Answers(member, Driver(), None)
    answers.visible.advance(3)
    member.fail(state, "it is over")
    async with asyncio.timeout(1):
        await answers.reached(answers.visible, 3)
        with pytest.raises(NotServing, match=f"m1 is {state.name}"):
            await answers.reached(answers.visible, 4)


async def test_who_waits_when_it_ends_is_let_go() -> None:
    member = new_member()
    answers = Answers(member, Driver(), None)
    here = asyncio.create_task(answers.reached(answers.visible, 1))
    everywhere = asyncio.create_task(answers.reached(answers.everywhere, 1))
    await asyncio.sleep(0)
    answers.visible.advance(1)
    member.fail(MemberState.ERROR, "it is over")
    answers.end_all()
    async with asyncio.timeout(1):
        await here
        with pytest.raises(NotServing):
            await everywhere


async def test_a_call_that_waits_for_a_version_is_counted_and_says_so() -> None:
    begun: list[int] = []
    answers = Answers(new_member(), Driver(lambda: begun.append(answers.waiting)), None)
    answers.visible.advance(1)
    await answers.reached(answers.visible, 1)
    assert (answers.waiting, begun) == (0, [])
    waiting = [asyncio.create_task(answers.reached(answers.visible, 2)) for _ in range(2)]
    await asyncio.sleep(0)
    assert (answers.waiting, begun) == (2, [1, 2])
    waiting[0].cancel()
    answers.visible.advance(2)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert answers.waiting == 0
