"""Binary logs as transactions: the name, the write set and the possible overlap of each.

A transaction is returned when its end was read, in the log's order, or not at all. An unknown
property has the value that allows the least parallelism. Of the log only one event and the write
set of one transaction are held.

Source: MySQL Reference Manual, 7.4.4 "The Binary Log"; MariaDB Knowledge Base, "Binary Log".
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ...certifier.gtid import Gtid, parse_gtid
from ...certifier.write_set import TableKeys
from ..errors import InvalidBinaryLog
from ..source.header import SourceHeader
from .compression import payload_events
from .events import FLAG_IGNORABLE, Event, EventReader, EventType
from .row_events import NO_TABLE_ID, ROWS, WriteSets, changes, table_of
from .table_maps import Table, read_table, table_id_of
from .transaction_bounds import GroupStart, StatementKind, group_start, read_statement

ITEMS_MAX = 1_000_000
"""The largest write set that is kept, in items; a larger one stands for all rows."""
TABLES_MAX = 100_000

_E = EventType
_GTIDS = {_E.GTID, _E.ANONYMOUS_GTID, _E.GTID_TAGGED, _E.MARIADB_GTID}
_STATEMENTS = {_E.QUERY, _E.EXECUTE_LOAD_QUERY, _E.MARIADB_QUERY_COMPRESSED}
_ENDS = {_E.XID, _E.XA_PREPARE}
_WITHOUT_ROWS = {
    _E.STOP,
    _E.ROTATE,
    _E.INTVAR,
    _E.APPEND_BLOCK,
    _E.DELETE_FILE,
    _E.RAND,
    _E.USER_VAR,
    _E.FORMAT_DESCRIPTION,
    _E.BEGIN_LOAD_QUERY,
    _E.HEARTBEAT,
    _E.HEARTBEAT_V2,
    _E.IGNORABLE,
    _E.ROWS_QUERY,
    _E.PREVIOUS_GTIDS,
    _E.TRANSACTION_CONTEXT,
    _E.VIEW_CHANGE,
    _E.MARIADB_ANNOTATE_ROWS,
    _E.MARIADB_BINLOG_CHECKPOINT,
    _E.MARIADB_GTID_LIST,
}


class BinaryLogTransaction(NamedTuple):
    """One transaction, or one statement that is a transaction of its own.

    `gtid`: MySQL's `uuid:number` or MariaDB's `domain-server-number`; None if the log has none.
    `last_committed`, `sequence_number`: MySQL's stamps, 0 and 0 elsewhere. `commit_id`,
    `domain_id`: MariaDB's; 0 for a group of one, and elsewhere. `databases`, `tables`: those that
    it updates, sorted, a table as `database.table`; None if that is not known, which stands for
    all. `items`: its write set; empty stands for all rows. `keys`: each item as people read it.
    `row_count`: changed rows; those of statements are not known. `size_bytes`: of its events in
    the file. `offset`: where the first one begins. `began_us`, `committed_us`: the source's clock,
    in microseconds since 1970, of which logs often have the seconds only;
    `original_committed_us`: the clock of the server that it came from. `duration_us`: what its
    statements took, None where the log does not say: MySQL counts whole seconds, and for
    statements only.
    """

    gtid: str | None
    last_committed: int
    sequence_number: int
    commit_id: int
    domain_id: int
    databases: tuple[str, ...] | None
    tables: tuple[str, ...] | None
    items: tuple[int, ...]
    keys: tuple[str, ...]
    row_count: int
    size_bytes: int
    offset: int
    began_us: int
    committed_us: int
    original_committed_us: int
    duration_us: int | None
    is_ddl: bool

    @property
    def named(self) -> Gtid | None:
        """GTID: MySQL's, or MariaDB's with its domain and server as the source."""
        if self.gtid is None:
            return None
        if self.is_mariadb:
            source, _, number = self.gtid.rpartition("-")
            return Gtid(source, int(number))
        return parse_gtid(self.gtid)

    @property
    def is_mariadb(self) -> bool:
        """True if it has a GTID of MariaDB's, and so a domain and a commit id."""
        return self.gtid is not None and ":" not in self.gtid

    @property
    def header(self) -> SourceHeader:
        """Properties that the schemes use, beside the stamps."""
        return SourceHeader(
            commit_id=self.commit_id,
            domain_id=self.domain_id,
            databases=self.databases,
            tables=self.tables,
            items=self.items,
            committed_us=self.committed_us,
        )


