"""The statements that execute transactions of others at a server.

The rule it keeps: entries that are executed in one transaction of the server leave the rows that
they would leave one after the other. Of a table without other unique indexes than its primary key
only the last change of each row counts, and all rows that it takes are one statement.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import TypeAlias

from psycopg import sql

from groupcert.members.postgresql.commit_order import Entry
from groupcert.members.postgresql.rows import columns_of, key_of
from groupcert.members.postgresql.tables import Table
from groupcert.members.wire.row_changes import decode_changes

Statement: TypeAlias = tuple[bytes, Sequence[object]]
TableOf: TypeAlias = Callable[[bytes], Table | None]
"""Returns the table of a row's key; None: it is not attached here."""
Changes: TypeAlias = tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]
"""Keys put, their values, keys deleted."""
_EXECUTED = (
    b"INSERT INTO groupcert.executed SELECT * FROM unnest(%s::bigint[], %s::text[], %s::bigint[])"
)


def statements_of(
    entries: Sequence[Entry], table_of: TableOf, *, values_move: bool
) -> list[Statement]:
    """Returns what executes entries and notes their GTIDs: one statement, if all rows are put into
    tables that take them at once.

    Args:
        values_move: Values of other unique indexes may have moved between rows of one transaction,
            so that these are deleted before they are put. Without it a row stays where it is, and
            a child that refers to it keeps its lock; a value that has moved is a UniqueViolation.

    Raises:
        KeyError: A table has other columns than where a row of it was written.
    """
    changes = [decode_changes(entry.payload) for entry in entries]
    net: dict[bytes, bytes | None] = {}
    for keys, values, deleted in changes:
        net.update(dict.fromkeys(deleted))
        net.update(zip(keys, values, strict=True))
    tables = {key: table for key in net if (table := table_of(key))}
    gtids = [entry.gtid for entry in entries]
    executed = (
        [entry.version for entry in entries],
        [gtid.source for gtid in gtids],
        [gtid.number for gtid in gtids],
    )
    if any(table.unique_keys for table in tables.values()):
        in_order = chain.from_iterable(_in_order(each, tables, values_move) for each in changes)
        return [*in_order, (_EXECUTED, executed)]
    one_by_one, at_once = _last_changes(net, tables)
    parts = [b"rows%d AS (%s)" % (number, query) for number, (query, _) in enumerate(at_once)]
    query = b"WITH %s %s" % (b", ".join(parts), _EXECUTED) if parts else _EXECUTED
    rows_of_tables = chain.from_iterable(rows for _, rows in at_once)
    return [*one_by_one, (query, (*rows_of_tables, *executed))]


def _last_changes(
    net: Mapping[bytes, bytes | None], tables: Mapping[bytes, Table]
) -> tuple[list[Statement], list[Statement]]:
    """Returns the statements of the last change of each row: one a row, and one a table."""
    one_by_one: list[Statement] = []
    puts: dict[str, tuple[Table, list[bytes]]] = {}
    for key, table in tables.items():
        value = net[key]
        if value is None:
            one_by_one.append((delete(table), key_of(table, key)))
            continue
        row = columns_of(table, value)
        if any(column.is_json for column in table.columns):
            one_by_one.append((put(table), row))
        else:
            puts.setdefault(table.full_name, (table, []))[1].append(value)
    at_once: list[Statement] = [
        (put_all(table), (f"[{b','.join(rows).decode()}]",)) for table, rows in puts.values()
    ]
    return one_by_one, at_once


def _in_order(
    changes: Changes, tables: Mapping[bytes, Table], values_move: bool
) -> Iterator[Statement]:
    """Yields the statements of one transaction."""
    keys, values, deleted = changes
    puts = [
        (key, table, value)
        for key, value in zip(keys, values, strict=True)
        if (table := tables.get(key))
    ]
    moved = [key for key, table, _ in puts if table.unique_keys] if values_move else []
    for key in (*deleted, *moved):
        if table := tables.get(key):
            yield delete(table), key_of(table, key)
    for _, table, value in puts:
        columns = columns_of(table, value)
        if table.unique_keys:
            yield update(table), [*columns, *_key_of(table, columns)]
        yield put(table), columns


@cache
def put_all(table: Table) -> bytes:
    """Returns the statement that puts rows, new or not, from an array of their values."""
    rows = sql.SQL("SELECT {} FROM json_populate_recordset(NULL::{}, %s::json)").format(
        _names(table), sql.Identifier(table.schema, table.name)
    )
    return _put(table, rows)


@cache
def put(table: Table) -> bytes:
    """Returns the statement that puts a row, new or not; if the table has other unique indexes only
    a new one, behind `update`.
    """
    places = sql.SQL(", ").join(sql.Placeholder() for _ in _written(table))
    return _put(table, sql.SQL("VALUES ({})").format(places))


def _put(table: Table, rows: sql.Composed) -> bytes:
    others = [] if table.unique_keys else [n for n in _written(table) if n not in table.key]
    updates = sql.SQL(", ").join(
        sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others
    )
    statement = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE {} ON CONFLICT ({}) DO {}")
    return statement.format(
        sql.Identifier(table.schema, table.name),
        _names(table),
        rows,
        sql.SQL(", ").join(map(sql.Identifier, table.key)),
        sql.SQL("UPDATE SET {}").format(updates) if others else sql.SQL("NOTHING"),
    ).as_bytes(None)


@cache
def update(table: Table) -> bytes:
    """Returns the statement that changes a row. Unlike ON CONFLICT DO UPDATE it lets a child keep
    its lock on a parent whose keys stay.
    """
    places = (
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder())
        for name in _written(table)
    )
    statement = sql.SQL("UPDATE {} SET {} WHERE ({}) = ({})").format(
        sql.Identifier(table.schema, table.name),
        sql.SQL(", ").join(places),
        sql.SQL(", ").join(map(sql.Identifier, table.key)),
        sql.SQL(", ").join(sql.Placeholder() for _ in table.key),
    )
    return statement.as_bytes(None)


@cache
def delete(table: Table) -> bytes:
    """Returns the statement that deletes a row by its key."""
    statement = sql.SQL("DELETE FROM {} WHERE ({}) = ({})").format(
        sql.Identifier(table.schema, table.name),
        sql.SQL(", ").join(map(sql.Identifier, table.key)),
        sql.SQL(", ").join(sql.Placeholder() for _ in table.key),
    )
    return statement.as_bytes(None)


def _key_of(table: Table, columns: Sequence[str | None]) -> list[str | None]:
    """Returns the values of the key among those of the columns that are written."""
    values = dict(zip(_written(table), columns, strict=True))
    return [values[name] for name in table.key]


def _written(table: Table) -> list[str]:
    return [column.name for column in table.columns if column.is_written]


def _names(table: Table) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, _written(table)))
