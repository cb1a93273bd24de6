"""Binary logs as transactions: the name, the write set and the possible overlap of each.

A transaction is returned when its end was read, in the log's order, or not at all. An unknown
property has the value that allows the least parallelism. Of the log only one event and the write
set of one transaction are held, and its rows where the caller wants them.

Source: MySQL Reference Manual, 7.4.4 "The Binary Log"; MariaDB Knowledge Base, "Binary Log".
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...certifier.errors import TransactionTooLarge
from ...certifier.gtid import Gtid, parse_gtid
from ...certifier.write_set import TableKeys
from ..errors import InvalidBinaryLog
from ..source.header import SourceHeader
from .compression import payload_events
from .events import (
    FLAG_IGNORABLE,
    Event,
    EventReader,
    EventType,
    FormatDescription,
    format_description,
)
from .row_events import NO_TABLE_ID, ROWS, WriteSets
from .row_payload import packed
from .table_maps import TABLE_ID_BYTES, Table, id_bytes_of, read_table
from .transaction_bounds import (
    GTIDS,
    GroupStart,
    Statement,
    StatementKind,
    group_start,
    passed_transactions,
    prepared_branch,
    read_statement,
)

ITEMS_MAX = 1_000_000
"""The largest write set that is kept, in items; a larger one stands for all rows."""
TABLES_MAX = 100_000
PAYLOAD_BYTES_MAX = 1 << 30
"""The largest payload of a transaction, in bytes, unless the caller has another limit."""

_E = EventType
_TABLE_MAP, _PAYLOAD = _E.TABLE_MAP.value, _E.TRANSACTION_PAYLOAD.value
_NO_TABLE = NO_TABLE_ID.to_bytes(TABLE_ID_BYTES, "little")
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


class LoggedStatement(NamedTuple):
    """A statement of a transaction beside its rows: data definition, XA PREPARE and what settles
    it, ROLLBACK, and changes that are logged as statements.

    `database`: the default one of its session. `databases`: those that it updates, None if they
    are not known. `payload_bytes`: of the transaction's payload, how much came before it.
    """

    text: str
    database: str
    databases: tuple[str, ...] | None
    is_ddl: bool
    payload_bytes: int


class BinaryLogTransaction(NamedTuple):
    """One transaction, or one statement that is a transaction of its own.

    `gtid`: MySQL's `uuid:number` or MariaDB's `domain-server-number`; None if the log has none.
    `last_committed`, `sequence_number`: MySQL's stamps, 0 and 0 elsewhere. `commit_id`,
    `domain_id`: MariaDB's; 0 for a group of one, and elsewhere. `databases`, `tables`: those that
    it updates, sorted, a table as `database.table`; None if that is not known, which stands for
    all. `items`: its write set; empty stands for all rows. `keys`: each item as people read it.
    `parent_items`: as in `SourceHeader`.
    `row_count`: changed rows; those of statements are not known. `size_bytes`: of its events in
    the file. `offset`: where the first one begins. `began_us`, `committed_us`: the source's clock,
    in microseconds since 1970, of which logs often have the seconds only;
    `original_committed_us`: the clock of the server that it came from. `duration_us`: what its
    statements took, None where the log does not say: MySQL counts whole seconds, and for
    statements only. `payload`: its table maps and row events by `row_payload.packed`, and
    `statements`, if the reader was asked for them.
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
    payload: bytes = b""
    statements: tuple[LoggedStatement, ...] = ()
    parent_items: tuple[int, ...] = ()

    @property
    def named(self) -> Gtid | None:
        """GTID: MySQL's, or MariaDB's with its domain and server as the source."""
        return None if self.gtid is None else _named(self.gtid)

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
            parent_items=self.parent_items,
        )


class _Mapped(NamedTuple):
    """A table of which a map was read, `database.table`, and whether payloads have its rows."""

    table: Table
    name: str
    has_payload: bool


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
        self.parents: set[int] = set()
        self.payload: list[bytes] = []
        self.payload_bytes = 0
        self.statements: list[LoggedStatement] = []
        self.is_known = False

    def __str__(self) -> str:
        return self.start.gtid or "a transaction without GTID"


