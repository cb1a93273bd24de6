"""What the etcd adapter does when the servers, the log, its users or its reader misbehave."""

import asyncio
import base64
import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from groupcert.certifier.errors import (
    ForeignLog,
    InvalidSetting,
    LogGap,
    LogServerTooOld,
    LogServerUnavailable,
)
from groupcert.etcd import rpc_pb2
from groupcert.members.commands.cli_process import show_health
from groupcert.members.security.credentials import ANONYMOUS
from groupcert.members.total_order import etcd as etcd_module
from groupcert.members.total_order import etcd_reader
from groupcert.members.total_order.etcd import REQUEST_BYTES_DEFAULT, EtcdOptions, EtcdOrder
from groupcert.members.total_order.etcd_connection import (
    COMPACT,
    DELETE_RANGE,
    METHODS,
    PUT,
    RANGE,
    TRANSACTION,
    EtcdConnection,
    EtcdRefused,
)
from groupcert.members.total_order.port import Delivery
from groupcert.members.total_order.served_log import Message
from tests.log_servers import EtcdServers, running_etcd, wiped
from tests.members.total_order.test_port import payloads_of, publish_all, read_until, told_state
from tests.waiting import until

pytestmark = pytest.mark.etcd


@asynccontextmanager
async def opened(options: EtcdOptions, *, create: bool = True) -> AsyncIterator[EtcdOrder]:
    """An order on the log, which is made if it is not there."""
    order = EtcdOrder(options)
    await order.open(create=create)
    try:
        yield order
    finally:
        await order.close()


@asynccontextmanager
async def administrator(options: EtcdOptions) -> AsyncIterator[EtcdConnection]:
    """A connection of someone who may do anything to the servers."""
    connection = EtcdConnection(options.servers, options.tls)
    try:
        yield connection
    finally:
        await connection.close()


def put_of(key: bytes) -> rpc_pb2.PutRequest:
    return rpc_pb2.PutRequest(key=key, value=b"x")


def options_of(servers: EtcdServers) -> EtcdOptions:
    return EtcdOptions(servers=servers.addresses, group="own", connect_ms_max=60_000)


def test_methods_have_the_names_of_the_contract() -> None:
    services = rpc_pb2.DESCRIPTOR.services_by_name.values()
    named = {f"/{each.full_name}/{call.name}": call for each in services for call in each.methods}
    assert {each.path for each in METHODS} == set(named)
    for method in METHODS:
        assert method.question.__name__ == named[method.path].input_type.name
        assert method.answer.__name__ == named[method.path].output_type.name


def test_the_health_of_a_server_is_asked_as_containers_do(etcd: EtcdServers) -> None:
    (port,) = etcd.ports.values()
    assert show_health(f"http://127.0.0.1:{port}/health", ANONYMOUS) == 0
    assert show_health(f"http://127.0.0.1:{port}/elsewhere", ANONYMOUS) == 3


async def test_servers_with_keys_of_others_are_refused(etcd_options: EtcdOptions) -> None:
    async with administrator(etcd_options) as admin:
        await admin.ask(PUT, put_of(b"config/of/others"))
    with pytest.raises(InvalidSetting, match="has 1 keys of others"):
        await EtcdOrder(etcd_options).open(create=True)
    async with administrator(etcd_options) as admin:
        found = await admin.ask(RANGE, rpc_pb2.RangeRequest(key=b"\0", range_end=b"\0"))
    assert [each.key for each in found.kvs] == [b"config/of/others"]


