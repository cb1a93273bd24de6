"""Binary logs as work: what their transactions ask of a replica.

The rule it keeps: what a log does not say is derived from what it does say, and never allows more
parallelism than the source had. The stamps by write sets are those that WL#8440's clock gives when
every snapshot is complete. The lock interval is the source's own where it has stamps; without them
a transaction's locks overlap with the earlier ones of its group commit. The commit parent is where
the lock interval begins: the closest reading of the same clock. A new file is a rotation, which
everything before it ends with. A relay log may lack transactions of its source: an interval is
counted in those that are there.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from applier.binlog.reader import BinaryLogTransaction
from applier.whatif.workload import Work
from certifier.gtid import Gtid, parse_gtid
from certifier.logical_clock import LogicalClock


class BinaryLogWork:
    """Reads the files of one binary log, in their order."""

    def __init__(self) -> None:
        self.transactions = 0
        self._clock = LogicalClock()
        self._writers: dict[int, int] = {}
        self._group = (0, 0)
        self._group_place = 0
        self._files = 0
        self._numbers: list[int] = []
        """The source's sequence numbers in this file, ascending, since they began again."""

    def read(self, name: str, log: Iterable[BinaryLogTransaction]) -> Iterator[Work]:
        """Yields the work of the next file; `name` stands in for GTIDs where it has none."""
        if self._files:
            yield Work(None)
        self._files += 1
        self._group = (0, 0)
        self._numbers.clear()
        for transaction in log:
            yield self._work(name, transaction)

    def _work(self, name: str, transaction: BinaryLogTransaction) -> Work:
        self.transactions += 1
        interval = self._lock_interval(transaction)
        last_committed, sequence_number = self._stamps(transaction.items)
        header = transaction.header._replace(commit_parent=self.transactions - interval + 1)
        return Work(
            _gtid(name, transaction),
            last_committed,
            sequence_number,
            interval,
            header,
            transaction.keys,
            transaction.row_count,
            transaction.duration_us,
        )

    def _lock_interval(self, transaction: BinaryLogTransaction) -> int:
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

    def _stamps(self, items: tuple[int, ...]) -> tuple[int, int]:
        if not items:
            return self._clock.stamp_alone()
        newest = max(self._writers.get(item, 0) for item in items)
        last_committed, sequence_number = self._clock.stamp(newest)
        self._writers.update(dict.fromkeys(items, sequence_number))
        return last_committed, sequence_number


def _gtid(name: str, transaction: BinaryLogTransaction) -> Gtid:
    """The name of a transaction: MySQL's GTID, MariaDB's with its domain and server as the source,
    or else its place in the file.
    """
    text = transaction.gtid
    if text is None:
        return Gtid(name, transaction.offset)
    if ":" in text:
        return parse_gtid(text)
    source, _, number = text.rpartition("-")
    return Gtid(source, int(number))
