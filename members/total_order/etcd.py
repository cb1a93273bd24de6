"""The total order on etcd: one key a group, whose puts are the messages, in servers of its own.

`open` checks what can be checked: the servers' version and number, that they sync every write, that
nobody else keeps keys there. How a message is found, written and read is in `etcd_log.py`,
`etcd_publisher.py` and `etcd_reader.py`.
"""

import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any

from groupcert.etcd.rpc_pb2 import Member, StatusRequest

from ...certifier.errors import ForeignLog, InvalidSetting, LogGap, LogServerTooOld
from .etcd_connection import STATUS, EtcdConnection, EtcdRefused
from .etcd_health import EtcdHealth, ServerPromises, message_bytes_max, promises_of, voters_of
from .etcd_log import Compacted, EtcdLog, LogDescription
from .etcd_publisher import EtcdPublisher
from .etcd_reader import EtcdReader
from .linger import Linger
from .port import Delivery, LogState, check_same_log
from .served_log import GROUPS_NAMED_MAX, ServedLog, ServedLogOptions
from .server_health import LogServers

SCHEMES = ("etcd", "etcds")
PROMISES_MS = 10_000
"""Milliseconds until servers are asked again for their promises, unless all sync every write."""
VERSION_MIN = (3, 4, 0)
VERSIONS_BAD = ((3, 5, 0), (3, 5, 3))
"""From the first up to the second, without it: a crash could leave their servers with different
data (etcd's post-mortem of 2022)."""
MESSAGE_BYTES_MIN = 1_310_720
"""Bytes that a message has to have room for: a fragment of a large transaction has up to 1 MiB."""


class EtcdOptions(ServedLogOptions):
    """The log of a group in etcd, `etcd://host:port` or `etcds://...`. By default its servers are
    asked where they answer members whether they sync.
    """

    __slots__ = ()


