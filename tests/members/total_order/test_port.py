"""The contract of the port: one body of tests, run on the log in memory, on JetStream and etcd."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

import pytest

from groupcert.certifier.errors import (
    ForeignLog,
    InvalidSetting,
    LogGap,
    LogServerUnavailable,
)
from groupcert.members.errors.membership import GroupMissing
from groupcert.members.runtime import log_start
from groupcert.members.runtime.log_start import state_that_reaches
from groupcert.members.total_order import etcd_reader, jetstream_reader
from groupcert.members.total_order.etcd import EtcdOptions, EtcdOrder
from groupcert.members.total_order.jetstream import JetStreamOptions, JetStreamOrder
from groupcert.members.total_order.log_options import LogOptions
from groupcert.members.total_order.log_options import make_order as order_of
from groupcert.members.total_order.port import (
    Continuation,
    Delivery,
    LogIdentity,
    LogState,
    TotalOrder,
    check_reaches,
    check_same_log,
)
from groupcert.members.total_order.served_log import ServedLog
from groupcert.members.total_order.server_health import LogServerState
from tests.log_servers import wiped
from tests.sim.memory_order import MemoryLog, MemoryOrder
from tests.waiting import SECONDS_MAX, until

SERVED = (
    pytest.param("jetstream", marks=pytest.mark.nats),
    pytest.param("etcd", marks=pytest.mark.etcd),
)
at_servers = pytest.mark.parametrize("make_order", SERVED, indirect=True)


class MakeOrder(Protocol):
    """Makes a handle on the log of a test."""

    def __call__(
        self, connect_ms_max: int | None = None, continues: Continuation | None = None
    ) -> TotalOrder:
        """Makes one that waits so many milliseconds for the log, or long; and which, where it makes
        the log, has that go on from another one.
        """
        ...


@pytest.fixture(params=["memory", *SERVED])
async def make_order(request: pytest.FixtureRequest) -> AsyncIterator[MakeOrder]:
    """Makes handles on one log that does not exist yet; those that were opened are closed."""
    log = MemoryLog("test", portion_max=7)
    made: list[TotalOrder] = []
    options: LogOptions | None = None
    if request.param == "jetstream":
        options = request.getfixturevalue("jetstream_options")
    elif request.param == "etcd":
        options = await wiped(request.getfixturevalue("etcd"))

    def make(
        connect_ms_max: int | None = None, continues: Continuation | None = None
    ) -> TotalOrder:
        if options is None:
            if continues is not None:
                log.create(continues)
            made.append(MemoryOrder(log))
        else:
            limit_ms = connect_ms_max or options.connect_ms_max
            made.append(order_of(replace(options, connect_ms_max=limit_ms, continues=continues)))
        return made[-1]

    yield make
    for order in made:
        await order.close()


@pytest.fixture
async def order(make_order: MakeOrder) -> TotalOrder:
    """A handle on the log, which is there and empty."""
    opened = make_order()
    await opened.open(create=True)
    return opened


async def read_until(order: TotalOrder, first_sequence: int, last: int) -> list[Delivery]:
    """All messages from one sequence to another."""
    deliveries: list[Delivery] = []
    async with aclosing(order.read(first_sequence)) as reading:
        async for arrived in reading:
            deliveries += arrived
            if deliveries[-1].sequence >= last:
                return deliveries
    raise AssertionError("a reading never ends")


async def publish_all(order: TotalOrder, payloads: list[bytes]) -> None:
    """Publishes, each under its own id, and waits until all are acknowledged."""
    for payload in payloads:
        order.publish(payload.decode(), payload)
    await until(lambda: not order.publishing())


async def told_state(order: TotalOrder) -> LogState:
    """The log's state once its servers have said whether they sync: busy ones are asked again."""
    async with asyncio.timeout(SECONDS_MAX):
        while (state := await order.state()).durable is None:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.1)
    return state


def payloads_of(count: int, prefix: str = "message") -> list[bytes]:
    return [f"{prefix} {number}".encode() for number in range(count)]


