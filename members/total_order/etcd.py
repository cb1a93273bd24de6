"""The total order on etcd: one key a group, whose puts are the messages, in servers of its own.

`open` checks what can be checked: the servers' version and number, that they sync every write, that
nobody else keeps keys there. How a message is found, written and read is in `etcd_log.py`,
`etcd_publisher.py` and `etcd_reader.py`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass

from groupcert.etcd.rpc_pb2 import StatusRequest

from ...certifier.errors import (
    InvalidSetting,
    LogGap,
    LogServerTooOld,
    LogServerUnavailable,
)
from ..errors.membership import GroupMissing
from ..host.histogram import Histogram
from ..security.credentials import Tls
from .etcd_connection import (
    STATUS,
    EtcdConnection,
    EtcdRefused,
    NotAnswered,
)
from .etcd_health import (
    EtcdHealth,
    ServerPromises,
    message_bytes_max,
    promises_of,
    voters_of,
)
from .etcd_log import Compacted, EtcdLog, LogDescription
from .etcd_publisher import EtcdPublisher
from .etcd_reader import EtcdReader
from .linger import Linger
from .port import (
    Continuation,
    Delivery,
    LogIdentity,
    LogState,
    check_same_log,
)
from .server_health import LogHealth

SCHEMES = ("etcd", "etcds")
MISSING_RETRY_SECONDS = 0.2
GROUPS_NAMED_MAX = 8
"""Other groups that an error names, where the requested group is not there."""
PROMISES_MS = 10_000
"""Milliseconds until servers are asked again for their promises, unless all sync every write."""
VERSION_MIN = (3, 4, 0)
VERSIONS_BAD = ((3, 5, 0), (3, 5, 3))
"""From the first up to the second, without it: a crash could leave their servers with different
data (etcd's post-mortem of 2022)."""


MESSAGE_BYTES_MIN = 1_310_720
"""Bytes that a message has to have room for: a fragment of a large transaction has up to 1 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdOptions:
    """The log of a group, and the servers that have it."""

    servers: tuple[str, ...]
    """Addresses `etcd://host:port` or `etcds://...` of the log servers; any that answers will
    do."""
    group: str
    """The group's name: letters, digits, `-` and `_`, since it is part of the keys."""
    replicas: int = 1
    """Servers that have to hold the log, at least: 3 or 5 survive the loss of one or two; 0: as
    many as there are."""
    monitors: tuple[str, ...] = ()
    """Addresses `http://host:port` of the servers' metrics, to ask whether they sync every write;
    by default where they answer members."""
    tls: Tls | None = None
    """Files for mutual TLS with them; None: connections are plain."""
    connect_ms_max: int = 10_000
    """Milliseconds that `open` and `state` wait for an answer."""
    continues: Continuation | None = None
    """The log that a new one goes on from; None: it begins with message 1."""

    def __post_init__(self) -> None:
        if not self.group.replace("-", "").replace("_", "").isalnum() or not self.group.isascii():
            raise InvalidSetting(
                name="group", value=self.group, expected="letters, digits, - and _ only"
            )


class EtcdOrder:
    """`TotalOrder` on the puts of a key. After `open` one task writes, another asks for health."""

    def __init__(self, options: EtcdOptions) -> None:
        self.append_seconds = Histogram()
        self._options = options
        self._connection = EtcdConnection(options.servers, options.tls)
        self._log = EtcdLog(self._connection, options.group, options.connect_ms_max)
        self._identity: LogIdentity
        self._foreign_writes = self._skipped = 0
        self._replicas = 0
        self._message_bytes_max = 0
        self._promises = ServerPromises()
        self._asked_promises_ns = 0
        self._publisher: EtcdPublisher
        self._health: EtcdHealth | None = None
        self._waits_for = ""
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, *, create: bool) -> LogState:
        """Opens the log, see `TotalOrder.open`."""
        limit_ms, connection = self._options.connect_ms_max, self._connection
        self._waits_for = f"connecting to the log servers at {connection.address}"
        try:
            await self._check_version()
            members = await voters_of(connection, limit_ms)
            self._replicas = len(members)
            self._message_bytes_max = await message_bytes_max(connection)
            check_room(self._message_bytes_max)
            await self._ask_promises()
            self._waits_for = (
                f"asking the log servers at {connection.address} for the log of "
                f"{self._options.group}"
            )
            description = await self._find(create=create)
            await self._check_servers()
            self._identity = description.identity
            self._foreign_writes = description.foreign_writes
            self._skipped = skipped_by(description)
            state = await self._state_of(description)
        except BaseException as error:
            await connection.close()
            if isinstance(error, EtcdRefused):
                cause = error.description
                raise LogServerUnavailable(address=connection.address, cause=cause) from None
            raise
        self._publisher = EtcdPublisher(
            connection, self._log.keys, description.base, self.append_seconds
        )
        self._health = EtcdHealth(connection, members, self._publisher.acknowledged_ms)
        self._tasks = [
            asyncio.create_task(self._health.run(), name="log health"),
            asyncio.create_task(self._publisher.run(), name="log publisher"),
        ]
        return state

    async def exists(self) -> bool:
        """Returns whether the group has a log, see `open` for errors; the caller closes it."""
        try:
            await self._check_version()
            return await self._log.find() is not None
        except EtcdRefused as refused:
            address = self._connection.address
            raise LogServerUnavailable(address=address, cause=refused.description) from None

    def publish(self, message_id: str, payload: bytes) -> None:
        """Accepts a message, see `TotalOrder.publish`."""
        self._check_alive()
        self._publisher.publish(message_id, payload)

    def publishing(self) -> int:
        """Counts messages, see `TotalOrder.publishing`."""
        self._check_alive()
        return self._publisher.publishing()

    def unacknowledged_for_ms(self) -> int:
        """Returns milliseconds, see `TotalOrder.unacknowledged_for_ms`."""
        return self._publisher.unacknowledged_for_ms()

    def refusal(self) -> str:
        """Returns a text, see `TotalOrder.refusal`."""
        return self._publisher.refusal

    def full(self) -> str:
        """Returns a text, see `TotalOrder.full`."""
        return self._publisher.full

    def health(self) -> LogHealth:
        """Returns the servers' health, see `TotalOrder.health`."""
        if self._health is not None:
            return self._health.now(self.full())
        problem = self._connection.problem if self._waits_for else ""
        return LogHealth(problem=f"{self._waits_for}: {problem}" if problem else self._waits_for)

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

    async def remove(self) -> None:
        """Removes the log with all its messages, for one that is made in its place; only `close` is
        called after it.

        Raises LogServerUnavailable: No answer in time, or this user may not.
        """
        try:
            await self._log.remove()
        except EtcdRefused as refused:
            address = self._connection.address
            raise LogServerUnavailable(address=address, cause=refused.description) from None

    async def close(self) -> None:
        """Leaves the log, see `TotalOrder.close`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connection.close()

    async def _check_version(self) -> None:
        """Raises LogServerTooOld if a server is older than needed, or of a release to avoid."""
        status = await self._connection.ask_until(
            self._options.connect_ms_max, STATUS, StatusRequest()
        )
        version = tuple(int(part) for part in status.version.split("-")[0].split("."))
        needed = VERSIONS_BAD[1] if VERSIONS_BAD[0] <= version < VERSIONS_BAD[1] else VERSION_MIN
        if version < needed:
            version_min = ".".join(map(str, needed))
            raise LogServerTooOld(version=status.version, version_min=version_min)

    async def _check_servers(self) -> None:
        """Raises InvalidSetting if the log has too few servers, or they have keys of others."""
        wanted = self._options.replicas
        if self._replicas < wanted:
            raise InvalidSetting(
                name="log_replicas",
                value=wanted,
                expected=f"{self._replicas} or less, as the etcd at {self._connection.address} has "
                "no more voting servers",
            )
        if others := await self._log.keys_of_others():
            raise InvalidSetting(
                name="log_servers",
                value=self._connection.address,
                expected=f"an etcd that only the group {self._options.group} uses, since trimming "
                f"its log drops the history of all keys: this one has {others} keys of others",
            )

    async def _find(self, *, create: bool) -> LogDescription:
        """Returns the log's description. If there is none, makes it if `create`; else waits,
        because another member may be about to make it.
        """
        options, address = self._options, self._connection.address
        deadline = time.monotonic() + options.connect_ms_max / 1000
        others: list[str] | None = None
        while (description := await self._log.find()) is None:
            if create:
                # Before the log is made, too: none may stay behind at servers that are refused.
                await self._check_servers()
                # It is looked for again, as another member may have made it first.
                await self._log.make(options.continues)
                continue
            if others is None:
                others = []
                with suppress(NotAnswered, EtcdRefused):
                    others = await self._log.groups(GROUPS_NAMED_MAX)
            missing = GroupMissing(group=options.group, address=address, others=", ".join(others))
            self._waits_for = f"waiting for the log of the group: {missing}"
            if time.monotonic() > deadline:
                raise missing
            await asyncio.sleep(MISSING_RETRY_SECONDS)
        return description

    async def _describe(self) -> LogDescription:
        """Returns the log's description now. Raises as `state`."""
        try:
            description = await self._log.find()
        except EtcdRefused as refused:
            address = self._connection.address
            raise LogServerUnavailable(address=address, cause=refused.description) from None
        if description is None:
            # An identity that no log has: the comparison below raises ForeignLog.
            description = LogDescription(
                identity=LogIdentity(name=self._identity.name, created="no log"),
                base=0,
                revision=0,
                last_sequence=0,
                trims=0,
                trimmed_first=1,
            )
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
            replicas=self._replicas,
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
        self._promises = await promises_of(monitors, self._options.tls, self._log.propose)

    def _check_alive(self) -> None:
        """Raises what a task raised: a bug must not look like an outage."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()


def skipped_by(description: LogDescription) -> int:
    """Returns the sequence before a log's first message: that of the last one of the log that it
    goes on from. Below this module messages are counted from 1.
    """
    return description.continues.log_sequence if description.continues else 0


def check_room(message_bytes_max: int) -> None:
    """Raises InvalidSetting if the servers take messages that are too small for a group."""
    if message_bytes_max < MESSAGE_BYTES_MIN:
        raise InvalidSetting(
            name="--max-request-bytes of etcd",
            value=f"{message_bytes_max} and some for what is around a message",
            expected="1572864, which is etcd's default, or more",
        )
