"""What the JetStream adapter does when the servers, the stream or its reader misbehave."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from groupcert.certifier.errors import (
    InvalidSetting,
    LogGap,
    LogServerTooOld,
    LogServerUnavailable,
)
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.total_order.embedded_server import LogServer
from groupcert.members.total_order.jetstream import (
    JetStreamOptions,
    JetStreamOrder,
)
from groupcert.members.total_order.jetstream_connection import JetStreamConnection
from groupcert.members.total_order.jetstream_reader import PushSubscription
from groupcert.members.total_order.linger import Linger
from groupcert.members.total_order.port import Delivery
from groupcert.members.total_order.server_health import LOST_MS, LogHealth, LogServerState
from tests.frozen import freeze
from tests.members.total_order.test_port import payloads_of, publish_all, read_until
from tests.waiting import until

pytestmark = pytest.mark.nats

FLOW_CONTROL_BYTES = 32 << 20
"""What a server sends ahead of a reader at most; a constant of nats-server."""


@asynccontextmanager
async def opened(options: JetStreamOptions) -> AsyncIterator[JetStreamOrder]:
    """An order on the stream, which is made if it is not there."""
    order = JetStreamOrder(options)
    await order.open(create=True)
    try:
        yield order
    finally:
        await order.close()


@asynccontextmanager
async def administrator(options: JetStreamOptions) -> AsyncIterator[JetStreamConnection]:
    """A connection of someone who may do anything to the stream."""
    connection = JetStreamConnection(options.servers, 60_000)
    await connection.connect(60_000, (2, 12, 3))
    try:
        yield connection
    finally:
        await connection.close()


def states_of(order: JetStreamOrder) -> list[LogServerState]:
    """The servers as an order sees them."""
    return [each.state for each in order.health().servers]


async def test_a_stream_of_another_shape_is_refused(jetstream_options: JetStreamOptions) -> None:
    async with opened(jetstream_options):
        with pytest.raises(InvalidSetting, match=r"num_replicas of stream .* is '1': expected 3"):
            await JetStreamOrder(replace(jetstream_options, replicas=3)).open(create=False)


async def test_servers_that_cannot_make_the_stream_say_why(
    jetstream_options: JetStreamOptions,
) -> None:
    with pytest.raises(LogServerUnavailable, match="replicas > 1 not supported"):
        await JetStreamOrder(replace(jetstream_options, replicas=3)).open(create=True)


async def test_what_it_waits_for_is_told_while_it_waits(
    jetstream_options: JetStreamOptions,
) -> None:
    order = JetStreamOrder(jetstream_options)
    assert order.health() == LogHealth()
    async with opened(replace(jetstream_options, group="a-waited-for")):
        opening = asyncio.create_task(order.open(create=False))
        await until(lambda: "there is no group" in order.health().problem)
        assert "a-waited-for" in order.health().problem.partition("which has logs of ")[2]
        async with opened(jetstream_options):
            await opening
        assert order.health().problem == ""
        await order.close()


async def test_a_log_that_does_not_answer_has_no_leader_and_says_why(tmp_path: Path) -> None:
    server = LogServer(tmp_path)
    server.start()
    async with opened(JetStreamOptions(servers=(server.address,), group="away")) as order:
        await until(lambda: order.health().leader)
        assert order.health().acknowledged_ms is None
        server.kill()
        await until(lambda: not order.health().leader)
        assert order.health().leaderless_ms >= LOST_MS
        await until(lambda: states_of(order) == [LogServerState.UNKNOWN] and order.health().problem)
        await asyncio.to_thread(server.start)
        await until(lambda: states_of(order) == [LogServerState.CURRENT] and order.health().leader)
    server.stop()


async def test_a_server_that_is_too_old_is_refused(jetstream_options: JetStreamOptions) -> None:
    options = replace(jetstream_options, version_min=(99, 0, 1))
    with pytest.raises(LogServerTooOld, match=r"the oldest that serves is 99\.0\.1"):
        await JetStreamOrder(options).open(create=True)


async def test_a_stream_that_denies_purging_is_not_trimmed(
    jetstream_options: JetStreamOptions,
) -> None:
    async with opened(replace(jetstream_options, deny_purge=True)) as order:
        await publish_all(order, payloads_of(3))
        with pytest.raises(InvalidSetting, match="a stream that can be trimmed"):
            await order.trim(2)
        assert (await order.state()).first_sequence == 1


async def test_a_message_missing_in_the_middle_is_a_gap(
    jetstream_options: JetStreamOptions,
) -> None:
    stream, config = jetstream_options.stream, jetstream_options.stream_config()
    async with administrator(jetstream_options) as admin:
        await admin.request(f"STREAM.CREATE.{stream}", config | {"deny_delete": False})
        for payload in payloads_of(9):
            await admin.client.request(jetstream_options.subject, payload, timeout=60)
        await admin.request(f"STREAM.MSG.DELETE.{stream}", {"seq": 5})
        await admin.request(f"STREAM.UPDATE.{stream}", config)
    async with opened(jetstream_options) as order:
        with pytest.raises(LogGap) as raised:
            await read_until(order, 1, 9)
    assert (raised.value.expected, raised.value.found) == (5, 6)


async def test_a_log_trimmed_beyond_a_slow_reader_is_a_gap(
    jetstream_options: JetStreamOptions,
) -> None:
    payload = bytes(256 << 10)
    async with opened(jetstream_options) as order:
        await publish_sized(order, payload, 40)
        async with aclosing(order.read(1)) as reading:
            reached = (await anext(reading))[-1].sequence
            assert reached < 40
            await order.trim(41)
            with pytest.raises(LogGap) as raised:
                async for deliveries in reading:
                    reached = deliveries[-1].sequence
    assert (raised.value.expected, raised.value.found) == (reached + 1, 41)


async def test_a_reader_whose_consumer_vanished_reads_on(
    jetstream_options: JetStreamOptions,
) -> None:
    stream = jetstream_options.stream
    async with opened(jetstream_options) as order, administrator(jetstream_options) as admin:
        await publish_all(order, payloads_of(10))
        async with aclosing(order.read(1)) as reading:
            sequences = [d.sequence for d in await anext(reading)]
            names = await admin.request(f"CONSUMER.NAMES.{stream}", {})
            for name in names["consumers"]:
                await admin.request(f"CONSUMER.DELETE.{stream}.{name}", {})
            await publish_all(order, payloads_of(20))
            while sequences[-1] < 20:
                sequences += [d.sequence for d in await anext(reading)]
    assert sequences == list(range(1, 21))


async def test_messages_that_nobody_waits_for_come_with_the_next_urgent_one(
    jetstream_options: JetStreamOptions,
) -> None:
    last = payloads_of(3)[-1]
    seen: list[bytes] = []

    def is_urgent(payload: bytes) -> bool:
        seen.append(payload)
        return payload == last

    async with opened(jetstream_options) as order, administrator(jetstream_options) as reader:
        subscription = PushSubscription(reader, 1, Linger(3_600_000, is_urgent))
        await subscription.open(jetstream_options.stream)
        taking = asyncio.ensure_future(subscription.take())
        await publish_all(order, payloads_of(2))
        await until(lambda: len(seen) == 2)
        assert not taking.done()
        order.publish("last", last)
        assert [delivery.payload for delivery in await taking] == payloads_of(3)
        await subscription.close()


async def test_a_slow_reader_gets_a_large_backlog_whole_in_bounded_memory(
    jetstream_options: JetStreamOptions,
) -> None:
    payload, count = bytes(64 << 10), 1_500
    ahead_max = 0
    async with opened(replace(jetstream_options, in_flight_max=64)) as order:
        await publish_sized(order, payload, count)
        sequences: list[int] = []
        async with aclosing(order.read(1)) as reading:
            async for deliveries in reading:
                ahead_max = max(ahead_max, sum(len(d.payload) for d in deliveries))
                sequences += [d.sequence for d in deliveries]
                if sequences[-1] == count:
                    break
                await asyncio.sleep(0.2)
    assert sequences == list(range(1, count + 1))
    assert 0 < ahead_max <= FLOW_CONTROL_BYTES


async def test_a_bug_in_a_callback_is_no_outage(
    jetstream_options: JetStreamOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(reply: bytes) -> int:
        raise ZeroDivisionError(reply)

    monkeypatch.setattr("groupcert.members.total_order.jetstream_reader.stream_sequence", fail)
    async with opened(jetstream_options) as order:
        order.publish("1", b"1")
        with pytest.raises(ZeroDivisionError):
            await read_until(order, 1, 1)
        with pytest.raises(ZeroDivisionError):
            order.publishing()


@pytest.mark.parametrize("in_flight_max", [1, 32])
async def test_a_killed_server_loses_and_reorders_nothing(
    tmp_path: Path, in_flight_max: int
) -> None:
    server = LogServer(tmp_path)
    server.start()
    options = JetStreamOptions(
        servers=(server.address,), group="killed", in_flight_max=in_flight_max
    )
    payloads = payloads_of(3_000)
    async with opened(options) as order:
        reading = asyncio.create_task(read_until(order, 1, len(payloads)))
        for number, payload in enumerate(payloads):
            order.publish(payload.decode(), payload)
            if number % 10 == 0:
                await asyncio.sleep(0.001)
            if number in (1_000, 2_000):
                server.kill()
                await asyncio.to_thread(server.start)
        assert [d.payload for d in await reading] == payloads
        await until(lambda: not order.publishing())
        state = await order.state()
        assert state.last_sequence == len(payloads)
    server.stop()


async def test_a_server_that_hangs_for_a_while_is_waited_for(
    log_server: LogServer, jetstream_options: JetStreamOptions
) -> None:
    async with opened(jetstream_options) as order:
        reading = asyncio.create_task(read_until(order, 1, 2))
        await publish_all(order, [b"before"])
        freeze(log_server.pid)
        try:
            order.publish("after", b"after")
            await until(lambda: order.unacknowledged_for_ms() > 1_000)
        finally:
            os.kill(log_server.pid, signal.SIGCONT)
        assert await reading == [Delivery(1, b"before"), Delivery(2, b"after")]
        assert (await order.state()).last_sequence == 2


async def publish_sized(order: JetStreamOrder, payload: bytes, count: int) -> None:
    """Publishes one payload many times and waits until the log has all of them."""
    for number in range(count):
        order.publish(str(number), payload)
    await until(lambda: not order.publishing())


async def test_an_error_names_servers_without_their_passwords() -> None:
    servers = (f"nats://member:secret@{HOST}:{free_port()}", f"nats://{HOST}:{free_port()}")
    connection = JetStreamConnection(servers, 1_000)
    with pytest.raises(LogServerUnavailable) as caught:
        await connection.connect(200, (2, 0, 0))
    assert "secret" not in str(caught.value)
    assert caught.value.address == ",".join(
        server.replace("member:secret@", "") for server in servers
    )
