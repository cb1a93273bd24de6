"""A connection goes on at another log server, however the one that it leaves behaves."""

import os
import random
import signal
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlparse

import nats.errors
import pytest
from nats.aio.client import Srv

from groupcert.members.total_order.embedded_server import LogServer
from groupcert.members.total_order.jetstream_connection import JetStreamConnection
from groupcert.members.total_order.served_log import NotAnswered
from tests.certificates import Authority, TlsLogServer
from tests.frozen import freeze
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
    frozen, other = LogServer(tmp_path / "frozen"), LogServer(tmp_path / "other")
    frozen.start()
    other.start()
    connection = JetStreamConnection((frozen.address, other.address), 1_000)
    await connection.connect(60_000, VERSION_MIN)
    assert server_of(connection) == frozen.address
    freeze(frozen.pid)
    try:
        with suppress(nats.errors.Error):
            for _ in range(MESSAGES):
                await connection.client.publish("anything", MESSAGE)
        await connection.leave_frozen_server()
        await connected(connection)
        assert server_of(connection) == other.address
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
        await connection.close()
        frozen.stop()
        other.stop()


async def test_a_server_with_a_wrong_certificate_is_passed_over(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    wrong = TlsLogServer(tmp_path / "wrong", theirs.issue("log"))
    right = TlsLogServer(tmp_path / "right", ours.issue("log"))
    wrong.start()
    right.start()
    connection = JetStreamConnection((wrong.address, right.address), 1_000, ours.issue("member"))
    try:
        await connection.connect(60_000, VERSION_MIN)
        assert server_of(connection) == right.address
    finally:
        await connection.close()
        wrong.stop()
        right.stop()


async def test_a_server_that_is_left_comes_after_those_that_were_found_later(
    tmp_path: Path,
) -> None:
    known, found = LogServer(tmp_path / "known"), LogServer(tmp_path / "found")
    known.start()
    found.start()
    connection = JetStreamConnection((known.address,), 1_000)
    await connection.connect(60_000, VERSION_MIN)
    connection.client._server_pool.append(Srv(urlparse(found.address)))
    try:
        await connection.leave_server()
        await connected(connection)
        assert server_of(connection) == found.address
    finally:
        await connection.close()
        known.stop()
        found.stop()


async def test_how_long_nothing_was_answered_is_known(tmp_path: Path) -> None:
    server = LogServer(tmp_path)
    server.start()
    connection = JetStreamConnection((server.address,), 200)
    await connection.connect(60_000, VERSION_MIN)
    try:
        freeze(server.pid)
        with pytest.raises(NotAnswered):
            await connection.request("INFO", {})
        assert connection.unanswered_for_ms() >= 200
        os.kill(server.pid, signal.SIGCONT)
        await connection.request_until(60_000, "INFO", {})
        assert connection.unanswered_for_ms() == 0
    finally:
        await connection.close()
        server.stop()