class EtcdOrder(ServedLog[LogDescription]):
    """`TotalOrder` on the puts of a key. After `open` one task writes, another asks for health."""

    _options: EtcdOptions
    _connection: EtcdConnection
    _publisher: EtcdPublisher

    def __init__(self, options: EtcdOptions) -> None:
        super().__init__(options, EtcdConnection(options.servers, options.tls))
        self._log = EtcdLog(self._connection, options.group, options.connect_ms_max)
        self._foreign_writes = self._skipped = 0
        self._members: list[Member] = []
        self._message_bytes_max = 0
        self._promises = ServerPromises()
        self._asked_promises_ns = 0

    async def read(
        self, first_sequence: int, linger: Linger | None = None
    ) -> AsyncGenerator[list[Delivery], None]:
        """Yields messages, see `TotalOrder.read`."""
        reader = EtcdReader(
            self._connection,
            self._log,
            self._identity,
            foreign_writes=self._foreign_writes,
            linger=linger or Linger(),
        )
        skipped = self._skipped
        async with aclosing(reader.batches(first_sequence - skipped)) as batches:
            try:
                async for deliveries in batches:
                    yield [Delivery(each + skipped, payload) for each, payload in deliveries]
            except LogGap as gap:
                expected, found = gap.expected + skipped, gap.found + skipped
                raise LogGap(expected=expected, found=found) from None

    async def message(self, sequence: int) -> Delivery | None:
        """Returns one message, see `TotalOrder.message`."""
        description = await self._describe()
        number = sequence - self._skipped
        if not description.trimmed_first <= number <= description.last_sequence:
            return None
        # It may have been trimmed since the description was read.
        with suppress(Compacted):
            found = await self._log.message_at(description.base, number)
            return Delivery(sequence, found.value)
        return None

    async def state(self) -> LogState:
        """Returns the log's state, see `TotalOrder.state`."""
        asked_ns = time.monotonic_ns() - self._asked_promises_ns
        if not self._promises.syncs_always and asked_ns > PROMISES_MS * 1_000_000:
            await self._ask_promises()
        return await self._state_of(await self._describe())

    async def trim(self, sequence: int) -> None:
        """Drops messages, see `TotalOrder.trim`. Raises InvalidSetting if the user may not."""
        description = await self._describe()
        try:
            await self._log.trim(description, sequence - self._skipped)
        except EtcdRefused as refused:
            expected = f"a user that may write to {self._log.keys.prefix.decode()} ({refused})"
            raise InvalidSetting(name="log_trim_servers", value="", expected=expected) from refused

    async def _remove(self) -> None:
        await self._log.remove()

    async def _connect(self) -> None:
        """Raises LogServerTooOld if a server is older than needed, or of a release to avoid."""
        status = await self._connection.ask_until(
            self._options.connect_ms_max, STATUS, StatusRequest()
        )
        version = tuple(int(part) for part in status.version.split("-")[0].split("."))
        needed = VERSIONS_BAD[1] if VERSIONS_BAD[0] <= version < VERSIONS_BAD[1] else VERSION_MIN
        if version < needed:
            version_min = ".".join(map(str, needed))
            raise LogServerTooOld(version=status.version, version_min=version_min)

    async def _prepare(self) -> None:
        self._members = await voters_of(self._connection, self._options.connect_ms_max)
        self._message_bytes_max = await message_bytes_max(self._connection)
        if self._message_bytes_max < MESSAGE_BYTES_MIN:
            raise InvalidSetting(
                name="--max-request-bytes of etcd",
                value=f"{self._message_bytes_max} and some for what is around a message",
                expected="1572864, which is etcd's default, or more",
            )
        await self._ask_promises()

    async def _check_servers(self) -> None:
        """Raises InvalidSetting if the log has too few servers, or they have keys of others."""
        wanted = self._options.replicas
        if len(self._members) < wanted:
            raise InvalidSetting(
                name="log_replicas",
                value=wanted,
                expected=f"{len(self._members)} or less, as the etcd at {self._connection.address} "
                "has no more voting servers",
            )
        if others := await self._log.keys_of_others():
            raise InvalidSetting(
                name="log_servers",
                value=self._connection.address,
                expected=f"an etcd that only the group {self._options.group} uses, since trimming "
                f"its log drops the history of all keys: this one has {others} keys of others",
            )

    async def _find(self) -> LogDescription | None:
        return await self._log.find()

    async def _make(self) -> LogDescription | None:
        # Before the log is made, too: none may stay behind at servers that are refused.
        await self._check_servers()
        await self._log.make(self._options.continues)
        # It is looked for, as another member may have made it first.
        return await self._log.find()

    async def _groups(self) -> list[str]:
        return await self._log.groups(GROUPS_NAMED_MAX)

    async def _opened(self, description: LogDescription) -> LogState:
        await self._check_servers()
        self._foreign_writes = description.foreign_writes
        self._skipped = skipped_by(description)
        return await self._state_of(description)

    def _duties(
        self, description: LogDescription, servers: LogServers
    ) -> dict[str, Coroutine[Any, Any, None]]:
        connection, keys, base = self._connection, self._log.keys, description.base
        self._publisher = EtcdPublisher(connection, keys, base, self.pending)
        health = EtcdHealth(connection, self._members, servers)
        return {"health": health.run(), "publisher": self._publisher.run()}

    async def _describe(self) -> LogDescription:
        """Returns the log's description now. Raises as `state`."""
        with self._refusals():
            description = await self._log.find()
        if description is None:
            raise ForeignLog(expected=str(self._identity), found="no log")
        check_same_log(self._identity, description.identity)
        return description

    async def _state_of(self, description: LogDescription) -> LogState:
        status = await self._connection.ask_until(
            self._options.connect_ms_max, STATUS, StatusRequest()
        )
        return LogState(
            identity=description.identity,
            first_sequence=await self._log.first_kept(description) + skipped_by(description),
            last_sequence=description.last_sequence + skipped_by(description),
            replicas=len(self._members),
            durable=self._promises.syncs_always,
            message_bytes_max=self._message_bytes_max,
            bytes=status.db_size_in_use,
            bytes_max=self._promises.quota_bytes,
            continues=description.continues,
        )

    async def _ask_promises(self) -> None:
        self._asked_promises_ns = time.monotonic_ns()
        scheme = "http" if self._options.tls is None else "https"
        own = tuple(f"{scheme}://{each}" for each in self._connection.servers)
        monitors = self._options.monitors or own
        self._promises = await promises_of(monitors, self._options.tls, self._log.find)


def skipped_by(description: LogDescription) -> int:
    """Returns the sequence before a log's first message: that of the last one of the log that it
    goes on from. Below this module messages are counted from 1.
    """
    return description.continues.log_sequence if description.continues else 0
