"""Lock intervals: beside how many transactions of a binary log, itself included, each may have run.

The interval never allows more parallelism than the source had. It is the source's own if the log
has stamps; without them a transaction's locks overlap with those of the earlier ones of its group
commit. A new file is a rotation, which ends every interval before it. A relay log may lack
transactions of its source: an interval counts only those in the log.
"""

from bisect import bisect_right

from .binary_log_reader import BinaryLogTransaction


class LockIntervals:
    """Computes the intervals of one binary log's transactions in order; holds one file's
    numbers.
    """

    def __init__(self) -> None:
        self._group = (0, 0)
        self._group_place = 0
        self._numbers: list[int] = []
        """The source's sequence numbers in this file, ascending, since they began again."""

    def begin_file(self) -> None:
        """Begins a file: the next transaction is its first one."""
        self._group = (0, 0)
        self._numbers.clear()

    def next(self, transaction: BinaryLogTransaction) -> int:
        """Returns the interval of the next transaction, itself included; 1 if it ran alone."""
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
