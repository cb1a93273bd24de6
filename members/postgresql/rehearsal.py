"""The rehearsal of a table before it is attached: rows go the whole way, then back.

Without it a row that the table's own code does not let pass is found out at the other servers, once
it is certified: a CHECK that needs a session's search path, a type whose text is not read back. As
the table's owner, with the settings that rows of others are executed with, rows are written, read
as the group would carry them, updated, deleted and put again; each must be the same row in the end.
Nothing of it stays: the caller's savepoint takes it back.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg

from .functions import function_of, records, same
from .tables import Column, Table, literal, quoted

EXISTING_ROWS = 20
PLACES = 3
"""Of values in `_TEXTS`."""
_UNSAID = ("22", "23", "55P04")
"""SQLSTATEs, or their classes, by which a table refuses a value that is made up, such as a label of
an enum that the same transaction has added: that tells nothing.
"""
_TEXTS: Mapping[str, tuple[str, ...]] = {
    "smallint": ("0", "-32768", "1"),
    "integer": ("0", "-2147483648", "1"),
    "bigint": ("0", "-9223372036854775808", "1"),
    "numeric": ("0", "-12345678901234567890123456789012345678901.5", "1"),
    "real": ("0", "1.17549435e-38", "1.5"),
    "double precision": ("0", "2.2250738585072014e-308", "1.5"),
    "boolean": ("false", "true"),
    "text": ("", "a/b%25\\ \"'\n{é}", "a"),
    "character varying": ("", "a/%", "a"),
    "character": ("a", "é"),
    "name": ("a", "A/%"),
    "bytea": ("\\x", "\\x00ff5c", "\\x61"),
    "uuid": ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    "date": ("2000-01-01", "infinity", "2026-03-02"),
    "time without time zone": ("00:00", "24:00"),
    "time with time zone": ("00:00+00", "24:00-15:59"),
    "timestamp without time zone": ("2000-01-01", "4714-11-24 00:00:00 BC", "2026-03-02 04:05:06"),
    "timestamp with time zone": ("2000-01-01 00:00+00", "-infinity", "2026-03-02 04:05:06+00"),
    "interval": ("0", "-178000000 years 1 mon -1 days 00:00:00.000001", "1 day"),
    "json": ("null", '{"a": [1, null, "\\u00e9"]}'),
    "jsonb": ("null", '{"a": [1, null, "\\u00e9"]}'),
    "bit": ("0", "1"),
    "bit varying": ("", "1"),
    "inet": ("10.0.0.1", "fe80::1/64"),
    "cidr": ("10.0.0.0/8", "fe80::/64"),
    "macaddr": ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"),
    "point": ("(0,0)", "(0.1,1e-300)"),
    "box": ("(0,0),(0,0)", "(0.3,0.2),(0.1,0.1)"),
    "xml": ("", "<a>é</a>"),
    "tsvector": ("", "'a' 'b':1A"),
    "oid": ("0", "4294967295"),
}
"""By type, a common value, one at a limit, and another one, as PostgreSQL reads them: domains and
CHECKs want numbers above 0, or texts that are not empty.
"""


class Unfit(Exception):
    """A table cannot be attached; the text says why."""


def rehearse(connection: "psycopg.Connection[Any]", table: Table) -> None:
    """Tries a table whose functions are there; its caller takes back what this leaves.

    Raises:
        Unfit: A row of it cannot be executed elsewhere, or would be another one there.
    """
    try:
        _rehearse_rows(connection, table, _existing(connection, table))
        for row in _made_up(connection, table):
            _rehearse_made_up(connection, table, row)
        connection.execute("CLOSE ALL")
    except psycopg.Error as error:
        said = error.diag.message_primary or str(error).strip()
        raise Unfit(f"a row of it cannot be executed as its owner {table.owner}: {said}") from error


def _rehearse_made_up(
    connection: "psycopg.Connection[Any]", table: Table, row: dict[str, str | None]
) -> None:
    try:
        with connection.transaction():
            _put(connection, table, [json.dumps(row)])
            keys = [{name: row[name] for name in table.key}]
            is_given = all(table.column(name).is_written for name in table.key)
            if is_given or _values(connection, table, keys):  # The server makes another key of it.
                _rehearse_rows(connection, table, keys)
    except psycopg.Error as error:
        if not (error.sqlstate or "").startswith(_UNSAID):
            raise


def _rehearse_rows(
    connection: "psycopg.Connection[Any]", table: Table, keys: "list[dict[str, Any]]"
) -> None:
    """Has rows go to the group and back: over themselves, and where there is none."""
    if not keys:
        return
    before, values = _texts(connection, table, keys), _values(connection, table, keys)
    if len(values) != len(keys):
        raise Unfit(f"{len(keys)} rows of it have {len(values)} keys")
    for deleted in (None, keys):
        _put(connection, table, values, deleted)
        after = _texts(connection, table, keys)
        if after != before or _values(connection, table, keys) != values:
            wrong = next(pair for pair in zip(before, after, strict=True) if pair[0] != pair[1])
            raise Unfit(f"a row of it would be another one elsewhere: {wrong[0]}, not {wrong[1]}")


def _put(
    connection: "psycopg.Connection[Any]",
    table: Table,
    values: list[str],
    deleted: "list[dict[str, Any]] | None" = None,
) -> None:
    function = function_of("put", table.full_name).replace("%", "%%")
    rows = f"[{','.join(values)}]", json.dumps(deleted) if deleted else None
    connection.execute(f"SELECT {function}(%s, %s)".encode(), rows)


def _values(
    connection: "psycopg.Connection[Any]", table: Table, keys: "list[dict[str, Any]]"
) -> list[str]:
    """Returns the values of rows as the group would carry them."""
    function = function_of("changes", table.full_name).replace("%", "%%")
    query = f"SELECT {function}(NULL, %s)".encode()
    lines = [line for (line,) in connection.execute(query, (json.dumps(keys),)).fetchall()]
    return sorted(line.partition("\n")[2] for line in lines if line[0] == "+")


def _texts(
    connection: "psycopg.Connection[Any]", table: Table, keys: "list[dict[str, Any]]"
) -> list[str]:
    """Returns the texts of rows as PostgreSQL itself writes them."""
    given = records(table.key_columns, literal(json.dumps(keys)))
    query = (
        f"SELECT format('%s', t.*) FROM {table.quoted} t JOIN {given} ON {same(table, 'r')}"
        " ORDER BY 1"
    )
    return [text for (text,) in connection.execute(query.encode()).fetchall()]


def _existing(connection: "psycopg.Connection[Any]", table: Table) -> "list[dict[str, Any]]":
    """Returns keys of rows that are there, as texts."""
    texts = ", ".join(f"format('%s', {name}) AS {name}" for name in map(quoted, table.key))
    query = f"SELECT {texts} FROM {table.quoted} LIMIT {EXISTING_ROWS}"
    return connection.cursor(row_factory=psycopg.rows.dict_row).execute(query.encode()).fetchall()


def _made_up(
    connection: "psycopg.Connection[Any]", table: Table
) -> Iterator[dict[str, str | None]]:
    """Yields rows: common values, limits, others, and as many NULLs as the table takes."""
    labels = {
        column.name: connection.execute(
            "SELECT ARRAY(SELECT enumlabel FROM pg_catalog.pg_enum WHERE enumtypid = %s::regtype"
            " ORDER BY enumsortorder)::text[]",
            (column.base_type,),
        ).fetchall()[0][0]
        for column in table.columns
        if column.is_enum
    }
    for place in range(PLACES):
        row = {
            column.name: _text(column, labels.get(column.name), place) for column in table.columns
        }
        yield row
        yield {name: text if name in table.key else None for name, text in row.items()}


def _text(column: Column, labels: list[str] | None, place: int) -> str | None:
    if labels:
        return labels[-place % len(labels)]
    if column.base_type.endswith("[]"):
        return ("{}", "[2:3]={NULL,NULL}")[place % 2]
    if column.base_type.endswith("range"):
        return "empty"
    texts = _TEXTS.get(column.base_type, (None,))
    return texts[min(place, len(texts) - 1)]