async def test_a_write_of_others_ends_a_reading_and_hurts_nobody_later(
    etcd_options: EtcdOptions,
) -> None:
    async with opened(etcd_options) as order, administrator(etcd_options) as admin:
        await publish_all(order, payloads_of(3))
        reading = asyncio.create_task(read_until(order, 1, 5))
        await admin.ask(PUT, put_of(b"groupcert/test/stray"))
        await publish_all(order, [b"after"])
        with pytest.raises(ForeignLog, match="identity 1 writes of others"):
            await reading
        stray = rpc_pb2.DeleteRangeRequest(key=b"groupcert/test/stray")
        await admin.ask(DELETE_RANGE, stray)
    async with opened(etcd_options) as order:
        expected = [Delivery(1 + each, text) for each, text in enumerate(payloads_of(3))]
        assert await read_until(order, 1, 4) == [*expected, Delivery(4, b"after")]
        assert await order.message(4) == Delivery(4, b"after")


async def test_a_log_made_anew_gets_nothing_that_was_meant_for_the_one_before(
    etcd: EtcdServers,
) -> None:
    options = await wiped(etcd)
    async with opened(options) as order:
        await wiped(etcd)
        async with opened(options) as another:
            await publish_all(another, [b"foreign"])
            order.publish("late", b"late")
            await until(lambda: order.refusal())
            assert order.refusal() == "the log was deleted, or made anew"
            assert (await another.state()).last_sequence == 1


async def test_what_others_compacted_is_a_gap(etcd_options: EtcdOptions) -> None:
    async with opened(etcd_options) as order, administrator(etcd_options) as admin:
        await publish_all(order, payloads_of(10))
        found = await admin.ask(RANGE, rpc_pb2.RangeRequest(key=b"groupcert/test/log"))
        revision = found.kvs[0].mod_revision - 3
        await admin.ask(COMPACT, rpc_pb2.CompactionRequest(revision=revision))
        state = await order.state()
        assert (state.first_sequence, state.last_sequence) == (7, 10)
        with pytest.raises(LogGap) as raised:
            await read_until(order, 5, 10)
        assert (raised.value.expected, raised.value.found) == (5, 7)
        assert [await order.message(each) for each in (6, 7)] == [None, Delivery(7, b"message 6")]


async def test_messages_are_found_whatever_was_trimmed_between_them(
    etcd_options: EtcdOptions,
) -> None:
    async with opened(etcd_options) as order:
        read: list[int] = []
        async with aclosing(order.read(1)) as reading:
            for number in range(1, 41):
                await publish_all(order, [b"message %d" % number])
                while len(read) < number:  # A trim overtakes no reader here.
                    read += [each.sequence for each in await anext(reading)]
                if number > 20:
                    await order.trim(number - 15)
        assert read == list(range(1, 41))
        assert await order.message(26) == Delivery(26, b"message 26")
        assert (await read_until(order, 30, 40))[0] == Delivery(30, b"message 30")
        await order.trim(10)  # It is trimmed already.
        assert (await order.state()).first_sequence == 25


