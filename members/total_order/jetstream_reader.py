"""Reads a JetStream stream from a sequence on, and checks that no message is missing.

A reading is a chain of subscriptions. Each has a consumer of its own at the server, which pushes
messages; a message that is not the next one, missing heartbeats or a new connection end it, and the
next one starts where it ended. Only then, never in between, is the stream asked whether it still
has the next message.

Back-pressure is JetStream's flow control: the server stops when 32 MB (its constant) are sent and
not granted, and a grant is sent only when what came before it was consumed.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress

import nats.errors
from nats.aio.subscription import Subscription

from ...certifier.errors import Fenced, ForeignLog, LogGap
from .jetstream_connection import (
    RETRY_MS,
    STREAM_NOT_FOUND,
    JetStreamConnection,
    JetStreamRefused,
)
from .linger import Linger
from .port import (
    SHORTER_MS_MAX,
    Delivery,
    LogIdentity,
    LogState,
    check_reaches,
    check_same_log,
)
from .served_log import NotAnswered

HEARTBEAT_MS = 250
SILENT_WATCHES_MAX = 2
"""Checks, one each heartbeat, that may find nothing new; one more ends a subscription: after 500 to
750 ms the reader continues at another server than the one that died."""
SUBSCRIBE_MS = 250
"""Milliseconds that a subscription may take before messages are asked for one by one."""
FETCH_PAUSE_MS = 10
CONSUMER_IDLE_MS = 5_000
"""Milliseconds for which the server keeps a consumer whose reader has gone."""
NOT_FOUND_MS_MAX = 5_000
"""Milliseconds for which a stream may be unknown before it counts as deleted: servers may start."""


class LogReader:
    """One reading of a stream: `batches()` is iterated once."""

    def __init__(
        self,
        connection: JetStreamConnection,
        *,
        subject: str,
        identity: LogIdentity,
        state: Callable[[], Awaitable[LogState]],
        linger: Linger,
    ) -> None:
        """Asks `state` for the stream's state."""
        self._linger = linger
        self._connection = connection
        self._subject = subject
        self._identity = identity
        self._state = state
        self._subscription: PushSubscription | None = None

    async def batches(self, first_sequence: int) -> AsyncGenerator[list[Delivery], None]:
        """Yields messages as they arrive, see `TotalOrder.read`."""
        next_sequence = first_sequence
        while True:
            subscribing = asyncio.ensure_future(self._subscribe(next_sequence))
            try:
                async with aclosing(self._fetched(next_sequence, subscribing)) as fetched:
                    async for delivery in fetched:
                        yield [delivery]
                        next_sequence = delivery.sequence + 1
                subscription = subscribing.result()
                while deliveries := await subscription.take():
                    # Messages that were fetched meanwhile come again.
                    if new := [each for each in deliveries if each.sequence >= next_sequence]:
                        yield new
                        next_sequence = new[-1].sequence + 1
            finally:
                self._subscription = None
                await _close_when_made(subscribing)
            await self._connection.leave_frozen_server()

    async def _fetched(
        self, next_sequence: int, subscribing: "asyncio.Future[PushSubscription]"
    ) -> AsyncGenerator[Delivery, None]:
        """Yields one message after the other until there is a subscription.

        The stream's leader gives them. A consumer takes the leader of all streams, too, which may
        be dead when the stream's own is not, or is put on a server that is dead and not known to
        be.
        """
        await asyncio.wait((subscribing,), timeout=SUBSCRIBE_MS / 1000)
        is_checked = False
        while not subscribing.done():
            found = None
            # An answer of a server that no longer leads is no reason to fence: others decide that.
            with suppress(NotAnswered, JetStreamRefused, Fenced):
                if not is_checked:
                    await self._check_reaches(next_sequence)
                    is_checked = True
                found = await self._connection.message_from(
                    self._identity.name, self._subject, next_sequence
                )
            if found is not None and found[0] == next_sequence:
                yield Delivery(*found)
                next_sequence += 1
            else:
                await asyncio.wait((subscribing,), timeout=FETCH_PAUSE_MS / 1000)

    def watch(self) -> None:
        """Ends a subscription that has fallen silent; called once a heartbeat."""
        if self._subscription is not None:
            self._subscription.watch()

    def interrupt(self) -> None:
        """Ends the subscription: messages may have been missed."""
        if self._subscription is not None:
            self._subscription.end()

    async def _subscribe(self, next_sequence: int) -> "PushSubscription":
        """Returns a subscription that starts at a sequence; waits while the log is unavailable."""
        missing_since: float | None = None
        shorter_since: float | None = None
        while True:
            try:
                return await self._try_to_subscribe(next_sequence)
            except NotAnswered:
                # Only an answer says that the stream is missing or shorter. Without one the times
                # begin anew.
                missing_since = shorter_since = None
            except LogGap as gap:
                # A server that led before, or leads only now, may lack the newest.
                shorter_since = shorter_since or time.monotonic()
                is_sure = time.monotonic() - shorter_since > SHORTER_MS_MAX / 1000
                # A log that begins later is so at every server: messages do not come back.
                if gap.found > gap.expected or is_sure:
                    raise
            except JetStreamRefused as refused:
                if refused.code == STREAM_NOT_FOUND:
                    missing_since = missing_since or time.monotonic()
                    if time.monotonic() - missing_since > NOT_FOUND_MS_MAX / 1000:
                        expected = str(self._identity)
                        raise ForeignLog(expected=expected, found="no stream") from refused
            await asyncio.sleep(RETRY_MS / 1000)

    async def _try_to_subscribe(self, next_sequence: int) -> "PushSubscription":
        subscription = PushSubscription(self._connection, next_sequence, self._linger)
        try:
            await subscription.open(self._identity.name)
            await self._check_reaches(next_sequence)
        except BaseException:
            await subscription.close()
            raise
        self._subscription = subscription
        return subscription

    async def _check_reaches(self, next_sequence: int) -> None:
        """Raises unless it is the same stream, and the message is there or is the next to come."""
        state = await self._state()
        check_same_log(self._identity, state.identity)
        check_reaches(state, next_sequence)
        if next_sequence <= state.last_sequence:
            message = await self._connection.message_from(
                self._identity.name, self._subject, next_sequence
            )
            if message is None:  # Another server has led since the state was asked for.
                raise NotAnswered
            if message[0] != next_sequence:
                raise LogGap(expected=next_sequence, found=message[0])