class TransactionReader:
    """Makes transactions of a log's events, which it takes one by one.

    `format`: of the events that come next. `server_version`: of the server that wrote them.
    `dropped`: transactions that lack their begin or end within the log, as relay logs have them
    after a lost connection. `skipped`: events of types that are not known here, by type.
    `tables_without_keys`: the tables of which write sets have one item for all rows, and why.
    """

    def __init__(
        self,
        keys: Mapping[str, TableKeys] | None = None,
        *,
        items_max: int = ITEMS_MAX,
        rows: bool = False,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        has_database: Callable[[str], bool] = lambda _: True,
        is_known: Callable[[Gtid], bool] | None = None,
    ) -> None:
        """Prepares a reader of one log; `keys`, `items_max`: as for `read_binary_log`. With 0 items
        no rows are read, which takes most of the time, and each transaction stands for all rows.

        Args:
            rows: transactions have their payload and statements.
            payload_bytes_max: the largest payload of a transaction.
            has_database: whether the rows of a database are in payloads; write sets have all rows.
            is_known: whether a transaction is to be returned without rows and write set: they are
                not read.
        """
        self.format = FormatDescription("", 0, b"")
        self.dropped = 0
        self.skipped: Counter[int] = Counter()
        self._keys = {} if keys is None else keys
        self._items_max = items_max
        self._has_rows = rows
        self._payload_bytes_max = payload_bytes_max
        self._has_database = has_database
        self._is_known = is_known
        self._write_sets = WriteSets()
        self._tables: dict[bytes, _Mapped] = {}
        """The tables by the ids that their maps give them."""
        self._known_tables: dict[bytes, _Mapped] = {}
        """The tables by what their maps say."""
        self._id_bytes = TABLE_ID_BYTES
        self._group: _Group | None = None
        self._has_begun = False

    @property
    def server_version(self) -> str:
        """Version of the server that wrote the log; empty before its first event."""
        return self.format.server_version

    @property
    def tables_without_keys(self) -> dict[str, str]:
        """Tables whose write sets have one item for all rows, and why; see the class."""
        return self._write_sets.tables_without_keys

    @property
    def unfinished(self) -> str:
        """Name and begin of the transaction whose end was not read yet; empty if there is none."""
        if self._group is None:
            return ""
        return f"{self._group}, which begins at byte {self._group.offset}"

    def read(self, event: Event) -> Sequence[BinaryLogTransaction]:
        """Reads the next event; returns the transactions that it ends.

        Raises:
            InvalidBinaryLog: the event is damaged, or not one that may come here.
            InvalidSetting: a key was given of a column that its table does not have.
            TransactionTooLarge: the payload of a transaction is larger than the limit.
        """
        if self._group is not None:
            self._group.size_bytes += event.size_bytes
        if event.type == _PAYLOAD:
            found = map(self._read, payload_events(event))
            return [transaction for transaction in found if transaction is not None]
        transaction = self._read(event)
        return () if transaction is None else (transaction,)

    def _read(self, event: Event) -> BinaryLogTransaction | None:
        """Reads one event; returns the transaction that it ends."""
        finished, kind = False, event.type
        if kind == _TABLE_MAP:
            self._map_table(event)
        elif kind in ROWS:
            self._rows(event)
        elif kind in GTIDS:
            self._begin(event, group_start(event))
        elif kind in _STATEMENTS:
            finished = self._statement(event)
        elif kind in _ENDS:
            finished = self._is_within(event)
            if finished and self._has_rows and kind == EventType.XA_PREPARE:
                self._add_statement(prepared_branch(event))
        else:
            self._other(event)
        if not finished:
            return None
        group, self._group = self._group, None
        assert group is not None, "an end without a transaction"
        return self._finish(group, event)

    def _begin(self, event: Event, start: GroupStart) -> _Group:
        self.dropped += self._group is not None
        self._has_begun = True
        group = self._group = _Group(start, event)
        group.is_known = bool(self._is_known and start.gtid and self._is_known(_named(start.gtid)))
        return group

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
        if kind in (StatementKind.END, StatementKind.NOTHING):
            self._add_statement(statement)
            return kind == StatementKind.END and self._is_within(event)
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
        self._add_statement(statement)
        group.is_ddl |= statement.is_ddl
        group.duration_us += statement.duration_us
        if statement.databases is None or group.databases is None:
            group.databases = None
        else:
            group.databases.update(statement.databases)
        if not group.is_open:
            group.began_us = statement.began_us
        return kind == StatementKind.XA_END or not group.is_open

    def _add_statement(self, statement: Statement) -> None:
        group = self._group
        if self._has_rows and group is not None and statement.has_effect:
            text, database, databases = statement.text, statement.database, statement.databases
            group.statements.append(
                LoggedStatement(text, database, databases, statement.is_ddl, group.payload_bytes)
            )

    def _add_payload(self, group: _Group, mapped: _Mapped, event: Event) -> None:
        if not mapped.has_payload:
            return
        content = packed(event, self.format)
        group.payload.append(content)
        group.payload_bytes += len(content)
        if group.payload_bytes > self._payload_bytes_max:
            raise TransactionTooLarge(
                bytes=group.payload_bytes,
                bytes_max=self._payload_bytes_max,
                advice=f"{group} has more, split such ones at the source, or raise the limit",
            )

    def _map_table(self, event: Event) -> None:
        group = self._group
        if group is not None and group.is_known:
            return
        table_id, description = event.body[: self._id_bytes], event.body[self._id_bytes :]
        # A server writes the map of a table again for each statement, mostly in the same bytes.
        mapped = self._known_tables.get(description)
        if mapped is None:
            if len(self._known_tables) >= TABLES_MAX:
                self._known_tables.clear()
            table = read_table(event, self.format, self._keys)
            has_payload = self._has_rows and self._has_database(table.database)
            mapped = self._known_tables[description] = _Mapped(table, str(table), has_payload)
        if len(self._tables) >= TABLES_MAX:
            self._tables.clear()
        self._tables[table_id] = mapped
        if group is not None:
            self._add_payload(group, mapped, event)

    def _rows(self, event: Event) -> None:
        if not self._is_within(event):
            return
        group, table_id = self._group, event.body[: self._id_bytes]
        assert group is not None, "rows outside of a transaction"
        if group.is_known or table_id == _NO_TABLE[: self._id_bytes]:
            return
        mapped = self._tables.get(table_id)
        if mapped is None:
            number = int.from_bytes(table_id, "little")
            raise event.invalid(f"rows of table id {number}", "a table map with this id before")
        self._add_payload(group, mapped, event)
        group.tables.add(mapped.name)
        if group.databases is not None:
            group.databases.add(mapped.table.database)
        if not self._items_max:
            return  # Nobody compares rows: they are not read here.
        group.row_count += self._write_sets.add(
            event, self.format, mapped.table, group.items, group.parents, self._items_max
        )

    def _other(self, event: Event) -> None:
        if event.type == EventType.FORMAT_DESCRIPTION:
            self.format = format_description(event)
            self._id_bytes = id_bytes_of(self.format, EventType.TABLE_MAP)
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
            is_ddl=group.is_ddl, all_rows=too_large or group.has_statements or not self._items_max
        )
        items = {} if all_rows else group.items
        if group.is_ddl:
            self._known_tables.clear()  # The caller may know other keys now.
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
            payload=b"".join(group.payload),
            statements=tuple(group.statements),
            parent_items=tuple(group.parents.difference(items)) if items else (),
        )