async def test_a_rebuilt_log_begins_behind_the_one_that_it_continues(
    make_order: MakeOrder,
) -> None:
    earlier = LogIdentity(name="test", created="before")
    continues = Continuation(
        log=earlier, member="m1", log_sequence=1_000, digest="0f", last_sequence=1_000
    )
    making = make_order(continues=continues)
    state = await making.open(create=True)
    assert (state.first_sequence, state.last_sequence) == (1_001, 1_000)
    assert state.continues == continues
    order = make_order()
    opened = await order.open(create=False)
    assert replace(opened, bytes=state.bytes) == state
    await publish_all(order, payloads_of(20))
    found = await read_until(order, 1_001, 1_020)
    assert found == [Delivery(1_001 + at, each) for at, each in enumerate(payloads_of(20))]
    assert await order.message(1_001) == found[0]
    assert await order.message(1_000) is None
    with pytest.raises(LogGap) as caught:
        await read_until(order, 1_000, 1_000)
    assert (caught.value.expected, caught.value.found) == (1_000, 1_001)
    await making.trim(1_011)
    state = await order.state()
    assert (state.first_sequence, state.last_sequence) == (1_011, 1_020)
    assert await read_until(order, 1_015, 1_020) == found[14:]
    assert await order.message(1_010) is None


@at_servers
async def test_a_log_that_was_removed_is_another_one_when_it_is_made_again(
    make_order: MakeOrder,
) -> None:
    first = make_order()
    before = await first.open(create=True)
    await publish_all(first, payloads_of(3))
    assert isinstance(first, ServedLog)
    for _ in range(2):
        await first.remove()
        asking = make_order()
        assert isinstance(asking, type(first))
        assert not await asking.exists()
    again = make_order()
    after = await again.open(create=True)
    assert (after.first_sequence, after.last_sequence) == (1, 0)
    assert after.identity != before.identity
    await publish_all(again, payloads_of(2, "again"))
    assert [each.payload for each in await read_until(again, 1, 2)] == payloads_of(2, "again")


@at_servers
async def test_a_log_made_anew_under_a_reader_is_foreign(
    make_order: MakeOrder, order: TotalOrder
) -> None:
    other, another = make_order(), make_order()
    assert isinstance(other, ServedLog)
    await publish_all(order, payloads_of(3))
    reading = asyncio.create_task(read_until(order, 1, 4))
    await other.open(create=False)
    await other.remove()
    await another.open(create=True)
    await publish_all(another, payloads_of(9))
    with pytest.raises(ForeignLog, match=r"expected .* created"):
        await reading
    with pytest.raises(ForeignLog):
        await order.state()


@at_servers
async def test_a_deleted_log_is_foreign_and_refuses(
    make_order: MakeOrder, order: TotalOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reader in (jetstream_reader, etcd_reader):
        monkeypatch.setattr(reader, "NOT_FOUND_MS_MAX", 300)
    other = make_order()
    assert isinstance(other, ServedLog)
    await other.open(create=False)
    reading = asyncio.create_task(read_until(order, 1, 1))
    await other.remove()
    order.publish("1", b"1")
    with pytest.raises(ForeignLog, match=r"no stream|no log"):
        await reading
    await until(order.refusal)
    assert "listens" in order.refusal() or "deleted" in order.refusal()
    assert order.publishing() == 1
    assert order.unacknowledged_for_ms() > 0


@at_servers
async def test_durable_needs_servers_that_say_they_sync(
    make_order: MakeOrder, order: TotalOrder
) -> None:
    assert isinstance(order, (JetStreamOrder, EtcdOrder))
    assert (await told_state(order)).durable is True
    monitors = (*order._options.monitors, "http://127.0.0.1:9")
    silent = order_of(replace(order._options, monitors=monitors))
    try:
        assert (await silent.open(create=False)).durable is None
    finally:
        await silent.close()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(JetStreamOptions(servers=("nats://u:p@127.0.0.1:9",), group="g"), id="nats"),
        pytest.param(EtcdOptions(servers=("etcd://u:p@127.0.0.1:9",), group="g"), id="etcd"),
    ],
)
async def test_a_server_that_is_not_there_is_named(options: LogOptions) -> None:
    order = order_of(replace(options, connect_ms_max=2_000))
    with pytest.raises(LogServerUnavailable, match=r"://127\.0\.0\.1:9 does not answer .*9"):
        await order.open(create=True)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "ä", "*", "a/b"])
def test_a_group_that_is_no_part_of_a_servers_name_is_refused(name: str) -> None:
    for kind in (JetStreamOptions, EtcdOptions):
        with pytest.raises(InvalidSetting, match="letters, digits"):
            kind(servers=(), group=name)