class PushSubscription:
    """One push consumer at the server, and what it has sent: without gaps; a gap ends it."""

    def __init__(
        self, connection: JetStreamConnection, first_sequence: int, linger: Linger
    ) -> None:
        self._connection = connection
        self._linger = linger
        self._next_sequence = first_sequence
        self._arrived: list[Delivery] = []
        self._consumed_sequence = first_sequence - 1
        self._grant_subject = ""
        self._grant_sequence = 0
        self._ended = False
        self._silent_watches = 0
        self._subscription: Subscription | None = None

    async def open(self, stream: str) -> None:
        """Subscribes to a new inbox, then has the server push to it. Raises as a request does."""
        inbox = self._connection.client.new_inbox()
        client = self._connection.client
        self._subscription = await client.subscribe_directly(inbox, self._on_message)
        config: dict[str, object] = {
            "deliver_subject": inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._next_sequence,
            "ack_policy": "none",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": HEARTBEAT_MS * 1_000_000,
            "inactive_threshold": CONSUMER_IDLE_MS * 1_000_000,
            "mem_storage": True,
            "num_replicas": 1,
        }
        # With a name of its own it is one consumer even if it is requested twice.
        name = config["name"] = inbox.rpartition(".")[2]
        body = {"stream_name": stream, "config": config}
        await self._connection.request(f"CONSUMER.CREATE.{stream}.{name}", body)

    async def close(self) -> None:
        """Unsubscribes. The server removes the consumer when it sees that it has no reader."""
        self.end()
        if self._subscription is not None:
            await self._connection.client.unsubscribe_directly(self._subscription)

    async def take(self) -> list[Delivery]:
        """Returns the messages that have arrived by the end of a wait; none once the subscription
        ended.

        A call tells the server that all that was taken before is consumed.
        """
        await self._grant()
        while not self._ended:
            await self._linger.wait()
            await self._grant()
            if self._arrived:
                break
        self._connection.check_alive()
        deliveries, self._arrived = self._arrived, []
        if deliveries:
            self._consumed_sequence = deliveries[-1].sequence
        return deliveries

    def watch(self) -> None:
        """Ends the subscription if nothing came between too many calls."""
        self._silent_watches += 1
        if self._silent_watches > SILENT_WATCHES_MAX:
            self.end()

    def end(self) -> None:
        """Takes nothing more; what has arrived in order can still be taken."""
        self._ended = True
        self._linger.end()

    def _on_message(
        self, _subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        """Handles a message of the inbox, in order; runs thousands of times a second."""
        self._silent_watches = 0
        if not reply.startswith(b"$JS.ACK."):
            self._on_control(reply, headers_of(headers or b""))
        elif not self._ended:
            sequence = stream_sequence(reply)
            if sequence == self._next_sequence:
                self._next_sequence = sequence + 1
                self._arrived.append(Delivery(sequence, data))
                self._linger.arrived(data)
            else:
                self.end()

    def _on_control(self, reply: bytes, headers: Mapping[bytes, bytes]) -> None:
        """Handles a flow-control request, or a heartbeat, which names the last message sent."""
        last_sent = headers.get(b"Nats-Last-Stream")
        # The server has sent a message that has not come.
        if last_sent is not None and int(last_sent) >= self._next_sequence:
            self.end()
        grant_subject = reply or headers.get(b"Nats-Consumer-Stalled")
        if grant_subject:
            self._grant_subject = grant_subject.decode()
            self._grant_sequence = self._next_sequence - 1
            # The consumer may have taken all: only its next call of `take` can grant more.
            self._linger.end()

    async def _grant(self) -> None:
        """Lets the server send more, if it asked and what it had sent by then is consumed."""
        if self._grant_subject and self._consumed_sequence >= self._grant_sequence:
            grant_subject, self._grant_subject = self._grant_subject, ""
            # A grant that is lost is asked for again: each heartbeat of a server that waits names
            # its subject.
            with suppress(nats.errors.Error, OSError):
                await self._connection.client.publish(grant_subject)


async def _close_when_made(subscribing: "asyncio.Future[PushSubscription]") -> None:
    """Ends a subscription, or the attempts to make it."""
    subscribing.cancel()
    await asyncio.wait((subscribing,))
    if not subscribing.cancelled() and subscribing.exception() is None:
        await subscribing.result().close()


def headers_of(raw: bytes) -> dict[bytes, bytes]:
    """Returns the headers of a NATS message.

    >>> headers_of(b"NATS/1.0 100 Idle Heartbeat\\r\\nNats-Last-Stream: 7\\r\\n\\r\\n")
    {b'Nats-Last-Stream': b'7'}
    """
    lines = (line.partition(b":") for line in raw.split(b"\r\n")[1:])
    return {name: value.strip() for name, colon, value in lines if colon}


def stream_sequence(reply: bytes) -> int:
    """Returns the stream's sequence in the reply subject of a message that a consumer sent.

    >>> stream_sequence(b"$JS.ACK.GROUPCERT_g.c0ns.1.42.7.1795247123475088659.0")
    42
    >>> stream_sequence(b"$JS.ACK.dom.acc0unt.GROUPCERT_g.c0ns.1.42.7.1795247123475088659.0.r4nd")
    42
    """
    tokens = reply.split(b".")
    return int(tokens[5 if len(tokens) == 9 else 7])
