"""What members do when one of three log servers stops: they go on at once, and lose nothing.

Method: where silence would end a subscription after 750 ms, it is made to never do so: a reader
that goes on has heard of the stop itself. Other tests in which a server dies are in
`test_jetstream.py`, with a single one.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from groupcert.members.total_order.embedded_server import LogServer
from groupcert.members.total_order.jetstream import JetStreamOptions, JetStreamOrder
from groupcert.members.total_order.jetstream_connection import JetStreamConnection
from groupcert.members.total_order.served_log import NotAnswered
from tests.log_servers import NatsServers
from tests.waiting import until

pytestmark = [pytest.mark.nats, pytest.mark.slow]

SECONDS_MAX = 120.0
GROUP = "stops"


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[NatsServers]:
    """Three log servers."""
    with NatsServers(tmp_path) as logs:
        yield logs


@asynccontextmanager
async def opened(logs: NatsServers) -> AsyncIterator[JetStreamOrder]:
    """An order on a stream of three copies."""
    order = JetStreamOrder(
        JetStreamOptions(servers=logs.addresses, group=GROUP, replicas=3, connect_ms_max=60_000)
    )
    await order.open(create=True)
    try:
        yield order
    finally:
        await order.close()


def connected_server(order: JetStreamOrder) -> str:
    """The name of the server that an order is connected to."""
    return str(order._connection.client._server_info["server_name"])


async def consumer_server(order: JetStreamOrder) -> str:
    """The name of the server that its reader's consumer lives on; empty while there is none."""
    listed = await order._connection.request(f"CONSUMER.LIST.{order._options.stream}", {})
    leaders = [each.get("cluster", {}).get("leader", "") for each in listed["consumers"]]
    return leaders[0] if len(leaders) == 1 else ""


async def consumed_elsewhere(order: JetStreamOrder, avoided: set[str]) -> str:
    """The server of the reader's consumer once that is none of some: subscribes until it is so."""
    async with asyncio.timeout(SECONDS_MAX):
        while not (server := await consumer_server(order)) or server in avoided:
            if server:
                for reader in order._readers:
                    reader.interrupt()
            await asyncio.sleep(0.1)
    return server


async def test_a_reader_goes_on_at_once_when_the_server_of_its_consumer_stops(
    logs: NatsServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "groupcert.members.total_order.jetstream_reader.SILENT_WATCHES_MAX", 1_000_000
    )
    read: list[int] = []

    async def follow() -> None:
        async with aclosing(order.read(1)) as reading:
            async for deliveries in reading:
                read.extend(each.sequence for each in deliveries)

    async with opened(logs) as order:
        following = asyncio.create_task(follow())
        order.publish("1", b"before")
        await until(lambda: read)
        name = await consumed_elsewhere(order, {connected_server(order)})
        await asyncio.to_thread(logs.stop, name)
        order.publish("2", b"after")
        await until(lambda: len(read) >= 2)
        assert read == [1, 2]
        following.cancel()
        await asyncio.wait((following,))


async def test_a_server_that_is_about_to_stop_is_left(logs: NatsServers) -> None:
    """Lame-duck mode would close the connection minutes later, and its JetStream is gone."""
    async with opened(logs) as order:
        name = connected_server(order)
        logs.processes[name].send_signal(signal.SIGUSR2)
        await until(lambda: connected_server(order) not in {"", name})
        order.publish("1", b"1")
        await until(lambda: not order.publishing())
        assert connected_server(order) != name


async def test_a_request_that_nobody_heard_is_made_again(log_server: LogServer) -> None:
    asked: list[bytes] = []
    asking, answering = (
        JetStreamConnection((log_server.address,), request_timeout_ms=60_000) for _ in range(2)
    )
    for connection in (asking, answering):
        await connection.connect(60_000, (2, 12, 3))

    async def hear_the_third(message: object) -> None:
        asked.append(message.data)  # type: ignore[attr-defined]  # the library's
        if len(asked) == 3:
            await message.respond(b'{"found": 1}')  # type: ignore[attr-defined]

    try:
        await answering.client.subscribe("$JS.API.TEST.ONCE", cb=hear_the_third)
        await answering.client.flush()
        assert await asking.request("TEST.ONCE", {}) == {"found": 1}
        assert len(asked) >= 3, "more often, where the answer took its time"
        assert set(asked) == {b"{}"}
        with pytest.raises(NotAnswered):
            await asking.request("TEST.ONCE", {}, timeout_s=0.2)
    finally:
        for connection in (asking, answering):
            await connection.close()