async def test_a_new_log_is_empty_and_has_an_identity(make_order: MakeOrder) -> None:
    state = await make_order().open(create=True)
    assert (state.first_sequence, state.last_sequence) == (1, 0)
    assert state.identity.name
    assert state.identity.created


async def test_a_log_that_is_well_says_so_and_when_it_took_a_message(order: TotalOrder) -> None:
    await publish_all(order, payloads_of(1))
    await until(lambda: order.health().leader)
    health = order.health()
    (server,) = health.servers
    assert (server.state, server.is_current, server.lag) == (LogServerState.CURRENT, True, 0)
    assert (health.leader, health.leaderless_ms, health.problem) == (server.name, 0, "")
    assert health.acknowledged_ms is not None


async def test_a_message_as_large_as_the_log_says_is_ordered(make_order: MakeOrder) -> None:
    order = make_order()
    state = await order.open(create=True)
    payload = bytes(state.message_bytes_max)
    order.publish("large", payload)
    assert await read_until(order, 1, 1) == [Delivery(1, payload)]


async def test_a_log_that_is_not_there_is_not_made_unasked(make_order: MakeOrder) -> None:
    with pytest.raises(GroupMissing, match="there is no group"):
        await make_order(5_000).open(create=False)


async def test_two_handles_open_the_same_log(make_order: MakeOrder) -> None:
    first, second = [await make_order().open(create=True) for _ in range(2)]
    assert replace(first, bytes=second.bytes) == second


async def test_messages_are_read_in_the_order_published(order: TotalOrder) -> None:
    payloads = payloads_of(100)
    await publish_all(order, payloads)
    assert await read_until(order, 1, 100) == [
        Delivery(sequence, payload) for sequence, payload in enumerate(payloads, start=1)
    ]
    assert order.unacknowledged_for_ms() == 0
    assert order.refusal() == ""
    assert order.append_seconds.count == 100


async def test_all_readers_see_one_order_of_many_publishers(make_order: MakeOrder) -> None:
    first, second = make_order(), make_order()
    await first.open(create=True)
    await second.open(create=False)
    of_first, of_second = payloads_of(50, "first"), payloads_of(50, "second")
    await asyncio.gather(publish_all(first, of_first), publish_all(second, of_second))
    seen = await read_until(first, 1, 100)
    assert await read_until(second, 1, 100) == seen
    assert [d.payload for d in seen if d.payload.startswith(b"first")] == of_first
    assert [d.payload for d in seen if d.payload.startswith(b"second")] == of_second


async def test_reading_goes_on_when_more_is_published(order: TotalOrder) -> None:
    reading = asyncio.create_task(read_until(order, 1, 20))
    await publish_all(order, payloads_of(10))
    await publish_all(order, payloads_of(10, "late"))
    assert [d.sequence for d in await reading] == list(range(1, 21))


async def test_one_message_is_asked_for(order: TotalOrder) -> None:
    await publish_all(order, payloads_of(10))
    await order.trim(4)
    found = [await order.message(sequence) for sequence in (1, 3, 4, 10, 11)]
    there = [Delivery(4, b"message 3"), Delivery(10, b"message 9")]
    assert found == [None, None, *there, None]


async def test_reading_resumes_at_a_sequence(order: TotalOrder) -> None:
    await publish_all(order, payloads_of(30))
    deliveries = await read_until(order, 21, 30)
    assert deliveries[0] == Delivery(21, b"message 20")
    assert len(deliveries) == 10


async def test_a_message_id_is_ordered_once(order: TotalOrder) -> None:
    await publish_all(order, payloads_of(3))
    await publish_all(order, payloads_of(4))
    assert (await order.state()).last_sequence == 4
    assert [d.payload for d in await read_until(order, 1, 4)] == payloads_of(4)


async def test_a_trimmed_log_says_where_it_begins(order: TotalOrder) -> None:
    await publish_all(order, payloads_of(10))
    await order.trim(6)
    state = await order.state()
    assert (state.first_sequence, state.last_sequence) == (6, 10)
    with pytest.raises(LogGap) as raised:
        await read_until(order, 5, 10)
    assert (raised.value.expected, raised.value.found) == (5, 6)
    assert (await read_until(order, 6, 10))[0] == Delivery(6, b"message 5")


