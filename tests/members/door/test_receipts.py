"""Turns to receive: callers alternate, and who hangs up or dribbles makes room."""

import asyncio
import time

import pytest

from groupcert.members.door.call_limit import Receipts
from groupcert.members.errors.calls import RequestIncomplete


class Sender:
    """A call whose message comes when the test says so."""

    def __init__(self, receipts: Receipts, caller: str) -> None:
        self.is_read = False
        self._message: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(receipts.receive("/s/Call", caller, self))

    async def read(self) -> object:
        """What a context does."""
        self.is_read = True
        return await self._message

    async def send(self) -> None:
        """The message comes."""
        self._message.set_result(b"message")
        assert await self.task == b"message"


async def settled(*senders: Sender) -> str:
    """Which of the senders are read, as a text of x and dot, once nothing moves any more."""
    for _ in range(10):
        await asyncio.sleep(0)
    return "".join("x" if sender.is_read else "." for sender in senders)


async def test_a_caller_gets_its_share_and_another_one_does_not_wait_behind_it() -> None:
    receipts = Receipts(4)
    one = [Sender(receipts, "one") for _ in range(5)]
    assert await settled(*one) == "xx..."
    two = [Sender(receipts, "two") for _ in range(2)]
    assert await settled(*one, *two) == "xx...x."
    await one[0].send()
    assert await settled(*one, *two) == "xxx..x."
    for sender in (*one[1:3], two[0]):
        await sender.send()
    assert await settled(*one, *two) == "xxxxxxx"
    for sender in (*one[3:], two[1]):
        await sender.send()
    last = Sender(receipts, "one")
    assert await settled(last) == "x"
    await last.send()


async def test_callers_take_turns() -> None:
    receipts = Receipts(1)
    first = Sender(receipts, "one")
    assert await settled(first) == "x"
    waiting = [Sender(receipts, caller) for caller in ("one", "one", "two", "two")]
    order = []
    current = first
    for _ in waiting:
        await current.send()
        await settled()
        current = next(each for each in waiting if each.is_read and not each.task.done())
        order.append(waiting.index(current))
    assert order == [0, 2, 1, 3]
    await current.send()


async def test_who_hangs_up_makes_room_whether_it_waits_or_has_its_turn() -> None:
    receipts = Receipts(1)
    reading, waiting, granted, last = (Sender(receipts, "one") for _ in range(4))
    assert await settled(reading, waiting) == "x."
    waiting.task.cancel()
    assert await settled(reading, waiting, granted) == "x.."
    reading.task.cancel()
    await asyncio.sleep(0)  # `granted` has its turn, and has not gone on with it.
    granted.task.cancel()
    assert await settled(last) == "x"
    await last.send()
    for sender in (reading, waiting, granted):
        assert sender.task.cancelled()


async def test_a_turn_that_comes_to_a_call_in_its_end_goes_to_the_next_one() -> None:
    receipts = Receipts(1)
    reading, ended, other, last = (Sender(receipts, caller) for caller in ("a", "a", "b", "a"))
    assert await settled(reading, ended, other, last) == "x..."
    ended.task.cancel()
    other.task.cancel()
    await reading.send()
    assert await settled(ended, other, last) == "..x"
    await last.send()
    assert ended.task.cancelled() and other.task.cancelled()


async def test_who_dribbles_loses_its_turn() -> None:
    receipts = Receipts(1, time_ms_max=20)
    slow, next_one = Sender(receipts, "one"), Sender(receipts, "two")
    with pytest.raises(RequestIncomplete, match="call /s/Call did not come whole within 20 ms"):
        await slow.task
    assert await settled(next_one) == "x"
    await next_one.send()
    with pytest.raises(RequestIncomplete):
        await Sender(receipts, "three").task


async def test_a_later_call_has_its_time_from_its_own_beginning() -> None:
    receipts = Receipts(4, time_ms_max=200)
    first = Sender(receipts, "one")
    await asyncio.sleep(0.1)
    began = time.monotonic()
    second = Sender(receipts, "two")
    for sender in (first, second):
        with pytest.raises(RequestIncomplete):
            await sender.task
    assert time.monotonic() - began > 0.19, "a timer's step less than 200 ms"
