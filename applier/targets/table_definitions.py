"""Tables of a MySQL or MariaDB source as PostgreSQL's definitions of them.

| at the source | at PostgreSQL |
| --- | --- |
| `tinyint`, `smallint`, `year` | `smallint`; unsigned `smallint` `integer` |
| `mediumint`, `int` | `integer`; unsigned `int` `bigint` |
| `bigint`, `bit` | `bigint`; unsigned `bigint`, `bit(64)` `numeric(20)` |
| `decimal(p,s)` | `numeric(p,s)` |
| `float`, `double` | `real`, `double precision` |
| `char(n)`, `varchar(n)` | `varchar(n)`: a source's `char` has no spaces at its end |
| `text` of all sizes, `enum`, `set` | `text` |
| `binary`, `varbinary`, `blob` of all sizes, `geometry`, `vector` | `bytea` |
| `date`, `datetime(n)`, `timestamp(n)` | `date`, `timestamp(n)`, `timestamptz(n)` |
| `time(n)` | `interval(n)`: it goes to 838 hours |
| `json`, `uuid`, `inet4` and `inet6` | `json`, `uuid`, `inet` |

Defaults, checks, collations, generated columns and plain indexes are not carried over: rows come
whole, and what readers need is theirs to add.
"""

import re
from collections.abc import Iterator, Mapping

from ..mysql_logs.source_catalogue import SourceColumn, SourceTable
from .source_tables import limits_of
from .sql_server import quoted, quoted_table

QUOTE = '"'
_ARGUMENTS = re.compile(r"\([^)]*\)")
_TYPES = {
    **dict.fromkeys(("tinyint", "smallint", "year"), "smallint"),
    **dict.fromkeys(("mediumint", "int"), "integer"),
    **dict.fromkeys(("bigint", "bit"), "bigint"),
    "float": "real",
    "double": "double precision",
    **dict.fromkeys(("tinytext", "text", "mediumtext", "longtext", "enum", "set"), "text"),
    "date": "date",
    "json": "json",
    "uuid": "uuid",
    **dict.fromkeys(("inet4", "inet6"), "inet"),
}
_WITH_ARGUMENTS = {
    "decimal": "numeric",
    "char": "varchar",
    "varchar": "varchar",
    "datetime": "timestamp",
    "timestamp": "timestamptz",
    "time": "interval",
}


def postgresql_type(column: SourceColumn) -> str:
    """Returns the type that takes all values of a source's column.

    >>> postgresql_type(SourceColumn(name="n", data_type="int", column_type="int(10) unsigned"))
    'bigint'
    """
    if with_arguments := _WITH_ARGUMENTS.get(column.data_type):
        arguments = _ARGUMENTS.search(column.column_type)
        # A source's times have whole seconds if it does not say, PostgreSQL's have microseconds.
        is_time = column.data_type in ("datetime", "timestamp", "time")
        return with_arguments + (arguments[0] if arguments else "(0)" if is_time else "")
    high = limits_of(column).high
    plain = _TYPES.get(column.data_type, "bytea")
    if plain in ("smallint", "integer", "bigint"):
        for name, bits in (("smallint", 16), ("integer", 32), ("bigint", 64)):
            if high < 1 << bits - 1 and (plain, name) not in _NARROWER:
                return name
        return "numeric(20)"
    return plain


_NARROWER = {("integer", "smallint"), ("bigint", "smallint"), ("bigint", "integer")}


def create_table(source: SourceTable, table: str) -> str:
    """Returns the statement that creates a table, with its keys."""
    lines = [
        f"{quoted(column.name, QUOTE)} {postgresql_type(column)}{_null(column)}"
        for column in source.columns
        if not column.generated
    ]
    written = {column.name for column in source.columns if not column.generated}
    if source.primary_key:
        lines.append(f"PRIMARY KEY ({_names(source.primary_key)})")
    unique = source.unique_keys.values()
    lines += [f"UNIQUE ({_names(key)})" for key in unique if written.issuperset(key)]
    return f"CREATE TABLE {quoted_table(table, QUOTE)} ({', '.join(lines)})"


def foreign_keys(source: SourceTable, names: Mapping[str, str], *, deferred: bool) -> Iterator[str]:
    """Yields the statements that add a table's foreign keys to those of `names`, which says what
    tables are called at the target. `deferred`: they are checked at the commit, as a log that has
    cascades has children before their parents. Else at once: a check at the commit may wait for a
    younger transaction's lock, and that one for its turn.
    """
    for foreign in source.foreign_keys:
        if parent := names.get(foreign.parent):
            yield (
                f"ALTER TABLE {quoted_table(names[str(source)], QUOTE)} ADD CONSTRAINT"
                f" {quoted(foreign.name, QUOTE)} FOREIGN KEY ({_names(foreign.columns)})"
                f" REFERENCES {quoted_table(parent, QUOTE)} ({_names(foreign.parent_columns)})"
                f" ON DELETE {foreign.on_delete} ON UPDATE {foreign.on_update}"
                f"{' DEFERRABLE INITIALLY DEFERRED' if deferred else ''}"
            )


def _null(column: SourceColumn) -> str:
    return "" if column.nullable else " NOT NULL"


def _names(columns: tuple[str, ...]) -> str:
    return ", ".join([quoted(column, QUOTE) for column in columns])
