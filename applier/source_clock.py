"""The source's logical clock: what puts WL#7165's two stamps into a transaction's header.

The rule it keeps: a transaction's lock interval begins when it has read `max_committed_transaction`
and ends when it has raised it to its own sequence number; so if one had ended before another began,
the other's `last_committed` says so. Both counters restart with each file of the log. Pure; the
caller sees to it that only one thread at a time uses a clock.

Source: WL#7165, "Master variables", "Master logic", and note 1 (exhaustion of the counters).
"""

from certifier.errors import InvalidSetting

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
        """`sequence_number_max`: the last number that a file may have."""
        if sequence_number_max < 1:
            raise InvalidSetting(
                name="sequence_number_max", value=sequence_number_max, expected="1 or more"
            )
        self._sequence_number_max = sequence_number_max
        self.rotate()

    def rotate(self) -> None:
        """Begins again, with a new file of the log."""
        self.transaction_counter = self.max_committed_transaction = self._nobody_before = 0

    @property
    def left(self) -> int:
        """Sequence numbers that are left; at 0 the log has to be rotated."""
        return self._sequence_number_max - self.transaction_counter

    def end_statement(self) -> int:
        """What a transaction reads at the end of each of its statements; the last read counts."""
        return self.max_committed_transaction

    def flush(self) -> int:
        """Steps the counter: the sequence number of the transaction that is flushed next."""
        assert self.left > 0, "a file of the log has more transactions than numbers"
        self.transaction_counter += 1
        return self.transaction_counter

    def stamp(self, read: int | None, *, knows_rows: bool = True) -> tuple[int, int]:
        """Flushes a transaction: its `last_committed` and `sequence_number`.

        Args:
            read: What `end_statement` gave; below 0 is before the file. None: it is not known, and
                the transaction waits for all before it.
            knows_rows: It has a write set. One without, such as DDL, waits for all before it, and
                all after it wait for it.
        """
        number = self.flush()
        if not knows_rows:
            self._nobody_before = number
            return number - 1, number
        if read is None or read >= number:
            return number - 1, number
        return max(read, self._nobody_before), number

    def commit(self, sequence_number: int) -> None:
        """The transaction is about to commit: its locks are as good as released.

        Commits may come out of the order of the numbers: the maximum counts.
        """
        assert 0 < sequence_number <= self.transaction_counter, f"{sequence_number} is not flushed"
        self.max_committed_transaction = max(self.max_committed_transaction, sequence_number)
