"""How many transactions of a binary log, itself included, each one may have run beside.

The rule it keeps: what a log does not say is derived from what it does say, and never allows more
parallelism than the source had. The interval is the source's own where it has stamps; without them
a transaction's locks overlap with the earlier ones of its group commit. A new file is a rotation,
which everything before it ends with. A relay log may lack transactions of its source: an interval
is counted in those that are there.
"""

from bisect import bisect_right

from applier.binlog.reader import BinaryLogTransaction


class LockIntervals:
    """Takes the transactions of one binary log, in their order. Holds the numbers of one file."""

    def __init__(self) -> None:
        self._group = (0, 0)
        self._group_place = 0
        self._numbers: list[int] = []
        """The source's sequence numbers in this file, ascending, since they began again."""

    def begin_file(self) -> None:
        """The next transaction is the first one of a file."""
        self._group = (0, 0)
        self._numbers.clear()

    def next(self, transaction: BinaryLogTransaction) -> int:
        """The interval of the next transaction, which ends with itself; 1 if it ran alone."""
        number, numbers = transaction.sequence_number, self._numbers
        if number:
            if numbers and number <= numbers[-1]:
                numbers.clear()
            numbers.append(number)
            return max(1, len(numbers) - bisect_right(numbers, transaction.last_committed))
        group = (transaction.domain_id, transaction.commit_id)
        joins = transaction.commit_id != 0 and group == self._group
        self._group = group
        self._group_place = self._group_place + 1 if joins else 1
        return self._group_place
