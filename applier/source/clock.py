"""The source's logical clock: computes WL#7165's two stamps of a transaction's header.

A transaction's lock interval begins when it has read `max_committed_transaction` and ends when it
has raised it to its own sequence number. So if one interval ended before another began, the second
transaction's `last_committed` is at least the first one's number. Both counters restart with each
file of the log. Pure; the caller ensures that only one thread at a time uses a clock.

Source: WL#7165, "Master variables", "Master logic", and note 1 (exhaustion of the counters).
"""

from ...certifier.errors import InvalidSetting

SEQUENCE_NUMBER_MAX = 2**63 - 1


class SourceClock:
    """The counters of one source.

    >>> clock = SourceClock()
    >>> first = clock.end_statement()
    >>> second = clock.end_statement()
    >>> clock.stamp(first), clock.stamp(second)
    ((0, 1), (0, 2))
    >>> clock.commit(2), clock.commit(1), clock.stamp(clock.end_statement())
    (None, None, (2, 3))
    """

    __slots__ = (
        "_nobody_before",
        "_sequence_number_max",
        "max_committed_transaction",
        "transaction_counter",
    )

    def __init__(self, sequence_number_max: int = SEQUENCE_NUMBER_MAX) -> None:
        """Begins with a new file; `sequence_number_max` is the last number that a file may have."""
        if sequence_number_max < 1:
            raise InvalidSetting(
                name="sequence_number_max", value=sequence_number_max, expected="1 or more"
            )
        self._sequence_number_max = sequence_number_max
        self.rotate()

    def rotate(self) -> None:
        """Resets the counters, for a new file of the log."""
        self.transaction_counter = self.max_committed_transaction = self._nobody_before = 0

    @property
    def left(self) -> int:
        """Sequence numbers that are left; at 0 the log has to be rotated."""
        return self._sequence_number_max - self.transaction_counter

    def end_statement(self) -> int:
        """Returns the newest committed sequence number, which a transaction reads at the end of
        each statement; its last read counts.
        """
        return self.max_committed_transaction

    def flush(self) -> int:
        """Steps the counter; returns the sequence number of the next flushed transaction."""
        assert self.left > 0, "a file of the log has more transactions than numbers"
        self.transaction_counter += 1
        return self.transaction_counter

    def stamp(self, read: int | None, *, knows_rows: bool = True) -> tuple[int, int]:
        """Flushes a transaction and returns its `last_committed` and `sequence_number`.

        Args:
            read: the value of `end_statement`; below 0 is before the file. None: unknown, and
                the transaction waits for all before it.
            knows_rows: it has a write set. One without, such as DDL, waits for all before it, and
                all after it wait for it.
        """
        number = self.flush()
        if not knows_rows:
            self._nobody_before = number
            return number - 1, number
        # A value that was read in the file before may be above all numbers of this one: it says
        # nothing.
        if read is None or read >= number:
            return number - 1, number
        return max(read, self._nobody_before), number

    def commit(self, sequence_number: int) -> None:
        """Ends the lock interval of a transaction that is about to commit.

        Commits may come out of the order of the numbers: the maximum counts.
        """
        assert 0 < sequence_number <= self.transaction_counter, f"{sequence_number} is not flushed"
        self.max_committed_transaction = max(self.max_committed_transaction, sequence_number)
