"""Binary logs as work: what their transactions ask of a replica.

The rule it keeps: what a log does not say is derived from what it does say, and never allows more
parallelism than the source had. The stamps by write sets are those that WL#8440's clock gives when
every snapshot is complete. The lock interval is that of `applier.binlog.lock_intervals`, and the
commit parent is where it begins: the closest reading of the same clock. A new file is a rotation,
which everything before it ends with.
"""

from collections.abc import Iterable, Iterator

from applier.binlog.lock_intervals import LockIntervals
from applier.binlog.reader import BinaryLogTransaction
from applier.whatif.workload import Work
from certifier.gtid import Gtid
from certifier.logical_clock import LogicalClock


class BinaryLogWork:
    """Reads the files of one binary log, in their order."""

    def __init__(self) -> None:
        self.transactions = 0
        self._clock = LogicalClock()
        self._writers: dict[int, int] = {}
        self._intervals = LockIntervals()
        self._files = 0

    def read(self, name: str, log: Iterable[BinaryLogTransaction]) -> Iterator[Work]:
        """Yields the work of the next file; `name` stands in for GTIDs where it has none."""
        if self._files:
            yield Work(None)
        self._files += 1
        self._intervals.begin_file()
        for transaction in log:
            yield self._work(name, transaction)

    def _work(self, name: str, transaction: BinaryLogTransaction) -> Work:
        self.transactions += 1
        interval = self._intervals.next(transaction)
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

    def _stamps(self, items: tuple[int, ...]) -> tuple[int, int]:
        if not items:
            return self._clock.stamp_alone()
        newest = max(self._writers.get(item, 0) for item in items)
        last_committed, sequence_number = self._clock.stamp(newest)
        self._writers.update(dict.fromkeys(items, sequence_number))
        return last_committed, sequence_number


def _gtid(name: str, transaction: BinaryLogTransaction) -> Gtid:
    """The name of a transaction: its GTID, or else its place in the file."""
    return transaction.named or Gtid(name, transaction.offset)
