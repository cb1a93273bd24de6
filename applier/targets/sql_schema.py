"""The schema mapping: which rows of the source are which rows of an SQL server's tables.

Two rows of the source are never one row of a table. A row that does not fit is reported before
anything of its transaction is written.

Rows are named `database.table/key` (`applier/queue/row_parts.py`). The mapping is a TOML file:

    [tables."shop.orders"]                          # rows shop.orders/TENANT/ID
    table = "orders"                                # if not given: shop.orders
    key = { tenant = "text", id = "integer" }       # columns of the key, split at "/"
    value = { document = "json" }                   # one column, or:
    # columns = { amount = "integer", note = "text" }   fields of a value that is a JSON object

    [tables."*"]                                    # all other tables: one table, made if missing
    table = "groupcert_rows"

A field that has no column is left out; a column whose field is missing is an error.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from ..errors import UnsuitableTarget
from ..queue.relay_group import RelayEntry
from ..queue.row_parts import table_of
from .logged_tables import KeptTables, Place
from .rocksdb import Decode
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
    ranks,
)

OTHERS = "*"
WITHOUT_ROW_ORDER = ("jobs ignore", "rows")
"""Schemes that keep no order between rows that have different keys."""
OTHERS_TABLE = "groupcert_rows"
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,19}")
_NAME = re.compile(r"[^\s.\"`\\\0]+(\.[^\s.\"`\\\0]+)?")

KEY_TYPES = (ColumnType.INTEGER, ColumnType.TEXT, ColumnType.BYTES)
VALUE_TYPES = (*KEY_TYPES, ColumnType.JSON)
FIELD_TYPES = (ColumnType.INTEGER, ColumnType.TEXT, ColumnType.JSON)


class SqlSchema:
    """A mapping as read from the file; it knows no server. A `SourceTables`."""

    def __init__(self, mappings: Iterable[TableMapping], decode: Decode, scheme: str = "") -> None:
        """Maps the rows that `decode` reads from payloads, which are executed by a scheme."""
        self._scheme = scheme
        self.mappings = {mapping.source: mapping for mapping in mappings}
        self.tables = [*self.mappings.values()]
        self.others = self.mappings.get(OTHERS)
        self.kept: KeptTables = {}
        self._decode = decode

    @classmethod
    def parse(
        cls, text: str, decode: Decode, name: str = "schema mapping", scheme: str = ""
    ) -> Self:
        """Reads a mapping file; errors name `name`.

        Raises:
            UnsuitableTarget: with all problems at once.
        """
        problems: list[str] = []
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UnsuitableTarget(target=name, problem=str(error), expected="TOML") from None
        _check_keys(document, {"tables"}, "", problems)
        tables = document.get("tables")
        if not isinstance(tables, dict) or not tables:
            problems.append('there is no [tables."database.table"]')
            tables = {}
        mappings = [_mapping(source, given, problems) for source, given in tables.items()]
        names = [mapping.table for mapping in mappings]
        twice = sorted({name for name in names if names.count(name) > 1})
        problems += [f"table {table} is the target of several" for table in twice]
        if problems:
            raise UnsuitableTarget(
                target=name, problem="; ".join(problems), expected="a mapping without these"
            )
        return cls(mappings, decode, scheme)

    def at(self, place: Place, definitions: Definitions) -> "SqlSchema":
        """Returns itself: a mapping holds for all of a group's log."""
        return self

    def bind(self, found: Mapping[str, FoundTable], target: str) -> "BoundSchema":
        """Returns the mapping over the server's tables, which are named as in the mapping; that for
        other rows may be missing.

        Raises:
            UnsuitableTarget: tables do not fit; with all problems at once.
        """
        problems: list[str] = []
        bound = {}
        for source, mapping in self.mappings.items():
            table = found.get(mapping.table)
            if table is None:
                if mapping is not self.others:
                    problems.append(f"table {mapping.table} is missing")
            elif table.problem:
                problems.append(f"table {mapping.table} {table.problem}")
            elif unfit := list(_unfit(mapping, table, self._scheme)):
                problems += unfit
            else:
                bound[source] = _BoundTable(mapping, table)
        if problems:
            raise UnsuitableTarget(
                target=target,
                problem="; ".join(problems),
                expected="tables as the schema mapping has them",
            )
        return BoundSchema(bound, ranks(found), self._decode, target)


