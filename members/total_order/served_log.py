"""What the adapters of JetStream and of etcd do alike: find or make the log, note what it lacks.

Both reach servers that may be away, refuse, or not have the log yet. `ServedLog` has the order of
these steps, and an adapter the questions that its servers understand.
"""

import asyncio
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ...certifier.errors import InvalidSetting, LogServerUnavailable
from ..errors.membership import GroupMissing
from ..host.histogram import Histogram
from ..security.credentials import Tls
from .port import PUBLISHING_MAX, Continuation, LogIdentity, LogState
from .server_health import LogHealth, LogServers

MISSING_RETRY_SECONDS = 0.2
MONITOR_TIMEOUT_MS = 2_000
GROUPS_NAMED_MAX = 8
"""Other groups that an error names, where the requested group is not there."""

Description = TypeVar("Description")


class Refused(Exception):
    """A server answered with an error, which another one would give as well."""


class NotAnswered(Exception):
    """No answer in time, or none that counts: no server there, or no leader. One may come later."""

    def __init__(self, text: str = "", *, is_late: bool = False) -> None:
        """Says why; `is_late`: all of the time was waited for."""
        super().__init__(text)
        self.is_late = is_late


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLogOptions:
    """The log of a group, and the servers that have it."""

    servers: tuple[str, ...]
    """Addresses of the log servers; any that answers will do."""
    group: str
    """The group's name: letters, digits, `-` and `_`, since it is part of names at the servers."""
    replicas: int = 1
    """Servers that hold the log: 3 or 5 survive the loss of one or two; 1: the embedded one; 0: as
    many as there are, for a member that only reads."""
    monitors: tuple[str, ...] = ()
    """Addresses `http://host:port` of the servers' monitoring, to ask whether they sync every
    write."""
    tls: Tls | None = None
    """Files for mutual TLS with them; None: connections are plain."""
    connect_ms_max: int = 10_000
    """Milliseconds that `open` and `state` wait for an answer: an election among servers of NATS
    takes 4 to 9 s."""
    continues: Continuation | None = None
    """The log that a new one goes on from; None: it begins with message 1."""

    def __post_init__(self) -> None:
        if not self.group.replace("-", "").replace("_", "").isalnum() or not self.group.isascii():
            raise InvalidSetting(
                name="group", value=self.group, expected="letters, digits, - and _ only"
            )


class Message(NamedTuple):
    """A message that was accepted for sending."""

    number: int
    """Counts the publisher's messages."""
    message_id: str
    payload: bytes
    accepted_ns: int


class Pending:
    """The messages of a publisher that the log has not acknowledged, in their order."""

    def __init__(self, append_seconds: Histogram) -> None:
        self._append_seconds = append_seconds
        self._messages: dict[int, Message] = {}
        self._number_next = 0
        self._acknowledged_ns = 0
        self.refusal = self.full = ""

    def __len__(self) -> int:
        return len(self._messages)

    def accept(self, message_id: str, payload: bytes) -> Message:
        """Adds a message, and returns it."""
        assert len(self) < PUBLISHING_MAX, "the caller did not look at publishing()"
        message = Message(self._number_next, message_id, payload, time.monotonic_ns())
        self._messages[message.number] = message
        self._number_next += 1
        return message

    def oldest(self) -> Message | None:
        """Returns the message that has waited longest; None if none waits."""
        return next(iter(self._messages.values()), None)

    def acknowledged(self, message: Message) -> None:
        """Notes that the log has a message."""
        del self._messages[message.number]
        self.refusal = self.full = ""
        self._acknowledged_ns = time.monotonic_ns()
        self._append_seconds.add((self._acknowledged_ns - message.accepted_ns) / 1e9)

    def oldest_ms(self) -> int:
        """Returns the milliseconds for which the oldest has waited; 0 if none waits."""
        oldest = self.oldest()
        return 0 if oldest is None else (time.monotonic_ns() - oldest.accepted_ns) // 1_000_000

    def stuck_ms(self) -> int:
        """Returns the milliseconds for which messages have waited while none was acknowledged."""
        since_ms = (time.monotonic_ns() - self._acknowledged_ns) // 1_000_000
        return min(since_ms, self.oldest_ms())

    def acknowledged_ms(self) -> int | None:
        """Returns the milliseconds since a message was acknowledged; None: none was yet."""
        since_ns = time.monotonic_ns() - self._acknowledged_ns
        return since_ns // 1_000_000 if self._acknowledged_ns else None


class Connection(Protocol):
    """Connections to the servers of one log."""

    address: str

    @property
    def problem(self) -> str: ...
    async def close(self) -> None: ...


class Publisher(Protocol):
    """The sending half of an adapter."""

    def publish(self, message_id: str, payload: bytes) -> None: ...