class _Group:
    """The transaction that is being read."""

    def __init__(self, start: GroupStart, event: Event) -> None:
        self.start = start
        self.is_open = start.is_open
        self.is_ddl = start.is_ddl
        self.offset = event.offset
        self.size_bytes = event.size_bytes
        self.began_us = event.timestamp * 1_000_000
        self.duration_us = 0
        self.row_count = 0
        self.has_statements = False
        self.databases: set[str] | None = set()
        self.tables: set[str] = set()
        self.items: dict[int, str] = {}

    def __str__(self) -> str:
        return self.start.gtid or "a transaction without GTID"


class BinaryLogReader:
    """Reads a log once, by iteration; the other attributes are complete when that has ended.

    `cut_short`: None, or where and why the log ends in the midst of an event or transaction.
    `server_version`: of the server that wrote it. `dropped`: transactions that lack their begin or
    end within the log, as relay logs have them after a lost connection. `skipped`: events of types
    that are not known here, by type. `tables_without_keys`: the tables of which write sets have
    one item for all rows, and why.
    """

    def __init__(self, path: Path, keys: Mapping[str, TableKeys], items_max: int) -> None:
        self.path = path
        self.cut_short: str | None = None
        self.server_version = ""
        self.dropped = 0
        self.skipped: Counter[int] = Counter()
        self._keys = keys
        self._items_max = items_max
        self._write_sets = WriteSets()
        self._tables: dict[int, Table] = {}
        self._known_tables: dict[bytes, Table] = {}
        self._group: _Group | None = None
        self._has_begun = False

    @property
    def notes(self) -> list[str]:
        """Texts for people about a log that was read: what it lacks, what was left out."""
        notes = [f"{table}: {why}" for table, why in self.tables_without_keys.items()]
        if self.dropped:
            notes.append(f"{self.path}: {self.dropped} transactions are not whole and left out")
        return [self.cut_short, *notes] if self.cut_short else notes

    @property
    def tables_without_keys(self) -> dict[str, str]:
        """Tables whose write sets have one item for all rows, and why; see the class."""
        return self._write_sets.tables_without_keys

    def __iter__(self) -> Iterator[BinaryLogTransaction]:
        """Yields the transactions.

        Raises:
            InvalidBinaryLog: this is no binary log, or one that is damaged or cannot be read.
            InvalidSetting: a key was given of a column that its table does not have.
        """
        with self.path.open("rb") as file:
            self._events = EventReader(file, str(self.path), self.path.stat().st_size)
            for event in self._events:
                if event.type == EventType.TRANSACTION_PAYLOAD:
                    self._count(event)
                    for inner in payload_events(event):
                        yield from self._read(inner)
                else:
                    yield from self._read(event)
            self.cut_short = self._events.cut_short
        if self._group is not None and self.cut_short is None:
            self.cut_short = (
                f"{self.path} ends within {self._group}, which begins at byte {self._group.offset}"
            )

    def _read(self, event: Event) -> Iterator[BinaryLogTransaction]:
        """Reads one event; yields the transaction that it ends."""
        self._count(event)
        finished = False
        if event.type in _GTIDS:
            self._begin(event, group_start(event))
        elif event.type in _STATEMENTS:
            finished = self._statement(event)
        elif event.type == EventType.TABLE_MAP:
            self._map_table(event)
        elif event.type in ROWS:
            self._rows(event)
        elif event.type in _ENDS:
            finished = self._is_within(event)
        else:
            self._other(event)
        if finished:
            group, self._group = self._group, None
            assert group is not None, "an end without a transaction"
            yield self._finish(group, event)

    def _count(self, event: Event) -> None:
        if self._group is not None:
            self._group.size_bytes += event.size_bytes

    def _begin(self, event: Event, start: GroupStart) -> _Group:
        self.dropped += self._group is not None
        self._has_begun = True
        self._group = _Group(start, event)
        return self._group

    def _is_within(self, event: Event) -> bool:
        """Returns whether a transaction is being read; the log may begin in the midst of one."""
        if self._group is not None:
            return True
        if self._has_begun:
            raise event.invalid(
                f"an event of type {event.type} outside of a transaction", "a BEGIN or GTID first"
            )
        self.dropped += event.type in _ENDS
        return False

    def _statement(self, event: Event) -> bool:
        """Reads a statement; returns whether it ends its transaction."""
        statement = read_statement(event)
        kind = statement.kind
        if kind == StatementKind.END:
            return self._is_within(event)
        if kind == StatementKind.NOTHING:
            return False
        group = self._group or self._begin(event, GroupStart())
        if kind == StatementKind.BEGIN:
            if group.is_open and not group.start.is_open:
                # An open transaction that no GTID event has opened begins anew: the end of the one
                # before is not in the log.
                group = self._begin(event, GroupStart())
            group.is_open = True
            group.began_us = statement.began_us
            return False
        group.has_statements = True
        group.is_ddl |= statement.is_ddl
        group.duration_us += statement.duration_us
        if statement.databases is None or group.databases is None:
            group.databases = None
        else:
            group.databases.update(statement.databases)
        if not group.is_open:
            group.began_us = statement.began_us
        return kind == StatementKind.XA_END or not group.is_open

    def _map_table(self, event: Event) -> None:
        format = self._events.format
        table_id, end = table_id_of(event, format)
        description = event.body[end:]
        # A server writes the map of a table again for each statement, mostly in the same bytes.
        table = self._known_tables.get(description)
        if table is None:
            if len(self._known_tables) >= TABLES_MAX:
                self._known_tables.clear()
            table = read_table(event, format, self._keys)
            self._known_tables[description] = table
        if len(self._tables) >= TABLES_MAX:
            self._tables.clear()
        self._tables[table_id] = table

    def _rows(self, event: Event) -> None:
        if not self._is_within(event):
            return
        format = self._events.format
        table_id = table_of(event, format)
        if table_id == NO_TABLE_ID:
            return
        table, group = self._tables.get(table_id), self._group
        assert group is not None, "rows outside of a transaction"
        if table is None:
            raise event.invalid(f"rows of table id {table_id}", "a table map with this id before")
        group.tables.add(str(table))
        if group.databases is not None:
            group.databases.add(table.database)
        if table.columns is None:
            self._write_sets.add(table, None, group.items)
            group.row_count += 1
            return
        for change in changes(event, format, table):
            group.row_count += 1
            # One item more than the limit tells `_finish` that there are too many.
            if len(group.items) <= self._items_max:
                self._write_sets.add(table, change, group.items)

    def _other(self, event: Event) -> None:
        if event.type == EventType.FORMAT_DESCRIPTION:
            self.server_version = self._events.format.server_version
        elif event.type == EventType.MARIADB_START_ENCRYPTION:
            raise event.invalid("all events after this one are encrypted", "encrypt_binlog=OFF")
        elif event.type not in _WITHOUT_ROWS:
            if event.type != EventType.INCIDENT and not event.flags & FLAG_IGNORABLE:
                raise event.invalid(
                    f"an event of type {event.type}, which may not be ignored",
                    "events of MySQL 5.1 to 9, or of MariaDB",
                )
            self.skipped[event.type] += 1

    def _finish(self, group: _Group, event: Event) -> BinaryLogTransaction:
        too_large = len(group.items) > self._items_max
        # The log does not have the rows that a statement has changed.
        all_rows = self._write_sets.finish(
            is_ddl=group.is_ddl, all_rows=too_large or group.has_statements
        )
        items = {} if all_rows else group.items
        databases, tables = group.databases, None if group.has_statements else group.tables
        start = group.start
        return BinaryLogTransaction(
            gtid=start.gtid,
            last_committed=start.last_committed,
            sequence_number=start.sequence_number,
            commit_id=start.commit_id,
            domain_id=start.domain_id,
            databases=None if databases is None else tuple(sorted(databases)),
            tables=None if tables is None else tuple(sorted(tables)),
            items=tuple(items),
            keys=tuple(items.values()),
            row_count=group.row_count,
            size_bytes=group.size_bytes,
            offset=group.offset,
            began_us=group.began_us,
            committed_us=start.committed_us or event.timestamp * 1_000_000,
            original_committed_us=start.original_committed_us,
            duration_us=group.duration_us or None,
            is_ddl=group.is_ddl,
        )


def without_transactions(path: Path, purpose: str) -> InvalidBinaryLog:
    """Returns the error for a log that has no transaction; `path`: its last file."""
    return InvalidBinaryLog(
        path=str(path),
        offset=path.stat().st_size,
        problem="the log ends without a transaction",
        expected=f"one at least to {purpose}",
    )


def read_binary_log(
    path: Path, *, keys: Mapping[str, TableKeys] | None = None, items_max: int = ITEMS_MAX
) -> BinaryLogReader:
    """Returns the reader of a binary log or relay log of MySQL or MariaDB.

    Args:
        keys: keys of tables, as `database.table`, in place of those in the log; a column is its
            name, or `@1` for the first one.
        items_max: the largest write set that is kept; a larger one stands for all rows.
    """
    return BinaryLogReader(path, keys or {}, items_max)
