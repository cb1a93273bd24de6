"""A client of frames that shares no code with the project's own: a blocking socket."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import Self

from groupcert.v1.session_pb2 import SessionFrames

SECONDS_MAX = 120
SIGN_BYTES = 16
RECEIVED_AHEAD_BYTES = 64 << 10
"""By the system: by itself it takes some MB, which nobody reads."""


class RawFrames:
    """A connection of frames; a context manager."""

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, seconds: float = SECONDS_MAX
    ) -> None:
        """Connects; waits for `seconds` at most, each time."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family)
        self._socket.settimeout(seconds)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_AHEAD_BYTES)
        self._socket.connect((host, port))
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self.ended_in_order = False
        """True once the member has said that nothing more comes."""

    @classmethod
    def admitted(cls, host: str, told: SessionFrames, tls: ssl.SSLContext | None = None) -> Self:
        """Returns a connection that the member has let in."""
        connection = cls(host, told.port, tls)
        assert connection.received(SIGN_BYTES) == told.greeting
        connection.put(told.ticket)
        return connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def limit(self, seconds: float) -> None:
        """Waits for `seconds` at most from here on."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

    def put(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self._socket.sendall(data)

    def send(self, message: bytes) -> None:
        """Sends a message."""
        self.put(len(message).to_bytes(4) + message)

    def messages(self) -> Iterator[bytes]:
        """Yields what the member sends, until it hangs up or says that nothing more comes."""
        while len(length := self.received(4)) == 4:
            size = int.from_bytes(length)
            if not size:
                self.ended_in_order = True
                return
            yield self.received(size)

    def received(self, size: int) -> bytes:
        """Returns the next bytes; fewer if the member hangs up."""
        data = b""
        with suppress(ConnectionError):
            while len(data) < size and (more := self._socket.recv(size - len(data))):
                data += more
        return data
