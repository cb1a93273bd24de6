"""The first copy of a server's tables: definitions, rows of one snapshot, and its GTIDs.

The checkpoint is written last: a copy that died before is begun again, into tables that are emptied
first. Only tables that a copy made, or that were empty, are ever filled.

Source: WL#5569, "Recovery": what is executed is kept with the data.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from ...certifier.gtid_set import GtidSet
from ..mysql_logs.source_catalogue import SourceColumn, SourceTable
from ..mysql_servers.snapshot import Snapshot
from .sql_tables import Row


class CopyTarget(Protocol):
    """Where the rows of a first copy go."""

    def begin(self, snapshot: Snapshot) -> tuple[Sequence[SourceTable], bool]:
        """Makes the tables that are missing, and empties those that an earlier copy began to fill;
        returns all tables in the order to fill them, and whether several may be at once.

        Raises:
            UnsuitableTarget: a table has rows that no copy wrote, or does not fit.
        """
        ...

    def columns(self, table: SourceTable) -> Sequence[SourceColumn]:
        """Returns the columns that are copied, in the order of a row's values."""
        ...

    def write(self, thread: int, table: SourceTable, rows: Sequence[Row]) -> None:
        """Writes rows of a table; each thread has a number."""
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


def copy_tables(
    snapshot: Snapshot,
    target: CopyTarget,
    report: Callable[[CopyProgress], None],
) -> int:
    """Copies all tables, as many at once as the snapshot has sessions; returns the rows."""
    tables, at_once = target.begin(snapshot)
    sessions = snapshot.threads if at_once else 1
    waiting = iter(tables)
    lock = threading.Lock()
    done = rows_total = 0

    def copied(thread: int) -> None:
        nonlocal done, rows_total
        while True:
            with lock:
                table = next(waiting, None)
            if table is None:
                return
            rows_here = 0
            for rows in snapshot.rows(table, target.columns(table), thread):
                target.write(thread, table, rows)
                rows_here += len(rows)
                with lock:
                    rows_total += len(rows)
                    report(CopyProgress(str(table), done, len(tables), rows_total))
            with lock:
                done += 1
                report(CopyProgress(str(table), done, len(tables), rows_total))

    with ThreadPoolExecutor(sessions, "first-copy") as threads:
        list(threads.map(copied, range(sessions)))
    target.finish(snapshot.gtids)
    return rows_total
