"""Places that calls wait for: who asks for much waits in its own turn, and holds up nobody else."""

import asyncio

from groupcert.members.core.caller_shares import Shares
from groupcert.members.door.call_places import Places


async def settled(*tasks: "asyncio.Task[None]") -> str:
    """Which of the tasks have their places, as a text of x and dot."""
    for _ in range(10):
        await asyncio.sleep(0)
    return "".join("x" if task.done() else "." for task in tasks)


def take(places: Places, caller: str, count: int) -> "asyncio.Task[None]":
    return asyncio.create_task(places.take(caller, count))


async def test_a_caller_waits_for_the_places_that_it_asks_for() -> None:
    places = Places(Shares(64))
    one = [take(places, "one", count) for count in (20, 20, 1)]
    other = take(places, "two", 22)
    assert await settled(*one, other) == "x..x"
    places.give_back("two", 22)
    assert await settled(*one) == "x.."  # 40 would be more than is left free.
    places.give_back("one", 20)
    assert await settled(*one) == "xxx"


async def test_a_newcomer_gets_more_than_is_free_and_then_nobody_gets_any() -> None:
    places = Places(Shares(64, newcomer=4))
    one, large = take(places, "one", 32), take(places, "two", 100)
    assert await settled(one, large) == "xx"
    last = take(places, "three", 1)
    assert await settled(last) == "."
    places.give_back("two", 100)
    assert await settled(last) == "x"
    places.shares.check_invariants()


async def test_who_ends_its_wait_leaves_its_turn_to_the_next() -> None:
    places = Places(Shares(4))
    first, second, third = (take(places, "one", count) for count in (2, 2, 1))
    assert await settled(first, second, third) == "x.."
    second.cancel()
    await settled(second)
    places.give_back("one", 1)
    assert await settled(first, third) == "xx"


async def test_a_place_is_held_for_a_block() -> None:
    places = Places(Shares(1))
    async with places.held("one"):
        waiting = take(places, "two", 1)
        assert await settled(waiting) == "."
    assert await settled(waiting) == "x"
