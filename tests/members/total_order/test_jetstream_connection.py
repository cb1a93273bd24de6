"""A connection goes on at another log server, however the one that it leaves behaves."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlparse

import nats.errors
import pytest
from nats.aio.client import Srv

from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.total_order.embedded_server import LogServer
from groupcert.members.total_order.jetstream_connection import (
    READ_BYTES,
    JetStreamConnection,
    _Transport,
)
from groupcert.members.total_order.served_log import NotAnswered
from tests.certificates import Authority, TlsLogServer
from tests.frozen import frozen
from tests.waiting import until

pytestmark = pytest.mark.nats

VERSION_MIN = (2, 12, 3)
MESSAGE = bytes(900_000)
MESSAGES = 40
"""More than sockets and the library take from us before somebody receives it."""


@pytest.fixture(autouse=True)
def servers_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are tried as they are given."""
    monkeypatch.setattr(random, "sample", lambda servers, _: servers)


def server_of(connection: JetStreamConnection) -> str:
    """Which server a connection is with."""
    url = connection.client.connected_url
    return f"{url.scheme}://{url.netloc}" if url is not None else ""


async def connected(connection: JetStreamConnection) -> None:
    """Returns when there is a connection again."""
    await until(lambda: connection.client.is_connected)


async def test_a_server_that_froze_before_it_took_all_that_was_sent_is_left(tmp_path: Path) -> None:
    with LogServer(tmp_path / "first") as first, LogServer(tmp_path / "other") as other:
        connection = JetStreamConnection((first.address, other.address), 1_000)
        await connection.connect(60_000, VERSION_MIN)
        assert server_of(connection) == first.address
        with frozen(first.pid):
            with suppress(nats.errors.Error):
                for _ in range(MESSAGES):
                    await connection.client.publish("anything", MESSAGE)
            await connection.leave_frozen_server()
            await connected(connection)
            assert server_of(connection) == other.address
        await connection.close()


async def test_a_message_of_full_size_is_read_at_once() -> None:
    def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(READ_BYTES))
        writer.close()

    port = free_port()
    async with await asyncio.start_server(send, HOST, port):
        transport = _Transport()  # type: ignore[no-untyped-call]  # the library's, untyped
        await transport.connect(urlparse(f"nats://{HOST}:{port}"), 1, 1)
        reader = transport._io_reader
        assert reader is not None
        await until(lambda: len(reader._buffer) == READ_BYTES)  # type: ignore[attr-defined]
        assert len(await transport.read(1)) == READ_BYTES
        transport.close()


async def test_a_server_with_a_wrong_certificate_is_passed_over(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    with (
        TlsLogServer(tmp_path / "wrong", theirs.issue("log")) as wrong,
        TlsLogServer(tmp_path / "right", ours.issue("log")) as right,
    ):
        connection = JetStreamConnection(
            (wrong.address, right.address), 1_000, ours.issue("member")
        )
        try:
            await connection.connect(60_000, VERSION_MIN)
            assert server_of(connection) == right.address
        finally:
            await connection.close()


async def test_a_server_that_is_left_comes_after_those_that_were_found_later(
    tmp_path: Path,
) -> None:
    with LogServer(tmp_path / "known") as known, LogServer(tmp_path / "found") as found:
        connection = JetStreamConnection((known.address,), 1_000)
        await connection.connect(60_000, VERSION_MIN)
        connection.client._server_pool.append(Srv(urlparse(found.address)))
        try:
            await connection.leave_server()
            await connected(connection)
            assert server_of(connection) == found.address
        finally:
            await connection.close()


async def test_how_long_nothing_was_answered_is_known(tmp_path: Path) -> None:
    with LogServer(tmp_path) as server:
        connection = JetStreamConnection((server.address,), 200)
        await connection.connect(60_000, VERSION_MIN)
        try:
            with frozen(server.pid):
                with pytest.raises(NotAnswered):
                    await connection.request("INFO", {})
                assert connection.unanswered_for_ms() >= 200
            await connection.request_until(60_000, "INFO", {})
            assert connection.unanswered_for_ms() == 0
        finally:
            await connection.close()
