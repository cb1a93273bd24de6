"""The total order on NATS JetStream: one stream a group, in files, replicated by the servers.

`open` checks what can be checked: the server's version, the stream's settings and, where the
servers' monitoring addresses are known, that they sync every write. A client has no other way to
see that (the connection's greeting, the account's and the stream's information do not have it), so
without them `LogState.durable` is None.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple

import nats.errors

from ...certifier.errors import InvalidSetting, LogServerUnavailable
from ..host.backoff import Backoff
from .jetstream_connection import STREAM_NOT_FOUND, JetStreamConnection, JetStreamRefused
from .jetstream_health import NO_SPACE_WORDS, JetStreamHealth, Promises, promises_of, write_error
from .jetstream_reader import HEARTBEAT_MS, LogReader
from .linger import Linger
from .port import Continuation, Delivery, LogIdentity, LogState, check_same_log
from .served_log import (
    MISSING_RETRY_SECONDS,
    Message,
    NotAnswered,
    Pending,
    ServedLog,
    ServedLogOptions,
)
from .server_health import LogServers

STREAM_PREFIX = "GROUPCERT_"
CONTINUES = "groupcert.continues"
"""Name in a stream's metadata of the log that it goes on from."""
REQUIRED_SETTINGS = ("subjects", "storage", "retention", "discard", "num_replicas", "deny_delete")
"""Settings of an existing stream that must be as configured; operators may change the others."""
MESSAGE_BYTES_MAX = 8 << 20
HEADER_BYTES_MAX = 1 << 10
"""Bytes for the message id and the stream's name, which count towards a message's size."""
NO_RESPONDERS = b"NATS/1.0 503"
"""Begin of the headers of an answer of the server itself."""
FULL_CODES = {10002, 10023, 10047}
"""JetStream's numbers for limits of an account, a server and its storage that are reached."""
STORE_FAILED = 10077
FULL_WORDS = ("maximum bytes exceeded", "maximum messages exceeded", *NO_SPACE_WORDS)
"""Its reasons for `STORE_FAILED` that are want of space."""
BACKOFF_FIRST_MS = 10
BACKOFF_MAX_MS = 250
"""Milliseconds between two tries: an election among log servers takes its time, and asking more
often adds little to it."""
ACKNOWLEDGEMENT_MS_MAX = 2_000
"""Milliseconds that an acknowledgement may take before the message is sent again."""
MONITORS_MS = 9_000
"""Milliseconds until the servers are asked again whether they sync, and for their free space."""
SPACE_SECONDS = 0.5
CUT_OFF_MS = 3_000
"""A server that takes no message or answers no request for so long, and sends no message either,
may be cut off from the others: after an acknowledgement is overdue, and before the group suspects a
member that it does not hear of."""
CUT_OFF_MS_MAX = 15_000
"""The time doubles with each server that is no better: perhaps the messages are just large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JetStreamOptions(ServedLogOptions):
    """The stream of a group, and the properties that it must have; `nats://host:port` or
    `tls://...`.
    """

    in_flight_max: int = 1
    """Messages sent and not acknowledged. 1 keeps their order in any case."""
    deny_purge: bool = False
    """Makes a new stream refuse `trim`, for logs that operators trim by retention limits alone."""
    duplicate_window_ms: int = 120_000
    """Milliseconds for which a new stream knows message ids: longer than a server takes to
    restart."""
    request_timeout_ms: int = 2_000
    """Milliseconds until a request to JetStream is sent again."""
    version_min: tuple[int, int, int] = (2, 12, 3)
    """The oldest server that serves: the first with the fixes to what Jepsen found in 2.12.1."""

    @property
    def stream(self) -> str:
        """The stream's name."""
        return f"{STREAM_PREFIX}{self.group}"

    @property
    def subject(self) -> str:
        """The one subject that the stream stores."""
        return f"groupcert.{self.group}.log"

    def stream_config(self) -> dict[str, object]:
        """Returns the stream as `open` makes it, and as it must be: only `trim` removes
        anything.
        """
        config: dict[str, object] = {
            "name": self.stream,
            "subjects": [self.subject],
            "storage": "file",
            "retention": "limits",
            # At its limit it refuses messages. `old` would drop those that members have yet to
            # read.
            "discard": "new",
            "num_replicas": self.replicas,
            "max_msg_size": MESSAGE_BYTES_MAX,
            "duplicate_window": self.duplicate_window_ms * 1_000_000,
            "deny_delete": True,
            "deny_purge": self.deny_purge,
        }
        if self.continues is not None:
            config["first_seq"] = self.continues.log_sequence + 1
            config["metadata"] = {CONTINUES: self.continues.encode()}
        return config


