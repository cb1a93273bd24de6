"""The log keeps what somebody still needs, and what the retention says."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from groupcert.members.process.log_trimmer import (
    TRIM_MESSAGES_MIN,
    Retention,
    keep_log,
    reported_sequence,
    trim_if_due,
    trim_target,
    trimming_options,
)
from groupcert.members.settings.member import MemberConfig
from groupcert.members.total_order.embedded_server import LogServer
from groupcert.members.total_order.jetstream import JetStreamOptions, JetStreamOrder
from groupcert.members.total_order.port import LogIdentity, LogState
from tests.members.recovery.test_copies import running


def log_of(first: int, last: int, size: int) -> LogState:
    return LogState(
        identity=LogIdentity(name="log", created="now"),
        first_sequence=first,
        last_sequence=last,
        replicas=1,
        durable=True,
        message_bytes_max=1,
        bytes=size,
    )


STATE = log_of(101, 10_000, 9_900 * 10)
WIDE = 1 << 40


def test_a_member_reports_what_those_need_who_copy_its_state() -> None:
    assert reported_sequence(50, []) == 50
    assert reported_sequence(50, [60, 40]) == 40


async def test_no_report_says_more_than_the_readers_of_copies_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as runtime:
        seen: asyncio.Queue[int] = asyncio.Queue()
        state = runtime.order.state

        async def state_later() -> LogState:
            seen.put_nowait(runtime.member.durable_log_sequence)
            return await state()

        monkeypatch.setattr(runtime.order, "state", state_later)
        await runtime.submit(())  # A message after the one that it joined by.
        assert runtime.member.log_sequence > 1
        options = JetStreamOptions(servers=(), group="g")
        keeping = asyncio.create_task(
            keep_log(runtime, options, lambda view: [1], period_seconds=0.01)
        )
        assert [await seen.get() for _ in range(2)] == [1, 1]
        keeping.cancel()


@pytest.mark.parametrize(
    ("durable", "reading", "messages", "size", "target"),
    [
        ([5_000, 6_000], [], 10, WIDE, 5_001),
        ([5_000, 6_000], [4_000], 10, WIDE, 4_001),
        ([10_000, 10_000], [], 10, WIDE, 9_991),
        ([10_000, 10_000], [], 10, 50, 9_996),
        ([10_000], [], 9_900, WIDE, None),
        ([10_000], [], 9_500, WIDE, None),
        ([10_000, 0], [], 10, WIDE, None),
        ([], [], 10, WIDE, None),
    ],
)
def test_trimmed_is_what_everybody_has_and_no_limit_keeps(
    durable: list[int], reading: list[int], messages: int, size: int, target: int | None
) -> None:
    retention = Retention(messages=messages, bytes=size)
    assert trim_target(STATE, durable, reading, retention, messages_min=500) == target


def test_a_log_keeps_half_of_its_servers_room_free() -> None:
    keeps_all = Retention(messages=WIDE, bytes=WIDE)
    state = replace(STATE, bytes_max=STATE.bytes)
    assert trim_target(state, [10_000], [], keeps_all) == 10_001 - 4_950
    assert trim_target(replace(STATE, bytes_max=WIDE), [10_000], [], keeps_all) is None


def test_an_empty_log_is_left_alone() -> None:
    empty = log_of(11, 10, 0)
    assert trim_target(empty, [10], [], Retention(messages=1, bytes=1), messages_min=1) is None


def test_only_who_has_an_address_for_it_may_trim() -> None:
    options = JetStreamOptions(servers=("nats://h:1",), group="g")
    config = MemberConfig(group="g", member="m", log_servers=("nats://h:1",))
    assert trimming_options(config, options) is None
    allowed = config.model_copy(update={"log_trim_servers": ("nats://trimmer:secret@h:1",)})
    found = trimming_options(allowed, options)
    assert found is not None
    assert found.servers == ("nats://trimmer:secret@h:1",)
    assert found.group == options.group
    own = MemberConfig(group="g", member="m", log_server="embedded")
    assert trimming_options(own, options) == options, "the log is its own"


@pytest.mark.nats
async def test_a_trim_that_is_due_drops_what_is_before_it(tmp_path: Path) -> None:
    with LogServer(tmp_path) as server:
        options = JetStreamOptions(servers=(server.address,), group="g")
        order = JetStreamOrder(options)
        last = TRIM_MESSAGES_MIN + 10
        try:
            await order.open(create=True)
            for number in range(last):
                order.publish(str(number), b"x")
            async for deliveries in order.read(1):
                if deliveries[-1].sequence == last:
                    break
            state = await order.state()
            assert state.bytes > last
            retention = Retention(messages=5, bytes=WIDE)
            assert await trim_if_due(state, options, [last, last - 100], [], retention) is None
            first = await trim_if_due(state, options, [last, last - 7], [], retention)
            assert first == last - 6
            state = await order.state()
            assert (state.first_sequence, state.last_sequence) == (first, last)
        finally:
            await order.close()
