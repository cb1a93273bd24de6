"""The port through which a member uses the group's log: one order of messages, the same for all.

A log keeps few promises, and the rest is checked (`members/how-a-group-works.md`): a reader gets
every message once, in order and without a hole, or an error that says what is missing. A publisher
knows only what it reads back. Adapters: `jetstream.py`, `etcd.py`, and `tests/sim/memory_order.py`
for several members in one process.
"""

import json
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol, Self

from ...certifier.errors import ForeignLog, LogGap
from ..host.histogram import Histogram
from .linger import Linger
from .server_health import LogHealth


class Delivery(NamedTuple):
    """One message as the log ordered it."""

    sequence: int
    """Its sequence in the log, counted from 1 without gaps."""
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIdentity:
    """The identity of a log: one that was deleted and made again differs in `created`."""

    name: str
    created: str

    def __str__(self) -> str:
        return f"{self.name} created {self.created}"

    def encode(self) -> bytes:
        """Returns the identity as a store keeps it."""
        return json.dumps({"name": self.name, "created": self.created}).encode()

    @classmethod
    def decode(cls, encoded: bytes) -> "LogIdentity":
        """Returns the identity that `encode` encoded."""
        return cls(**json.loads(encoded))


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The end of an earlier log, from which a rebuilt one goes on under the next sequence."""

    log: LogIdentity
    """The earlier log, which is lost or was cut."""
    member: str
    """The member whose state the rebuilt log goes on from."""
    log_sequence: int
    """The last message of the earlier log in that state."""
    digest: str
    """Digest of the certification state after it, in hexadecimal."""
    last_sequence: int
    """The last message that was rebuilt; a log that ends before it is not whole."""

    def encode(self) -> str:
        """Returns it as the log's servers keep it."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, encoded: str | bytes) -> Self:
        """Returns the continuation that `encode` encoded."""
        fields = json.loads(encoded)
        return cls(**{**fields, "log": LogIdentity(**fields["log"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """The log's description of itself at one moment."""

    identity: LogIdentity
    first_sequence: int
    """The oldest message that can be read; one above `last_sequence` if there is none."""
    last_sequence: int
    """The newest message; 0 if there never was one."""
    replicas: int
    durable: bool | None
    """An acknowledged message has reached the disk of a majority. None: the servers do not say."""
    message_bytes_max: int
    bytes: int = 0
    """Bytes of all messages that the log has; 0: the servers do not say."""
    bytes_max: int = 0
    """Bytes after which the servers take no more; 0: they do not say."""
    continues: Continuation | None = None
    """The log that it was rebuilt from, if it was."""

    def __post_init__(self) -> None:
        assert 1 <= self.first_sequence <= self.last_sequence + 1, self


class TotalOrder(Protocol):
    """A group's log, as one member holds it. All calls are made from one event loop."""

    append_seconds: Histogram
    """Seconds from `publish` to the acknowledgement, by message."""

    async def open(self, *, create: bool) -> LogState:
        """Connects, and checks that the log can be relied on. Called once, before anything else.

        Args:
            create: Make the log if there is none.

        Raises:
            LogServerUnavailable: No server answered within the limit.
            GroupMissing: There is no log, and none was to be made.
            LogServerTooOld: The server lacks what the adapter needs.
            InvalidSetting: The log exists with settings that break a promise of this port.
        """
        ...

    def publish(self, message_id: str, payload: bytes) -> None:
        """Accepts a message for sending; only reading back shows whether it is in the log, and
        where.

        The adapter sends it again, under the same id, until the log acknowledges it. An id that the
        log has seen lately is not stored again; after a long outage it may be, so a reader must
        know a repetition by its content. Messages of one publisher enter the log in the order of
        these calls with `in_flight_max` = 1; else a message that the log refused for a moment may
        come after those sent behind it. The caller keeps `publishing()` below `PUBLISHING_MAX` and
        payloads below `LogState.message_bytes_max`.
        """
        ...

    def publishing(self) -> int:
        """Returns the number of messages that are accepted and not acknowledged yet."""
        ...

    def unacknowledged_for_ms(self) -> int:
        """Returns the milliseconds for which the oldest of these has waited; 0 if none waits."""
        ...

    def refusal(self) -> str:
        """Returns the log's refusal of the last message, in its words; empty since it took one."""
        ...

    def full(self) -> str:
        """Returns the log's words for its want of space, for which it takes no more messages; empty
        if it has some, as far as is known. What is on its way is sent on: an attempt that had no
        answer may have been taken.
        """
        ...

    def health(self) -> LogHealth:
        """Returns the health of the log's servers, as far as known without asking: an adapter asks
        them by itself, once a second or more often. Before `open` has returned, `problem` says what
        that waits for; nothing else is known then.
        """
        ...

    def read(
        self, first_sequence: int, linger: Linger | None = None
    ) -> AsyncGenerator[list[Delivery], None]:
        """Yields the messages from a sequence on as they arrive, in order and without gaps; never
        ends.

        With `linger`, at the end of each wait of it; an adapter may yield earlier.

        Asking for the next list marks the last one as consumed; the log sends a bounded number of
        bytes ahead of that. Losses on the way are noticed and read again; while the log is
        unavailable, it waits.

        Raises:
            LogGap: The log no longer has, or has lost, the next message.
            ForeignLog: The log was deleted, or another one has its name.
        """
        ...

    async def message(self, sequence: int) -> Delivery | None:
        """Returns the message at a sequence, from 1 on, or None if the log does not have it.

        Raises:
            LogServerUnavailable: No answer within the limit.
        """
        ...

    async def state(self) -> LogState:
        """Returns the log's state now.

        Raises:
            LogServerUnavailable: No answer within the limit.
            ForeignLog: It is not the log that was opened.
        """
        ...

    async def trim(self, sequence: int) -> None:
        """Drops every message below a sequence. Raises as `state` does."""
        ...

    async def close(self) -> None:
        """Leaves the log; messages without acknowledgement may or may not be in it."""
        ...


SHORTER_MS_MAX = 30_000
"""Milliseconds for which a log may seem shorter than what was read of it: a server that was cut off
describes it so; it takes up to 20 s until one that led knows that it leads no longer."""
PUBLISHING_MAX = 4096
"""Messages that a publisher accepts before the oldest is acknowledged: room for an outage."""


def check_same_log(expected: LogIdentity, found: LogIdentity) -> None:
    """Raises ForeignLog if the two differ; a member calls it with the identity in its store."""
    if found != expected:
        raise ForeignLog(expected=str(expected), found=str(found))


def check_reaches(state: LogState, sequence: int) -> None:
    """Raises LogGap if reading on at a sequence leaves a hole, or the log has become shorter."""
    if sequence < state.first_sequence:
        raise LogGap(expected=sequence, found=state.first_sequence)
    if sequence > state.last_sequence + 1:
        raise LogGap(expected=sequence, found=state.last_sequence + 1)
