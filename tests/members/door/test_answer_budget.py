"""The budget of unsent answers: what a call counts in it, and when it waits."""

import asyncio

from groupcert.members.door.answer_budget import (
    PAGE_BYTES,
    SMALL_BYTES,
    AnswerBudget,
    Unsent,
    answering,
)


async def test_a_read_waits_until_its_caller_has_room_for_a_page() -> None:
    budget = AnswerBudget(4 * PAGE_BYTES)
    one, two, third = (Unsent(budget.places, "one") for _ in range(3))
    await one.room()
    await two.room()
    waiting = asyncio.create_task(third.room())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    one.settle(3 * SMALL_BYTES)
    assert budget.bytes == PAGE_BYTES + 3 * SMALL_BYTES
    one.settle(0)
    await waiting
    assert budget.bytes == 2 * PAGE_BYTES
    await two.another().room(SMALL_BYTES)  # It needs none.


async def test_what_is_larger_than_the_budget_is_read_alone() -> None:
    budget = AnswerBudget(2 * PAGE_BYTES)
    large, other = Unsent(budget.places, "one"), Unsent(budget.places, "two")
    await large.room(32 * PAGE_BYTES)
    assert budget.bytes > budget.bytes_max
    waiting = asyncio.create_task(other.room())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    large.settle(SMALL_BYTES)
    await waiting
    assert (large.bytes, other.bytes, budget.bytes) == (0, PAGE_BYTES, PAGE_BYTES)


async def test_room_that_is_asked_for_again_takes_the_place_of_what_there_was() -> None:
    budget = AnswerBudget(2 * PAGE_BYTES)
    unsent = Unsent(budget.places, "one")
    await unsent.room()
    await unsent.room(3 * PAGE_BYTES)
    assert (unsent.bytes, budget.bytes) == (3 * PAGE_BYTES, 3 * PAGE_BYTES)
    unsent.settle(0)
    budget.places.shares.check_invariants()


async def test_outside_of_a_call_there_is_no_limit() -> None:
    await answering().room(1 << 40)
    await answering().room(1 << 40)
    assert answering().bytes == 0
