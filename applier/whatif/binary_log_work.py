"""Binary logs as work: the cost and the dependencies of their transactions on a replica.

Properties that a log does not have are derived from those that it has, and never allow more
parallelism than the source had. The stamps by write sets are those that WL#8440's clock gives when
every snapshot is complete. The lock interval is that of `mysql_logs.lock_intervals`, and the commit
parent is its begin: the closest reading of the same clock. A new file is a rotation, which ends
every interval before it. Tables whose keys the log does not name: `whole_tables`.

Of a long log only windows are read, at equal distances in bytes, for those of a log are known
before its transactions. The others are passed over: what follows one of them follows nothing here.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence

from ...certifier.gtid import Gtid
from ...certifier.logical_clock import LogicalClock
from ..mysql_logs.binary_log_reader import BinaryLogReader, BinaryLogTransaction
from ..mysql_logs.lock_intervals import LockIntervals
from ..source.header import SourceHeader
from .scheme_comparison import LEAD_ENTRIES, WINDOW_ENTRIES, WINDOWS
from .whole_tables import ALL_ROWS, WholeTables
from .workload import Work

LONG_BYTES = 16 << 20
"""Size of a log from which on windows of it are read; all of a shorter one is read in a second."""


class BinaryLogWork:
    """Reads the files of one binary log, in their order."""

    def __init__(self) -> None:
        self.transactions = 0
        self.passed = 0
        """Transactions of the files that were not read."""
        self._clock = LogicalClock()
        self._writers: dict[int, int] = {}
        self._intervals = LockIntervals()
        self._whole_tables = WholeTables()
        self._sequence_numbers = array("Q")
        """Of each entry; 0 of a rotation."""

    def read_files(self, logs: Sequence[BinaryLogReader], *, whole: bool) -> Iterator[Work]:
        """Yields the work of all files; of a long log that of its windows, each with its lead,
        unless it is to be read as a `whole`.
        """
        size_bytes = sum(log.size_bytes for log in logs)
        places = [size_bytes * number // WINDOWS for number in range(1, WINDOWS + 1)]
        if whole or size_bytes < LONG_BYTES:
            places.clear()
        place = begin = entries = 0
        for log in logs:
            log.pass_over(place - begin)
            passed_before = self.passed
            for work in self.read(log.path.name, log):
                if self.passed < passed_before + log.passed:
                    # A rotation among transactions that are passed over is not of the next window.
                    entries, self.passed = 0, passed_before + log.passed
                yield work._replace(passed=self.passed)
                entries += 1
                if places and entries == LEAD_ENTRIES + WINDOW_ENTRIES:
                    place, entries = places.pop(0), 0
                    log.pass_over(place - begin)
            begin += log.size_bytes
            self.passed = passed_before + log.passed

    def read(self, name: str, log: Iterable[BinaryLogTransaction]) -> Iterator[Work]:
        """Yields the work of the next file; if the log has no GTIDs, `name` is used for them."""
        if self._sequence_numbers:
            self._sequence_numbers.append(0)
            yield Work(None)
        self._intervals.begin_file()
        for transaction in log:
            yield self._work(name, transaction)

    def _work(self, name: str, transaction: BinaryLogTransaction) -> Work:
        self.transactions += 1
        interval = self._intervals.next(transaction)
        rows, tables, follows = self._items(transaction, interval)
        last_committed, sequence_number = self._stamps(rows, follows)
        # Counted from 1 on: a commit parent of 0 is none, and its transaction runs alone.
        header = SourceHeader(
            commit_parent=self.transactions - interval + 1,
            commit_id=transaction.commit_id,
            domain_id=transaction.domain_id,
            databases=transaction.databases,
            tables=transaction.tables,
            items=(*rows, *tables),
            committed_us=transaction.committed_us,
            parent_items=transaction.parent_items,
        )
        return Work(
            _gtid(name, transaction),
            last_committed,
            sequence_number,
            interval,
            header,
            (*rows.values(), *tables.values()),
            transaction.row_count,
            transaction.duration_us,
            follows,
        )

    def _items(
        self, transaction: BinaryLogTransaction, interval: int
    ) -> tuple[dict[int, str], dict[int, str], Sequence[int] | None]:
        """Returns the items of rows and those of tables that stand for their rows, with their
        texts, and the entries that it follows by such tables.
        """
        rows = dict(zip(transaction.items, transaction.keys, strict=True))
        whole = set(transaction.tables or ()).intersection(transaction.keys)
        if not whole:
            return rows, {}, None
        entry, tables, follows = len(self._sequence_numbers), dict[int, str](), set[int]()
        for item in [item for item, key in rows.items() if key in whole]:
            made = self._whole_tables.items(item, entry, interval)
            tables.update(dict.fromkeys(made, f"{rows.pop(item)}{ALL_ROWS}"))
            follows.update(self._whole_tables.followed(item, entry, interval))
        return rows, tables, sorted(follows)

    def _stamps(self, rows: Iterable[int], follows: Sequence[int] | None) -> tuple[int, int]:
        writers = [self._writers.get(row, 0) for row in rows]
        writers += [self._sequence_numbers[entry] for entry in follows or ()]
        if follows is None and not writers:
            last_committed, sequence_number = self._clock.stamp_alone()
        else:
            last_committed, sequence_number = self._clock.stamp(max(writers, default=0))
        self._writers.update(dict.fromkeys(rows, sequence_number))
        self._sequence_numbers.append(sequence_number)
        return last_committed, sequence_number


def _gtid(name: str, transaction: BinaryLogTransaction) -> Gtid:
    """Returns the name of a transaction: its GTID, or `name` and its offset in the file."""
    return transaction.named or Gtid(name, transaction.offset)
