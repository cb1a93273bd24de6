"""Measures how far a member that reads the log has come, and whether it is near enough to join.

The rule it keeps: the log grows while the member reads, so no member waits until it has reached the
end; it joins when it lags by so little that it keeps up. Pure.
"""

from dataclasses import dataclass

RATE_MS_MIN = 500
"""Milliseconds; a rate measured over a shorter time says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """One member's progress through the log, from where it began to read."""

    first_sequence: int
    began_ms: int
    messages_max: int = 256
    """Messages that may be unread when the member joins: far below a second of full load."""
    transactions_max: int = 10_000
    """Transactions that may be read and not applied when the member joins: less than a second's
    work."""

    def is_near(
        self, log_sequence: int, last_sequence: int, pending_transactions: int, rows_sequence: int
    ) -> bool:
        """Returns whether the member may join. One that was killed before it stored its state may
        have rows newer than what it has read, and reads up to those first.

        Args:
            rows_sequence: The message that the newest row which is visible came with.
        """
        return (
            rows_sequence <= log_sequence
            and last_sequence - log_sequence <= self.messages_max
            and pending_transactions <= self.transactions_max
        )

    def progress(
        self, log_sequence: int, last_sequence: int, pending_transactions: int, now_ms: int
    ) -> str:
        """Returns the progress in words, with an estimate of the time that is left.

        >>> CatchUp(first_sequence=1, began_ms=0).progress(
        ...     500, 2_000, 0, 1_000
        ... )
        'reading the log: 500 of 2,000 messages, 3 s left'
        """
        left = max(last_sequence - log_sequence, 0)
        if not left:
            return f"applying: {pending_transactions:,} transactions left"
        done = log_sequence + 1 - self.first_sequence
        text = f"reading the log: {done:,} of {done + left:,} messages"
        passed_ms = now_ms - self.began_ms
        if not done or passed_ms < RATE_MS_MIN:
            return text
        return f"{text}, {-(-left * passed_ms // (done * 1000))} s left"