async def test_a_log_trimmed_to_its_end_goes_on_counting(order: TotalOrder) -> None:
    await publish_all(order, payloads_of(10))
    await order.trim(11)
    state = await order.state()
    assert (state.first_sequence, state.last_sequence) == (11, 10)
    await publish_all(order, [b"next"])
    assert await read_until(order, 11, 11) == [Delivery(11, b"next")]


async def test_a_log_shorter_than_what_was_read_is_a_gap(
    order: TotalOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream_reader, "SHORTER_MS_MAX", 1_000)
    await publish_all(order, payloads_of(3))
    with pytest.raises(LogGap) as raised:
        await read_until(order, 5, 5)
    assert (raised.value.expected, raised.value.found) == (5, 4)


async def test_each_reading_has_its_own_place(order: TotalOrder) -> None:
    await publish_all(order, payloads_of(20))
    whole, tail = await asyncio.gather(read_until(order, 1, 20), read_until(order, 15, 20))
    assert whole[14:] == tail


def test_two_logs_of_one_name_are_told_apart() -> None:
    known = LogIdentity(name="log", created="1")
    check_same_log(known, LogIdentity(name="log", created="1"))
    with pytest.raises(ForeignLog, match="log created 2, expected log created 1"):
        check_same_log(known, LogIdentity(name="log", created="2"))


@pytest.mark.parametrize(("sequence", "reaches"), [(4, False), (5, True), (10, True), (11, False)])
def test_a_log_reaches_from_its_first_message_to_the_next_one(sequence: int, reaches: bool) -> None:
    state = LogState(
        identity=LogIdentity(name="log", created="1"),
        first_sequence=5,
        last_sequence=9,
        replicas=1,
        durable=True,
        message_bytes_max=1,
    )
    if reaches:
        check_reaches(state, sequence)
        return
    with pytest.raises(LogGap) as raised:
        check_reaches(state, sequence)
    assert raised.value.expected == sequence


async def test_a_memory_log_that_is_away_keeps_messages_waiting() -> None:
    log = MemoryLog("test")
    order = MemoryOrder(log)
    await order.open(create=True)
    log.available = False
    order.publish("1", b"1")
    log.now_ms = 300
    assert (order.publishing(), order.unacknowledged_for_ms()) == (1, 300)
    assert order.refusal() == "not available"
    health = order.health()
    assert (health.leader, health.leaderless_ms, health.problem) == ("", 300, "not available")
    log.available = True
    assert (order.publishing(), order.unacknowledged_for_ms()) == (0, 0)
    assert (order.append_seconds.count, order.append_seconds.sum) == (1, 0.3)
    assert await read_until(order, 1, 1) == [Delivery(1, b"1")]


async def test_a_memory_log_made_anew_is_foreign() -> None:
    log = MemoryLog("test")
    order = MemoryOrder(log)
    await order.open(create=True)
    log.create()
    with pytest.raises(ForeignLog):
        await read_until(order, 1, 1)


async def test_a_log_that_seems_shorter_for_a_moment_is_waited_for() -> None:
    log = MemoryLog("shorter")
    log.create()
    order = MemoryOrder(log)
    state = await order.open(create=False)
    waiting = asyncio.ensure_future(state_that_reaches(order, state, 1))
    await asyncio.sleep(0)
    log.append("1", b"x")
    assert (await waiting).last_sequence == 1
    assert (await state_that_reaches(order, await order.state(), 1)).last_sequence == 1


async def test_a_shorter_log_is_not_believed_of_a_server_that_then_falls_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was cut off, as it has noticed; another one knows more."""
    monkeypatch.setattr(log_start, "SHORTER_MS_MAX", 50)
    monkeypatch.setattr(log_start, "SHORTER_POLL_SECONDS", 0.01)
    log = MemoryLog("silent")
    log.create()
    order = MemoryOrder(log)
    state = await order.open(create=False)
    silent = LogServerUnavailable(address="nats://127.0.0.1:1", cause="no leader")

    async def fall_silent() -> LogState:
        await asyncio.sleep(0.1)
        raise silent

    with monkeypatch.context() as patch:
        patch.setattr(order, "state", fall_silent)
        waiting = asyncio.ensure_future(state_that_reaches(order, state, 1))
        await asyncio.sleep(0.5)
        log.append("1", b"x")
    assert (await waiting).last_sequence == 1
