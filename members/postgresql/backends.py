"""The socket on which backends ask: one connection a session of the server, as long as that lives.

A frame is four bytes of length, most significant first, and JSON. The first frame of a connection
shows the token of `groupcert.settings`; each of the others is a transaction at its COMMIT, and gets
answers: it may commit, perhaps after another one, or why it must not. `groupcert postgresql status`
asks here, too.
"""

import asyncio
import hmac
import json
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

FRAME_BYTES_MAX = 256 << 20
"""Bytes of a transaction's rows as JSON; larger ones are refused before they are read."""
HELLO_BYTES_MAX = 1_024
BACKLOG = 1_024


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
    rows: list[tuple[str, str | None]]
    """Keys and values, as of `rows.py`; None: deleted."""
    items: list[str]


class Backend(asyncio.Protocol):
    """One backend's connection. It asks one thing at a time."""

    _transport: asyncio.Transport

    def __init__(self, server: "BackendServer") -> None:
        self.is_checked = False
        """Whether it is a backend of the server that the companion's sessions are at."""
        self._server = server
        self._received = bytearray()
        self._is_known = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins; ends at once if the companion has ended since it was accepted."""
        self._transport = cast(asyncio.Transport, transport)
        self._server.backends.add(self)
        if self._server.is_over:
            self.close()

    def data_received(self, data: bytes) -> None:
        """Takes bytes, and serves the frame that they complete."""
        self._received += data
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[:4])
            if size > (FRAME_BYTES_MAX if self._is_known else HELLO_BYTES_MAX):
                self._refuse_size(size)
                return
            if len(self._received) < 4 + size:
                return
            frame = json.loads(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            self._take(frame)

    def connection_lost(self, error: Exception | None) -> None:
        """Ends; what is being certified for it goes on."""
        self._server.backends.discard(self)
        self._server.lost()

    def refuse(self, refusal: Refusal) -> None:
        """Has the transaction fail."""
        self._send({"error": list(refusal)})

    def grant(self, version: int, source: str, number: int, after: str | None) -> None:
        """Lets the transaction commit as version `version`, once transaction `after` has."""
        self._send({"version": version, "source": source, "number": number, "after": after})

    def close(self) -> None:
        """Hangs up: a transaction that waits fails, its outcome unknown."""
        self._transport.close()

    def _take(self, frame: Any) -> None:
        if not self._is_known:
            self._is_known = hmac.compare_digest(str(frame["token"]), self._server.token)
            if not self._is_known:
                self.close()
            return
        if "status" in frame:
            self._send(self._server.describe())
            return
        self._server.start(self, Request(**frame))

    def _refuse_size(self, size: int) -> None:
        limit = f"Its rows have {size} bytes, {FRAME_BYTES_MAX} at most."
        message = "the transaction is too large for the group"
        self.refuse(Refusal("54000", message, limit, "Divide it."))
        self.close()

    def _send(self, message: object) -> None:
        if not self._transport.is_closing():  # A backend that died meanwhile gets no answer.
            self._transport.write(framed(message))


class BackendServer:
    """Listens for backends."""

    def __init__(
        self,
        path: Path,
        token: str,
        serve: Callable[[Backend, Request], Coroutine[Any, Any, None]],
        lost: Callable[[], None],
        describe: Callable[[], object],
    ) -> None:
        """Serves each transaction by a task, calls `lost` when a backend has hung up, and answers
        with what `describe` returns where somebody asks for the status.
        """
        self.token = token
        self.lost = lost
        self.describe = describe
        self.backends: set[Backend] = set()
        self.is_over = False
        self._path = path
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._path.unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            lambda: Backend(self), str(self._path), backlog=BACKLOG
        )
        self._path.chmod(0o666)  # The server's user is another one; the token says who it is.
        return self

    async def __aexit__(self, *_error: object) -> None:
        assert self._server is not None, "left before it was entered"
        self.is_over = True
        self._server.close()
        for backend in [*self.backends]:
            backend.close()
        for task in self._tasks:
            task.cancel()
        self._path.unlink(missing_ok=True)

    def start(self, backend: Backend, request: Request) -> None:
        """Serves a transaction."""
        task = asyncio.get_running_loop().create_task(self._run(backend, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, backend: Backend, request: Request) -> None:
        try:
            await self._serve(backend, request)
        except Exception:
            backend.close()  # Nobody answers it any more.
            raise


def framed(message: object) -> bytes:
    """Returns a message as it is sent."""
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body
