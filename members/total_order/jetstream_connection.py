"""One NATS connection and JetStream's API over it: requests and answers as JSON.

The client library's own JetStream layer is not used: its ordered consumer loses messages when the
reader is slow, and its publish calls take the processor longer than the message itself.
"""

import asyncio
import base64
import json
import random
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import ParseResult

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.protocol.command import hpub_cmd

from ...certifier.errors import LogServerTooOld, LogServerUnavailable
from ..security.credentials import Tls
from .served_log import NotAnswered, Refused
from .server_address import without_password

RETRY_MS = 100
ASK_AGAIN_MS = 100
"""Milliseconds until a request is made again, doubled each time. A repeated request has the same
effect as one."""
PING_SECONDS_MAX = 1
CLOSE_MS_MAX = 1_000
"""Milliseconds for a server to receive what is still to be sent when a connection closes."""
HUNG_UP = ", as by one that takes no such certificate: is ours expired, or of a foreign authority"
STREAM_NOT_FOUND = 10059
MESSAGE_NOT_FOUND = 10037
READ_BYTES = 256 << 10
"""Bytes that are read from a server at once: as many as a message of full size has."""


class JetStreamRefused(Refused):
    """The API answered with an error; `code` is JetStream's own number for it."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})")
        self.code = code


class JetStreamConnection:
    """A connection that comes back by itself; `on_interruption`: messages may have been missed."""

    def __init__(
        self, servers: tuple[str, ...], request_timeout_ms: int, tls: Tls | None = None
    ) -> None:
        self.address = ",".join(without_password(server) for server in servers)
        self._servers = list(servers)
        self._has_tls = tls is not None
        self._request_timeout_s = request_timeout_ms / 1000
        self._last_error = self._not_answered = ""
        self._failure: Exception | None = None
        self._has_begun = False
        self._asked_ns: int | None = None
        self.on_interruption: Callable[[], None] = lambda: None
        self.client = _Client() if tls is None else _TlsClient(tls)
        self.client.on_server_gone = lambda: self.on_interruption()

    async def connect(self, limit_ms: int, version_min: tuple[int, int, int]) -> None:
        """Connects to the first server that answers, and checks its version.

        Raises:
            LogServerUnavailable: None answered within the limit.
            LogServerTooOld: The server is older than `version_min`.
        """
        self._has_begun = True
        servers = random.sample(self._servers, len(self._servers))
        connecting = asyncio.ensure_future(
            self.client.connect(
                servers,
                dont_randomize=True,  # A server that was left comes last.
                error_cb=self._on_error,
                reconnected_cb=self._on_reconnected,
                lame_duck_mode_cb=self.leave_server,
                connect_timeout=1,
                reconnect_time_wait=RETRY_MS / 1000,  # type: ignore[arg-type]  # sleeps this
                max_reconnect_attempts=-1,
                ping_interval=5,
                flush_timeout=self._request_timeout_s,
                skip_subject_validation=True,
            )
        )
        if not await _finished(connecting, limit_ms):
            await self.close()
            cause = self._last_error or f"no answer within {limit_ms} ms"
            raise LogServerUnavailable(address=self.address, cause=cause)
        version = self.client.connected_server_version
        if (version.major, version.minor, version.patch) < version_min:
            await self.close()
            raise LogServerTooOld(
                version=f"{version.major}.{version.minor}.{version.patch}",
                version_min=".".join(map(str, version_min)),
            )

    async def close(self) -> None:
        """Closes the connection, whatever its state."""
        if not self._has_begun:  # The client library fails if it has never connected.
            return
        with suppress(OSError, RuntimeError, nats.errors.Error):  # uvloop: "the handler is closed"
            await _finished(asyncio.ensure_future(self.client.close()), CLOSE_MS_MAX)

    def check_alive(self) -> None:
        """Raises what a callback raised: the client library only reports it, and goes on."""
        if self._failure is not None:
            raise self._failure

    @property
    def problem(self) -> str:
        """The reason why the servers are not reached, or do not answer; empty if there is none."""
        return self._not_answered if self.client.is_connected else self._last_error

    async def request(
        self, verb: str, body: Mapping[str, object], *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Returns the API's answer. A `timeout_s` shortens that of the connection.

        Raises:
            JetStreamRefused: The answer is an error.
            NotAnswered: There is none.
        """
        # Of the first request that nobody has answered, see `unanswered_for_ms`.
        self._asked_ns = self._asked_ns or time.monotonic_ns()
        timeout_s = timeout_s or self._request_timeout_s
        try:
            answer = await self._ask(f"$JS.API.{verb}", json.dumps(body).encode(), timeout_s)
        except (nats.errors.Error, OSError) as error:
            self._not_answered = str(error)
            raise NotAnswered(str(error)) from error
        document: dict[str, Any] = json.loads(answer.data)
        self._not_answered = ""
        if refusal := document.get("error"):
            # There is no leader that could answer, so the time without an answer goes on.
            if refusal["code"] == 503:
                self._not_answered = refusal["description"]
                raise NotAnswered(refusal["description"])
            self._asked_ns = None
            code = refusal.get("err_code", refusal["code"])
            raise JetStreamRefused(code, refusal["description"])
        self._asked_ns = None
        return document

    async def _ask(self, subject: str, body: bytes, timeout_s: float) -> Msg:
        """Returns the first answer to a request, and repeats the request until there is one: a
        server that has just stopped, or no longer leads, does not say that it will not answer.
        """
        deadline = time.monotonic() + timeout_s
        asking: set[asyncio.Future[Msg]] = set()
        pause_s = ASK_AGAIN_MS / 1000
        try:
            while True:
                left_s = max(deadline - time.monotonic(), pause_s)
                request = self.client.request(subject, body, timeout=left_s)
                asking.add(asyncio.ensure_future(request))
                done, _ = await asyncio.wait(
                    asking, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED
                )
                if done or time.monotonic() > deadline:
                    # With none in time, the error that the library gives to one of them.
                    return await (done or asking).pop()
                pause_s *= 2
        finally:
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    def unanswered_for_ms(self) -> int:
        """Returns milliseconds since the first request without an answer to it or a later one."""
        return 0 if self._asked_ns is None else (time.monotonic_ns() - self._asked_ns) // 1_000_000

    async def request_until(
        self, limit_ms: int, verb: str, body: Mapping[str, object]
    ) -> dict[str, Any]:
        """Returns the answer, asking until there is one; LogServerUnavailable after `limit_ms`."""
        deadline = time.monotonic() + limit_ms / 1000
        while True:
            try:
                return await self.request(verb, body)
            except NotAnswered as error:
                if time.monotonic() > deadline:
                    cause = f"{verb}: {error}"
                    raise LogServerUnavailable(address=self.address, cause=cause) from error
            await asyncio.sleep(RETRY_MS / 1000)

    async def message_from(
        self, stream: str, subject: str, sequence: int
    ) -> tuple[int, bytes] | None:
        """Returns the first message of the stream at or above a sequence, and its sequence."""
        body = {"seq": sequence, "next_by_subj": subject}
        try:
            document = await self.request(f"STREAM.MSG.GET.{stream}", body)
        except JetStreamRefused as refused:
            if refused.code == MESSAGE_NOT_FOUND:
                return None
            raise
        message = document["message"]
        return message["seq"], base64.b64decode(message.get("data", ""))

    async def leave_frozen_server(self) -> None:
        """Connects to another server if this one does not even answer a ping."""
        if self.client.is_connected:
            try:
                await self.client.flush(PING_SECONDS_MAX)
            except (nats.errors.Error, OSError):
                await self.leave_server()

    async def leave_server(self) -> None:
        """Connects to another server, if there is one."""
        await self.client.leave_server()

    async def _on_error(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if isinstance(error, ssl.SSLError):
            text = f"TLS: {text}"
        # A server that refuses our certificate may hang up before its reason is read.
        hung_up = isinstance(error, ConnectionResetError | BrokenPipeError)
        if hung_up and self._has_tls:
            text = f"TLS: {text}{HUNG_UP}"
        # What TLS has said is the cause of the connection errors that follow.
        if not (isinstance(error, ConnectionError) and self._last_error.startswith("TLS: ")):
            self._last_error = text
        expected = isinstance(error, (nats.errors.Error, OSError))
        if not expected:
            self._failure = error
            self.on_interruption()

    async def _on_reconnected(self) -> None:
        self.on_interruption()


async def _finished(task: "asyncio.Future[None]", limit_ms: int) -> bool:
    """Returns whether a task of the client library ended by itself in time; ends it otherwise.

    Cancels it until it ends: the library may lose one cancellation, and then goes on for ever, most
    often where TLS handshakes fail one after the other.
    """
    try:
        await asyncio.wait((task,), timeout=limit_ms / 1000)
        if task.done():
            task.result()
            return True
        return False
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=RETRY_MS / 1000)