def check_settings(options: JetStreamOptions, config: dict[str, Any]) -> None:
    """Raises InvalidSetting if an existing stream is not what the options and this adapter need."""
    wanted = options.stream_config()
    for name in REQUIRED_SETTINGS:
        if name == "num_replicas" and not options.replicas:
            continue
        if config[name] != wanted[name]:
            raise InvalidSetting(
                name=f"{name} of stream {options.stream}",
                value=str(config[name]),
                expected=str(wanted[name]),
            )


class Refusal(NamedTuple):
    """Why the stream did not take a message; `is_full`: it has no space for any."""

    text: str
    is_full: bool = False


class JetStreamPublisher:
    """Sends messages into a stream, in order, until each is acknowledged.

    Accepted messages wait in a queue; those sent and not acknowledged are in flight. On any fault
    (a refusal, no acknowledgement in time, a new connection), everything in flight goes back to the
    head of the queue and is sent again under the same ids, of which the stream stores each once.
    With one message in flight the order is kept in any case; with more, a stream that changes its
    leader can refuse one and take the next.
    """

    def __init__(
        self, connection: JetStreamConnection, subject: str, in_flight_max: int, pending: Pending
    ) -> None:
        self._connection = connection
        self._subject = subject
        self._in_flight_max = in_flight_max
        self._pending = pending
        self._queue: deque[Message] = deque()
        self._in_flight: dict[int, Message] = {}
        self._progress_ns = 0
        self._failed = self._hears = False
        self._backoff = Backoff(first_ms=BACKOFF_FIRST_MS, max_ms=BACKOFF_MAX_MS)
        self._wake = asyncio.Event()
        self._inbox = connection.client.new_inbox()

    def publish(self, message_id: str, payload: bytes) -> None:
        """Accepts a message, as `TotalOrder.publish` says."""
        self._queue.append(self._pending.accept(message_id, payload))
        self._send_next()

    def watch(self) -> None:
        """Gives up waiting for acknowledgements that are overdue; called every quarter second."""
        overdue_ns = time.monotonic_ns() - ACKNOWLEDGEMENT_MS_MAX * 1_000_000
        if self._in_flight and self._progress_ns < overdue_ns:
            self.interrupt()

    def interrupt(self) -> None:
        """Sends everything in flight again, after the back-off: it may have been lost."""
        self._failed = True
        self._wake.set()

    def resume(self) -> None:
        """Sends everything in flight again soon: the connection is new."""
        self._backoff.reset()
        self.interrupt()

    async def run(self) -> None:
        """Sends, until the connection is closed."""
        client = self._connection.client
        await client.subscribe_directly(f"{self._inbox}.*", self._on_acknowledgement)
        self._hears = True
        while not self._connection.client.is_closed:
            self._wake.clear()
            if self._failed:
                await asyncio.sleep(self._backoff.next_s())
                self._send_again()
            self._send_next()
            await self._wake.wait()

    def _may_send(self) -> bool:
        """Returns False while disconnected, and before acknowledgements can be heard."""
        return (
            bool(self._queue)
            and self._hears
            and len(self._in_flight) < self._in_flight_max
            # Nothing may overtake what goes back to the head of the queue.
            and not self._failed
            and self._connection.client.is_connected
        )

    def _send_next(self) -> None:
        """Sends what waits, as much as may be in flight."""
        while self._may_send():
            self._send(self._queue.popleft())

    def _send(self, message: Message) -> None:
        # The wait for an acknowledgement begins with the first message in flight.
        if not self._in_flight:
            self._progress_ns = time.monotonic_ns()
        self._in_flight[message.number] = message
        headers = f"NATS/1.0\r\nNats-Msg-Id: {message.message_id}\r\n\r\n".encode()
        reply = f"{self._inbox}.{message.number}"
        try:
            self._connection.client.publish_directly(self._subject, reply, headers, message.payload)
        except (nats.errors.Error, OSError) as error:
            self._pending.refusal = str(error)
            self.interrupt()

    def _send_again(self) -> None:
        """Puts what is in flight back to the head of the queue; numbers ascend through both."""
        self._queue.extendleft(reversed(self._in_flight.values()))
        self._in_flight.clear()
        self._failed = False

    def _on_acknowledgement(
        self, subject: bytes, _reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        """Handles an answer of the stream; an answer to an earlier attempt counts as well."""
        refusal = refusal_of(data, headers or b"")
        if refusal:
            self._pending.refusal = refusal.text
            self._pending.full = refusal.text if refusal.is_full else ""
            self.interrupt()
        # A message that waits to be sent again is not found here: it is sent, and the stream knows
        # its id.
        elif message := self._in_flight.pop(int(subject[len(self._inbox) + 1 :]), None):
            self._pending.acknowledged(message)
            self._progress_ns = time.monotonic_ns()
            self._backoff.reset()
            self._send_next()


def refusal_of(data: bytes, headers: bytes) -> Refusal | None:
    """Returns the refusal in the stream's answer to a message; None if the stream took it, or had
    it already.
    """
    if headers.startswith(NO_RESPONDERS):
        return Refusal("no stream listens to the subject")
    if b'"error"' not in data:
        return None
    error = json.loads(data)["error"]
    text, code = error["description"], error.get("err_code", error["code"])
    is_full = code in FULL_CODES or (
        code == STORE_FAILED and any(words in text for words in FULL_WORDS)
    )
    return Refusal(f"{text} ({code})", is_full)


class JetStreamOrder(ServedLog[dict[str, Any]]):
    """`TotalOrder` on a stream. After `open`, a task sends and another one watches for silence."""

    _options: JetStreamOptions
    _connection: JetStreamConnection
    _publisher: JetStreamPublisher

    def __init__(self, options: JetStreamOptions) -> None:
        connection = JetStreamConnection(options.servers, options.request_timeout_ms, options.tls)
        super().__init__(options, connection)
        self._promises = Promises()
        self._bytes_max = 0
        self._write_error = ""
        self._asked_monitors_ns = 0
        self._readers: set[LogReader] = set()
        self._delivered_ns = time.monotonic_ns()
        self._patience_ms = CUT_OFF_MS

    def full(self) -> str:
        """Returns a text, see `TotalOrder.full`."""
        is_told = bool(self._write_error) and self._is_stuck()
        return self.pending.full or (self._write_error if is_told else "")

    async def read(
        self, first_sequence: int, linger: Linger | None = None
    ) -> AsyncGenerator[list[Delivery], None]:
        """Yields messages, see `TotalOrder.read`."""
        reader = LogReader(
            self._connection,
            subject=self._options.subject,
            identity=self._identity,
            state=self._ask_state,
            linger=linger or Linger(),
        )
        self._readers.add(reader)
        try:
            async with aclosing(reader.batches(first_sequence)) as batches:
                async for deliveries in batches:
                    # What sends messages is not cut off, however late its acknowledgements are.
                    self._delivered_ns, self._patience_ms = time.monotonic_ns(), CUT_OFF_MS
                    yield deliveries
        finally:
            self._readers.discard(reader)

    async def message(self, sequence: int) -> Delivery | None:
        """Returns one message, see `TotalOrder.message`."""
        options, connection = self._options, self._connection
        deadline = time.monotonic() + options.connect_ms_max / 1000
        while True:
            try:
                stored = await connection.message_from(options.stream, options.subject, sequence)
            except (NotAnswered, JetStreamRefused) as error:
                if time.monotonic() > deadline:
                    cause = str(error)
                    raise LogServerUnavailable(address=connection.address, cause=cause) from error
                await asyncio.sleep(MISSING_RETRY_SECONDS)
            else:
                return Delivery(*stored) if stored and stored[0] == sequence else None

    async def state(self) -> LogState:
        """Returns the log's state, see `TotalOrder.state`."""
        with self._refusals():  # Servers that start do not know the stream at first.
            document = await self._ask_stream("INFO")
        asked_ns = time.monotonic_ns() - self._asked_monitors_ns
        if asked_ns > MONITORS_MS * 1_000_000:
            await self._ask_monitors()
            self._note_room(document)
        state = self._state_of(document)
        check_same_log(self._identity, state.identity)
        return state

    async def trim(self, sequence: int) -> None:
        """Drops messages, see `TotalOrder.trim`. Raises InvalidSetting with `deny_purge`."""
        # Raises for another stream of this name: nothing of that one may be dropped.
        await self.state()
        try:
            await self._ask_stream("PURGE", {"seq": sequence})
        except JetStreamRefused as refused:
            expected = f"a stream that can be trimmed ({refused})"
            raise InvalidSetting(name="deny_purge", value="true", expected=expected) from refused

    async def _remove(self) -> None:
        try:
            await self._ask_stream("DELETE")
        except JetStreamRefused as refused:
            if refused.code != STREAM_NOT_FOUND:
                raise

    async def _connect(self) -> None:
        await self._connection.connect(self._options.connect_ms_max, self._options.version_min)

    async def _find(self) -> dict[str, Any] | None:
        try:
            return await self._ask_stream("INFO")
        except JetStreamRefused as refused:
            if refused.code != STREAM_NOT_FOUND:
                raise
        return None

    async def _make(self) -> dict[str, Any]:
        try:
            return await self._ask_stream("CREATE", self._options.stream_config())
        except JetStreamRefused as refused:
            cause = f"it did not make the stream {self._options.stream}: {refused}"
            raise LogServerUnavailable(address=self._connection.address, cause=cause) from refused

    async def _groups(self) -> list[str]:
        document = await self._connection.request("STREAM.NAMES", {"subject": "groupcert.*.log"})
        return [stream.removeprefix(STREAM_PREFIX) for stream in document.get("streams") or ()]

    async def _opened(self, description: dict[str, Any]) -> LogState:
        check_settings(self._options, description["config"])
        await self._ask_monitors()
        self._note_room(description)
        return self._state_of(description)

    def _duties(
        self, description: dict[str, Any], servers: LogServers
    ) -> dict[str, Coroutine[Any, Any, None]]:
        options, connection = self._options, self._connection
        self._publisher = JetStreamPublisher(
            connection, options.subject, options.in_flight_max, self.pending
        )
        connection.on_interruption = self._on_interruption
        health = JetStreamHealth(connection, options.stream, servers)
        health.take(description)
        return {
            "health": health.run(),
            "publisher": self._publisher.run(),
            "watch": self._watch(),
            "space": self._watch_space(),
        }

    async def _ask_stream(self, verb: str, body: Mapping[str, object] = {}) -> dict[str, Any]:
        """Returns the answer to a request about the stream. Raises as `request_until`."""
        name = f"STREAM.{verb}.{self._options.stream}"
        return await self._connection.request_until(self._options.connect_ms_max, name, body)

    async def _ask_monitors(self) -> None:
        options = self._options
        self._asked_monitors_ns = time.monotonic_ns()
        self._promises = await asyncio.to_thread(promises_of, options.monitors, options.tls)

    async def _ask_state(self) -> LogState:
        """Asks for the state once: the reader has its own patience."""
        document = await self._connection.request(f"STREAM.INFO.{self._options.stream}", {})
        return self._state_of(document)

    def _state_of(self, document: dict[str, Any]) -> LogState:
        config, state = document["config"], document["state"]
        message_bytes_max = min(config["max_msg_size"], self._connection.client.max_payload)
        in_files = config["storage"] == "file" and config.get("persist_mode", "") != "async"
        continues = (config.get("metadata") or {}).get(CONTINUES)
        limits = (self._bytes_max, config.get("max_bytes", -1))  # Without one it is 0, or -1.
        return LogState(
            identity=LogIdentity(name=config["name"], created=document["created"]),
            # A stream that never had a message says 0.
            first_sequence=max(1, state["first_seq"]),
            last_sequence=state["last_seq"],
            replicas=config["num_replicas"],
            durable=self._promises.syncs_always if in_files else False,
            message_bytes_max=message_bytes_max - HEADER_BYTES_MAX,
            bytes=state["bytes"],
            bytes_max=min((limit for limit in limits if limit > 0), default=0),
            continues=Continuation.decode(continues) if continues else None,
        )

    def _note_room(self, document: dict[str, Any]) -> None:
        """Notes up to how many bytes the servers have room for the log, as of a description that is
        as new as what they said of their room: other streams have a part of it.
        """
        room = self._promises.room_bytes
        self._bytes_max = 0 if room is None else document["state"]["bytes"] + room

    async def _watch_space(self) -> None:
        """Asks whether a server cannot write, while none acknowledges a message or says why."""
        options = self._options
        while True:
            await asyncio.sleep(SPACE_SECONDS)
            is_asked = self._is_stuck() and not self.pending.full
            self._write_error = (
                await asyncio.to_thread(write_error, options.monitors, options.tls)
                if is_asked
                else ""
            )

    def _is_stuck(self) -> bool:
        """Returns whether an acknowledgement is overdue."""
        return self.pending.stuck_ms() >= ACKNOWLEDGEMENT_MS_MAX

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            self._publisher.watch()
            for reader in self._readers:
                reader.watch()
            if self._is_cut_off():
                await self._connection.leave_server()

    def _is_cut_off(self) -> bool:
        """Returns whether another server may do better; the caller goes there."""
        if self.pending.full:  # The leader itself has said so.
            return False
        now_ns = time.monotonic_ns()
        unserved_ms = max(self.pending.stuck_ms(), self._connection.unanswered_for_ms())
        waited_ms = min(unserved_ms, (now_ns - self._delivered_ns) // 1_000_000)
        if waited_ms < self._patience_ms:
            return False
        self._delivered_ns, self._patience_ms = now_ns, min(2 * self._patience_ms, CUT_OFF_MS_MAX)
        return True

    def _on_interruption(self) -> None:
        self._publisher.resume()
        for reader in self._readers:
            reader.interrupt()

    def _check_alive(self) -> None:
        """Raises what a callback raised, too."""
        self._connection.check_alive()
        super()._check_alive()
