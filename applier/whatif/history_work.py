"""A certification log as work: the certified transactions of one history on a replica.

The rows are as their observer decided them, so nothing is certified again. The stamps by write sets
are those of complete snapshots, since an observer has none for its own transactions; the lock
interval begins at the snapshot. How long the observer took is not used: its target is another.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...certifier.gtid import Gtid
from ...certifier.gtid_set import GtidSet
from ...certifier.history.schema import RecordKind, Verdict
from ...certifier.logical_clock import LogicalClock
from ..source.header import SourceHeader
from .trace_work import LOCK_INTERVAL_MAX, places_of
from .workload import Work

COLUMNS = (
    "kind",
    "version",
    "gtid_source",
    "gtid_number",
    "snapshot_version",
    "snapshot_set",
    "last_committed",
    "sequence_number",
    "write_set",
    "write_keys",
    "verdict",
    "domain_id",
    "commit_id",
    "commit_parent",
    "databases",
    "tables",
)
"""The columns that are read of a log."""
_MASK = (1 << 64) - 1


class HistoryWork:
    """Reads the rows of one history, in their order; `verdicts` counts those that are left out."""

    def __init__(self) -> None:
        self.verdicts = {verdict: 0 for verdict in Verdict}
        self.has_keys = True
        """Whether all write sets have their keys in words."""
        self._clock = LogicalClock()
        self._writers: dict[int, int] = {}
        self._alone = 0
        """The version of the newest transaction without a write set."""

    def read(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Work]:
        """Yields the work of each certified transaction, and of each view change."""
        for row in rows:
            if row["kind"] == RecordKind.VIEW_CHANGE:
                yield Work(None)
            elif row["kind"] == RecordKind.TRANSACTION:
                self.verdicts[Verdict(row["verdict"])] += 1
                if row["verdict"] == Verdict.CERTIFIED:
                    yield self._work(row)

    def _work(self, row: Mapping[str, Any]) -> Work:
        items = [item & _MASK for item in row["write_set"] or ()]
        keys, version, seen = self._keys(row, items), row["version"], _seen(row)
        if items:
            newest = max(self._writers.get(item, 0) for item in items)
            last_committed, sequence_number = self._clock.stamp(newest)
        else:
            last_committed, sequence_number = self._clock.stamp_alone()
        self._writers.update(dict.fromkeys(items, sequence_number))
        interval = min(version - max(seen, self._alone), LOCK_INTERVAL_MAX) if items else 1
        if not items:
            self._alone = version
        parent = row["commit_parent"]
        databases, tables = places_of(keys, row["databases"])
        header = SourceHeader(
            commit_parent=seen + 1 if parent is None else parent,
            commit_id=row["commit_id"] or 0,
            domain_id=row["domain_id"] or 0,
            databases=databases,
            tables=tables,
            items=items,
        )
        gtid = Gtid(row["gtid_source"], row["gtid_number"])
        return Work(
            gtid, last_committed, sequence_number, max(1, interval), header, keys, len(items)
        )

    def _keys(self, row: Mapping[str, Any], items: Sequence[int]) -> Sequence[str]:
        """Returns the texts of items; where the log has none, with the table if there is one."""
        keys: Sequence[str] | None = row["write_keys"]
        if keys is not None and len(keys) == len(items):
            return keys
        self.has_keys = self.has_keys and not items
        tables: Sequence[str] = row["tables"] or ()
        table = tables[0] if len(tables) == 1 else ""
        return [f"{table}/{item:016x}" for item in items]


def _seen(row: Mapping[str, Any]) -> int:
    """Returns the number of transactions that were committed when this one took its snapshot, or
    had its locks.
    """
    seen: int | None = row["snapshot_version"]
    version: int = row["version"]
    if seen is None and row["snapshot_set"] is not None:
        seen = GtidSet.parse(row["snapshot_set"]).count()
    if seen is None and row["sequence_number"]:
        seen = version - (row["sequence_number"] - (row["last_committed"] or 0))
    return version - 1 if seen is None else min(max(0, seen), version - 1)
