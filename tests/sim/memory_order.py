"""A total order in memory for several members of one process: the simulation's log.

No threads, no clock and no randomness of its own. What a log may do to its members is set from
outside, so that a seed can decide it: it is away (`available`), has no space (`full`), time passes
(`now_ms`), it hands over in small portions (`portion_max`), it is made anew (`create`).
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import NamedTuple

from groupcert.certifier.errors import LogServerUnavailable
from groupcert.members.errors.membership import GroupMissing
from groupcert.members.host.histogram import Histogram
from groupcert.members.total_order.linger import Linger
from groupcert.members.total_order.port import (
    PUBLISHING_MAX,
    Continuation,
    Delivery,
    LogIdentity,
    LogState,
    check_reaches,
    check_same_log,
)
from groupcert.members.total_order.server_health import LogHealth, LogServerHealth, LogServerState

MESSAGE_BYTES_MAX = 8 << 20


class _Message(NamedTuple):
    message_id: str
    payload: bytes
    accepted_ms: int


class MemoryLog:
    """What the servers would hold: one log, which any number of `MemoryOrder` use."""

    def __init__(self, name: str, *, portion_max: int = 1 << 20) -> None:
        """`portion_max`: the most messages that a reader is given at a time."""
        self.name = name
        self.portion_max = portion_max
        self.now_ms = 0
        self._available = True
        self._full = ""
        self._times_created = 0
        self._first_sequence = 1
        self._continues: Continuation | None = None
        self._payloads: list[bytes] = []
        self._message_ids: set[str] = set()
        self._orders: list[MemoryOrder] = []

    @property
    def available(self) -> bool:
        """Whether the log takes and hands out messages."""
        return self._available

    @available.setter
    def available(self, available: bool) -> None:
        self._available = available
        self.announce()

    @property
    def full(self) -> str:
        """Why the log takes no messages for want of space; empty: it takes them."""
        return self._full

    @full.setter
    def full(self, cause: str) -> None:
        self._full = cause
        self.announce()

    @property
    def exists(self) -> bool:
        """Whether the log was created."""
        return self._times_created > 0

    def create(self, continues: Continuation | None = None) -> None:
        """Makes the log, empty; the one before, if there was one, is gone with all that it held.
        The new one goes on from that which it `continues`.
        """
        self._times_created += 1
        self._continues = continues
        self._first_sequence = continues.log_sequence + 1 if continues else 1
        self._payloads.clear()
        self._message_ids.clear()
        self.announce()

    def state(self) -> LogState:
        """The log's state now."""
        return LogState(
            identity=LogIdentity(name=self.name, created=str(self._times_created)),
            first_sequence=self._first_sequence,
            last_sequence=self._first_sequence + len(self._payloads) - 1,
            replicas=1,
            durable=False,
            message_bytes_max=MESSAGE_BYTES_MAX,
            continues=self._continues,
        )

    def append(self, message_id: str, payload: bytes) -> None:
        """Orders a message, unless its id was ordered before."""
        if message_id not in self._message_ids:
            self._message_ids.add(message_id)
            self._payloads.append(payload)
            for order in self._orders:
                order.wake()

    def portion(self, sequence: int) -> list[Delivery]:
        """The messages from a sequence on, at most `portion_max` of them."""
        index = sequence - self._first_sequence
        payloads = self._payloads[index : index + self.portion_max]
        return [Delivery(sequence + offset, payload) for offset, payload in enumerate(payloads)]

    def message(self, sequence: int) -> Delivery | None:
        """The message at a sequence, if there is one."""
        state = self.state()
        is_there = state.first_sequence <= sequence <= state.last_sequence
        return self.portion(sequence)[0] if is_there else None

    def trim(self, sequence: int) -> None:
        """Drops every message below a sequence."""
        dropped = min(max(sequence - self._first_sequence, 0), len(self._payloads))
        del self._payloads[:dropped]
        self._first_sequence += dropped

    def truncate(self, last_sequence: int) -> None:
        """Loses what came after a sequence, as servers would that lost their disks."""
        del self._payloads[max(last_sequence + 1 - self._first_sequence, 0) :]

    def attach(self, order: "MemoryOrder") -> None:
        """Tells an order of every change from now on."""
        self._orders.append(order)

    def detach(self, order: "MemoryOrder") -> None:
        """Tells it no more, if it was told."""
        self._orders = [other for other in self._orders if other is not order]

    def announce(self) -> None:
        """Lets every order send and read what it now can, in the order of their opening."""
        for order in self._orders:
            order.send_waiting()
            order.wake()


