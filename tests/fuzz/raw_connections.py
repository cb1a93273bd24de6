"""Connections whose client speaks no gRPC: noise, half of HTTP/2, and too much of it."""

import asyncio
import random
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from groupcert.members.security.credentials import Credentials
from tests.raw_calls import (
    ACKNOWLEDGED,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    RESET,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    literal,
)

PAUSE_SECONDS = 0.2
SECONDS_MAX = 2.0
ANSWER_SECONDS, ANSWERS_MAX = 0.2, 20
CONTINUATION, GO_AWAY = 9, 7
CONNECTIONS = 100
HEADER_BLOCK = b"".join(
    literal(name, value)
    for name, value in (
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/groupcert.v1.GroupService/GetStatus"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    )
)
Speech = Callable[[random.Random], bytes]


def _noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice((1, 24, 1_000, 100_000)))


def _other_protocols(chance: random.Random) -> bytes:
    return chance.choice(
        (
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(300),
            b"CONNECT {}\r\nPING\r\n",
            PREFACE[:10],
            PREFACE * 3,
        )
    )


def _random_frames(chance: random.Random) -> bytes:
    frames = [
        frame(
            chance.randrange(12),
            chance.getrandbits(8),
            chance.choice((0, 1, 2, 3, 2**31 - 1)),
            chance.randbytes(chance.choice((0, 1, 4, 8, 100))),
        )
        for _ in range(50)
    ]
    return PREFACE + frame(SETTINGS, 0, 0, b"") + b"".join(frames)


def _floods(chance: random.Random) -> bytes:
    number = chance.choice((1, 3))
    kinds = (
        frame(SETTINGS, 0, 0, b"") * 1_000,
        frame(PING, 0, 0, bytes(8)) * 1_000,
        frame(PING, ACKNOWLEDGED, 0, bytes(8)) * 1_000,
        frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 3,
        frame(HEADERS, 0, number, HEADER_BLOCK) + frame(CONTINUATION, 0, number, b"\0\1x\1y") * 500,
        frame(DATA, 0, number, b"x" * 16_384),
        frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**32 - 1)),
        (16_777_215).to_bytes(3, "big") + bytes((DATA, 0, 0, 0, 0, 1)),
        frame(GO_AWAY, 0, 0, bytes(8)),
    )
    return PREFACE + frame(SETTINGS, 0, 0, b"") + chance.choice(kinds)


def _rapid_resets(chance: random.Random) -> bytes:
    """Begins calls and takes them back (CVE-2023-44487)."""
    calls = b"".join(
        frame(HEADERS, END_HEADERS | chance.choice((0, END_STREAM)), number, HEADER_BLOCK)
        + frame(RESET, 0, number, struct.pack(">I", 8))
        for number in range(1, 1_000, 2)
    )
    return PREFACE + frame(SETTINGS, 0, 0, b"") + calls


def _strange_messages(chance: random.Random) -> bytes:
    """Begins calls whose message's head is wrong: compressed, or of 4 GB."""
    heads = (b"\1\0\0\0\4abcd", b"\0\xff\xff\xff\xff", b"\2\0\0\0\0", b"\0\0\0", b"\0" * 1_000)
    calls = b"".join(
        frame(HEADERS, END_HEADERS, number, HEADER_BLOCK)
        + frame(DATA, chance.choice((0, END_STREAM)), number, chance.choice(heads))
        for number in range(1, 40, 2)
    )
    return PREFACE + frame(SETTINGS, 0, 0, b"") + calls


SPEECHES: Sequence[Speech] = (
    _noise,
    _other_protocols,
    _random_frames,
    _floods,
    _rapid_resets,
    _strange_messages,
)


class RawConnections:
    """One after the other, until it is stopped."""

    def __init__(self, addresses: Mapping[str, str], credentials: Credentials, seed: str) -> None:
        self._addresses = list(addresses.values())
        self._tls = credentials.tls
        self._chance = random.Random(f"{seed}/raw")
        self.counts: Counter[str] = Counter()

    async def run(self, stopped: asyncio.Event) -> None:
        """Connects until it is stopped, a few times a second."""
        while not stopped.is_set():
            await asyncio.to_thread(self._connect)
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), PAUSE_SECONDS)

    def _connect(self) -> None:
        chance = self._chance
        address = chance.choice(self._addresses)
        if chance.random() < 0.03:
            self._hold_many(address)
            return
        speech = chance.choice(SPEECHES)
        with suppress(OSError), self._opened(address) as connection:
            connection.sendall(speech(chance))
            if chance.random() < 0.5:
                connection.settimeout(ANSWER_SECONDS)
                for _ in range(ANSWERS_MAX):
                    if not connection.recv(65_536):
                        break
        self.counts[speech.__name__.strip("_").replace("_", " ")] += 1

    def _opened(self, address: str) -> socket.socket:
        """Returns a connection; over TLS every other time, where members ask for it."""
        host, _, port = address.rpartition(":")
        connection = socket.create_connection((host, int(port)), SECONDS_MAX)
        connection.settimeout(SECONDS_MAX)
        if self._tls is None or self._chance.random() < 0.5:
            return connection
        context: ssl.SSLContext = self._tls.client_context()
        context.set_alpn_protocols(["h2"])
        return context.wrap_socket(connection, server_hostname=host)

    def _hold_many(self, address: str) -> None:
        """Opens many connections that say nothing, and closes them at once."""
        host, _, port = address.rpartition(":")
        with ExitStack() as stack, suppress(OSError):
            for _ in range(CONNECTIONS):
                stack.enter_context(socket.create_connection((host, int(port)), SECONDS_MAX))
        self.counts["many connections"] += 1
