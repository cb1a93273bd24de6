"""Sends messages into a JetStream stream, in order, until each is acknowledged.

Accepted messages wait in a queue; those sent and not acknowledged are in flight. On any fault (a
refusal, no acknowledgement in time, a new connection), everything in flight goes back to the head
of the queue and is sent again under the same ids, of which the stream stores each once. With one
message in flight the order is kept in any case; with more, a stream that changes its leader can
refuse one and take the next.
"""

import asyncio
import json
import time
from collections import deque
from typing import NamedTuple

import nats.errors

from ..host.backoff import Backoff
from .jetstream_connection import JetStreamConnection
from .jetstream_health import NO_SPACE_WORDS
from .served_log import Message, Pending

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


class Refusal(NamedTuple):
    """Why the stream did not take a message; `is_full`: it has no space for any."""

    text: str
    is_full: bool = False


class JetStreamPublisher:
    """The sending half of the adapter; `run` sends again what may be lost."""

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