class MemoryOrder:
    """One member's `TotalOrder` on a `MemoryLog`."""

    def __init__(self, log: MemoryLog) -> None:
        self.append_seconds = Histogram()
        self._log = log
        self._identity: LogIdentity
        self._queue: deque[_Message] = deque()
        self._changed = asyncio.Event()
        self._heard_ms = 0

    async def open(self, *, create: bool) -> LogState:
        """See `TotalOrder.open`."""
        if not self._log.available:
            raise LogServerUnavailable(address="memory", cause="not available")
        if not self._log.exists:
            if not create:
                raise GroupMissing(group=self._log.name, address="memory")
            self._log.create()
        self._log.attach(self)
        self._identity = self._log.state().identity
        return self._log.state()

    def publish(self, message_id: str, payload: bytes) -> None:
        """See `TotalOrder.publish`."""
        assert self.publishing() < PUBLISHING_MAX, "the caller did not look at publishing()"
        assert len(payload) <= MESSAGE_BYTES_MAX, "the caller did not look at message_bytes_max"
        self._queue.append(_Message(message_id, payload, self._log.now_ms))
        self.send_waiting()

    def publishing(self) -> int:
        """See `TotalOrder.publishing`."""
        return len(self._queue)

    def unacknowledged_for_ms(self) -> int:
        """See `TotalOrder.unacknowledged_for_ms`."""
        return self._log.now_ms - self._queue[0].accepted_ms if self._queue else 0

    def refusal(self) -> str:
        """See `TotalOrder.refusal`."""
        if not self._queue:
            return ""
        return self._log.full if self._log.available else "not available"

    def full(self) -> str:
        """See `TotalOrder.full`."""
        return self._log.full if self._queue else ""

    def health(self) -> LogHealth:
        """See `TotalOrder.health`."""
        if not self._log.available:
            return LogHealth(
                leaderless_ms=self._log.now_ms - self._heard_ms, problem="not available"
            )
        memory = LogServerHealth(
            name="memory", state=LogServerState.CURRENT, is_current=True, lag=0
        )
        return LogHealth(leader="memory", servers=(memory,), acknowledged_ms=0, full=self.full())

    async def read(
        self, first_sequence: int, linger: Linger | None = None
    ) -> AsyncGenerator[list[Delivery], None]:
        """See `TotalOrder.read`."""
        next_sequence = first_sequence
        while True:
            self._changed.clear()
            deliveries = self._next_portion(next_sequence) if self._log.available else []
            if deliveries:
                yield deliveries
                next_sequence = deliveries[-1].sequence + 1
            else:
                await self._changed.wait()

    async def message(self, sequence: int) -> Delivery | None:
        """See `TotalOrder.message`."""
        if not self._log.available:
            raise LogServerUnavailable(address="memory", cause="not available")
        return self._log.message(sequence)

    async def state(self) -> LogState:
        """See `TotalOrder.state`."""
        if not self._log.available:
            raise LogServerUnavailable(address="memory", cause="not available")
        state = self._log.state()
        check_same_log(self._identity, state.identity)
        return state

    async def trim(self, sequence: int) -> None:
        """See `TotalOrder.trim`."""
        await self.state()
        self._log.trim(sequence)

    async def close(self) -> None:
        """See `TotalOrder.close`."""
        self._log.detach(self)

    def send_waiting(self) -> None:
        """Sends what was accepted, if the log takes it."""
        if self._log.available and not self._log.full:
            self._heard_ms = self._log.now_ms
            while self._queue:
                message = self._queue.popleft()
                self._log.append(message.message_id, message.payload)
                self.append_seconds.add((self._log.now_ms - message.accepted_ms) / 1e3)

    def wake(self) -> None:
        """Has the readers look again."""
        self._changed.set()

    def _next_portion(self, next_sequence: int) -> list[Delivery]:
        state = self._log.state()
        check_same_log(self._identity, state.identity)
        check_reaches(state, next_sequence)
        return self._log.portion(next_sequence)
