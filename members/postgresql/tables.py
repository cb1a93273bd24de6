"""The tables of a server: which may be attached, why others are kept out, and their keys.

A table is kept out where a row of it could be written twice without a conflict, or could not be
written again as it was: it has no primary key, keys that compare equal with other texts, columns
whose text depends on the server.
"""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg

KEY_TYPES = frozenset(
    (
        *("smallint", "integer", "bigint", "numeric", "boolean", "text", "character varying"),
        *("character", "name", "uuid", "bytea", "date", "timestamp without time zone"),
        "timestamp with time zone",
    )
)
"""Types of which equal values have equal texts, once numbers have lost their zeros."""
JSON_TYPES = frozenset(("json", "jsonb"))
UNFIT_TYPES = frozenset(("money", "xid", "cid", "tid"))
"""Types whose text depends on the server."""
_TABLES = """
SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
       c.relispartition OR EXISTS (SELECT FROM pg_inherits WHERE c.oid IN (inhrelid, inhparent)),
       EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal AND tgdeferrable
               AND tgname <> 'groupcert_note'),
       EXISTS (SELECT FROM pg_constraint WHERE conrelid = c.oid AND contype = 'x'),
       EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid AND tgname = 'groupcert_note')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f') AND n.nspname NOT LIKE 'pg\\_%%'
  AND n.nspname NOT IN ('information_schema', 'groupcert')
ORDER BY n.nspname, c.relname"""
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, NULL), t.typtype::text, a.attgenerated <> '',
       a.attidentity <> '', coalesce(l.collisdeterministic, true)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_INDEXES = """
SELECT c.relname, i.indisprimary, i.indexprs IS NOT NULL, i.indnullsnotdistinct,
       array_agg(a.attname ORDER BY a.attnum)::text[]
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_attribute a ON a.attrelid = i.indexrelid AND a.attnum <= i.indnkeyatts
WHERE i.indrelid = %s AND i.indisunique GROUP BY 1, 2, 3, 4 ORDER BY 1"""
_REFERENCES = """
SELECT n.nspname, c.relname,
       ARRAY(SELECT a.attname FROM unnest(f.conkey) WITH ORDINALITY k(number, place)
             JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.number
             ORDER BY place)::text[],
       ARRAY(SELECT a.attname FROM unnest(f.confkey) WITH ORDINALITY k(number, place)
             JOIN pg_attribute a ON a.attrelid = f.confrelid AND a.attnum = k.number
             ORDER BY place)::text[]
FROM pg_constraint f JOIN pg_class c ON c.oid = {other}
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE f.contype = 'f' AND {own} = %s ORDER BY f.conname"""


class Column(NamedTuple):
    """A column: its type without modifiers; `is_written` unless the server generates it; `is_json`
    if its type is JSON, or a domain, which may be over that.
    """

    name: str
    type: str
    is_written: bool
    is_identity: bool
    is_json: bool = False


class UniqueKey(NamedTuple):
    """A unique index; one with `nulls_differ` takes any number of rows with a NULL."""

    name: str
    columns: tuple[str, ...]
    nulls_differ: bool


class Reference(NamedTuple):
    """A foreign key, from either end: the parent table, its columns, and the child's columns."""

    parent: str
    parent_columns: tuple[str, ...]
    child_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the server; `problem` says why it is kept out, "" if it is not."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    unique_keys: tuple[UniqueKey, ...]
    parents: tuple[Reference, ...]
    children: tuple[Reference, ...]
    is_attached: bool
    problem: str = ""

    @property
    def full_name(self) -> str:
        """The name as rows have it: `schema.table`."""
        return f"{self.schema}.{self.name}"

    @property
    def column_names(self) -> frozenset[str]:
        """The names of all columns."""
        return frozenset(column.name for column in self.columns)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """All columns of keys, once: of a row's former values these are needed."""
        names = [*self.key]
        for unique in self.unique_keys:
            names += unique.columns
        for parent in self.parents:
            names += parent.child_columns
        for child in self.children:
            names += child.parent_columns
        return tuple(dict.fromkeys(names))


