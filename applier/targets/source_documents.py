"""Rows of a MySQL or MariaDB source as the embedded store keeps them: JSON documents by key.

A row is named `database.table/key`, the parts of its key separated by `/` (`key_text`); its value
is an object with its columns. Integers and floating-point numbers are JSON's, decimals, dates and
times are texts, bytes are hexadecimal, a JSON document is a text.
"""

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import NamedTuple

from ...certifier.gtid_set import GtidSet
from ...certifier.storage.store import Batch, Family, Store
from ..errors import UnsuitableTarget
from ..mysql_logs.prepared_payload import PreparedStep, Step, not_prepared
from ..mysql_logs.row_errors import SourceTableChanged, UnknownSourceTable
from ..mysql_logs.row_payload import RowKind, TableRows, table_rows, unreadable_columns
from ..mysql_logs.source_catalogue import SourceColumn, SourceTable
from ..mysql_logs.statement_payload import PayloadStatement, statements_of
from ..mysql_servers.snapshot import Snapshot
from ..queue.relay_group import RelayEntry
from ..queue.target_progress import Checkpoint
from .first_copy import CopyRecord
from .logged_tables import (
    FIRST_START,
    KeptTables,
    Place,
    TableHistory,
    decode_kept,
    defined_anew,
    encode_kept,
)
from .rocksdb import CHECKPOINT_KEY, ROW_PREFIX, Decode, Rows, changes_of
from .source_tables import key_text, not_as_known, stopped_at
from .sql_tables import Row, SqlValue

TARGET = "the embedded store"
_ROWS_END = bytes([ROW_PREFIX[0] + 1])
PREPARED_PREFIX = b"\x00prepared "
"""Stands before the xid under which prepared rows are kept."""
KEPT_PREFIX = b"\x00table "
"""Stands before the name under which a table of the source is kept; see `KeptTables`."""
COPY_KEY = b"first copy"
"""The key of the record of a copy that is not finished."""


class Documents(NamedTuple):
    """The reader of a source's payloads as rows of a store, and the tables that this is to keep."""

    read: Decode
    kept: KeptTables


class SourceDocuments:
    """Reads payloads of a source as rows of the store."""

    def __init__(
        self,
        catalogue: Mapping[str, SourceTable],
        *,
        logs_cascades: bool,
        unread: Mapping[str, str] | None = None,
        history: TableHistory | None = None,
    ) -> None:
        """Takes the tables as the log has them; `logs_cascades`: see `ServerTables`; `unread`: see
        `LoggedTables`.

        Raises:
            UnsuitableTarget: a table cannot be kept; with all problems at once.
        """
        self._unread = unread or {}
        self._history = history
        if problems := [
            each for table in catalogue.values() for each in _unfit(table, logs_cascades)
        ]:
            raise UnsuitableTarget(
                target=TARGET,
                problem="; ".join(problems),
                expected="such tables in an SQL target, or left out",
            )
        self._catalogue = catalogue
        self._keys = {name: places_of(table, table.row_key) for name, table in catalogue.items()}

    def rows(self, payload: bytes, tables: Container[str] | None = None) -> Rows:
        """Returns the last change of each row of a transaction, if `tables` are given only of
        theirs.

        Raises:
            UnsuitableTarget: a row image is not whole.
        """
        for statement in statements_of(payload):
            if not statement.is_skipped:
                raise stopped_at(statement, TARGET)
        changes: dict[bytes, bytes | None] = {}
        for rows in self._rows(payload):
            if tables is not None and str(rows.table) not in tables:
                continue
            for before, after in _whole(rows):
                if before is not None:
                    changes[self.name(rows.table, before)] = None
                if after is not None:
                    changes[self.name(rows.table, after)] = document(rows.table, after)
        puts = {key: value for key, value in changes.items() if value is not None}
        deletes = [key for key, value in changes.items() if value is None]
        return list(puts), list(puts.values()), deletes

    def _rows(self, payload: bytes) -> Iterator[TableRows]:
        try:
            yield from table_rows(payload, self._catalogue)
        except (SourceTableChanged, UnknownSourceTable) as error:
            raise not_as_known(error, self._unread, self._history) from error

    def name(self, table: SourceTable, row: Row) -> bytes:
        """Returns the name of a row, which has all columns."""
        key = [key_text(row[place]) for place in self._keys[str(table)]]
        return f"{table}/{'/'.join(key)}".encode()


