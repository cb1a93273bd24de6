"""Where the frames of session streams come in: who has no ticket of a stream is turned away.

The rule it keeps: a connection is the stream's that its ticket belongs to, of which gRPC knows who
calls; a ticket opens one connection, while its stream lasts. Who shows none holds one of
`STRANGERS_MAX` places for `SIGN_SECONDS_MAX`: if all are taken, streams go on over gRPC.
"""

import asyncio
import secrets
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from groupcert.v1.session_pb2 import SessionFrames

from ...certifier.errors import PortTaken
from ..security.credentials import Tls
from ..wire.channels import Renewal
from ..wire.frames import READ_AHEAD_BYTES, SIGN_BYTES, Frames
from .door_server import MESSAGE_BYTES_MAX

SIGN_SECONDS_MAX = 5.0
STRANGERS_MAX = 128
Attach = Callable[[Frames], None]


class FrameDoor:
    """Listens for connections of frames; for one event loop."""

    def __init__(self) -> None:
        self._greeting = secrets.token_bytes(SIGN_BYTES)
        self._expected: dict[bytes, Attach] = {}
        self._strangers: set[Frames] = set()
        self._server: asyncio.Server | None = None
        self._port = 0

    async def listen(self, host: str, port: int, tls: Tls | None) -> None:
        """Lets connections in. Raises PortTaken; InvalidSetting if a TLS file cannot serve."""
        context = None
        if tls is not None:
            tls.check()
            context = _renewed(tls)
        listening = _listening(host, port)
        self._port = listening.getsockname()[1]
        self._server = await asyncio.start_server(
            self._arrived,
            sock=listening,
            limit=READ_AHEAD_BYTES,
            ssl=context,
            ssl_handshake_timeout=SIGN_SECONDS_MAX if context else None,
        )

    def close(self) -> None:
        """Lets nobody in any more; open connections end with their streams."""
        if self._server is not None:
            self._server.close()
        for stranger in tuple(self._strangers):
            stranger.abort()

    def expect(self, attach: Attach) -> SessionFrames:
        """Returns port, greeting and ticket for one connection of a client, which `attach` gets."""
        ticket = secrets.token_bytes(SIGN_BYTES)
        self._expected[ticket] = attach
        return SessionFrames(port=self._port, greeting=self._greeting, ticket=ticket)

    def forget(self, told: SessionFrames) -> None:
        """Expects its client no longer."""
        self._expected.pop(told.ticket, None)

    async def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Lets a connection in if its ticket is expected, and comes in time."""
        stranger, attach = Frames(reader, writer, MESSAGE_BYTES_MAX), None
        if len(self._strangers) < STRANGERS_MAX:
            self._strangers.add(stranger)
            stranger.show(self._greeting)
            with suppress(TimeoutError):
                async with asyncio.timeout(SIGN_SECONDS_MAX):
                    attach = self._expected.pop(await stranger.sign(), None)
            self._strangers.discard(stranger)
        if attach is None:
            stranger.abort()
        else:
            attach(stranger)


def _listening(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at the first address of a host. Raises PortTaken."""
    name = host.strip("[]")
    try:
        family = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((name, port), family=family, dualstack_ipv6=name == "::")
    except OSError:
        raise PortTaken(address=f"{host}:{port}") from None


def _renewed(tls: Tls) -> ssl.SSLContext:
    """Returns a context that reads its files again once they have changed, and fit."""
    renewal = Renewal(tls)
    first = newest = tls.server_context()

    def renew(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        nonlocal newest
        newest = renewal.newest(tls.server_context) or newest
        connection.context = newest

    first.sni_callback = renew
    return first
