"""What a source's catalogue says of its tables: names, types and keys that its log leaves out.

A log with its server's defaults (binlog_row_metadata MINIMAL, or MariaDB's NO_LOG) has columns by
number and no keys, so a replica asks the server. Columns are in the order of the table maps.

Source: information_schema of MySQL 5.7 to 9 and MariaDB 10.3 to 12: columns, statistics,
key_column_usage, referential_constraints.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PERIOD = ("row start", "row end")
"""Columns of a versioned table: from when to when a row was what it is."""
SYSTEM = ("information_schema", "mysql", "performance_schema", "sys")
"""Databases that no replica follows."""
Query = Callable[[str, Sequence[object]], Sequence[Sequence[Any]]]
"""Runs a statement with values for its `%s`, and returns rows."""

_MOVING = frozenset(("CASCADE", "SET NULL", "SET DEFAULT"))
_WHERE = """(table_schema = %s OR %s = '' AND table_schema NOT IN %s)"""
_NAMED = "table_name = %s OR %s = ''"
_COLUMNS = f"""
SELECT table_schema, table_name, column_name, data_type, column_type, character_set_name,
       collation_name, is_nullable, column_default, extra, generation_expression
FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
WHERE {_WHERE} AND ({_NAMED}) AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')
ORDER BY table_schema, table_name, ordinal_position"""
_KEYS = f"""
SELECT table_schema, table_name, index_name, column_name,
       CASE WHEN index_type = 'HASH' THEN NULL ELSE sub_part END
FROM information_schema.statistics WHERE {_WHERE} AND ({_NAMED}) AND non_unique = 0
ORDER BY table_schema, table_name, index_name, seq_in_index"""
_FOREIGN_KEYS = f"""
SELECT table_schema, k.table_name, k.constraint_name, column_name, referenced_table_schema,
       k.referenced_table_name, referenced_column_name, delete_rule, update_rule
FROM information_schema.key_column_usage AS k JOIN information_schema.referential_constraints AS r
  ON r.constraint_schema = k.table_schema AND r.constraint_name = k.constraint_name
     AND r.table_name = k.table_name
WHERE {_WHERE} AND (k.{_NAMED}) AND k.referenced_table_name IS NOT NULL
ORDER BY table_schema, k.table_name, k.constraint_name, ordinal_position"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumn:
    """A column. `data_type`, `column_type`: as information_schema spells them, in lower case:
    `int` and `int(10) unsigned`, `enum` and `enum('a','b')`. `charset`, `collation`: None unless it
    is a text. `default`: as the catalogue has it. `generated`: empty, `virtual`, `stored`, or of a
    versioned table of MariaDB `row start` or `row end`.
    """

    name: str
    data_type: str
    column_type: str
    charset: str | None = None
    collation: str | None = None
    nullable: bool = True
    default: str | None = None
    generated: str = ""
    auto_increment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """A foreign key: `columns` of this table refer to `parent_columns` of `parent`, which is
    `database.table`. `on_delete`, `on_update`: `RESTRICT`, `CASCADE`, `SET NULL`, `NO ACTION`.
    """

    name: str
    columns: tuple[str, ...]
    parent: str
    parent_columns: tuple[str, ...]
    on_delete: str = "RESTRICT"
    on_update: str = "RESTRICT"

    @property
    def changes_children(self) -> bool:
        """True if a change of a parent's row may change those that refer to it."""
        return not _MOVING.isdisjoint((self.on_delete, self.on_update))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A table; `unique_keys`: by index, without the primary key. A key over an expression, or over
    the beginnings of texts, is in `inexact_keys` alone.
    """

    database: str
    name: str
    columns: tuple[SourceColumn, ...]
    primary_key: tuple[str, ...] = ()
    unique_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    inexact_keys: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()

    @property
    def row_key(self) -> tuple[str, ...]:
        """Columns that name a row: of the primary key, else of the first unique key without a
        nullable column; none if there is none.
        """
        if self.primary_key:
            return self.primary_key
        nullable = {column.name for column in self.columns if column.nullable}
        for columns in self.unique_keys.values():
            if not nullable.intersection(columns):
                return columns
        return ()

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


def read_catalogue(query: Query, database: str = "", table: str = "") -> dict[str, SourceTable]:
    """Returns the tables of a database, or of all but the server's own, by `database.table`; of
    this name, if it is given.
    """
    columns = _by_table(query, _COLUMNS, database, table)
    keys = _by_table(query, _KEYS, database, table)
    foreign = _by_table(query, _FOREIGN_KEYS, database, table)
    return {
        f"{place[0]}.{place[1]}": SourceTable(
            database=place[0],
            name=place[1],
            columns=described,
            foreign_keys=_foreign_keys(foreign.get(place, ())),
            **_keys(
                keys.get(place, ()), {each.name for each in described if each.generated in PERIOD}
            ),
        )
        for place, rows in columns.items()
        for described in [tuple(_column(*row) for row in rows)]
    }


def _by_table(
    query: Query, statement: str, database: str, name: str
) -> dict[tuple[str, str], list[Sequence[Any]]]:
    """Returns the rows of a statement by database and table."""
    found: dict[tuple[str, str], list[Sequence[Any]]] = {}
    for schema, table, *rest in query(statement, (database, database, SYSTEM, name, name)):
        found.setdefault((schema, table), []).append(rest)
    return found


def _column(
    name: str,
    data_type: str,
    column_type: str,
    charset: str | None,
    collation: str | None,
    nullable: str,
    default: str | None,
    extra: str,
    expression: str | None,
) -> SourceColumn:
    extra, expression = extra.lower(), (expression or "").lower()
    generated = ""
    if expression in PERIOD:
        generated = expression
    elif expression:
        generated = "virtual" if "virtual" in extra else "stored"
    return SourceColumn(
        name=name,
        data_type=data_type.lower(),
        column_type=column_type,
        charset=charset,
        collation=collation,
        nullable=nullable == "YES",
        default=default,
        generated=generated,
        auto_increment="auto_increment" in extra,
    )


def _keys(rows: Sequence[Sequence[Any]], period: Collection[str]) -> dict[str, Any]:
    """Returns the unique indexes of a table, as arguments of `SourceTable`. `period`: columns that
    the server adds to each key of a versioned table.
    """
    columns: dict[str, list[str]] = {}
    inexact: dict[str, None] = {}
    for index, column, sub_part in rows:
        if column in period:
            continue
        columns.setdefault(index, []).append(column)
        if column is None or sub_part is not None:
            inexact[index] = None
    exact = {name: tuple(each) for name, each in columns.items() if name not in inexact}
    return {
        "primary_key": exact.pop("PRIMARY", ()),
        "unique_keys": exact,
        "inexact_keys": tuple(inexact),
    }


def _foreign_keys(rows: Sequence[Sequence[Any]]) -> tuple[ForeignKey, ...]:
    found: dict[str, list[Sequence[Any]]] = {}
    for name, *rest in rows:
        found.setdefault(name, []).append(rest)
    return tuple(
        ForeignKey(
            name=name,
            columns=tuple(each[0] for each in parts),
            parent=f"{parts[0][1]}.{parts[0][2]}",
            parent_columns=tuple(each[3] for each in parts),
            on_delete=parts[0][4],
            on_update=parts[0][5],
        )
        for name, parts in found.items()
    )
