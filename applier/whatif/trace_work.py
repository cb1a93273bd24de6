"""A trace as work: the cost and the dependencies of its certified transactions on a replica.

A trace is certified by `history.trace`, as `groupcert replay` does; transactions that were not
certified never reached a replica and are left out. All transactions count as remote: a replica
executes them wherever they came from.

Fields that a line does not have are derived: databases and tables from the texts of its items; the
commit parent from the size of its snapshot, because an optimistic transaction reads the counter of
WL#6314 when it takes its snapshot; the lock interval of WL#7165 from the newest transaction in the
snapshot. A transaction without write set locks everything: its interval is 1.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from ...certifier.core import Certifier, CertifierOptions
from ...certifier.errors import InvalidTrace
from ...certifier.gtid_set import GtidSet
from ...certifier.history.trace import JsonObject, Replay, ReplaySummary
from ...certifier.history.trace_fields import names_of, number_of
from ...certifier.records import Outcome, Record, Transaction, Verdict, ViewChange
from ..queue.row_parts import database_of, table_of
from ..source.header import SourceHeader
from .workload import Work

LOCK_INTERVAL_MAX = 65_535
"""Longest lock interval (WL#7165): a longer one counts as this, safely, with less parallelism."""


class TraceWork:
    """Reads a trace line by line; `summary` counts the decisions about its transactions."""

    def __init__(
        self, options: CertifierOptions, *, lock_interval_max: int = LOCK_INTERVAL_MAX
    ) -> None:
        """Creates the certifier; `options` as for `groupcert replay`."""
        self._replay = Replay(Certifier(options), follower=self, local_is_remote=True)
        self._works: list[Work] = []
        self._newest: deque[tuple[str, int]] = deque(maxlen=lock_interval_max)
        self._lock_interval_max = lock_interval_max
        self._transactions = 0
        self._alone = 0

    @property
    def summary(self) -> ReplaySummary:
        """Decisions so far."""
        return self._replay.summary

    def read(self, lines: Iterable[str]) -> Iterator[Work]:
        """Yields the work of a trace's lines.

        Raises:
            InvalidTrace: a line is not of the format, or there is no certified transaction.
        """
        for text in lines:
            self._replay.replay(text)
            yield from self._works
            self._works.clear()
        if not self._transactions:
            refused = self.summary.conflict + self.summary.too_old + self.summary.refused
            raise InvalidTrace(
                line=max(self._replay.line, 1),
                problem=f"the trace ends without a certified transaction ({refused} others)",
                expected="one at least to schedule",
            )

    def transaction(
        self,
        transaction: Transaction,
        outcome: Outcome,
        line: JsonObject,
        texts: tuple[Sequence[str], Sequence[str]],
    ) -> None:
        """Adds the work of a decided transaction, if it was certified."""
        if outcome.verdict is not Verdict.CERTIFIED:
            return
        gtid, snapshot, keys = outcome.gtid, transaction.snapshot, texts[0]
        assert gtid is not None and isinstance(snapshot, GtidSet)
        interval = self._lock_interval(snapshot, has_rows=bool(keys))
        self._newest.appendleft(gtid)
        work = Work(
            gtid,
            outcome.last_committed or 0,
            outcome.sequence_number or 0,
            interval,
            self._header(line, snapshot, keys, transaction.write_set),
            keys,
            len(keys),
            self._number(line, "duration_us"),
        )
        self._works.append(work)

    def record(self, record: Record, line: JsonObject) -> None:
        """Adds a view change as an entry that runs alone; other records are no work."""
        if isinstance(record, ViewChange):
            self._works.append(Work(None))

    def _header(
        self, line: JsonObject, snapshot: GtidSet, keys: Sequence[str], items: Sequence[int]
    ) -> SourceHeader:
        databases, tables = places_of(keys, names_of(line, "databases", self._replay.line))
        parent = self._number(line, "commit_parent")
        return SourceHeader(
            commit_parent=snapshot.count() + 1 if parent is None else parent,
            commit_id=self._number(line, "commit_id") or 0,
            domain_id=self._number(line, "domain_id") or 0,
            databases=databases,
            tables=tables,
            items=items,
        )

    def _number(self, line: JsonObject, name: str) -> int | None:
        return number_of(line, name, self._replay.line)

    def _lock_interval(self, snapshot: GtidSet, *, has_rows: bool) -> int:
        """Returns the lock interval: the distance, in transactions, from the snapshot's newest one.
        Cost: O(the result).
        """
        self._transactions += 1
        if not has_rows:
            self._alone = self._transactions
            return 1
        longest = min(self._transactions, self._lock_interval_max)
        # One without write set locks everything, so nothing before it runs beside this one.
        if self._alone:
            longest = min(longest, self._transactions - self._alone)
        contains = snapshot.contains_number
        for back, (source, number) in enumerate(islice(self._newest, longest), 1):
            if contains(source, number):
                return back
        return longest


def places_of(
    keys: Sequence[str], databases: Sequence[str] | None
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Returns the databases and the tables of rows, by their texts unless `databases` are known;
    None where nothing is.

    >>> places_of(["shop.orders/1", "shop.lines/7"], None)
    (('shop',), ('shop.lines', 'shop.orders'))
    """
    tables = {table_of(key.encode()) for key in keys}
    if databases is None and tables:
        databases = [database_of(table) for table in tables]
    known = None if databases is None else tuple(sorted(set(databases)))
    return known, tuple(sorted(tables)) or None