class BoundSchema:
    """A mapping that fits the server; converts rows into changes of tables. A `BoundTables`."""

    def __init__(
        self,
        tables: Mapping[str, "_BoundTable"],
        ranks: Mapping[str, int],
        decode: Decode,
        target: str,
    ) -> None:
        self._tables = tables
        self._ranks = ranks
        self._decode = decode
        self._target = target

    def statements(self, entries: Sequence[RelayEntry]) -> Sequence[Definition]:
        """Returns none: a group's log has rows alone."""
        return ()

    def row_events(self, entries: Sequence[RelayEntry], database: str) -> None:
        """Returns none: a group's rows are no events of a server."""

    def changes(self, entries: Sequence[RelayEntry]) -> list[RowChange]:
        """Returns the last change of each row, by table and key: transactions that share rows lock
        them in one order. Rows of parents are written before those of their children, and deleted
        after them.

        Raises:
            UnsuitableTarget: a row does not fit its columns, or its table has no mapping.
        """
        rows: dict[bytes, tuple[bytes | None, int]] = {}
        for entry in entries:
            if not entry.payload:
                continue
            put_keys, put_values, delete_keys = self._decode(entry.payload)
            for key, value in zip(put_keys, put_values, strict=True):
                rows[key] = (value, entry.version)
            for key in delete_keys:
                rows[key] = (None, entry.version)
        deletes: list[tuple[int, str, RowChange]] = []
        puts: list[tuple[int, str, RowChange]] = []
        for name in sorted(rows):
            change = self._change(name, *rows[name])
            table = change.mapping.table
            rank = self._ranks.get(table, 0)
            if change.kind is ChangeKind.PUT:
                puts.append((rank, table, change))
            else:
                deletes.append((-rank, table, change))
        # Sorting is stable: within a table, changes stay in the order of their names.
        ordered = [*sorted(deletes, key=_rank), *sorted(puts, key=_rank)]
        return [change for *_, change in ordered]

    def _change(self, name: bytes, value: bytes | None, version: int) -> RowChange:
        source = table_of(name)
        table = self._tables.get(source) or self._tables.get(OTHERS)
        if table is None:
            raise UnsuitableTarget(
                target=self._target,
                problem=f"row {name!r} is of table {source!r}, which has no mapping",
                expected=f'an entry for it, or for "{OTHERS}", in the schema mapping',
            )
        try:
            key, kind = table.key(name), ChangeKind.DELETE_ANY
            if value is not None:
                key, kind = key + table.values(value), ChangeKind.PUT
        except _Unfit as unfit:
            raise UnsuitableTarget(
                target=self._target,
                problem=f"row {name!r} does not fit table {table.mapping.table}: {unfit}",
                expected="rows that fit the columns of the schema mapping",
            ) from None
        return RowChange(name, version, kind, table.mapping, (), key)


def _rank(change: tuple[int, str, RowChange]) -> tuple[int, str]:
    return change[:2]


class _Unfit(Exception):
    """A value does not fit its column."""


