"""Rows of PostgreSQL as the group carries them: keys and values as bytes.

    key    public.accounts/7            schema.table/value of the key
           public.lines/7/2             of a key of several columns; "/" in a value is %2F, "%" %25
    value  {"id": 7, "owner": "Ann", "opened": "2026-11-24", "note": null}

A value is a JSON object of all columns. Integers are numbers, NULL is null, everything else is the
text that PostgreSQL gives and takes. Replicas on other servers map these columns (`groupcert
replica --mapping`), and the embedded store of each member holds the rows as they are.
"""

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple, TypeAlias

from groupcert.members.postgresql.tables import Table

Value: TypeAlias = "str | int | float | bool | list[Value] | None"
Values: TypeAlias = Mapping[str, Value]


class NotedRow(NamedTuple):
    """One change as a trigger noted it: the key columns before, all columns after."""

    table: str
    before: Values | None
    after: Values | None


class Changes(NamedTuple):
    """The last change of each row: its value, or None where it is deleted."""

    rows: dict[bytes, bytes | None]

    @property
    def puts(self) -> tuple[list[bytes], list[bytes]]:
        """Keys and values of the rows that are put."""
        kept = [(key, value) for key, value in self.rows.items() if value is not None]
        return [key for key, _ in kept], [value for _, value in kept]

    @property
    def deletes(self) -> list[bytes]:
        """Keys of the rows that are deleted."""
        return [key for key, value in self.rows.items() if value is None]


def fits(noted: Sequence[NotedRow], tables: Mapping[str, Table]) -> bool:
    """Returns whether rows have the columns of their tables, as these were read."""
    for name, _, after in noted:
        table = tables.get(name)
        if table is None or (after is not None and after.keys() != table.column_names):
            return False
    return True


def changes_of(noted: Sequence[NotedRow], tables: Mapping[str, Table]) -> Changes:
    """Returns the net changes of a transaction, in the order in which rows were first changed."""
    rows: dict[bytes, bytes | None] = {}
    for name, before, after in noted:
        table = tables[name]
        if before is not None:
            rows[row_key(table, before)] = None
        if after is not None:
            rows[row_key(table, after)] = row_value(table, after)
    return Changes(rows)


def row_key(table: Table, values: Values) -> bytes:
    """Returns the key of a row."""
    texts = key_texts(table, table.key, values)
    if len(texts) > 1:
        texts = [(text or "").replace("%", "%25").replace("/", "%2F") for text in texts]
    return f"{table.full_name}/{'/'.join(text or '' for text in texts)}".encode()


def key_of(table: Table, key: bytes) -> tuple[str, ...]:
    """Returns the values of a row's key: the reverse of `row_key`."""
    text = key.decode().partition("/")[2]
    if len(table.key) == 1:
        return (text,)
    return tuple(part.replace("%2F", "/").replace("%25", "%") for part in text.split("/"))


def row_value(table: Table, values: Values) -> bytes:
    """Returns the value of a row, generated columns included."""
    written = {column.name: _json_value(values[column.name]) for column in table.columns}
    return json.dumps(written, ensure_ascii=False, separators=(",", ":")).encode()


def columns_of(table: Table, value: bytes) -> list[str | None]:
    """Returns the texts of the columns that are written, in their order, from a row's value.

    Raises:
        KeyError: The table has other columns than where the row was written.
    """
    values = json.loads(value)
    if values.keys() != table.column_names:
        raise KeyError(f"table {table.full_name} has other columns than a row of it")
    return [
        None if values[column.name] is None else str(values[column.name])
        for column in table.columns
        if column.is_written
    ]


def key_texts(table: Table, columns: Sequence[str], values: Values) -> list[str | None]:
    """Returns texts of columns of a key: equal if and only if PostgreSQL holds the values equal."""
    types = {column.name: column.type for column in table.columns}
    return [_key_text(types[column], values[column]) for column in columns]


def _key_text(type_name: str, value: Value) -> str | None:
    if value is None:
        return None
    if type_name == "numeric":
        number = Decimal(str(value))
        if number.is_finite():
            return format(number.normalize() + 0, "f")
    if type_name == "character":
        return str(value).rstrip(" ")
    return str(_json_value(value))


def _json_value(value: Value) -> str | int | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or isinstance(value, int):
        return value
    return _array_text(value) if isinstance(value, list) else str(value)


def _array_text(values: "list[Value]") -> str:
    """Returns an array as PostgreSQL reads it.

    >>> _array_text([[1, None], ["a b", 'c"']])
    '{{"1",NULL},{"a b","c\\\\""}}'
    """
    return f"{{{','.join(map(_element_text, values))}}}"


def _element_text(value: Value) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return _array_text(value)
    text = str(_json_value(value)).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
