"""The socket on which backends ask: one connection a session of the server, as long as that lives.

A connection begins with the frames of handshake.py. The others are transactions at their COMMIT:
lines of text with zero bytes between them, which no text of PostgreSQL has. The first line tells
what a frame is:

    7340 5121 4711  the last one of a transaction: its id, its backend's process, and the version of
                    its snapshot
    >               one before that
    ~               one of which the last value goes on in the next
    status          none of a transaction: `groupcert postgresql status` asks, and gets JSON
    wait            a session waits until the version in the next line is executed here, or, where
                    none is, all that the group has certified; it gets the version

The others are those of `changes T` (functions.py), and `T` with the name of a table of which all
rows were removed. The answer is a line: version, source, number and position of the transaction,
which may commit, and the id of another one that has to be before it, or nothing. If it must not,
the lines of the answer are those of a `Refusal`, the first with a "!" before it.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Self, cast

from .backend_socket import BackendSocket
from .commit_order import Entry
from .handshake import (
    ASKER,
    MEMBER,
    Nonces,
    framed,
    is_proof,
    new_nonce,
    peer_uid,
    proof_of,
)
from .rows import ChangedRows

FRAME_BYTES_MAX = 4 << 20
"""Bytes of a frame: a backend divides rows into frames of some 128 thousand characters."""
HELLO_BYTES_MAX = 1_024
MORE, CONTINUED, STATUS, WAIT = b">", b"~", b"status", b"wait"
"""First lines of frames; triggers.sql and consistency.sql have them, too."""
TOO_LARGE = "the transaction is too large for the group"
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
    changes: ChangedRows


class Wait(NamedTuple):
    """A session that waits until a version is executed here; None: all that the group has certified
    by now.
    """

    version: int | None


class Backend(asyncio.Protocol):
    """One backend's connection. It asks one thing at a time."""

    _transport: asyncio.Transport

    def __init__(self, server: "BackendServer") -> None:
        self.is_checked = False
        """Whether it is a backend of the server that the member's sessions are at."""
        self._server = server
        self._received = bytearray()
        self._nonces: Nonces | None = None
        self._is_known = False
        self._changes = ChangedRows()
        self._waits: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins; ends at once if the member has ended since it was accepted, or if it is of an
        account that has nothing to ask.
        """
        self._transport = cast(asyncio.Transport, transport)
        self._server.backends.add(self)
        uid = peer_uid(transport.get_extra_info("socket"))
        if self._server.is_over or uid not in self._server.socket.accounts:
            self.close()

    def data_received(self, data: bytes) -> None:
        """Takes bytes, and serves the frame that they complete."""
        self._received += data
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[:4])
            # Before its proof, nobody has the member hold more than a hello.
            if size > (FRAME_BYTES_MAX if self._is_known else HELLO_BYTES_MAX):
                limit = f"A frame has {size} bytes, {FRAME_BYTES_MAX} at most."
                self.refuse(Refusal("54000", TOO_LARGE, limit, "Divide it."))
                self.close()
                return
            if len(self._received) < 4 + size:
                return
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            self._take(frame)

    def connection_lost(self, error: Exception | None) -> None:
        """Ends; what is being certified for it goes on, and nobody waits any more."""
        self._server.backends.discard(self)
        if self._waits is not None:
            self._waits.cancel()
        self._server.lost()

    def refuse(self, refusal: Refusal) -> None:
        """Has the transaction fail."""
        self._send("!" + "\0".join(refusal))

    def grant(self, entry: Entry, after: str | None) -> None:
        """Lets the transaction commit as an entry, once transaction `after` has."""
        source, number = entry.gtid
        self._send(f"{entry.version} {source} {number} {entry.position} {after or ''}")

    def tell_executed(self, version: int) -> None:
        """Ends its wait: a version is executed here."""
        self._send(str(version))

    def close(self) -> None:
        """Hangs up: a transaction that waits fails, its outcome unknown."""
        self._transport.close()

    def _take(self, frame: bytes) -> None:
        if not self._is_known:
            self._introduce(frame.decode())
            return
        head, *lines = frame.split(b"\0")
        if head == STATUS:
            self._send(json.dumps(self._server.describe()))
            return
        if head == WAIT:
            self._waits = self._server.start(self, Wait(int(lines[0]) if lines else None))
            return
        self._changes.add(lines, continued=head == CONTINUED)
        if head in (MORE, CONTINUED):
            return
        changes, self._changes = self._changes, ChangedRows()
        if changes.problem:
            self.refuse(Refusal("54000", TOO_LARGE, changes.problem, "Divide it."))
            return
        transaction_id, pid, version = head.decode().split(" ")
        self._server.start(self, Request(transaction_id, int(pid), int(version), changes))

    def _introduce(self, text: str) -> None:
        """Proves that it is the member, then takes the proof of who asks."""
        token = self._server.socket.token
        if self._nonces is None:
            self._nonces = Nonces(text, new_nonce())
            self._send(f"{self._nonces.member} {proof_of(token, MEMBER, self._nonces)}")
            return
        self._is_known = is_proof(text, token, ASKER, self._nonces)
        if not self._is_known:
            self.close()

    def _send(self, text: str) -> None:
        if not self._transport.is_closing():  # A backend that died meanwhile gets no answer.
            self._transport.write(framed(text))


class BackendServer:
    """Listens for backends."""

    def __init__(
        self,
        socket: BackendSocket,
        serve: Callable[[Backend, Request | Wait], Coroutine[Any, Any, None]],
        lost: Callable[[], None],
        describe: Callable[[], object],
    ) -> None:
        """Serves each transaction and each wait by a task, calls `lost` when a backend has hung up,
        and answers with what `describe` returns where somebody asks for the status.
        """
        self.socket = socket
        self.lost = lost
        self.describe = describe
        self.backends: set[Backend] = set()
        self.is_over = False
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            lambda: Backend(self), sock=self.socket.bind(), backlog=BACKLOG, start_serving=False
        )
        try:
            await self._server.start_serving()
        except BaseException:  # A run may be stopped as soon as it begins.
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        assert self._server is not None, "left before it was entered"
        self.is_over = True
        self._server.close()
        for backend in [*self.backends]:
            backend.close()
        for task in self._tasks:
            task.cancel()
        self.socket.remove()

    def start(self, backend: Backend, request: Request | Wait) -> asyncio.Task[None]:
        """Serves a transaction, or a wait; returns the task."""
        task = asyncio.get_running_loop().create_task(self._run(backend, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, backend: Backend, request: Request | Wait) -> None:
        try:
            await self._serve(backend, request)
        except Exception:
            backend.close()  # Nobody answers it any more.
            raise
