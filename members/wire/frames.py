"""Messages over a connection of their own, each behind its length: HTTP/2 without what it costs.

The rules it keeps: nothing is taken before the other side has shown that it is who gRPC told of;
and neither side holds more of the other's messages than `WAITING_BYTES` and the one that arrives.
"""

import asyncio
import socket
from contextlib import suppress

from ..errors.calls import InvalidMessage

CALL = "/groupcert.v1.SessionService/Session"
"""The stream whose messages they carry."""
SIGN_BYTES = 16
"""Bytes of a greeting, and of a ticket."""
LENGTH_BYTES = 4
WAITING_BYTES = 64 << 10
"""Bytes of messages that wait to be taken above which no more are read; and of those that wait to
be sent above which `sent` waits."""
READ_AHEAD_BYTES = WAITING_BYTES // 2
"""A stream of asyncio reads twice its limit ahead."""
UNACKNOWLEDGED_MS_MAX = 25_000
"""Milliseconds after which a connection is given up whose other side acknowledges nothing, as after
something on the way has forgotten it."""

_OPTIONS = {
    "TCP_NODELAY": 1,
    "TCP_NOTSENT_LOWAT": WAITING_BYTES,  # The system would take some MB.
    "TCP_USER_TIMEOUT": UNACKNOWLEDGED_MS_MAX,
}


class Frames:
    """One connection, on which each side shows its sign, and then sends messages."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bytes_max: int
    ) -> None:
        """Takes a connection with a limit of `READ_AHEAD_BYTES`, and messages of up to `bytes_max`
        bytes.
        """
        self.ended_in_order = False
        """True once the other side has said that nothing more comes."""
        self._bytes_max = bytes_max
        self._reader = reader
        self._writer = writer
        self._transport = writer.transport
        self._transport.set_write_buffer_limits(high=WAITING_BYTES)
        connected: socket.socket = writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS.items():
            if hasattr(socket, name):  # On Linux all of them.
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def show(self, sign: bytes) -> None:
        """Shows the other side who this one is."""
        self._writer.write(sign)

    async def sign(self) -> bytes:
        """Returns the other side's sign; what has come of it, if the connection has ended."""
        return await self._received(SIGN_BYTES)

    async def read(self) -> bytes | None:
        """Returns the next message; None: the connection has ended, or the other side says that
        nothing more comes. Raises InvalidMessage in place of one over the limit.
        """
        length = await self._received(LENGTH_BYTES)
        if len(length) < LENGTH_BYTES:
            return None
        size = int.from_bytes(length)
        if not size:
            self.ended_in_order = True
            return None
        if size > self._bytes_max:
            self.abort()
            expected = f"a message of at most {self._bytes_max} bytes"
            raise InvalidMessage(call=CALL, bytes=size, expected=expected)
        message = await self._received(size)
        return message if len(message) == size else None

    def write(self, message: bytes) -> None:
        """Sends a message, unless the connection has ended; an empty one: nothing more comes."""
        if not self.has_ended:
            self._writer.writelines((len(message).to_bytes(LENGTH_BYTES), message))

    @property
    def is_full(self) -> bool:
        """Whether too much is not sent yet."""
        return self._transport.get_write_buffer_size() > WAITING_BYTES

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes, or goes."""
        return self._transport.is_closing()

    async def sent(self) -> None:
        """Waits while too much is not sent yet, unless the connection ends."""
        await asyncio.sleep(0)  # uvloop writes then, and tells of what is left.
        with suppress(OSError):
            await self._writer.drain()

    async def ended(self) -> None:
        """Waits until the other side has hung up; what it sends is dropped. Nobody reads it."""
        with suppress(OSError):
            while await self._reader.read(READ_AHEAD_BYTES):
                pass

    def abort(self) -> None:
        """Ends the connection at once."""
        self._transport.abort()

    async def _received(self, size: int) -> bytes:
        """Returns the next bytes; fewer if the connection has ended, which ends it both ways."""
        try:
            return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            self.abort()
            return error.partial
        except OSError:
            self.abort()
            return b""
