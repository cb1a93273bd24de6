"""Binary logs as certification logs: the rows that `groupcert export` writes for them.

Nothing is decided here. Each transaction was committed by its source and has the source's stamps;
columns that the log does not have are left out. The commit parent is the begin of the lock interval
(`applier.mysql_logs.lock_intervals`). Of the log only the numbers for that are held.

Where the source's sequence numbers begin again there is a break, as at a view change: in each
further file, and in the midst of a relay log's. A log without such numbers breaks at each further
file, because a rotation waits for all transactions before it. Positions count rows.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Final

from ...certifier.history.schema import (
    FORMAT_VERSION,
    RecordKind,
    Row,
    Source,
    Verdict,
    place_of,
    signed,
)
from ...certifier.position import position_of
from ...certifier.records import VIEW_CHANGE_STAMPS
from .binary_log_reader import BinaryLogTransaction
from .lock_intervals import LockIntervals

OBSERVER: Final = "binary-log"
"""The observer if none is named."""
HISTORY: Final = "1"


class BinaryLogHistory:
    """Returns the files of one binary log, in their order, as rows."""

    def __init__(self, observer: str | None = None, *, keys: bool = False) -> None:
        """Creates the history; with `keys` the rows also have the readable keys."""
        self.unordered: list[int] = []
        """Files that begin before the end of the one before them, counted from 0."""
        self._transactions = 0
        self._keys = keys
        self._observer = observer or OBSERVER
        self._rows = 0
        self._intervals = LockIntervals()
        self._last: BinaryLogTransaction | None = None

    def rows(self, logs: Iterable[Iterable[BinaryLogTransaction]]) -> Iterator[Row]:
        """Yields the row that begins the history, then the rows of all files."""
        yield self._start()
        for number, log in enumerate(logs):
            self._intervals.begin_file()
            is_first = True
            for transaction in log:
                if self._last is not None:
                    if _breaks(self._last, transaction, is_first):
                        yield self._break()
                    if is_first and _goes_back(self._last, transaction):
                        self.unordered.append(number)
                is_first = False
                self._last = transaction
                yield self._transaction(transaction)

    def _start(self) -> Row:
        return {
            **self._row(RecordKind.START),
            "sequence_number": 0,
            "last_committed_global": 0,
            "stable_version": 0,
            "collected_version": 0,
            "settings": json.dumps({"source": Source.BINARY_LOG.value}, separators=(",", ":")),
        }

    def _break(self) -> Row:
        last_committed, sequence_number = VIEW_CHANGE_STAMPS
        return {
            **self._row(RecordKind.VIEW_CHANGE),
            "last_committed": last_committed,
            "sequence_number": sequence_number,
            "last_committed_global": 0,
            "members": [],
            "resets_clock": True,
        }

    def _transaction(self, transaction: BinaryLogTransaction) -> Row:
        self._transactions += 1
        interval = self._intervals.next(transaction)
        row = self._row(RecordKind.TRANSACTION) | {
            "verdict": Verdict.CERTIFIED.value,
            "gtid_brought": False,
            "write_set": [signed(item) for item in transaction.items],
            "is_local": False,
            # Counted from 1 on, as 0 is none.
            "commit_parent": self._transactions - interval + 1,
            "decided_us": transaction.committed_us,
        }
        if self._keys:
            row["write_keys"] = list(transaction.keys)
        gtid = transaction.named
        if gtid is not None:
            row |= {"gtid_source": gtid.source, "gtid_number": gtid.number, "gtid_brought": True}
        if transaction.sequence_number:
            row["last_committed"] = transaction.last_committed
            row["sequence_number"] = transaction.sequence_number
        if transaction.is_mariadb:
            row["domain_id"] = transaction.domain_id
            row["commit_id"] = transaction.commit_id
        if transaction.databases is not None:
            row["databases"] = list(transaction.databases)
        if transaction.tables is not None:
            row["tables"] = list(transaction.tables)
        return row

    def _row(self, kind: RecordKind) -> Row:
        """Returns the first columns of the next row."""
        position, self._rows = position_of(self._rows, 0), self._rows + 1
        return {
            "format_version": FORMAT_VERSION,
            "observer": self._observer,
            "history": HISTORY,
            "place": place_of(position, kind),
            "kind": kind.value,
            "version": self._transactions,
        }


def _breaks(last: BinaryLogTransaction, transaction: BinaryLogTransaction, is_first: bool) -> bool:
    """Returns whether a transaction waits for all before it; `is_first`: the first of its file."""
    if last.sequence_number and transaction.sequence_number:
        return transaction.sequence_number <= last.sequence_number
    return is_first


def _goes_back(last: BinaryLogTransaction, transaction: BinaryLogTransaction) -> bool:
    """Returns whether a file seems to begin before the end of the one before it.

    Times alone go back where a statement took long, numbers alone where members have blocks.
    """
    before, after = last.named, transaction.named
    if before is not None and after is not None and before.source == after.source:
        return after.number <= before.number and transaction.committed_us <= last.committed_us
    return transaction.committed_us < last.committed_us