class _BoundTable:
    """One table of the mapping, with a reader for each column."""

    def __init__(self, mapping: TableMapping, found: FoundTable) -> None:
        others = bool(_other_keys(mapping, found))
        self.mapping = replace(mapping, has_other_keys=others)
        self._key = [_reader(column, found.columns[column.name]) for column in mapping.key]
        self._values = [
            (column.name, _reader(column, found.columns[column.name])) for column in mapping.values
        ]
        self._nullable = {name for name, column in found.columns.items() if column.nullable}

    def key(self, name: bytes) -> Row:
        """Returns the key of a row."""
        if self.mapping.source == OTHERS:
            return (self._key[0](name),)
        key = name.partition(b"/")[2] if self.mapping.source else name
        parts = key.split(b"/", len(self._key) - 1)
        if len(parts) != len(self._key):
            raise _Unfit(f"its key has {len(parts)} parts, expected {len(self._key)}")
        return tuple(read(part) for read, part in zip(self._key, parts, strict=True))

    def values(self, value: bytes) -> Row:
        """Returns the values of the columns that are not in the key."""
        if not self.mapping.has_fields:
            return (self._values[0][1](value),)
        fields = _json(value)
        if not isinstance(fields, dict):
            raise _Unfit("its value is no JSON object")
        return tuple(self._field(fields, name, read) for name, read in self._values)

    def _field(
        self, fields: Mapping[str, Any], name: str, read: Callable[[bytes], SqlValue]
    ) -> SqlValue:
        if name not in fields:
            raise _Unfit(f"its value has no field {name}")
        value = fields[name]
        column = next(column for column in self.mapping.values if column.name == name)
        if column.type is ColumnType.JSON:
            return read(json.dumps(value).encode())
        if value is None and name in self._nullable:
            return None
        # Python's booleans are integers, and JSON's are not.
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not (is_integer if column.type is ColumnType.INTEGER else isinstance(value, str)):
            raise _Unfit(f"field {name} is {value!r}, expected {column.type.value}")
        return read(str(value).encode(errors="surrogatepass"))


