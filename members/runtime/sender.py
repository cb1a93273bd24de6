"""Sends the publisher's batches to the log, held back by `LINGER_MS` so that they fill.

The rule it keeps: one turn of the event loop collects, the next one sends; no batch is forgotten,
because every event after which one may go calls `schedule`.
"""

import asyncio
import time
from collections.abc import Callable

from ..core.member import Member
from ..core.publisher import LINGER_MS
from ..host.histogram import AMOUNTS, Histogram
from ..total_order.port import PUBLISHING_MAX, TotalOrder
from ..wire.log_batches import encode_batch

SENT_TIMES_KEPT = 256


class Sender:
    """Passes batches from one member's state machine to its log, on the event loop's thread."""

    def __init__(
        self,
        member: Member,
        order: TotalOrder,
        on_error: Callable[[Exception], None],
    ) -> None:
        """Sends to `order`; calls `on_error` with an error after which sending cannot go on."""
        self._on_error = on_error
        self._member = member
        self.batch_sizes = Histogram(AMOUNTS)
        """Transactions of each message that had any."""
        self._publisher = member.publisher
        self._order = order
        self._linger_seconds = LINGER_MS / 1000
        self._loop = asyncio.get_running_loop()
        self._sent_seconds: dict[int, float] = {}
        self._scheduled = False
        self._lingering: asyncio.TimerHandle | None = None

    def schedule(self) -> None:
        """Sends what waits, after this turn of the event loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._send)

    def sent_at(self, batch_number: int) -> float | None:
        """Returns the time, by `time.perf_counter`, at which one of the last batches was sent."""
        return self._sent_seconds.get(batch_number)

    def _send(self, *, lingered: bool = False) -> None:
        try:
            self._send_all(lingered)
        except Exception as error:  # The event loop would only log it.
            self._on_error(error)

    def _send_all(self, lingered: bool) -> None:
        self._scheduled = False
        for submission in self._publisher.note_log_full(self._order.full()):
            submission.end()
        while self._order.publishing() < PUBLISHING_MAX:
            credit = self._member.credit(self._now_ms())
            is_taken = not self._order.publishing()
            batch = self._publisher.next_batch(lingered=lingered, credit=credit, is_taken=is_taken)
            if batch is None:
                break
            self._sent_seconds[batch.batch_number] = time.perf_counter()
            self._sent_seconds.pop(batch.batch_number - SENT_TIMES_KEPT, None)
            message_id = f"{batch.incarnation:016x}-{batch.batch_number}"
            if batch.transactions:
                self.batch_sizes.add(len(batch.transactions))
            encoded = encode_batch(batch, self._member.view.written_format)
            self._publisher.note_encoded(batch.batch_number, encoded)
            self._order.publish(message_id, encoded)
        self._linger(self._publisher.lingers)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _linger(self, lingers: bool) -> None:
        """Starts the timer that sends a held-back batch, or cancels it if none is held back."""
        if lingers and self._lingering is None:
            self._lingering = self._loop.call_later(self._linger_seconds, self._end_linger)
        elif not lingers and self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

    def _end_linger(self) -> None:
        self._lingering = None
        self._send(lingered=True)