class ServedLog(ABC, Generic[Description]):
    """The part of `TotalOrder` that is alike; its duties run as tasks from `open` to `close`."""

    _publisher: Publisher
    _identity: LogIdentity

    def __init__(self, options: ServedLogOptions, connection: Connection) -> None:
        self.append_seconds = Histogram()
        self.pending = Pending(self.append_seconds)
        self._options = options
        self._connection = connection
        self._waits_for = ""
        self._servers: LogServers | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @abstractmethod
    async def _connect(self) -> None:
        """Connects, and checks the servers' version."""

    async def _prepare(self) -> None:
        """Checks what else servers need to have before a log is looked for."""

    @abstractmethod
    async def _find(self) -> Description | None:
        """Returns the log's description; None: there is no log."""

    @abstractmethod
    async def _make(self) -> Description | None:
        """Makes the log, unless another member has; returns its description."""

    @abstractmethod
    async def _remove(self) -> None:
        """Removes the log, if it is there."""

    @abstractmethod
    async def _groups(self) -> list[str]:
        """Returns the groups that the servers have logs of."""

    @abstractmethod
    async def _opened(self, description: Description) -> LogState:
        """Checks a log that is there, and returns its state."""

    @abstractmethod
    def _duties(
        self, description: Description, servers: LogServers
    ) -> dict[str, Coroutine[Any, Any, None]]:
        """Returns the tasks of an open log, by name; one of them tells `servers` what it hears."""

    async def open(self, *, create: bool) -> LogState:
        """Opens the log, see `TotalOrder.open`."""
        address = self._connection.address
        self._waits_for = f"connecting to the log servers at {address}"
        try:
            with self._refusals():
                await self._connect()
                await self._prepare()
                self._waits_for = (
                    f"asking the log servers at {address} for the log of {self._options.group}"
                )
                description = await self._find_or_make(create=create)
                state = await self._opened(description)
        except BaseException:
            await self._connection.close()
            raise
        self._identity = state.identity
        self._servers = LogServers(now_ms())
        duties = self._duties(description, self._servers)
        self._tasks = [
            asyncio.create_task(duty, name=f"log {name}") for name, duty in duties.items()
        ]
        return state

    async def exists(self) -> bool:
        """Returns whether the group has a log, see `open` for errors; the caller closes it."""
        with self._refusals():
            await self._connect()
            return await self._find() is not None

    def publish(self, message_id: str, payload: bytes) -> None:
        """Accepts a message, see `TotalOrder.publish`."""
        self._check_alive()
        self._publisher.publish(message_id, payload)

    def publishing(self) -> int:
        """Counts messages, see `TotalOrder.publishing`."""
        self._check_alive()
        return len(self.pending)

    def unacknowledged_for_ms(self) -> int:
        """Returns milliseconds, see `TotalOrder.unacknowledged_for_ms`."""
        return self.pending.oldest_ms()

    def refusal(self) -> str:
        """Returns a text, see `TotalOrder.refusal`."""
        return self.pending.refusal

    def full(self) -> str:
        """Returns a text, see `TotalOrder.full`."""
        return self.pending.full

    def health(self) -> LogHealth:
        """Returns the servers' health, see `TotalOrder.health`."""
        if self._servers is not None:
            return self._servers.health(now_ms(), self.pending.acknowledged_ms(), self.full())
        problem = self._connection.problem if self._waits_for else ""
        return LogHealth(problem=f"{self._waits_for}: {problem}" if problem else self._waits_for)

    async def remove(self) -> None:
        """Removes the log with all its messages, for one that is made in its place; only `close` is
        called after it.

        Raises LogServerUnavailable: No answer in time, or this user may not.
        """
        with self._refusals():
            await self._remove()

    async def close(self) -> None:
        """Leaves the log, see `TotalOrder.close`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connection.close()

    async def _find_or_make(self, *, create: bool) -> Description:
        """Returns the log's description. If there is none, makes it if `create`; else waits,
        because another member may be about to make it.
        """
        deadline = time.monotonic() + self._options.connect_ms_max / 1000
        others: list[str] | None = None
        while (found := await self._find()) is None:
            if create:
                if (made := await self._make()) is not None:
                    return made
                continue
            if others is None:
                try:
                    others = (await self._groups())[:GROUPS_NAMED_MAX]
                except (NotAnswered, Refused):
                    others = []
            group, address = self._options.group, self._connection.address
            missing = GroupMissing(group=group, address=address, others=", ".join(others))
            self._waits_for = f"waiting for the log of the group: {missing}"
            if time.monotonic() > deadline:
                raise missing
            await asyncio.sleep(MISSING_RETRY_SECONDS)
        return found

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Makes LogServerUnavailable of what the servers refuse in the block."""
        try:
            yield
        except Refused as refused:
            address = self._connection.address
            raise LogServerUnavailable(address=address, cause=str(refused)) from refused

    def _check_alive(self) -> None:
        """Raises what a task raised: a bug must not look like an outage."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()


def page_of(url: str, tls: Tls | None) -> bytes:
    """Returns a page of a server's monitoring, which says under an error status why the server is
    ill; empty: it does not answer.
    """
    context = tls.client_context() if tls is not None else None
    with suppress(OSError, ValueError):
        try:
            with urllib.request.urlopen(
                url, timeout=MONITOR_TIMEOUT_MS / 1000, context=context
            ) as page:
                return bytes(page.read())
        except urllib.error.HTTPError as answer:
            return answer.read()
    return b""


def now_ms() -> int:
    """Returns milliseconds of a clock that never goes back."""
    return time.monotonic_ns() // 1_000_000
