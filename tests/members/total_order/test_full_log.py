"""A log that has no space says so, at once, and takes messages again once there is some.

The servers are real ones, and so is the disk, where the machine lets a test mount a small one.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from groupcert.members.total_order import embedded_server
from groupcert.members.total_order.embedded_server import LogServer, kept
from groupcert.members.total_order.jetstream import JetStreamOptions, JetStreamOrder
from groupcert.members.total_order.jetstream_health import promises_of
from tests.members.total_order.test_jetstream import administrator, opened
from tests.members.total_order.test_port import payloads_of, publish_all, read_until
from tests.small_disk import fill, make_room, small_disk
from tests.waiting import until

pytestmark = pytest.mark.nats

MESSAGE_BYTES = 250_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MiB."""
    with small_disk(tmp_path / "disk", 64) as disk:
        yield disk


@pytest.fixture
def server(disk: Path) -> Iterator[LogServer]:
    """A running log server on that disk."""
    server = LogServer(disk / "log")
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def order_at(server: LogServer) -> AsyncIterator[JetStreamOrder]:
    options = JetStreamOptions(
        servers=(server.address,), monitors=(server.monitor,), group="full", connect_ms_max=60_000
    )
    async with opened(options) as order:
        yield order


class Writer:
    """Publishes messages one after the other, until the log has no space."""

    def __init__(self, order: JetStreamOrder) -> None:
        self._order = order
        self.count = 0

    async def until_full(self) -> str:
        """Returns what the log says then; one message is on its way, and stays there."""

        def is_full() -> bool:
            if not self._order.publishing():
                self.count += 1
                self._order.publish(f"{self.count}", os.urandom(MESSAGE_BYTES))
            return bool(self._order.full())

        await until(is_full)
        assert self._order.health().full == self._order.full()
        return self._order.full()

    async def until_taken(self) -> None:
        """Returns when the log has taken each message once."""
        await until(lambda: not self._order.publishing())
        assert self._order.full() == self._order.health().full == ""
        assert (await self._order.state()).last_sequence == self.count


async def test_a_limit_of_the_stream_is_told_and_lifted(
    jetstream_options: JetStreamOptions,
) -> None:
    config = jetstream_options.stream_config()
    update = f"STREAM.UPDATE.{jetstream_options.stream}"
    async with opened(jetstream_options) as order, administrator(jetstream_options) as admin:
        await publish_all(order, payloads_of(3))
        await admin.request(update, {**config, "max_bytes": 1_000})
        assert (await order.state()).bytes_max == 1_000
        order.publish("large", bytes(2_000))
        await until(order.full)
        assert order.full() == order.refusal() == "maximum bytes exceeded (10077)"
        await admin.request(update, {**config, "max_bytes": -1})
        await until(lambda: not order.publishing())
        assert order.full() == order.refusal() == ""
        assert (await read_until(order, 4, 4))[0].payload == bytes(2_000)
        assert (await order.state()).bytes_max > 1_000


async def test_a_server_keeps_a_reserve_of_its_disk_and_says_so(
    server: LogServer, disk: Path
) -> None:
    async with order_at(server) as order:
        writer = Writer(order)
        room = (await order.state()).bytes_max
        total = shutil.disk_usage(disk).total
        assert 0.9 * total < room < 0.96 * total
        assert await writer.until_full() == "insufficient resources (10023)"
        assert shutil.disk_usage(disk).free > total // 20 - 2 * MESSAGE_BYTES
        await order.trim(writer.count // 2)
        await writer.until_taken()


async def test_a_server_that_is_started_again_has_room_beside_what_it_stores(
    server: LogServer,
) -> None:
    async with order_at(server) as order:
        writer = Writer(order)
        await writer.until_full()
        await order.trim(writer.count // 4)
        await writer.until_taken()
        stored = (await order.state()).bytes
        server.stop()
        server.start()
        assert (promises_of((server.monitor,)).room_bytes or 0) > 8 << 20 and stored > 32 << 20
        await publish_all(order, payloads_of(3))


async def test_a_limit_that_others_files_had_set_is_lifted_once_they_are_gone(
    server: LogServer, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_server, "SPACE_SECONDS", 0)
    server.stop()
    fill(disk, left=8 << 20)
    server.start()
    async with order_at(server) as order:
        writer = Writer(order)
        await writer.until_full()
        assert not server.mend(), "there is no space"
        make_room(disk)
        mended = await asyncio.to_thread(server.mend)
        assert "for want of space" in mended and "is reached" in mended
        await writer.until_taken()
        assert not server.mend()


async def test_a_server_that_could_not_write_is_found_out_and_started_again(
    server: LogServer, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers messages with nothing: before there is space, and after."""
    monkeypatch.setattr(embedded_server, "SPACE_SECONDS", 0)
    async with order_at(server) as order:
        writer = Writer(order)
        fill(disk, left=2 << 20)
        assert "no space left on device" in await writer.until_full()
        assert not order.refusal(), "it has said nothing"
        assert not await asyncio.to_thread(server.mend), "there is no space"
        make_room(disk)
        assert "no space left on device" in await asyncio.to_thread(server.mend)
        await writer.until_taken()


async def test_a_kept_server_is_started_again_when_it_has_ended_or_has_space(disk: Path) -> None:
    server, told = LogServer(disk / "log"), list[str]()
    with kept(server, told.append):
        monitor = server.monitor
        async with order_at(server) as order:
            writer = Writer(order)
            server.kill()
            await publish_all(order, payloads_of(2))
            writer.count = 2
            fill(disk, left=2 << 20)
            await writer.until_full()
            make_room(disk)
            await writer.until_taken()
        assert server.monitor == monitor
    assert not server.is_running
    assert (
        told[0] == "was started again: it ended"
        and "for want of space" in told[1]
        and len(told) == 2
    )
