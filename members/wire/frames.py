"""Messages over a connection of their own, each behind its length: HTTP/2 without what it costs.

The rules it keeps: nothing is taken before the other side has shown that it is who gRPC told of;
and neither side holds more of the other's messages than `WAITING_BYTES` and the one that arrives.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import cast

from ..errors.calls import InvalidMessage

CALL = "/groupcert.v1.SessionService/Session"
"""The stream whose messages they carry."""
SIGN_BYTES = 16
"""Bytes of a greeting, and of a ticket."""
LENGTH_BYTES = 4
WAITING_BYTES = 64 << 10
"""Bytes of messages that wait to be taken above which no more are read; and of those that wait to
be sent above which `sent` waits."""
UNACKNOWLEDGED_MS_MAX = 25_000
"""Milliseconds after which a connection is given up whose other side acknowledges nothing, as after
something on the way has forgotten it."""

_OPTIONS = {
    "TCP_NODELAY": 1,
    "TCP_NOTSENT_LOWAT": WAITING_BYTES,  # The system would take some MB.
    "TCP_USER_TIMEOUT": UNACKNOWLEDGED_MS_MAX,
}


class Frames(asyncio.Protocol):
    """One connection, on which each side sends its sign, and then messages."""

    def __init__(self, bytes_max: int, on_sign: Callable[["Frames", bytes], None]) -> None:
        """Calls `on_sign` with the other side's sign; its messages have up to `bytes_max` bytes."""
        self._is_open = False
        self.has_ended = False
        """True once nothing more comes, or goes."""
        self.ended_in_order = False
        """True once the other side has said that nothing more comes."""
        self._bytes_max = bytes_max
        self._on_sign = on_sign
        self._failure: InvalidMessage | None = None
        self._transport: asyncio.Transport | None = None
        self._part = bytearray()
        """What has come of a sign, or of a message."""
        self._messages: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._pauses_reading = self._pauses_writing = False
        self._news, self._room = asyncio.Event(), asyncio.Event()

    async def read(self) -> bytes | None:
        """Returns the next message; None: the connection has ended, or the other side says that
        nothing more comes. Raises InvalidMessage in place of one over the limit.
        """
        while not self._messages:
            if self.has_ended or self.ended_in_order:
                if self._failure is not None:
                    raise self._failure
                return None
            self._news.clear()
            await self._news.wait()
        message = self._messages.popleft()
        self._waiting_bytes -= len(message)
        if self._pauses_reading and self._waiting_bytes <= WAITING_BYTES:
            self._pauses_reading = False
            if not self._connected().is_closing():
                self._connected().resume_reading()
        return message

    def sign(self, sign: bytes) -> None:
        """Shows the other side who this one is."""
        self._connected().write(sign)

    def accept(self) -> None:
        """Takes messages from here on: the other side's sign was right."""
        self._is_open = True

    def write(self, message: bytes) -> None:
        """Sends a message, unless the connection has ended; an empty one: nothing more comes."""
        transport = self._connected()
        if not transport.is_closing():
            transport.writelines((len(message).to_bytes(LENGTH_BYTES), message))

    @property
    def is_full(self) -> bool:
        """Whether too much is not sent yet."""
        return self._connected().get_write_buffer_size() > WAITING_BYTES

    async def sent(self) -> None:
        """Waits while too much is not sent yet, unless the connection ends."""
        await asyncio.sleep(0)  # uvloop writes then, and tells of what is left.
        while self._pauses_writing and not self.has_ended:
            self._room.clear()
            await self._room.wait()

    async def ended(self) -> None:
        """Waits until the connection has ended."""
        while not self.has_ended:
            self._room.clear()
            await self._room.wait()

    def abort(self) -> None:
        """Ends the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the connection, over TLS once that is agreed on."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WAITING_BYTES)
        connected: socket.socket = transport.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS.items():
            if hasattr(socket, name):  # On Linux all of them.
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def data_received(self, data: bytes) -> None:
        """Takes bytes as they come."""
        if self._part:
            self._part += data
            whole: bytes | bytearray = self._part
        else:
            whole = data
        taken = self._taken(whole)
        if whole is self._part:
            del self._part[:taken]
        elif taken < len(whole):
            self._part += memoryview(whole)[taken:]
        transport = self._connected()
        is_full = self._waiting_bytes > WAITING_BYTES and not self._pauses_reading
        if is_full and not transport.is_closing():
            self._pauses_reading = True
            transport.pause_reading()

    def pause_writing(self) -> None:
        """Notes that the other side takes less than it is sent."""
        self._pauses_writing = True

    def resume_writing(self) -> None:
        """Notes that it has taken that."""
        self._pauses_writing = False
        self._room.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Notes that the connection has ended."""
        self.has_ended = True
        self._is_open = False
        self._news.set()
        self._room.set()

    def _taken(self, whole: bytes | bytearray) -> int:
        """Takes the sign and messages that are complete; returns how many bytes they have."""
        at, end, view = 0, len(whole), memoryview(whole)
        try:
            if not self._is_open:
                if end < SIGN_BYTES:
                    return 0
                self._on_sign(self, bytes(view[:SIGN_BYTES]))
                at = SIGN_BYTES
            while self._is_open and end - at >= LENGTH_BYTES:
                size = int.from_bytes(view[at : at + LENGTH_BYTES])
                if not size:
                    self.ended_in_order = True
                elif size > self._bytes_max:
                    expected = f"a message of at most {self._bytes_max} bytes"
                    self._failure = InvalidMessage(call=CALL, bytes=size, expected=expected)
                    self.abort()
                    return end
                start = at + LENGTH_BYTES
                if start + size > end:
                    break
                at = start + size
                if size:
                    self._messages.append(bytes(view[start:at]))
                    self._waiting_bytes += size
                self._news.set()
            return at if self._is_open else end
        finally:
            view.release()

    def _connected(self) -> asyncio.Transport:
        assert self._transport is not None, "there is no connection yet"
        return self._transport
