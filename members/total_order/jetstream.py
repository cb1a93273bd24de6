"""The total order on NATS JetStream: one stream a group, in files, replicated by the servers.

`open` checks what can be checked: the server's version, the stream's settings and, where the
servers' monitoring addresses are known, that they sync every write. A client has no other way to
see that (the connection's greeting, the account's and the stream's information do not have it), so
without them `LogState.durable` is None.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from ...certifier.errors import InvalidSetting, LogServerUnavailable
from .jetstream_connection import STREAM_NOT_FOUND, JetStreamConnection, JetStreamRefused
from .jetstream_health import JetStreamHealth, Promises, promises_of, write_error
from .jetstream_publisher import ACKNOWLEDGEMENT_MS_MAX, JetStreamPublisher
from .jetstream_reader import HEARTBEAT_MS, LogReader
from .linger import Linger
from .port import Continuation, Delivery, LogIdentity, LogState, check_same_log
from .served_log import MISSING_RETRY_SECONDS, NotAnswered, ServedLog, ServedLogOptions
from .server_health import LogServers

MESSAGE_BYTES_MAX = 8 << 20
HEADER_BYTES_MAX = 1 << 10
"""Bytes for the message id and the stream's name, which count towards a message's size."""
STREAM_PREFIX = "GROUPCERT_"
CONTINUES = "groupcert.continues"
"""Name in a stream's metadata of the log that it goes on from."""
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


REQUIRED_SETTINGS = ("subjects", "storage", "retention", "discard", "num_replicas", "deny_delete")
"""Settings of an existing stream that must be as configured; operators may change the others."""


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
                found = await connection.message_from(options.stream, options.subject, sequence)
            except (NotAnswered, JetStreamRefused) as error:
                if time.monotonic() > deadline:
                    cause = str(error)
                    raise LogServerUnavailable(address=connection.address, cause=cause) from error
                await asyncio.sleep(MISSING_RETRY_SECONDS)
            else:
                return Delivery(*found) if found and found[0] == sequence else None

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
        return [each.removeprefix(STREAM_PREFIX) for each in document.get("streams") or ()]

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
            bytes_max=min((each for each in limits if each > 0), default=0),
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