class BinaryLogReader:
    """Reads a log once, by iteration; the other attributes are complete when that has ended.

    `size_bytes`: of the file. `cut_short`: None, or where and why the log ends in the midst of an
    event or transaction. `passed`: transactions that were passed over, by their GTID events. The
    other attributes are those of `TransactionReader`.
    """

    def __init__(self, path: Path, keys: Mapping[str, TableKeys], items_max: int) -> None:
        self.path = path
        self.size_bytes = path.stat().st_size
        self.cut_short: str | None = None
        self.passed = 0
        self._until = 0
        self._transactions = TransactionReader(keys, items_max=items_max)

    @property
    def server_version(self) -> str:
        """Version of the server that wrote the log."""
        return self._transactions.server_version

    @property
    def dropped(self) -> int:
        """Number of transactions that lack their begin or end."""
        return self._transactions.dropped

    @property
    def skipped(self) -> Counter[int]:
        """Number of events of each type that is not known here."""
        return self._transactions.skipped

    @property
    def tables_without_keys(self) -> dict[str, str]:
        """Tables whose write sets have one item for all rows, and why."""
        return self._transactions.tables_without_keys

    @property
    def notes(self) -> list[str]:
        """Texts for people about a log that was read: what it lacks, what was left out."""
        notes = [f"{table}: {why}" for table, why in self.tables_without_keys.items()]
        if self.dropped:
            notes.append(f"{self.path}: {self.dropped} transactions are not whole and left out")
        return [self.cut_short, *notes] if self.cut_short else notes

    def pass_over(self, until: int) -> None:
        """Has the iteration go on with the first transaction that begins at byte `until` or later:
        those before it are not read, and only counted. A log without GTID events is read on.
        """
        self._until = until

    def __iter__(self) -> Iterator[BinaryLogTransaction]:
        """Yields the transactions.

        Raises:
            InvalidBinaryLog: this is no binary log, or one that is damaged or cannot be read.
            InvalidSetting: a key was given of a column that its table does not have.
        """
        with self.path.open("rb") as file:
            events = EventReader(file, str(self.path), self.size_bytes)
            for event in events:
                yield from self._transactions.read(event)
                if events.offset < self._until and not self._transactions.unfinished:
                    passed, events.offset = passed_transactions(
                        file, events.offset, self._until, self.size_bytes
                    )
                    file.seek(events.offset)
                    self.passed += passed
            self.cut_short = events.cut_short
        if self.cut_short is None and (unfinished := self._transactions.unfinished):
            self.cut_short = f"{self.path} ends within {unfinished}"


def _named(gtid: str) -> Gtid:
    """Returns the GTID of a text of either server's."""
    if ":" in gtid:
        return parse_gtid(gtid)
    source, _, number = gtid.rpartition("-")
    return Gtid(source, int(number))


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

    Raises:
        OSError: there is no such file.
    """
    return BinaryLogReader(path, keys or {}, items_max)