def changes_of_step(
    step: PreparedStep, gtid: object, store: Store, decode: Decode
) -> dict[bytes, bytes | None]:
    """Returns the changes of a step of an XA transaction: rows are kept in the store until they are
    committed or rolled back.

    Raises:
        TransientFailure: nothing is prepared under this xid yet, or at all.
    """
    key = PREPARED_PREFIX + step.xid.encode()
    if step.step is Step.PREPARE:
        return {key: step.rows}
    rows = store.get(Family.DATA, key)
    if rows is None:
        raise not_prepared(step, gtid)
    changes = changes_of(decode(rows)) if step.step is Step.COMMIT else {}
    return changes | {key: None}


def kept_tables(store: Store) -> KeptTables:
    """Returns the tables that a store keeps."""
    found = {}
    for key, encoded in store.scan(Family.DATA, KEPT_PREFIX):
        if not key.startswith(KEPT_PREFIX):
            break
        name, found[name] = decode_kept(encoded)
    return found


def place_of(store: Store) -> Place:
    """Returns where a store is in its source's log."""
    encoded = store.get(Family.DATA, CHECKPOINT_KEY)
    if encoded is None:
        return FIRST_START
    return Place(Checkpoint.decode(encoded).gtid_executed, kept_tables(store))


def keeping(kept: KeptTables) -> dict[bytes, bytes | None]:
    """Returns the changes of a store that keep tables."""
    return {KEPT_PREFIX + name.encode(): encode_kept(name, table) for name, table in kept.items()}


def changes_of_definitions(
    statements: Sequence[PayloadStatement], store: Store
) -> dict[bytes, bytes | None]:
    """Returns the changes of a store whose operator has seen to statements: tables are others."""
    return keeping(dict.fromkeys(defined_anew(kept_tables(store), statements)))