def read_tables(connection: "psycopg.Connection[Any]", patterns: Sequence[str]) -> list[Table]:
    """Returns the tables whose full names match one of the patterns, such as `public.*`."""
    found = []
    for row in connection.execute(_TABLES.replace("%%", "%")).fetchall():
        oid, schema, name, *_ = row
        if any(fnmatch.fnmatchcase(f"{schema}.{name}", pattern) for pattern in patterns):
            found.append(_table(connection, oid, schema, name, row))
    return found


def attached_tables(connection: "psycopg.Connection[Any]") -> dict[str, Table]:
    """Returns the attached tables by their full names."""
    return {table.full_name: table for table in read_tables(connection, ["*"]) if table.is_attached}


def _table(
    connection: "psycopg.Connection[Any]", oid: int, schema: str, name: str, row: Sequence[Any]
) -> Table:
    described = connection.execute(_COLUMNS, (oid,)).fetchall()
    columns = tuple(
        Column(column, kind, not generated, identity, kind in JSON_TYPES or type_kind == "d")
        for column, kind, type_kind, generated, identity, _ in described
    )
    indexes = connection.execute(_INDEXES, (oid,)).fetchall()
    parents = _references(connection, oid, other="f.confrelid", own="f.conrelid")
    children = _references(connection, oid, other="f.confrelid", own="f.confrelid")
    table = Table(
        schema=schema,
        name=name,
        columns=columns,
        key=next((tuple(of) for _, is_primary, *_, of in indexes if is_primary), ()),
        unique_keys=tuple(
            UniqueKey(index, tuple(of), not nulls_not_distinct)
            for index, is_primary, _, nulls_not_distinct, of in indexes
            if not is_primary
        ),
        parents=parents,
        children=children,
        is_attached=bool(row[8]),
    )
    has_expressions = any(has for _, _, has, *_ in indexes)
    problem = _problem(table, row, described, has_expressions=has_expressions)
    return table if not problem else _kept_out(table, problem)


def _kept_out(table: Table, problem: str) -> Table:
    fields = {name: getattr(table, name) for name in Table.__dataclass_fields__}
    return Table(**{**fields, "problem": problem})


def _references(
    connection: "psycopg.Connection[Any]", oid: int, *, other: str, own: str
) -> tuple[Reference, ...]:
    query = _REFERENCES.format(other=other, own=own).encode()
    rows = connection.execute(query, (oid,)).fetchall()
    return tuple(
        Reference(f"{schema}.{name}", tuple(parent), tuple(child))
        for schema, name, child, parent in rows
    )


def _problem(
    table: Table, row: Sequence[Any], described: Sequence[Any], *, has_expressions: bool
) -> str:
    """Returns why a table is kept out, or ""."""
    _, schema, name, kind, persistence, is_inherited, has_deferred, has_exclusion, _ = row
    if {".", "/", "*"} & {*schema, *name}:
        return "its name has a dot, a slash or a star"
    if kind != "r" or is_inherited:
        return "it is partitioned, inherited or foreign"
    if persistence != "p":
        return "it is not logged, and empty after a crash"
    if not table.key:
        return "it has no primary key"
    if has_exclusion:
        return "it has an exclusion constraint, of which no other server learns"
    if has_deferred:
        return "it has a deferred trigger, which may change rows after certification"
    if has_expressions:
        return "it has a unique index over an expression"
    key_columns = table.key_columns
    for column, kind, type_kind, is_generated, is_identity, is_exact in described:
        if column in key_columns:
            if kind not in KEY_TYPES and type_kind != "e":
                return f"column {column} of a key is of type {kind}, whose equal values may differ"
            if not is_exact:
                return f"column {column} of a key has a collation that holds texts equal"
            if is_generated:
                return f"column {column} of a key is generated"
        elif is_identity:
            return f"column {column} is an identity outside of every key"
        if kind in UNFIT_TYPES or type_kind in "cp":
            return f"column {column} is of type {kind}, whose text is this server's own"
    return ""
