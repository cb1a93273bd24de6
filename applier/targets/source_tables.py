"""Tables of a MySQL or MariaDB source in an SQL server: each as a table of the same columns.

Changes are made in the source's order, row by row: its foreign keys and unique keys held after each
of them, and so do the target's. What the target cannot hold is found before the first row, by
table, column and type. A target that differs from its source is found where a row that is updated
or deleted is not there, or one that is inserted is.

A cascade of InnoDB is not in a log: the target's own foreign key has to do the same. From MySQL 9.6
on it is in the log as well, children before their parents: a target that cascades, too, may have
done it before, so that a row of such a table may be gone.

Source: MySQL Reference Manual, 19.5.1 "Replication Features and Issues", 7.1.6.4
(binlog_row_image); MariaDB Knowledge Base, "Replication and Foreign Keys".
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from operator import itemgetter
from typing import Any, NamedTuple

from ..errors import TABLE_CHANGED, TransientFailure, UnsuitableTarget, note_statement
from ..mysql_logs.row_errors import SourceTableChanged, UnknownSourceTable
from ..mysql_logs.row_payload import RowKind, TableRows, table_rows, unreadable_columns
from ..mysql_logs.row_replay import RowReplay
from ..mysql_logs.source_catalogue import PERIOD, SourceColumn, SourceTable
from ..mysql_logs.statement_payload import PayloadStatement, statements_of
from ..queue.relay_group import RelayEntry
from .folded_changes import folded
from .logged_tables import KeptTables, LoggedTables, Place, TableHistory, unlike
from .sql_schema import WITHOUT_ROW_ORDER
from .sql_tables import (
    ChangeKind,
    Column,
    ColumnType,
    Definition,
    Definitions,
    FoundColumn,
    FoundTable,
    Row,
    RowChange,
    SqlValue,
    TableMapping,
    ranks_of,
)

_T = ColumnType
_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_KINDS = {
    **dict.fromkeys((*_BITS, "bit", "year"), _T.INTEGER),
    "decimal": _T.DECIMAL,
    "float": _T.REAL,
    "double": _T.DOUBLE,
    "date": _T.DATE,
    "datetime": _T.DATETIME,
    "timestamp": _T.TIMESTAMP,
    "time": _T.TIME,
    "char": _T.CHAR,
    **dict.fromkeys(("varchar", "tinytext", "text", "mediumtext", "longtext"), _T.TEXT),
    **dict.fromkeys(("enum", "set"), _T.TEXT),
    "binary": _T.BINARY,
    **dict.fromkeys(("varbinary", "tinyblob", "blob", "mediumblob", "longblob"), _T.BYTES),
    "json": _T.JSON,
    "uuid": _T.UUID,
    **dict.fromkeys(("inet4", "inet6"), _T.INET),
    **dict.fromkeys(("geometry", "point", "linestring", "polygon", "multipoint"), _T.GEOMETRY),
    **dict.fromkeys(("multilinestring", "multipolygon", "geometrycollection"), _T.GEOMETRY),
    "geomcollection": _T.GEOMETRY,
    "vector": _T.BYTES,
}
_BLOB_BYTES = {"tiny": (1 << 8) - 1, "": (1 << 16) - 1, "medium": (1 << 24) - 1}
_JSON_BYTES_MAX = 1 << 30
"""The largest `max_allowed_packet`, which no document exceeds."""
_NUMBERS = re.compile(r"\d+")
_LABEL = re.compile(r"'((?:[^']|'')*)'")
_CONSTANT = re.compile(r"-?\d+(\.\d+)?|'(?:[^']|'')*'")
_OF_MARIADB = {"year": "year(4)", "geomcollection": "geometrycollection"}
"""Types that MySQL and MariaDB spell differently."""
IGNORING = "jobs ignore"
"""The scheme that executes transactions in any order (WL#4648 C0)."""


class Limits(NamedTuple):
    """What a column's values need of their target; see `FoundColumn`. None: without limit."""

    low: int = 0
    high: int = 0
    digits: int = 0
    scale: int = 0
    fraction_digits: int = 0
    characters: int | None = None


def kind_of(column: SourceColumn) -> ColumnType | None:
    """Returns the kind of a column's values; None for one that no target takes."""
    return _KINDS.get(column.data_type)


def limits_of(column: SourceColumn) -> Limits:
    """Returns the limits of a column's values."""
    data_type = column.data_type
    numbers = [int(number) for number in _NUMBERS.findall(column.column_type.partition(")")[0])]
    first = numbers[0] if numbers else 0
    if bits := _BITS.get(data_type):
        if "unsigned" in column.column_type:
            return Limits(0, (1 << bits) - 1)
        return Limits(-(1 << bits - 1), (1 << bits - 1) - 1)
    if data_type == "bit":
        return Limits(0, (1 << max(first, 1)) - 1)
    if data_type == "year":
        return Limits(0, 2155)
    if data_type == "decimal":
        scale = numbers[1] if len(numbers) > 1 else 0
        return Limits(digits=first - scale, scale=scale)
    if data_type in ("datetime", "timestamp", "time"):
        return Limits(fraction_digits=first)
    if data_type in ("enum", "set"):
        lengths = [len(label.replace("''", "'")) for label in _LABEL.findall(column.column_type)]
        is_set = data_type == "set"
        return Limits(characters=sum(lengths) + len(lengths) - 1 if is_set else max(lengths))
    if data_type in ("char", "varchar", "binary", "varbinary"):
        return Limits(characters=first)
    if data_type == "json":
        return Limits(characters=_JSON_BYTES_MAX)
    size = data_type.removesuffix("blob").removesuffix("text")
    return Limits(characters=_BLOB_BYTES.get(size))


class ServerTables:
    """The tables of a source, and what they are called at the target. A `SourceTables`."""

    others = None

    def __init__(
        self,
        now: Mapping[str, SourceTable],
        *,
        database: str = "",
        scheme: str = "",
        defines: bool = False,
        logs_cascades: bool = False,
        history: TableHistory | None = None,
    ) -> None:
        """Takes tables as the source has them now.

        Args:
            database: the one that is followed, whose tables have their names alone at the target;
                if empty, several, which are databases or schemas there, too.
            scheme: by which transactions are executed: some schemes do not keep an order that
                foreign keys or unique keys need.
            defines: the target executes the source's definitions of tables.
            logs_cascades: the source's log has what its foreign keys do.
            history: what else is known of them, for `at`.
        """
        self._logs_cascades = logs_cascades
        self._database = database
        self._defines = defines and scheme != IGNORING
        self._scheme = scheme
        self._now = now
        self._history = history
        self._newest_wins = scheme == IGNORING
        self._set(LoggedTables({}, now, {}), is_begun=False)

    def at(self, place: Place, definitions: Definitions) -> "ServerTables":
        """Returns the tables as the log has them where the target is; see `SourceTables`."""
        assert self._history, "tables that are not in a log"
        found = copy(self)
        own = definitions(self._database) if self._defines else None
        found._set(self._history.tables(self._now, own, place), is_begun=place.kept is not None)
        return found

    def as_copied(self, definitions: Definitions) -> KeptTables:
        """Returns the tables that a target is to keep after a copy of them."""
        own = definitions(self._database) if self._defines else None
        return {name: self._now[name] for name in unlike(self._now, own)}

    def _set(self, logged: LoggedTables, *, is_begun: bool) -> None:
        self._logged = logged
        # At its first start a target is to take what the source has now, whatever was before.
        now = {name for name in self._now if not (is_begun and name in logged.unread)}
        self._tables = {**{name: self._now[name] for name in now}, **logged.known}
        self._mappings = {name: self._mapping(table) for name, table in self._tables.items()}
        self._places = {name: each.table for name, each in self._mappings.items()}
        self.tables = [*self._mappings.values()]

    def _mapping(self, table: SourceTable) -> TableMapping:
        return _mapping(table, table.name if self._database else str(table))

    @property
    def kept(self) -> KeptTables:
        """What the target is to keep; see `SourceTables`."""
        return self._logged.kept

    def bind(
        self, found: Mapping[str, FoundTable], target: str, *, with_constraints: bool = True
    ) -> "BoundServerTables":
        """Returns the tables as found at the server; see `SourceTables`.

        Args:
            with_constraints: foreign keys of the source have to be there, too, where its log leaves
                to them what they do.
        """
        own, unread = self._logged.own, dict(self._logged.unread)
        problems: list[str] = []
        bound = {}
        for name, table in self._tables.items():
            mapping = self._mappings[name]
            there = found.get(mapping.table)
            unfit = self._unfit(table, mapping, there, with_constraints=with_constraints)
            if unfit and self._is_between(name):
                if name in own:
                    unfit, there = [], _AS_AT_SOURCE
                else:
                    unread[name] = "; ".join([*unfit, "and the source has defined it anew since"])
            else:
                problems += unfit
            if there is not None and name not in unread:
                bound[name] = _BoundTable(table, mapping, there, self._newest_wins, target)
        if problems:
            raise UnsuitableTarget(
                target=target,
                problem="; ".join(problems),
                expected="tables for all that the source's have; --copy makes missing ones",
            )
        return BoundServerTables(
            bound, own, unread, self._history, target, self._database, self._defines
        )

    def _is_between(self, name: str) -> bool:
        """Returns whether a definition that is still to come may be between a target's table and
        what it is to be: the target will execute it, or somebody has seen to it there by hand.
        """
        own, told, unread = self._logged
        if name in told:
            return told[name] != self._now.get(name)
        is_begun = self._defines and bool(own or told)
        return (
            is_begun and name not in unread and _names(own.get(name)) != _names(self._now.get(name))
        )

    def _unfit(
        self,
        table: SourceTable,
        mapping: TableMapping,
        there: FoundTable | None,
        *,
        with_constraints: bool,
    ) -> list[str]:
        """Returns the problems of a table."""
        if there is None:
            return [f"table {mapping.table} is missing"]
        problems = [*_unfit(table, mapping, there), *_unordered(table, self._scheme)]
        if with_constraints and not self._logs_cascades:
            problems += _unmoved(table, mapping.table, there, self._places)
        return problems

    def source_of(self, mapping: TableMapping) -> SourceTable:
        """Returns the source's table."""
        return self._tables[mapping.source]


class BoundServerTables:
    """A source's tables at their target. A `BoundTables`."""

    def __init__(
        self,
        tables: Mapping[str, "_BoundTable"],
        own: Mapping[str, SourceTable],
        unread: Mapping[str, str],
        history: TableHistory | None,
        target: str,
        database: str,
        defines: bool,
    ) -> None:
        """Takes tables as they are at the target; `own`, `unread`: see `LoggedTables`."""
        self._tables = tables
        self._unread = unread
        self._history = history
        self._catalogue = {name: table.source for name, table in tables.items()}
        self._target = target
        self._database = database
        self._defines = defines
        places = {name: table.mapping.table for name, table in tables.items()}
        self._parents = {
            places[name]: frozenset(places.get(key.parent, "") for key in table.source.foreign_keys)
            for name, table in tables.items()
        }
        self._ranks = ranks_of(self._parents)
        self._alike = {name: table for name, table in own.items() if not _is_versioned(table)}
        self._replay: RowReplay | None = None

    def statements(self, entries: Sequence[RelayEntry]) -> Sequence[Definition]:
        """Returns the definitions that a transaction of the source is; see `BoundTables`."""
        found = [each for entry in entries for each in statements_of(entry.payload)]
        is_alone = self._defines and len(entries) == 1
        for each in found:
            if not (each.is_skipped or (is_alone and each.is_table)):
                raise stopped_at(each, self._target)
        return [Definition(each, self._database) for each in found]

    def changes(self, entries: Sequence[RelayEntry]) -> list[RowChange]:
        """Returns the changes in the source's order; see `BoundTables`."""
        changes: list[RowChange] = []
        for entry in entries:
            if entry.payload:
                for rows in self._rows(entry.payload):
                    changes += self._tables[str(rows.table)].changes(rows, entry.version)
        return folded(changes, self._ranks, self._parents) if len(changes) > 1 else changes

    def row_events(self, entries: Sequence[RelayEntry], database: str) -> Sequence[bytes] | None:
        """Returns the source's own events; see `BoundTables`."""
        replay = self._replay
        if replay is None:
            places = {name: self._place(name, database) for name in self._alike}
            replay = self._replay = RowReplay(self._alike, places)
        found = []
        for entry in entries:
            events = replay.events(entry.payload)
            if events is None:
                return None
            found.append(events)
        return found

    def _place(self, name: str, database: str) -> tuple[str, str]:
        """Returns the target's database, and the name there, of a table."""
        schema, _, table = self._tables[name].mapping.table.rpartition(".")
        return schema or database, table

    def _rows(self, payload: bytes) -> Sequence[TableRows]:
        try:
            return list(table_rows(payload, self._catalogue))
        except (SourceTableChanged, UnknownSourceTable) as error:
            raise not_as_known(error, self._unread, self._history) from error

    def converted(self, table: SourceTable, rows: Iterable[Row]) -> list[Row]:
        """Returns whole rows as the target's table takes them, from its mapping's columns."""
        return self._tables[str(table)].converted(rows)


_Pick = Callable[[Row], Row]


class _Images(NamedTuple):
    """Where the values of a row's images, before and then after, have what its change needs.

    `key`, `moved`: of the row before and after. `row`: whole, None if some of it is not there.
    `unique`: the values of further unique keys before and after, None if they are not there.
    `after`: by column, where its new value is. `defaults`: values of a new row that its image
    lacks, which come behind the others.
    """

    key: _Pick
    moved: _Pick
    row: _Pick | None
    unique: tuple[_Pick, _Pick] | None
    after: Mapping[int, int]
    defaults: Row


def _picker(indexes: Sequence[int]) -> _Pick:
    """Returns a function that picks values into a row."""
    if len(indexes) > 1:
        return itemgetter(*indexes)
    return lambda values: tuple([values[index] for index in indexes])


class _BoundTable:
    """One table, with what each kind of row image needs."""

    def __init__(
        self,
        source: SourceTable,
        mapping: TableMapping,
        found: FoundTable,
        newest_wins: bool,
        target: str,
    ) -> None:
        self.source = source
        self.mapping = mapping
        self._newest_wins = newest_wins
        self._target = target
        self._prefix = f"{source}/"
        places = {column.name: index for index, column in enumerate(source.columns)}
        self._key = [places[column.name] for column in mapping.key]
        self._all = [places[column.name] for column in mapping.columns]
        self._columns = {places[column.name]: column for column in mapping.columns}
        may_be_gone = newest_wins or any(each.changes_children for each in source.foreign_keys)
        self._delete = ChangeKind.DELETE_ANY if may_be_gone else ChangeKind.DELETE
        self._set = ChangeKind.UPDATE_ANY if may_be_gone else ChangeKind.UPDATE
        # One statement that writes rows whole tells nothing of a second unique key: MariaDB would
        # update the row that has it.
        self._puts = not source.unique_keys and not source.inexact_keys
        self._insert = ChangeKind.PUT if self._puts else ChangeKind.INSERT
        # None: of a key over an expression nobody can say.
        keys = () if source.inexact_keys else source.unique_keys.values()
        self._unique = sorted({places[name] for key in keys for name in key})
        self._readers = {
            places[name]: read
            for name, column in found.columns.items()
            if name in places and (read := _reader(source.columns[places[name]], column))
        }
        self._images: dict[tuple[Sequence[int] | None, Sequence[int] | None], _Images] = {}

    def changes(self, rows: TableRows, version: int) -> Iterator[RowChange]:
        """Yields the changes of the rows of one event."""
        images = self._images.get((rows.before, rows.after))
        if images is None:
            images = self._images[rows.before, rows.after] = self._found(rows.before, rows.after)
        is_read = bool(self._readers)
        for before, after in rows.rows:
            values = (before or ()) + (after or ())
            if is_read:
                values = self._converted(rows.before, before) + self._converted(rows.after, after)
            if rows.kind is RowKind.DELETE:
                key = images.key(values)
                yield self._change(self._delete, (), key, key, version)
            elif rows.kind is RowKind.INSERT:
                assert images.row is not None, "defaults stand for what is not there"
                row = images.row(values + images.defaults)
                yield self._change(self._insert, self.mapping.columns, row, row, version)
            else:
                yield from self._update(images, values, version)

    def converted(self, rows: Iterable[Row]) -> list[Row]:
        """Returns whole rows; see `BoundServerTables`."""
        return [self._converted(self._all, row) for row in rows]

    def _converted(self, present: Sequence[int] | None, row: Row | None) -> Row:
        if row is None or present is None:
            return ()
        return tuple(map(self._read, present, row)) if self._readers else row

    def _update(self, images: _Images, values: Row, version: int) -> Iterator[RowChange]:
        key, moved = images.key(values), images.moved(values)
        keeps_unique = self._puts or (
            images.unique is not None and images.unique[0](values) == images.unique[1](values)
        )
        if images.row is not None and (self._newest_wins or (moved == key and keeps_unique)):
            if moved != key:
                yield self._change(ChangeKind.DELETE_ANY, (), key, key, version)
            row = images.row(values)
            yield self._change(ChangeKind.PUT, self.mapping.columns, row, row, version)
            return
        if self._newest_wins:
            raise self._refused(
                "a change has not all columns of its row", "binlog_row_image=FULL at the source"
            )
        kept = self._key if moved == key else ()
        sets = [place for place in self._all if place in images.after and place not in kept]
        if sets:
            columns = tuple(self._columns[place] for place in sets)
            row = tuple(values[images.after[place]] for place in sets) + key
            yield self._change(self._set, columns, row, key, version)

    def _found(self, before: Sequence[int] | None, after: Sequence[int] | None) -> _Images:
        """Returns where a pair of images has what a change needs."""
        old = {place: index for index, place in enumerate(before or ())}
        new = {place: index for index, place in enumerate(after or (), len(old))}
        defaults: list[SqlValue] = []
        if before is None:
            for place in self._all:
                if place not in new:
                    new[place] = len(new) + len(defaults)
                    defaults.append(self._default(self.source.columns[place]))
            old = new
        if any(place not in old for place in self._key):
            raise self._refused(
                "a row image lacks a column of the key", "binlog_row_image=FULL at the source"
            )
        is_whole = all(place in new for place in self._all)
        knows_unique = self._unique and all(each in old and each in new for each in self._unique)
        return _Images(
            key=_picker([old[place] for place in self._key]),
            moved=_picker([new.get(place, old[place]) for place in self._key]),
            row=_picker([new[place] for place in self._all]) if is_whole else None,
            unique=(
                (
                    _picker([old[place] for place in self._unique]),
                    _picker([new[place] for place in self._unique]),
                )
                if knows_unique
                else None
            ),
            after=new,
            defaults=tuple(defaults),
        )

    def _change(
        self, kind: ChangeKind, columns: tuple[Column, ...], row: Row, key: Row, version: int
    ) -> RowChange:
        name = self._prefix + "/".join(map(key_text, key[: len(self._key)]))
        return RowChange(name.encode(), version, kind, self.mapping, columns, row)

    def _read(self, place: int, value: SqlValue) -> SqlValue:
        read = self._readers.get(place)
        if read is None or value is None:
            return value
        try:
            return read(value)
        except ValueError as error:
            name = self.source.columns[place].name
            raise self._refused(
                f"{str(value)[:80]!r} of column {name}: {error}", "a value that it takes"
            ) from None

    def _default(self, column: SourceColumn) -> SqlValue:
        default = column.default
        if default is None or default.upper() == "NULL":
            if column.nullable:
                return None
        elif _CONSTANT.fullmatch(default):
            return default.strip("'").replace("''", "'")
        raise self._refused(
            f"a new row lacks column {column.name}, whose default is {default}",
            "binlog_row_image=FULL or NOBLOB at the source",
        )

    def _refused(self, problem: str, expected: str) -> UnsuitableTarget:
        return UnsuitableTarget(
            target=self._target, problem=f"table {self.source}: {problem}", expected=expected
        )


_AS_AT_SOURCE = FoundTable(columns={}, unique_keys=())
"""A table of a server of the source's kind: all values are taken as they are."""


def _names(table: SourceTable | None) -> list[str]:
    return [column.name for column in table.columns] if table else []


def _is_versioned(table: SourceTable) -> bool:
    """Returns whether a table's events have versions of rows that are no changes at a target."""
    return any(column.generated in PERIOD for column in table.columns)


def stopped_at(statement: PayloadStatement, target: str) -> UnsuitableTarget:
    """Returns the error for a statement that is not executed at a target."""
    error = UnsuitableTarget(
        target=target,
        problem=f"{statement.text[:200]!r} in database {statement.database!r} is no change of rows",
        expected="the same done by hand there, and then --skip-gtids with this GTID",
    )
    note_statement(error, statement.text)
    return error


def not_as_known(
    error: SourceTableChanged | UnknownSourceTable,
    unread: Mapping[str, str],
    history: TableHistory | None,
) -> TransientFailure:
    """Returns the error for rows of a table that is not as it is known; `unread`: see
    `LoggedTables`. Opened again, the target has the tables as they are by then.
    """
    text = str(error)
    if why := unread.get(error.table):
        text = f"table {error.table}: {why}"
    elif history:
        history.refute(error.table)
    return TransientFailure(kind=TABLE_CHANGED, text=text)


def key_text(value: SqlValue) -> str:
    """Returns a value as a part of a row's name, in which `/` separates them.

    >>> key_text(42), key_text("a/b"), key_text(b"\\x01")
    ('42', 'a%2Fb', '01')
    """
    if type(value) is int:
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    text = str(value)
    if "/" in text or "%" in text:
        return text.replace("%", "%25").replace("/", "%2F")
    return text


def _mapping(source: SourceTable, table: str) -> TableMapping:
    """Returns the table with the columns that are written: generated ones are the target's."""
    columns = {
        column.name: Column(column.name, kind_of(column) or ColumnType.TEXT)
        for column in source.columns
        if not column.generated
    }
    key = tuple(columns.pop(name) for name in source.row_key if name in columns)
    return TableMapping(source=str(source), table=table, key=key, values=tuple(columns.values()))


def _unfit(source: SourceTable, mapping: TableMapping, found: FoundTable) -> Iterator[str]:
    """Yields the problems of a target's table."""
    table = mapping.table
    if found.problem:
        yield f"table {table} {found.problem}"
    if "." in source.name or "." in source.database:
        yield f"table {source} has a dot in its name"
    if not mapping.key:
        yield f"table {source} has no primary key, nor a unique one without NULL"
    for trigger in found.triggers:
        yield f"table {table} has the trigger {trigger}, whose changes come from the source, too"
    for column, why in unreadable_columns(source):
        yield f"column {source}.{column.name} cannot be read: {why}"
    written = {column.name for column in mapping.columns}
    for column in source.columns:
        if column.name in written and (why := unfit(column, found.columns.get(column.name))):
            yield f"column {table}.{column.name} {why}"
    for name, there in found.columns.items():
        if there.required and name not in written:
            yield f"column {table}.{name} is not at the source, expected a default"
    key = sorted(column.name for column in mapping.key)
    if key and key not in [sorted(unique) for unique in found.unique_keys]:
        yield f"table {table} has no unique key over ({', '.join(key)}), expected one"


def _unmoved(
    source: SourceTable, table: str, found: FoundTable, names: Mapping[str, str]
) -> Iterator[str]:
    """Yields the foreign keys that change rows at the source and are not at the target; `names`: of
    tables there.
    """
    for foreign in source.foreign_keys:
        parent = names.get(foreign.parent, foreign.parent)
        if foreign.changes_children and parent not in found.parents:
            yield (
                f"table {table} has no foreign key to {parent}, and the log not what the source's "
                f"{foreign.name} does (ON DELETE {foreign.on_delete}, UPDATE {foreign.on_update})"
            )


def _unordered(source: SourceTable, scheme: str) -> Iterator[str]:
    """Yields the keys of a table that need an order that its scheme does not keep: between the rows
    of a transaction, between tables or databases, or at all.
    """
    unique = [*source.unique_keys, *source.inexact_keys]
    if unique and scheme in WITHOUT_ROW_ORDER:
        yield f"table {source} has the second unique key {unique[0]}, which {scheme} breaks"
    for foreign in source.foreign_keys:
        is_far = foreign.parent.partition(".")[0] != source.database
        if scheme in (*WITHOUT_ROW_ORDER, "table") or (is_far and scheme == "database"):
            yield f"table {source} has the foreign key {foreign.name}, which {scheme} breaks"


def unfit(column: SourceColumn, found: FoundColumn | None) -> str:
    """Returns the reason for which a target's column does not take a source's values, if any."""
    kind, spelled = kind_of(column), column.column_type
    if kind is None:
        return f"is {column.column_type}, which no target takes"
    if found is None:
        return f"is missing, expected one for {column.column_type}"
    if column.nullable and not found.nullable:
        return "takes no NULL, and the source's does"
    if _OF_MARIADB.get(found.spelled, found.spelled) == _OF_MARIADB.get(spelled, spelled):
        return ""
    there = f"is {found.type}, and the source's {column.column_type}"
    if kind not in found.takes and not (kind is _T.TEXT and _T.JSON in found.takes):
        return there
    limits = limits_of(column)
    is_boolean = found.takes == {_T.BOOLEAN}
    is_low = kind is _T.INTEGER and not found.low <= limits.low <= limits.high <= found.high
    if is_low and not (is_boolean and column.column_type.startswith("tinyint(1)")):
        return there
    if kind is _T.DECIMAL and found.digits_max is not None:
        if limits.digits > found.digits_max or limits.scale > (found.scale or 0):
            return there
    if limits.fraction_digits > found.fraction_digits:
        return there
    characters = limits.characters
    for limit in (found.characters_max, found.bytes_max):
        if limit is not None and (characters is None or characters > limit):
            return there
    return ""


def _reader(column: SourceColumn, found: FoundColumn) -> Callable[[Any], SqlValue] | None:
    """Returns the function that makes a column's values the target's; None if they are so."""
    if _T.BOOLEAN in found.takes:
        return _boolean
    if not found.takes_nul and kind_of(column) in (_T.TEXT, _T.CHAR):
        return _without_nul
    return None


def _boolean(value: int) -> str:
    if value not in (0, 1):
        raise ValueError("a boolean is 0 or 1")
    return "t" if value else "f"


def _without_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("PostgreSQL's texts have no NUL")
    return value
