"""Messages wait for the ones behind them, and never for long once somebody waits for them."""

import asyncio

from groupcert.members.total_order.linger import HELD_MAX, Linger

NEVER_MS = 3_600_000


def urgent(payload: bytes) -> bool:
    return payload == b"urgent"


async def is_over(linger: Linger) -> bool:
    """Returns whether the wait has ended; one that has ended is taken."""
    waiting = asyncio.create_task(linger.wait())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return not waiting.cancelled()


async def test_without_a_wish_no_message_waits() -> None:
    linger = Linger()
    linger.arrived(b"any")
    assert await is_over(linger)
    assert not await is_over(linger)


async def test_an_urgent_message_ends_the_wait_of_those_before_it() -> None:
    linger = Linger(NEVER_MS, urgent)
    linger.arrived(b"first")
    linger.arrived(b"second")
    assert not await is_over(linger)
    linger.arrived(b"urgent")
    assert await is_over(linger)
    linger.arrived(b"next")
    assert not await is_over(linger)


async def test_who_begins_to_wait_ends_it() -> None:
    linger = Linger(NEVER_MS, urgent)
    linger.arrived(b"first")
    linger.end()
    assert await is_over(linger)
    linger.end()
    assert await is_over(linger), "for what arrives before the reader looks"


async def test_many_messages_do_not_wait() -> None:
    linger = Linger(NEVER_MS, urgent)
    for _ in range(HELD_MAX):
        linger.arrived(b"one")
    assert not await is_over(linger)
    linger.arrived(b"one more")
    assert await is_over(linger)
    linger.arrived(b"one")
    assert not await is_over(linger), "they are counted anew"


async def test_the_time_ends_it() -> None:
    linger = Linger(1, urgent)
    linger.arrived(b"first")
    async with asyncio.timeout(30):
        await linger.wait()
    assert not await is_over(linger)