Handler = Callable[[bytes, bytes, bytes, bytes | None], None]
"""Takes a message's subject and reply subject, its content, and its headers if it has some."""


class _Transport(TcpTransport):
    """Closes connections at once: what is lost with one is sent again anyway. Reads all that has
    arrived.

    The library's own waits until the server has taken all that was sent, which a frozen server
    never does, and for the end of a TLS session, which never comes where the handshake failed. It
    reads 32 KiB at a time, and stops the socket at 64: a message of the log came in four pieces.
    """

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """Connects, with room for `READ_BYTES` in place of `buffer_size`."""
        await super().connect(uri, READ_BYTES, connect_timeout)

    async def read(self, buffer_size: int) -> bytes:
        """Reads the bytes that have arrived, up to `READ_BYTES` in place of `buffer_size`."""
        data: bytes = await super().read(READ_BYTES)
        return data

    def close(self) -> None:
        """Closes the connection without waiting."""
        if self._bare_io_writer is not None:
            self._bare_io_writer.transport.abort()

    async def wait_closed(self) -> None:
        """Returns at once."""

    def __bool__(self) -> bool:
        return True  # Else the library takes one of its own before the first connection.


class _Client(Client):
    """A client that never waits for a server that it leaves, and hears of servers that went."""

    def __init__(self) -> None:
        super().__init__()
        self._transport = _Transport()  # type: ignore[no-untyped-call]  # the library's, untyped
        self._others: frozenset[str] = frozenset()
        self._handlers: dict[int, Handler] = {}
        self.on_server_gone: Callable[[], None] = lambda: None

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Takes the information of a server about itself and its peers, which it sends again when
        these change. A consumer may have been on a server that is gone.
        """
        before, self._others = self._others, frozenset(info.get("connect_urls") or ())
        await super()._process_info(info, initial_connection)
        if not initial_connection and before - self._others:
            self.on_server_gone()

    async def subscribe_directly(self, subject: str, handler: Handler) -> Subscription:
        """Subscribes, and has `handler` called where a message is parsed. The library's own way
        makes a message, a place in a queue and a turn of a task of it first.
        """
        subscription = await self.subscribe(subject)
        self._handlers[subscription._id] = handler
        return subscription

    def publish_directly(self, subject: str, reply: str, headers: bytes, payload: bytes) -> None:
        """Writes a message to the server, behind what waits. The library's own way has a task of it
        write later. Raises nats.errors.Error or OSError.
        """
        if len(payload) > self.max_payload:
            raise nats.errors.MaxPayloadError
        if not self.is_connected or self._transport is None:
            raise nats.errors.ConnectionClosedError
        waiting, self._pending, self._pending_data_size = self._pending, [], 0
        command = hpub_cmd(subject, reply, headers, payload)
        self._transport.writelines([*waiting, command])

    async def unsubscribe_directly(self, subscription: Subscription) -> None:
        """Ends such a subscription."""
        self._handlers.pop(subscription._id, None)
        if not self.is_closed:
            await subscription.unsubscribe()

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        """Takes a message from the parser, thousands of times a second."""
        handler = self._handlers.get(sid)
        if handler is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        try:
            handler(subject, reply, data, headers)
        except Exception as error:
            await self._error_cb(error)

    async def leave_server(self) -> None:
        """Connects to another server: the library tries its own list from the front."""
        if self._current_server in self._server_pool:
            self._server_pool.remove(self._current_server)
            self._server_pool.append(self._current_server)
        await self.force_reconnect()


class _TlsClient(_Client):
    """Speaks over mutual TLS or not at all, and reads its files anew for each connection.

    The library itself goes on in clear with a server that offers no TLS, whatever the address
    begins with: so could a machine between the two read the log, and write to it.
    """

    def __init__(self, tls: Tls) -> None:
        super().__init__()
        self._tls = tls

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """A context of the files as they are now."""
        return self._tls.client_context()

    def _connect_command(self) -> bytes:
        if not self._server_info.get("tls_required"):
            raise nats.errors.Error("it offers no TLS, and TLS is asked for")
        return super()._connect_command()
