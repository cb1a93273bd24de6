"""Binary logs as work: the cost and the dependencies of their transactions on a replica.

Properties that a log does not have are derived from those that it has, and never allow more
parallelism than the source had. The stamps by write sets are those that WL#8440's clock gives when
every snapshot is complete. The lock interval is that of `mysql_logs.lock_intervals`, and the commit
parent is its begin: the closest reading of the same clock. A new file is a rotation, which ends
every interval before it. What a table stands for whose keys the log does not name: `whole_tables`.
"""

from collections.abc import Iterable, Iterator, Sequence

from ...certifier.gtid import Gtid
from ...certifier.logical_clock import LogicalClock
from ..mysql_logs.binary_log_reader import BinaryLogTransaction
from ..mysql_logs.lock_intervals import LockIntervals
from .whole_tables import ALL_ROWS, WholeTables
from .workload import Work


class BinaryLogWork:
    """Reads the files of one binary log, in their order."""

    def __init__(self) -> None:
        self.transactions = 0
        self._clock = LogicalClock()
        self._writers: dict[int, int] = {}
        self._intervals = LockIntervals()
        self._whole_tables = WholeTables()
        self._files = 0

    def read(self, name: str, log: Iterable[BinaryLogTransaction]) -> Iterator[Work]:
        """Yields the work of the next file; if the log has no GTIDs, `name` is used for them."""
        if self._files:
            yield Work(None)
        self._files += 1
        self._intervals.begin_file()
        for transaction in log:
            yield self._work(name, transaction)

    def _work(self, name: str, transaction: BinaryLogTransaction) -> Work:
        self.transactions += 1
        interval = self._intervals.next(transaction)
        items, keys = self._items(transaction, interval)
        last_committed, sequence_number = self._stamps(items)
        # Counted from 1 on: a commit parent of 0 is none, and its transaction runs alone.
        header = transaction.header._replace(
            commit_parent=self.transactions - interval + 1, items=items
        )
        return Work(
            _gtid(name, transaction),
            last_committed,
            sequence_number,
            interval,
            header,
            keys,
            transaction.row_count,
            transaction.duration_us,
        )

    def _items(
        self, transaction: BinaryLogTransaction, interval: int
    ) -> tuple[Sequence[int], Sequence[str]]:
        """Returns the items of a transaction with their texts."""
        tables = set(transaction.tables or ())
        if tables.isdisjoint(transaction.keys):
            return transaction.items, transaction.keys
        texts: dict[int, str] = {}
        for item, key in zip(transaction.items, transaction.keys, strict=True):
            if key in tables:
                made = self._whole_tables.items(item, self.transactions, interval)
                texts.update(dict.fromkeys(made, f"{key}{ALL_ROWS}"))
            else:
                texts[item] = key
        return tuple(texts), tuple(texts.values())

    def _stamps(self, items: Sequence[int]) -> tuple[int, int]:
        if not items:
            return self._clock.stamp_alone()
        newest = max(self._writers.get(item, 0) for item in items)
        last_committed, sequence_number = self._clock.stamp(newest)
        self._writers.update(dict.fromkeys(items, sequence_number))
        return last_committed, sequence_number


def _gtid(name: str, transaction: BinaryLogTransaction) -> Gtid:
    """Returns the name of a transaction: its GTID, or `name` and its offset in the file."""
    return transaction.named or Gtid(name, transaction.offset)
