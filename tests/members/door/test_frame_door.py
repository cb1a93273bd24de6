"""Frames at a real port: what comes in pieces, what nobody takes, and who gets in over TLS."""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import cast

import pytest

from groupcert.certifier.errors import InvalidSetting, PortTaken
from groupcert.members.door import frame_door
from groupcert.members.door.frame_door import FrameDoor
from groupcert.members.host.loopback import HOST
from groupcert.members.security.credentials import Tls
from groupcert.members.wire.frames import SIGN_BYTES, Frames
from tests.certificates import Authority
from tests.raw_frames import RawFrames
from tests.waiting import until

MESSAGES = 2_000
REFUSED = (ssl.SSLError, ConnectionError)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Signs for members and clients."""
    return Authority(tmp_path / "ours")


def break_key(tls: Tls) -> None:
    """Leaves half of a key."""
    Path(tls.key).write_text("half a file")


@asynccontextmanager
async def listening(tls: Tls | None = None) -> AsyncIterator[FrameDoor]:
    """A door at a free port."""
    door = FrameDoor()
    await door.listen(HOST, 0, tls)
    try:
        yield door
    finally:
        door.close()


@asynccontextmanager
async def connected(
    door: FrameDoor, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[RawFrames, Frames]]:
    """Both ends of a connection that was let in."""
    attached: list[Frames] = []
    told = door.expect(attached.append)
    client = await asyncio.to_thread(RawFrames.admitted, HOST, told, tls)
    try:
        await until(lambda: attached)
        yield client, attached[0]
    finally:
        client.close()
        await attached[0].ended()
        attached[0].abort()


@pytest.mark.parametrize("seed", range(20))
async def test_messages_are_whole_however_they_are_cut(seed: int) -> None:
    chance = random.Random(seed)
    messages = [chance.randbytes(chance.choice((1, 3, 300, 70_000))) for _ in range(8)]
    data = b"".join(len(each).to_bytes(4) + each for each in messages)
    async with listening() as door, connected(door) as (client, frames):

        def send() -> None:
            at = 0
            while at < len(data):
                size = chance.choice((1, 3, 5, 1_000, 100_000))
                client.put(data[at : at + size])
                at += size

        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(send))
            assert [await frames.read() for _ in messages] == messages


@pytest.mark.parametrize("cut", [b"\xff\xff\xff", b"\x00\x00\x00", b"\x00\x00\x00\x02x"])
async def test_a_message_that_is_cut_off_is_none(cut: bytes) -> None:
    async with listening() as door, connected(door) as (client, frames):
        client.put(cut)
        client.close()
        assert (await frames.read(), frames.ended_in_order) == (None, False)
        assert frames.has_ended


async def test_what_nobody_takes_is_read_no_further() -> None:
    async with listening() as door, connected(door) as (client, frames):

        def send() -> None:
            for _ in range(MESSAGES):
                client.send(bytes(10_000))
            client.put(bytes(4))

        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(send))
            transport = cast(asyncio.Transport, frames._transport)
            await until(lambda: not transport.is_reading())
            taken = 0
            while await frames.read() is not None:
                taken += 1
            assert taken == MESSAGES


async def test_a_writer_waits_for_its_reader() -> None:
    async with listening() as door, connected(door) as (client, frames):
        written = 0
        while not frames.is_full:
            frames.write(bytes(10_000))
            written += 1
        waiting = asyncio.create_task(frames.sent())
        frames.write(b"")
        messages = await asyncio.to_thread(lambda: list(client.messages()))
        await waiting
        assert (len(messages), client.ended_in_order) == (written, True)


async def test_a_writer_waits_no_longer_than_its_connection_lasts() -> None:
    async with listening() as door, connected(door) as (client, frames):
        while not frames.is_full:
            frames.write(bytes(10_000))
        client.close()
        await frames.sent()
        frames.write(b"nobody takes it")


async def test_who_says_nothing_loses_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_door, "SIGN_SECONDS_MAX", 0.05)
    async with listening() as door:
        told = door.expect(lambda _: None)
        with RawFrames(HOST, told.port) as silent:
            received = await asyncio.to_thread(silent.received, SIGN_BYTES + 1)
        assert received == told.greeting


async def test_a_port_that_is_taken_is_named() -> None:
    async with listening() as door:
        port = door.expect(lambda _: None).port
        with pytest.raises(PortTaken, match=f"address {HOST}:{port} is in use"):
            await FrameDoor().listen(HOST, port, None)


async def test_a_door_of_every_interface_takes_both_kinds_of_addresses() -> None:
    door = FrameDoor()
    await door.listen("[::]", 0, None)
    told = door.expect(lambda _: None)
    for host in (HOST, "::1"):
        with RawFrames(host, told.port) as client:
            assert await asyncio.to_thread(client.received, SIGN_BYTES) == told.greeting
    door.close()


async def test_only_the_right_certificate_gets_in(authority: Authority, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "theirs").issue("client", trusts=authority)
    expired = authority.issue("client", expired=True, into="expired")
    bare = ssl.create_default_context(cafile=str(authority.path))
    async with listening(authority.issue("member")) as door:
        async with connected(door, authority.issue("client").client_context()) as (client, frames):
            client.send(b"message")
            assert await frames.read() == b"message"
        told = door.expect(lambda _: pytest.fail("it was let in"))

        def signed(tls: ssl.SSLContext | None) -> bytes:
            with suppress(*REFUSED), RawFrames(HOST, told.port, tls) as client:
                client.put(told.ticket)
                return client.received(SIGN_BYTES)
            return b""

        for tls in (foreign.client_context(), expired.client_context(), bare, None):
            assert told.greeting not in await asyncio.to_thread(signed, tls)


async def test_renewed_certificates_are_used_without_a_restart(authority: Authority) -> None:
    client = authority.issue("client").client_context()
    async with listening(authority.issue("member", expired=True)) as door:
        with pytest.raises(ssl.SSLError, match="certificate has expired"):
            async with connected(door, client):
                pass
        break_key(authority.issue("member"))
        with pytest.raises(ssl.SSLError, match="certificate has expired"):
            async with connected(door, client):
                pass
        authority.issue("member")
        async with connected(door, client) as (sender, frames):
            sender.send(b"message")
            assert await frames.read() == b"message"


async def test_a_broken_file_is_named(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("no key")
    right = authority.issue("member")
    broken = Tls(authority=right.authority, certificate=right.certificate, key=tmp_path / "key")
    with pytest.raises(InvalidSetting, match="tls_key"):
        await FrameDoor().listen(HOST, 0, broken)