class DocumentsCopy:
    """Fills the store. A `CopyTarget`."""

    def __init__(
        self, store: Store, catalogue: Mapping[str, SourceTable], *, logs_cascades: bool
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._documents = SourceDocuments(catalogue, logs_cascades=logs_cascades)
        self.record = CopyRecord(gtids=GtidSet())

    @property
    def is_needed(self) -> bool:
        """True if no copy was finished, and nothing was executed."""
        return self._store.get(Family.DATA, CHECKPOINT_KEY) is None

    def check_not_begun(self) -> None:
        """Raises UnsuitableTarget if a copy was begun and not finished."""
        if self._store.get(Family.META, COPY_KEY) is not None:
            raise UnsuitableTarget(
                target=TARGET,
                problem="the first copy was not finished",
                expected="--copy, which goes on with it",
            )

    def begin(self, snapshot: Snapshot) -> tuple[Sequence[SourceTable], bool]:
        """Removes the rows of tables that are not whole; see `CopyTarget`."""
        kept = self._store.get(Family.META, COPY_KEY)
        begun = CopyRecord.decode(kept.decode()) if kept else CopyRecord(gtids=snapshot.gtids)
        whole = [name for name in begun.whole if name in self._catalogue]
        self.record = CopyRecord(gtids=begun.gtids if whole else snapshot.gtids, whole=whole)
        batch = self._store.batch()
        start = ROW_PREFIX
        for name in sorted(f"{name}/".encode() for name in whole):
            batch.delete_range(Family.DATA, start, ROW_PREFIX + name)
            start = ROW_PREFIX + name[:-1] + bytes([name[-1] + 1])
        batch.delete_range(Family.DATA, start, _ROWS_END)
        self._write_record(batch)
        return [table for name, table in self._catalogue.items() if name not in whole], True

    def forget(self) -> None:
        """Notes that no table is whole; see `CopyTarget`."""
        self.record = replace(self.record, whole=())
        self._write_record(self._store.batch())

    def follow(self, entries: Sequence[RelayEntry], gtids: GtidSet) -> None:
        """Changes the whole tables, in one batch; see `CopyTarget`."""
        changes: dict[bytes, bytes | None] = {}
        for entry in entries:
            rows = self._documents.rows(entry.payload, self.record.whole)
            changes |= changes_of(rows)
        self.record = replace(self.record, gtids=gtids)
        batch = self._store.batch()
        batch.apply(Family.DATA, changes)
        self._write_record(batch)

    def columns(self, table: SourceTable) -> Sequence[SourceColumn]:
        """Returns all columns: readers of documents want generated ones, too."""
        return table.columns

    def write(self, thread: int, table: SourceTable, rows: Sequence[Row]) -> None:
        """Writes rows as one batch."""
        batch = self._store.batch()
        for row in rows:
            key = ROW_PREFIX + self._documents.name(table, row)
            batch.put(Family.DATA, key, document(table, row))
        self._store.write(batch)

    def complete(self, table: SourceTable) -> None:
        """Notes that a table is whole, durably."""
        self.record = replace(self.record, whole=[*self.record.whole, str(table)])
        self._write_record(self._store.batch())
        self._store.flush()

    def finish(self, gtids: GtidSet) -> None:
        """Writes the checkpoint in the place of the record, durably."""
        checkpoint = Checkpoint(version=gtids.count(), gtid_executed=gtids)
        batch = self._store.batch()
        batch.put(Family.DATA, CHECKPOINT_KEY, checkpoint.encode())
        batch.apply(Family.DATA, keeping(self._catalogue))
        batch.delete(Family.META, COPY_KEY)
        self._store.write(batch)
        self._store.flush()

    def _write_record(self, batch: Batch) -> None:
        """Writes the record together with what else is in the batch."""
        batch.put(Family.META, COPY_KEY, self.record.encode().encode())
        self._store.write(batch)


def places_of(table: SourceTable, names: Iterable[str]) -> tuple[int, ...]:
    """Returns the places of columns in a table's rows."""
    places = {column.name: place for place, column in enumerate(table.columns)}
    return tuple(places[name] for name in names)


def document(table: SourceTable, row: Row) -> bytes:
    """Returns a row with all columns as a JSON object."""
    fields = {column.name: _plain(value) for column, value in zip(table.columns, row, strict=True)}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _plain(value: SqlValue) -> int | float | str | None:
    if isinstance(value, bytes):
        return value.hex()
    return f"{value:f}" if isinstance(value, Decimal) else value


def _whole(rows: TableRows) -> Iterator[tuple[Row | None, Row | None]]:
    """Yields the rows before and after, which have all columns."""
    count = len(rows.table.columns)
    for columns in (rows.before, rows.after):
        if columns is not None and len(columns) != count and rows.kind is not RowKind.DELETE:
            raise UnsuitableTarget(
                target=TARGET,
                problem=f"table {rows.table}: a row image has {len(columns)} of {count} columns",
                expected="binlog_row_image=FULL at the source",
            )
    yield from rows.rows


def _unfit(table: SourceTable, logs_cascades: bool) -> Iterator[str]:
    if not table.row_key:
        yield f"table {table} has no primary key, nor a unique one without NULL"
    if "/" in str(table):
        yield f"table {table} has a slash in its name"
    for column, why in unreadable_columns(table):
        yield f"column {table}.{column.name} cannot be read: {why}"
    for foreign in () if logs_cascades else table.foreign_keys:
        if foreign.changes_children:
            yield (
                f"table {table} has the foreign key {foreign.name} ({foreign.on_delete}, "
                f"{foreign.on_update}), whose changes are not in the source's log"
            )