async def test_a_reader_that_is_far_behind_misses_nothing_between_trims(
    etcd_options: EtcdOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_reader, "BEHIND_MAX", 3)
    payloads = payloads_of(300)
    async with opened(etcd_options) as order:
        for begin in range(0, 300, 30):
            await publish_all(order, payloads[begin : begin + 30])
            await order.trim(begin // 30 + 2)
        deliveries = await read_until(order, 11, 300)
        assert deliveries == [Delivery(each, payloads[each - 1]) for each in range(11, 301)]
        with pytest.raises(LogGap) as raised:
            await read_until(order, 10, 300)
        assert (raised.value.expected, raised.value.found) == (10, 11)


async def test_an_attempt_that_comes_late_or_twice_changes_nothing(
    etcd_options: EtcdOptions,
) -> None:
    async with opened(etcd_options) as order, administrator(etcd_options) as admin:
        await publish_all(order, payloads_of(1))
        publisher = order._publisher
        message = Message(1, "second", b"second", 0)
        attempt = publisher._attempt(message)
        assert (await admin.ask(TRANSACTION, attempt)).succeeded  # Its answer was lost.
        order.publish("second", b"second")
        order.publish("third", b"third")
        await until(lambda: not order.publishing())
        assert not (await admin.ask(TRANSACTION, attempt)).succeeded
        payloads = [each.payload for each in await read_until(order, 1, 3)]
        assert payloads == [b"message 0", b"second", b"third"]
        assert (await order.state()).last_sequence == 3


async def test_publishers_that_are_gone_leave_few_keys(
    etcd_options: EtcdOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_module, "PUBLISHERS_KEPT", 3)
    for number in range(6):
        async with opened(etcd_options) as order:
            await publish_all(order, [b"%d" % number])
    prefix = b"groupcert/test/publishers/"
    async with administrator(etcd_options) as admin:
        question = rpc_pb2.RangeRequest(key=prefix, range_end=b"groupcert/test/publishers0")
        assert len((await admin.ask(RANGE, question)).kvs) == 4
    async with opened(etcd_options) as order:
        assert len(await read_until(order, 1, 6)) == 6


async def test_a_reader_that_is_slow_takes_a_bounded_number_of_bytes(
    etcd_options: EtcdOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_reader, "AHEAD_BYTES_MAX", 1 << 20)
    payload = bytes(200_000)
    async with opened(etcd_options) as order:
        async with aclosing(order.read(1)) as reading:
            for number in range(40):
                order.publish(f"{number}", payload)
            seen = await anext(reading)
            await until(lambda: not order.publishing())
            while seen[-1].sequence < 40:
                await asyncio.sleep(0.02)  # It consumes slowly.
                arrived = await anext(reading)
                assert sum(len(each.payload) for each in arrived) < (1 << 20) + 2 * len(payload)
                seen += arrived
    assert [each.sequence for each in seen] == list(range(1, 41))


async def test_a_server_that_is_too_old_is_refused(
    etcd_options: EtcdOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_module, "VERSION_MIN", (99, 0, 1))
    with pytest.raises(LogServerTooOld, match=r"the oldest that serves is 99\.0\.1"):
        await EtcdOrder(etcd_options).open(create=True)


async def test_a_log_of_fewer_servers_than_asked_for_is_refused(etcd_options: EtcdOptions) -> None:
    with pytest.raises(InvalidSetting, match="log_replicas is '3': expected 1 or less"):
        await EtcdOrder(replace(etcd_options, replicas=3)).open(create=True)


async def test_servers_that_do_not_sync_say_so_and_how_much_they_take(
    etcd_options: EtcdOptions, tmp_path: Path
) -> None:
    async with opened(etcd_options) as order:
        state = await order.state()
        assert 0 < state.bytes < state.bytes_max
    with running_etcd(tmp_path, 1, flags=("--unsafe-no-fsync",)) as servers:
        async with opened(options_of(servers)) as order:
            assert (await told_state(order)).durable is False


async def test_a_server_says_how_large_a_message_may_be(tmp_path: Path) -> None:
    flags = ("--max-request-bytes", str(REQUEST_BYTES_DEFAULT))
    with running_etcd(tmp_path / "a", 1, flags=flags) as servers:
        async with opened(options_of(servers)) as order:
            size = (await order.state()).message_bytes_max
            assert 1_500_000 < size < REQUEST_BYTES_DEFAULT
            await publish_all_bytes(order, bytes(size))
            order.publish("too large", bytes(REQUEST_BYTES_DEFAULT))
            await until(lambda: "too large" in order.refusal())
    with running_etcd(tmp_path / "b", 1, flags=("--max-request-bytes", "1000000")) as servers:
        with pytest.raises(InvalidSetting, match="--max-request-bytes of etcd"):
            await EtcdOrder(options_of(servers)).open(create=True)


async def publish_all_bytes(order: EtcdOrder, payload: bytes) -> None:
    order.publish(f"{len(payload)} bytes", payload)
    await until(lambda: not order.publishing())
    assert await order.message(1) == Delivery(1, payload)


async def test_servers_that_are_full_say_so(tmp_path: Path) -> None:
    flags = ("--quota-backend-bytes", str(24 << 20))
    with running_etcd(tmp_path, 1, flags=flags) as servers:
        async with opened(options_of(servers)) as order:
            published = 0

            def is_refused() -> bool:
                """Publishes more: a server counts its bytes only as often as it commits them."""
                nonlocal published
                if order.publishing() == 0:
                    order.publish(f"{published}", bytes(1 << 20))
                    published += 1
                return "space exceeded" in order.refusal()

            await until(is_refused)
            await until(lambda: "NOSPACE" in order.health().problem)
            assert "space exceeded" in order.full() and order.health().full == order.full()
            last = (await order.state()).last_sequence
            # Where an answer was late, whoever asks again is refused, whatever came of it.
            assert order.publishing() - (published - last) in {0, 1}
            await order.trim(last)
            assert (await order.state()).first_sequence == last
            assert order.publishing() and order.full()
            make_space(next(iter(servers.ports.values())))
            await until(lambda: not order.publishing())
            assert order.full() == order.refusal() == ""


def make_space(port: int) -> None:
    """Does what an operator does after a trim, as `etcdctl defrag` and `etcdctl alarm disarm`."""

    def post(path: str, **fields: object) -> dict[str, list[dict[str, str]]]:
        url = f"http://127.0.0.1:{port}/v3/maintenance/{path}"
        with urllib.request.urlopen(url, json.dumps(fields).encode()) as answer:
            document: dict[str, list[dict[str, str]]] = json.load(answer)
        return document

    post("defragment")
    for alarm in post("alarm", action="GET")["alarms"]:
        post("alarm", action="DEACTIVATE", **alarm)


async def test_a_user_needs_a_password_and_may_do_no_more_than_it_needs(tmp_path: Path) -> None:
    with running_etcd(tmp_path, 1) as servers:
        port = next(iter(servers.ports.values()))
        enable_users(port, group="own")
        member, stranger = (f"etcd://{each}@127.0.0.1:{port}" for each in ("member:m", "member:x"))
        options = replace(options_of(servers), servers=(member,))
        with pytest.raises(LogServerUnavailable, match="invalid user ID or password"):
            await EtcdOrder(replace(options, servers=(stranger,))).open(create=True)
        with pytest.raises(LogServerUnavailable, match="user name is empty"):
            await EtcdOrder(options_of(servers)).open(create=True)
        async with opened(options) as order:
            reading = asyncio.create_task(read_until(order, 1, 4))
            await publish_all(order, payloads_of(2))
            servers.stop("log1")  # It forgets who has authenticated.
            servers.start("log1")
            await publish_all(order, payloads_of(4)[2:])
            assert [each.payload for each in await reading] == payloads_of(4)
            await order.trim(3)
            assert (await order.state()).first_sequence == 3
        async with administrator(options) as other:
            with pytest.raises(EtcdRefused) as refused:
                await other.ask(PUT, put_of(b"groupcert/other/log"))
            assert refused.value.code is grpc.StatusCode.PERMISSION_DENIED


def enable_users(port: int, *, group: str) -> None:
    """Makes `root`, and `member` with the password `m`, who may use the keys of a group only."""

    def post(path: str, **fields: object) -> None:
        url = f"http://127.0.0.1:{port}/v3/auth/{path}"
        urllib.request.urlopen(url, json.dumps(fields).encode()).close()

    first, end = (
        base64.b64encode(each.encode()).decode()
        for each in (f"groupcert/{group}/", f"groupcert/{group}0")
    )
    post("user/add", name="root", password="r")
    post("role/add", name="root")
    post("user/grant", user="root", role="root")
    post("user/add", name="member", password="m")
    post("role/add", name="log")
    permission = {"permType": "READWRITE", "key": first, "range_end": end}
    post("role/grant", name="log", perm=permission)
    post("user/grant", user="member", role="log")
    post("enable")
