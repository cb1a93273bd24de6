"""The socket on which backends ask: one connection a session of the server, as long as that lives.

A frame is four bytes of length, most significant first, and JSON. The first frame of a connection
shows the token of `groupcert.settings`; each of the others is a transaction at its COMMIT, and gets
answers: it may commit, perhaps after another one, or why it must not.
"""

import asyncio
import hmac
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import structlog

from groupcert.members.postgresql.rows import NotedRow

FRAME_BYTES_MAX = 256 << 20
"""Bytes of a transaction's rows as JSON; larger ones are refused before they are read."""
BACKLOG = 1_024
PAUSE_SECONDS = 1.0
"""After a connection that could not be accepted: the process has too many files open."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Refusal(NamedTuple):
    """Why a transaction must not commit, as PostgreSQL says it to the client."""

    sqlstate: str
    message: str
    detail: str
    hint: str


class Request(NamedTuple):
    """A transaction at its COMMIT; `version` is that of its snapshot."""

    transaction_id: str
    pid: int
    version: int
    rows: list[NotedRow]


class Backend:
    """One backend's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> Any:
        """Returns the next frame. Raises IncompleteReadError at the end."""
        (size,) = struct.unpack(">I", await self._reader.readexactly(4))
        if size > FRAME_BYTES_MAX:
            too_large = Refusal(
                "54000",
                "the transaction is too large for the group",
                f"Its rows have {size} bytes, {FRAME_BYTES_MAX} at most.",
                "Divide it.",
            )
            self.refuse(too_large)
            raise asyncio.IncompleteReadError(b"", size)
        return json.loads(await self._reader.readexactly(size))

    def refuse(self, refusal: Refusal) -> None:
        """Has the transaction fail."""
        self._send({"error": list(refusal)})

    def grant(self, version: int, source: str, number: int, after: str | None) -> None:
        """Lets the transaction commit as version `version`, once transaction `after` has."""
        self._send({"version": version, "source": source, "number": number, "after": after})

    def close(self) -> None:
        """Hangs up: a transaction that waits fails, its outcome unknown."""
        self._writer.close()

    def _send(self, message: object) -> None:
        body = json.dumps(message).encode()
        self._writer.write(struct.pack(">I", len(body)) + body)


class BackendServer:
    """Listens for backends; calls `serve` with each transaction, one at a time for each.

    It accepts by itself: `asyncio.Server` forgets a connection that it accepted while it was being
    closed, and the backend on its other end would wait for ever.
    """

    def __init__(
        self, path: Path, token: str, serve: Callable[[Backend, Request], Awaitable[None]]
    ) -> None:
        self._path = path
        self._token = token
        self._serve = serve
        self._listener = socket.socket(socket.AF_UNIX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False

    async def __aenter__(self) -> Self:
        self._path.unlink(missing_ok=True)
        self._listener.setblocking(False)
        self._listener.bind(str(self._path))
        self._path.chmod(0o666)  # The server's user is another one; the token says who it is.
        self._listener.listen(BACKLOG)
        self._resume()
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._path.unlink(missing_ok=True)
        self._is_over = True
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        await asyncio.sleep(0)  # A task that has not begun would leave its connection open.
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _resume(self) -> None:
        if not self._is_over:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("backend_not_accepted", text=str(error))
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._listener)
            loop.call_later(PAUSE_SECONDS, self._resume)
            return
        connection.setblocking(False)
        task = asyncio.create_task(self._connected(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        backend = Backend(reader, writer)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                hello = await backend.receive()
                if not hmac.compare_digest(str(hello["token"]), self._token):
                    return
                while True:
                    given = await backend.receive()
                    rows = [NotedRow(*row) for row in given.pop("rows")]
                    await self._serve(backend, Request(rows=rows, **given))
        finally:
            backend.close()