def _json(value: bytes) -> object:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(value.decode(), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise _Unfit(f"its value is no JSON ({error})") from None


def _reader(column: Column, found: FoundColumn) -> Callable[[bytes], SqlValue]:
    """Returns the function that converts the bytes for a column to its value."""
    name = column.name

    def integer(value: bytes) -> int:
        if not _INTEGER.fullmatch(value):
            raise _Unfit(f"{value[:40]!r} for column {name} is no integer, as 0, 42 or -7")
        number = int(value)
        if not found.low <= number <= found.high:
            raise _Unfit(f"{number} for column {name} is not in {found.low} to {found.high}")
        return number

    def text(value: bytes) -> str:
        try:
            characters = value.decode()
        except UnicodeDecodeError:
            raise _Unfit(f"{value[:40]!r} for column {name} is no UTF-8") from None
        if "\0" in characters:
            raise _Unfit(f"{value[:40]!r} for column {name} has a NUL")
        if found.characters_max is not None and len(characters) > found.characters_max:
            limit = found.characters_max
            raise _Unfit(f"column {name} takes {limit} characters, not {len(characters)}")
        octets(value)
        return characters

    def octets(value: bytes) -> bytes:
        if found.bytes_max is not None and len(value) > found.bytes_max:
            raise _Unfit(f"column {name} takes {found.bytes_max} bytes, not {len(value)}")
        return value

    def document(value: bytes) -> str:
        _json(value)
        return text(value)

    readers: dict[ColumnType, Callable[[bytes], SqlValue]] = {
        ColumnType.INTEGER: integer,
        ColumnType.TEXT: text,
        ColumnType.BYTES: octets,
        ColumnType.JSON: document,
    }
    return readers[column.type]


def _unfit(mapping: TableMapping, found: FoundTable, scheme: str) -> Iterable[str]:
    """Yields the differences between the server's table and the mapping."""
    table = mapping.table
    for column in mapping.columns:
        is_key = column in mapping.key
        there = found.columns.get(column.name)
        if there is None:
            yield f"table {table} has no column {column.name}, expected one for {column.type.value}"
        elif column.type not in there.takes:
            yield (
                f"column {table}.{column.name} is {there.type}, "
                f"expected one that takes {column.type.value}"
            )
        elif is_key and not there.is_exact:
            yield (
                f"column {table}.{column.name} is {there.type}, "
                "expected a collation in which texts that differ are never equal"
            )
    key = sorted(column.name for column in mapping.key)
    others = _other_keys(mapping, found)
    if len(others) == len(found.unique_keys):
        yield f"table {table} has no unique key over ({', '.join(key)}), expected one"
    for other in others if scheme in WITHOUT_ROW_ORDER else ():
        yield (
            f"table {table} has another unique key over ({', '.join(other) or 'expressions'}), "
            f"expected none: {scheme} writes rows in another order than the source"
        )
    written = {column.name for column in mapping.columns}
    for name, there in found.columns.items():
        if there.required and name not in written:
            yield f"column {table}.{name} is not in the mapping, expected a default"


def _other_keys(mapping: TableMapping, found: FoundTable) -> list[tuple[str, ...]]:
    key = sorted(column.name for column in mapping.key)
    return [unique for unique in found.unique_keys if sorted(unique) != key]


def _mapping(source: str, given: object, problems: list[str]) -> TableMapping:
    """Returns one entry of the file; adds its errors to `problems`."""
    at = f'tables."{source}"'
    if "\ufffd" in source or "/" in source:
        problems.append(f"{at} is no name of a table of the source: UTF-8 without a slash")
    if not isinstance(given, dict):
        problems.append(f"{at} is {given!r}, expected a table")
        given = {}
    table = given.get("table", OTHERS_TABLE if source == OTHERS else source)
    if not isinstance(table, str) or not _NAME.fullmatch(table):
        problems.append(f"{at}.table is {table!r}, expected a name, or two with a dot between")
        table = ""
    if table.lower().startswith("groupcert_") and table != OTHERS_TABLE:
        problems.append(f"{at}.table is {table!r}: names groupcert_... are the replica's own")
    if source == OTHERS:
        _check_keys(given, {"table"}, at, problems)
        row, value = Column("row_key", ColumnType.BYTES), Column("value", ColumnType.BYTES)
        return TableMapping(source=source, table=table, key=(row,), values=(value,))
    _check_keys(given, {"table", "key", "value", "columns"}, at, problems)
    key = _columns(given.get("key"), f"{at}.key", KEY_TYPES, problems)
    if ("value" in given) == ("columns" in given):
        problems.append(f"{at} has both value and columns, or neither: expected one of them")
    has_fields = "columns" in given
    name, types = ("columns", FIELD_TYPES) if has_fields else ("value", VALUE_TYPES)
    values = _columns(given.get(name, {}), f"{at}.{name}", types, problems)
    if not has_fields and len(values) > 1:
        problems.append(f"{at}.value names {len(values)} columns, expected one")
    if twice := {column.name for column in key} & {column.name for column in values}:
        problems.append(f"{at} has {', '.join(sorted(twice))} in key and value, expected one")
    return TableMapping(source=source, table=table, key=key, values=values, has_fields=has_fields)


def _columns(
    given: object, at: str, types: Sequence[ColumnType], problems: list[str]
) -> tuple[Column, ...]:
    if not isinstance(given, dict) or not given:
        problems.append(f'{at} is {given!r}, expected {{ column = "type" }}')
        return ()
    columns = []
    for name, type_name in given.items():
        kinds = [kind for kind in types if kind.value == type_name]
        if not _NAME.fullmatch(name) or "." in name:
            problems.append(f"{at}: {name!r} is no name of a column")
        elif kinds:
            columns.append(Column(name, kinds[0]))
        else:
            names = ", ".join(kind.value for kind in types)
            problems.append(f"{at}.{name} is {type_name!r}, expected one of {names}")
    return tuple(columns)


def _check_keys(given: Mapping[str, object], known: set[str], at: str, problems: list[str]) -> None:
    problems += [
        f"{at}.{key} is unknown, expected {', '.join(sorted(known))}".lstrip(".")
        for key in given
        if key not in known
    ]
