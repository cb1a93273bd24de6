"""The first copy of a server's tables: definitions, rows of one snapshot, and its GTIDs.

The checkpoint is written last. Until then the target has a record of the copy: which tables are
whole, and the GTID set that all of them are at. Only tables that a copy made, or that were empty,
are ever filled.

A copy that was cut off goes on in a new snapshot, which is younger than the tables that are whole:
these first get from the source's log what was executed up to it, and the others are copied then. So
all whole tables are at one GTID set at any time, and no table has to be followed from a snapshot of
its own, past which its foreign keys would not hold. A table is only kept together with its parents,
as what a foreign key's cascade does to it is not in the log. If the log does not lead to the new
snapshot (it was purged, or tables were defined in between), the copy begins again.

Source: WL#5569, "Recovery": what is executed is kept with the data.
"""

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol, Self

from ...certifier.errors import Fenced
from ...certifier.gtid_set import GtidSet
from ..errors import OF_ROWS, TABLE_CHANGED, InvalidBinaryLog, TransientFailure
from ..mysql_logs.prepared_payload import prepared_step
from ..mysql_logs.source_catalogue import SourceColumn, SourceTable
from ..mysql_logs.statement_payload import has_statements, statements_of
from ..mysql_servers.snapshot import Snapshot
from ..queue.relay_group import RelayEntry
from .sql_tables import Row

ChangesBetween = Callable[[GtidSet, GtidSet], Iterable[tuple[Sequence[RelayEntry], GtidSet]]]
"""Returns what a source has executed between two GTID sets, some transactions at a time, each time
with the set after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRecord:
    """What a target keeps of a copy until it is finished. `tables`: those that it fills, as the
    target calls them; `created`: those of the source that it made there; `whole`: those of the
    source whose rows are all there, as of `gtids`.
    """

    gtids: GtidSet
    whole: Sequence[str] = ()
    created: Sequence[str] = ()
    tables: Sequence[str] = ()

    def encode(self) -> str:
        """Returns the record as JSON."""
        return json.dumps(asdict(self) | {"gtids": str(self.gtids)})

    @classmethod
    def decode(cls, encoded: str) -> Self:
        """Returns the record that `encode` made the text of."""
        fields = json.loads(encoded)
        return cls(**fields | {"gtids": GtidSet.parse(fields["gtids"])})


class CopyTarget(Protocol):
    """Where the rows of a first copy go."""

    @property
    def record(self) -> CopyRecord:
        """The record of this copy, as of `begin` and what was called after it."""
        ...

    def begin(self, snapshot: Snapshot) -> tuple[Sequence[SourceTable], bool]:
        """Makes the tables that are missing, and empties those that are not whole; returns these in
        the order to fill them, and whether several may be filled at once.

        Raises:
            UnsuitableTarget: a table has rows that no copy wrote, or does not fit.
        """
        ...

    def forget(self) -> None:
        """Notes that no table is whole, before `begin` is called again."""
        ...

    def follow(self, entries: Sequence[RelayEntry], gtids: GtidSet) -> None:
        """Changes the whole tables as transactions of the source did, and notes that they are at
        `gtids`, in one transaction.
        """
        ...

    def columns(self, table: SourceTable) -> Sequence[SourceColumn]:
        """Returns the columns that are copied, in the order of a row's values."""
        ...

    def write(self, thread: int, table: SourceTable, rows: Sequence[Row]) -> None:
        """Writes rows of a table; each thread has a number."""
        ...

    def complete(self, table: SourceTable) -> None:
        """Notes that a table is whole; one thread at a time calls it."""
        ...

    def finish(self, gtids: GtidSet) -> None:
        """Adds constraints between tables, then notes all of the snapshot as executed."""
        ...


class CopyProgress(NamedTuple):
    """How far a copy is; `table`: which one was copied last."""

    table: str
    tables: int
    of: int
    rows: int


class CopyReport(Protocol):
    """Who hears of a copy."""

    def say(self, progress: CopyProgress) -> None:
        """Hears how far it is."""
        ...

    def goes_on(self, record: CopyRecord) -> None:
        """Hears that it was cut off before, and what is kept."""
        ...

    def begins_again(self, cause: str) -> None:
        """Hears that nothing can be kept, and why."""
        ...


def copy_tables(
    snapshot: Snapshot, target: CopyTarget, changes_between: ChangesBetween, report: CopyReport
) -> int:
    """Copies all tables, as many at once as the snapshot has sessions; returns the rows.

    Raises the first error of a thread; what is whole then is kept.
    """
    tables, at_once = _begin(snapshot, target, changes_between, report)
    done = len(target.record.whole)
    of = done + len(tables)
    sessions = snapshot.threads if at_once else 1
    waiting = list(reversed(tables))
    lock = threading.Lock()
    rows_total = 0

    def copied(thread: int) -> None:
        nonlocal done, rows_total
        try:
            while table := _next(waiting, lock):
                for rows in snapshot.rows(table, target.columns(table), thread):
                    target.write(thread, table, rows)
                    with lock:
                        rows_total += len(rows)
                        report.say(CopyProgress(str(table), done, of, rows_total))
                with lock:
                    target.complete(table)
                    done += 1
                    report.say(CopyProgress(str(table), done, of, rows_total))
        finally:
            with lock:
                waiting.clear()  # After an error the other threads end with their tables.

    with ThreadPoolExecutor(sessions, "first-copy") as threads:
        list(threads.map(copied, range(sessions)))
    target.finish(snapshot.gtids)
    return rows_total


def _next(waiting: list[SourceTable], lock: threading.Lock) -> SourceTable | None:
    with lock:
        return waiting.pop() if waiting else None


def _begin(
    snapshot: Snapshot, target: CopyTarget, changes_between: ChangesBetween, report: CopyReport
) -> tuple[Sequence[SourceTable], bool]:
    """Begins a copy, or goes on with one; returns the tables to copy, and whether at once."""
    begun = target.begin(snapshot)
    if not target.record.whole:
        return begun
    report.goes_on(target.record)
    try:
        for entries, gtids in changes_between(target.record.gtids, snapshot.gtids):
            _check_rows_only(entries)
            target.follow(entries, gtids)
    except (Fenced, InvalidBinaryLog, _TablesDefined, TransientFailure) as error:
        if isinstance(error, TransientFailure) and error.kind not in (TABLE_CHANGED, *OF_ROWS):
            raise
        report.begins_again(str(error))
        target.forget()
        return target.begin(snapshot)
    return begun


class _TablesDefined(Exception):
    """A transaction is no change of rows."""


def _check_rows_only(entries: Sequence[RelayEntry]) -> None:
    for entry in entries:
        if has_statements(entry.payload):
            texts = [each.text[:200] for each in statements_of(entry.payload)]
            text = texts[0] if texts else prepared_step(entry.payload)
            raise _TablesDefined(f"{entry.gtid} is {str(text)!r}")


def with_parents(whole: Collection[str], parents: Mapping[str, Collection[str]]) -> set[str]:
    """Returns the tables whose parents, and theirs, are whole, too.

    >>> sorted(with_parents(["a", "b", "d"], {"a": ["a"], "b": ["a"], "d": ["c"]}))
    ['a', 'b']
    """
    kept = set(whole)
    while lacking := {name for name in kept if not kept.issuperset(parents.get(name, ()))}:
        kept -= lacking
    return kept
