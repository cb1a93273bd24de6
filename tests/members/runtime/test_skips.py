"""Messages that cannot be read: what ends a member there, and what has it go on."""

import asyncio
from pathlib import Path

import pytest

from groupcert.certifier.errors import (
    CorruptRecord,
    InvalidSetting,
    LogGap,
    LogServerUnavailable,
    NotServing,
)
from groupcert.internal.v1.log_pb2 import LogBatchHead
from groupcert.members.core.log_records import LogBatch, Skip
from groupcert.members.core.member import Member
from groupcert.members.core.views import FORMAT_VERSION, MemberState
from groupcert.members.errors.membership import UnreadableMessage
from groupcert.members.runtime import operations, skips
from groupcert.members.runtime.operations import order_skip
from groupcert.members.runtime.runtime import MemberRuntime
from groupcert.members.runtime.skips import (
    deliver_readable,
    is_skip_ordered,
)
from groupcert.members.total_order.port import Delivery
from groupcert.members.wire.log_batches import encode_batch
from tests.members.runtime.test_runtime import messages, runtime_at
from tests.sim.memory_order import MemoryLog, MemoryOrder


def skip(*places: int) -> bytes:
    """A message of nobody in particular that has messages skipped."""
    return encode_batch(LogBatch("m1", 5, 1, controls=[Skip(each) for each in places]))


def unreadable() -> bytes:
    """A message of the member that `test_runtime.messages` begins with, in another format."""
    head = LogBatchHead(
        format_version=FORMAT_VERSION + 1, member="m2", incarnation=7, batch_number=3
    )
    return head.SerializeToString()


async def order_of(*payloads: bytes, portion_max: int = 1) -> tuple[MemoryLog, MemoryOrder]:
    """A log with messages, and an order that is open on it."""
    log = MemoryLog("g", portion_max=portion_max)
    order = MemoryOrder(log)
    await order.open(create=True)
    for number, payload in enumerate(payloads):
        log.append(str(number), payload)
    return log, order


async def test_a_record_is_found_wherever_it_stands_behind_the_message() -> None:
    _, order = await order_of(skip(2), b"\xff", b"", skip(7, 4), skip(1))
    found = [await is_skip_ordered(order, place) for place in (1, 2, 4, 5)]
    assert found == [True, False, False, False], "one before the message does not count"


async def test_a_log_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skips, "RETRY_SECONDS", 0.001)
    log, order = await order_of(b"\xff", skip(1))
    log.available = False
    asking = asyncio.create_task(is_skip_ordered(order, 1))
    await asyncio.wait((asking,), timeout=0.02)
    assert not asking.done()
    log.available = True
    assert await asking


async def test_several_that_cannot_be_read_are_skipped_one_by_one(tmp_path: Path) -> None:
    runtime = runtime_at(tmp_path)
    first, second = (each.payload for each in messages(runtime))
    payloads = [first, unreadable(), unreadable(), second, skip(3), skip(2)]
    _, order = await order_of(*payloads)
    page = [Delivery(place, payload) for place, payload in enumerate(payloads[:4], 1)]
    await deliver_readable(order, runtime.member, page, runtime._deliver)
    assert runtime.member.skipped.total == 2
    assert runtime.member.log_sequence == 4
    assert runtime.member.certifier.window.newest_version == 1
    runtime.save()
    runtime.close()


async def test_one_that_nobody_has_had_skipped_ends_it_there(tmp_path: Path) -> None:
    runtime = runtime_at(tmp_path)
    first = messages(runtime)[0].payload
    _, order = await order_of(first, unreadable(), skip(3))
    page = [Delivery(1, first), Delivery(2, unreadable())]
    with pytest.raises(UnreadableMessage, match="message 2 of the log cannot be read"):
        await deliver_readable(order, runtime.member, page, runtime._deliver)
    assert runtime.member.log_sequence == 1
    runtime.close()


async def test_what_no_rule_has_foreseen_is_the_logs_error_and_no_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Member, *arguments: object) -> None:
        raise InvalidSetting(name="name", value="value", expected="another one")

    runtime = runtime_at(tmp_path)
    monkeypatch.setattr(Member, "deliver_in_steps", refuse)
    with pytest.raises(CorruptRecord, match="setting name is 'value'"):
        await runtime._deliver([Delivery(1, b"")])
    runtime.close()


class TestOrderSkip:
    """Who may have a message skipped, and when it is answered."""

    @staticmethod
    def fenced(folder: Path) -> MemberRuntime:
        runtime = runtime_at(folder)
        runtime.fence(LogGap(expected=1, found=2))
        return runtime

    async def test_a_fenced_member_opens_the_log_for_it(self, tmp_path: Path) -> None:
        runtime = self.fenced(tmp_path)
        assert not runtime.log_opened
        await order_skip(runtime, 1)
        await order_skip(runtime, 1)
        assert runtime.log_opened
        assert [await is_skip_ordered(runtime.order, place) for place in (1, 2)] == [True, False]
        runtime.close()
        with pytest.raises(NotServing):
            await order_skip(runtime, 1)

    async def test_others_do_not(self, tmp_path: Path) -> None:
        runtime = runtime_at(tmp_path)
        with pytest.raises(InvalidSetting, match="m1 is RECOVERING"):
            await order_skip(runtime, 1)
        await runtime._deliver(messages(runtime)[:1])
        runtime.member.fail(MemberState.FENCED, "in doubt")
        with pytest.raises(InvalidSetting, match="it has read those to 1"):
            await order_skip(runtime, 1)
        runtime.close()

    async def test_a_log_that_does_not_take_it_is_told_of(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(operations, "TAKEN_SECONDS_MAX", 0.01)
        runtime = self.fenced(tmp_path)
        await order_skip(runtime, 1)
        runtime.order._log.available = False  # type: ignore[attr-defined]  # a MemoryOrder
        with pytest.raises(LogServerUnavailable, match="not available"):
            await order_skip(runtime, 2)
        runtime.close()
