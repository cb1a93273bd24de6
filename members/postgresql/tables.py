"""The tables of a server: which may be attached, why others are kept out, and their keys.

A table is kept out where a row of it could be written twice without a conflict, or could not be
written again as it was: it has no primary key, keys that compare equal with other texts, columns
whose text depends on the server. Keys are read by the numbers of their columns: the name of an
index's column stays what it was when the table's is renamed.
"""

import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import psycopg
from psycopg.sql import Identifier, Literal

KEY_TYPES = frozenset(
    (
        "smallint",
        "integer",
        "bigint",
        "numeric",
        "boolean",
        "text",
        "character varying",
        "character",
        "name",
        "uuid",
        "bytea",
        "date",
        "timestamp without time zone",
        "timestamp with time zone",
    )
)
"""Types of which equal values have equal texts, once numbers have lost their zeros."""
JSON_TYPES = frozenset(("json", "jsonb"))
UNFIT_TYPES = (
    "money",
    "xid",
    "cid",
    "tid",
    "regclass",
    "regcollation",
    "regconfig",
    "regdictionary",
    "regnamespace",
    "regoper",
    "regoperator",
    "regproc",
    "regprocedure",
    "regrole",
    "regtype",
)
"""Types whose text depends on the server, wherever they stand in a column's type."""
_TABLES = """
SELECT c.oid::bigint AS oid, n.nspname AS schema, c.relname AS name, r.rolname AS owner,
       EXISTS (SELECT FROM pg_class WHERE oid = ANY(parts) AND relkind = 'f') AS is_foreign,
       NOT EXISTS (SELECT FROM pg_class WHERE oid = ANY(parts) AND relpersistence <> 'p')
           AS is_logged,
       c.relkind = 'p' AS is_partitioned,
       c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits WHERE c.oid IN (inhrelid, inhparent))
           AS is_inherited,
       EXISTS (SELECT FROM pg_trigger WHERE tgrelid = ANY(parts) AND NOT tgisinternal
               AND tgdeferrable) AS has_deferred_trigger,
       EXISTS (SELECT FROM pg_trigger WHERE tgrelid = ANY(parts) AND NOT tgisinternal
               AND tgenabled IN ('A', 'R'))
       OR EXISTS (SELECT FROM pg_rewrite WHERE ev_class = ANY(parts) AND ev_enabled IN ('A', 'R'))
           AS has_trigger_everywhere,
       EXISTS (SELECT FROM pg_constraint WHERE conrelid = ANY(parts) AND contype = 'x')
           AS has_exclusion,
       (SELECT min(indexrelid::regclass::text) FROM pg_index
        WHERE indrelid = ANY(parts) AND indrelid <> c.oid AND indisunique
        AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = indexrelid)) AS own_index,
       (SELECT min(conname) FROM pg_constraint WHERE contype = 'f' AND conparentid = 0
        AND (conrelid = ANY(parts) AND conrelid <> c.oid
             OR confrelid = ANY(parts) AND confrelid <> c.oid)) AS own_reference,
       c.relforcerowsecurity AND NOT r.rolbypassrls AND NOT r.rolsuper AS hides_rows,
       array_remove(ARRAY(SELECT CASE WHEN NOT has_table_privilege(c.relowner, c.oid, what)
                                      THEN what END
                          FROM unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) what)
                    || CASE WHEN NOT has_schema_privilege(c.relowner, n.oid, 'USAGE')
                            THEN 'USAGE of its schema' END, NULL) AS not_granted,
       c.oid IN (SELECT relation FROM groupcert.attached) AS is_attached,
       ARRAY(SELECT ARRAY[y.nspname, x.relname] FROM pg_class x JOIN pg_namespace y
             ON y.oid = x.relnamespace WHERE x.oid = ANY(parts) AND x.oid <> c.oid
             ORDER BY 1)::text[] AS partitions
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner
CROSS JOIN LATERAL (SELECT array_agg(oid) FROM (
    SELECT c.oid UNION SELECT relid FROM pg_partition_tree(c.oid)) part(oid)) tree(parts)
WHERE c.relkind IN ('r', 'p', 'f') AND NOT c.relispartition AND n.nspname !~ '^pg_'
  AND n.nspname NOT IN ('information_schema', 'groupcert')
  AND (%(names)s::text[] IS NULL OR n.nspname || '.' || c.relname = ANY(%(names)s)
       OR c.oid IN (SELECT relation FROM groupcert.attached))
ORDER BY n.nspname, c.relname"""
_BASE = """
LATERAL (WITH RECURSIVE base AS (
    SELECT oid, typtype, typbasetype FROM pg_type WHERE oid = {type}
    UNION ALL SELECT t.oid, t.typtype, t.typbasetype FROM base b JOIN pg_type t
    ON b.typtype = 'd' AND t.oid = b.typbasetype)
 SELECT oid, format_type(oid, NULL) AS name, typtype = 'e' AS is_enum FROM base
 WHERE typtype <> 'd')
 {name}"""
"""The type below domains."""
_COLUMNS = f"""
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type, b.name AS base_type,
       b.is_enum, b.oid < 16384 AS is_built_in, a.attgenerated = '' AS is_written,
       a.attidentity = 'a' AS is_always_identity, coalesce(l.collisdeterministic, true) AS is_exact,
       (SELECT min(format_type(part, NULL)) FROM groupcert.parts_of(a.atttypid) part
        WHERE format_type(part, NULL) = ANY(%(unfit)s)) AS unfit_part
FROM pg_attribute a LEFT JOIN pg_collation l ON l.oid = a.attcollation,
{_BASE.format(type="a.atttypid", name="b")}
WHERE a.attrelid = %(table)s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_KEY_TYPE = (
    "coalesce((SELECT atttypid FROM pg_attribute WHERE attrelid = i.indrelid"
    " AND attnum = i.indkey[k.place - 1]), x.atttypid)"
)
"""A column's own type: an index may keep another one of it, as it does of `name`."""
_INDEXES = f"""
SELECT c.relname AS name, i.indisprimary AS is_primary, i.indnullsnotdistinct AS nulls_are_equal,
       i.indimmediate AS is_immediate, pg_get_expr(i.indpred, i.indrelid) AS predicate,
       CASE WHEN i.indkey[k.place - 1] > 0 THEN
           (SELECT attname FROM pg_attribute WHERE attrelid = i.indrelid
            AND attnum = i.indkey[k.place - 1])
       END AS "column",
       pg_get_indexdef(i.indexrelid, k.place, false) AS expression, b.name AS base_type,
       b.is_enum, coalesce(l.collisdeterministic, true) AS is_exact,
       ARRAY(SELECT a.attname FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum > 0
             AND (a.attnum = ANY(i.indkey) OR EXISTS (
                 SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
                 AND d.objid = i.indexrelid AND d.refclassid = 'pg_class'::regclass
                 AND d.refobjid = i.indrelid AND d.refobjsubid = a.attnum))
             ORDER BY a.attnum)::text[] AS used
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
CROSS JOIN LATERAL generate_series(1, i.indnkeyatts) k(place)
JOIN pg_attribute x ON x.attnum = k.place AND x.attrelid = i.indexrelid
LEFT JOIN pg_collation l ON l.oid = x.attcollation,
{_BASE.format(type=_KEY_TYPE, name="b")}
WHERE i.indrelid = %(table)s AND i.indisunique ORDER BY c.relname, k.place"""
_REFERENCES = """
SELECT n.nspname, c.relname,
       ARRAY(SELECT a.attname FROM unnest(f.conkey) WITH ORDINALITY k(number, place)
             JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.number
             ORDER BY place)::text[],
       ARRAY(SELECT a.attname FROM unnest(f.confkey) WITH ORDINALITY k(number, place)
             JOIN pg_attribute a ON a.attrelid = f.confrelid AND a.attnum = k.number
             ORDER BY place)::text[]
FROM pg_constraint f JOIN pg_class c ON c.oid = f.confrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE f.contype = 'f' AND f.conparentid = 0 AND {own} = %s ORDER BY f.conname"""
_REFUSALS = """
SELECT format('(%%s) IS FALSE', pg_get_expr(conbin, conrelid)) AS refusal FROM pg_constraint
WHERE conrelid = %(table)s AND contype = 'c'
UNION ALL
SELECT format('concat(%%s) <> concat(%%I)', pg_get_expr(d.adbin, d.adrelid), a.attname)
FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %(table)s AND a.attgenerated <> ''
UNION ALL
SELECT format('concat(%%s) IS NULL', expression) FROM pg_index, LATERAL (
    SELECT pg_get_expr(indexprs, indrelid) UNION ALL SELECT pg_get_expr(indpred, indrelid)
) has(expression) WHERE indrelid = %(table)s AND expression IS NOT NULL
UNION ALL
SELECT format('concat(CASE WHEN %%1$I IS DISTINCT FROM NULL THEN format(''%%%%s'', %%1$I)::%%2$s'
              ' END) IS NULL', a.attname, format_type(a.atttypid, a.atttypmod))
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid AND t.typtype = 'd'
WHERE a.attrelid = %(table)s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY 1"""
"""What holds for a row that other servers would refuse, or raises for it: it asks what the table's
owner has put into CHECKs, generated columns, indexes and domains. `concat` is never NULL."""
_PATH = "SELECT pg_catalog.set_config('search_path', %s, false)"


class Column(NamedTuple):
    """A column: its type with modifiers, as SQL has it, and the type below domains."""

    name: str
    type: str
    base_type: str
    is_written: bool = True
    """False: the server generates it."""
    is_always_identity: bool = False
    is_enum: bool = False
    is_built_in: bool = True
    """The type below domains comes with PostgreSQL: no cast of a user's applies to it."""

    @property
    def quoted(self) -> str:
        """The name as SQL has it."""
        return quoted(self.name)


class KeyPart(NamedTuple):
    """A column or an expression of a key, as SQL has it, and the type of its values."""

    expression: str
    base_type: str


class UniqueKey(NamedTuple):
    """A unique index beside the primary key.

    `nulls_differ`: it takes any number of rows with a NULL. `predicate`: which rows it has, as SQL
    over the table's columns; "": all. `used`: the columns that parts and predicate read.
    """

    name: str
    parts: tuple[KeyPart, ...]
    nulls_differ: bool
    predicate: str
    used: tuple[str, ...]


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
    owner: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    unique_keys: tuple[UniqueKey, ...] = ()
    parents: tuple[Reference, ...] = ()
    children: tuple[Reference, ...] = ()
    is_partitioned: bool = False
    partitions: tuple[tuple[str, str], ...] = ()
    """Schemas and names of all partitions, below each other too: statements may name these."""
    refusals: tuple[str, ...] = ()
    """Conditions that hold for rows which other servers would refuse, as SQL over the columns."""
    has_immediate_key: bool = True
    """ON CONFLICT takes the primary key: it is not deferrable."""
    is_attached: bool = False
    problem: str = ""

    @property
    def full_name(self) -> str:
        """The name as rows have it: `schema.table`."""
        return f"{self.schema}.{self.name}"

    @property
    def quoted(self) -> str:
        """The name as SQL has it."""
        return quoted(self.schema, self.name)

    @property
    def relations(self) -> list[tuple[str, str]]:
        """The table and its partitions: TRUNCATE may name any of them."""
        return [(self.schema, self.name), *self.partitions]

    @property
    def key_columns(self) -> list[Column]:
        """The columns of the primary key, in its order."""
        return [self.column(name) for name in self.key]

    @property
    def written(self) -> list[str]:
        """The names of the columns that statements write."""
        return [column.name for column in self.columns if column.is_written]

    @property
    def column_names(self) -> frozenset[str]:
        """The names of all columns."""
        return frozenset(column.name for column in self.columns)

    @property
    def noted_columns(self) -> tuple[Column, ...]:
        """The columns of which keys and items are made, in the table's order."""
        names = {*self.key}
        for unique in self.unique_keys:
            names.update(unique.used)
        for parent in self.parents:
            names.update(parent.child_columns)
        for child in self.children:
            names.update(child.parent_columns)
        return tuple(column for column in self.columns if column.name in names)

    def column(self, name: str) -> Column:
        """Returns a column by its name."""
        return next(column for column in self.columns if column.name == name)


def quoted(*name: str) -> str:
    """Returns a name as SQL has it."""
    return Identifier(*name).as_string(None)


def literal(text: str) -> str:
    """Returns a text as SQL has it."""
    return Literal(text).as_string(None)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Returns whether a full name matches one of the patterns, as `groupcert.matches` does."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def read_tables(connection: "psycopg.Connection[Any]", patterns: Sequence[str]) -> list[Table]:
    """Returns the tables whose full names match one of the patterns, such as `public.*`."""
    return _read(connection, patterns, None)


def attached_tables(
    connection: "psycopg.Connection[Any]", others: Collection[str] = ()
) -> dict[str, Table]:
    """Returns the attached tables by their full names, and others that are named. It waits for no
    lock of a table beside these, as a migration that is open has it.
    """
    found = {table.full_name: table for table in _read(connection, ["*"], [*others])}
    return {name: table for name, table in found.items() if table.is_attached or name in others}


def _read(
    connection: "psycopg.Connection[Any]", patterns: Sequence[str], names: Sequence[str] | None
) -> list[Table]:
    """Returns tables that match a pattern, of attached ones and those of some names (None: all)."""
    ((path,),) = connection.execute("SELECT pg_catalog.current_setting('search_path')").fetchall()
    # Types and functions are given with their schemas then, and no temporary table stands for one
    # of the catalogue.
    connection.execute(_PATH, ("pg_catalog, pg_temp",))
    found = [
        _table(connection, row)
        for row in _rows(connection, _TABLES, {"names": names})
        if matches(f"{row['schema']}.{row['name']}", patterns)
    ]
    connection.execute(_PATH, (path,))
    return found


def _rows(
    connection: "psycopg.Connection[Any]", query: str, values: "Mapping[str, object] | None" = None
) -> list[dict[str, Any]]:
    cursor = connection.cursor(row_factory=psycopg.rows.dict_row)
    return cursor.execute(query.encode(), values).fetchall()


def _table(connection: "psycopg.Connection[Any]", row: Mapping[str, Any]) -> Table:
    described = _rows(connection, _COLUMNS, {"table": row["oid"], "unfit": [*UNFIT_TYPES]})
    columns = tuple(Column(*(each[field] for field in Column._fields)) for each in described)
    parts = _rows(connection, _INDEXES, {"table": row["oid"]})
    indexes: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        indexes.setdefault(part["name"], []).append(part)
    primary = next((of for of in indexes.values() if of[0]["is_primary"]), [])
    table = Table(
        schema=row["schema"],
        name=row["name"],
        owner=row["owner"],
        columns=columns,
        key=tuple(part["column"] for part in primary),
        unique_keys=tuple(_unique_key(of) for of in indexes.values() if not of[0]["is_primary"]),
        parents=_references(connection, row["oid"], own="f.conrelid"),
        children=_references(connection, row["oid"], own="f.confrelid"),
        refusals=tuple(
            each["refusal"] for each in _rows(connection, _REFUSALS, {"table": row["oid"]})
        ),
        has_immediate_key=all(part["is_immediate"] for part in primary),
        is_partitioned=row["is_partitioned"],
        partitions=tuple((schema, name) for schema, name in row["partitions"]),
        is_attached=row["is_attached"],
    )
    return replace(table, problem=_problem(table, row, described, parts))


def _unique_key(parts: Sequence[Mapping[str, Any]]) -> UniqueKey:
    first = parts[0]
    return UniqueKey(
        first["name"],
        tuple(KeyPart(part["expression"], part["base_type"]) for part in parts),
        not first["nulls_are_equal"],
        first["predicate"] or "",
        tuple(first["used"]),
    )


def _references(
    connection: "psycopg.Connection[Any]", oid: int, *, own: str
) -> tuple[Reference, ...]:
    rows = connection.execute(_REFERENCES.format(own=own).encode(), (oid,)).fetchall()
    return tuple(
        Reference(f"{schema}.{name}", tuple(parent), tuple(child))
        for schema, name, child, parent in rows
    )


def _problem(
    table: Table,
    row: Mapping[str, Any],
    columns: Sequence[Mapping[str, Any]],
    parts: Sequence[Mapping[str, Any]],
) -> str:
    """Returns the reason for which a table is kept out, or ""."""
    # Rows are named `schema.table/key`, and patterns have stars.
    if {".", "/", "*"} & {*table.schema, *table.name}:
        return "its name has a dot, a slash or a star"
    if row["is_inherited"] or row["is_foreign"]:
        return "it is inherited or foreign, or a partition of it is"
    if own := row["own_index"] or row["own_reference"]:
        return f"a partition of it alone has the index or foreign key {own}"
    if not row["is_logged"]:
        return "it is not logged, and empty after a crash"
    if not table.key:
        return "it has no primary key"
    if row["has_exclusion"]:
        return "it has an exclusion constraint, of which no other server learns"
    if row["has_deferred_trigger"]:
        return "it has a deferred trigger, which may change rows after certification"
    if row["has_trigger_everywhere"]:
        return "it has a trigger or a rule that is enabled for replicas: each server would run it"
    if row["not_granted"]:
        return f"its owner {table.owner} has no {', '.join(row['not_granted'])}: GRANT it"
    if row["hides_rows"]:
        return f"it forces row security upon its owner {table.owner}"
    for part in parts:
        name, kind = part["column"] or f"({part['expression']})", part["base_type"]
        if kind not in KEY_TYPES and not part["is_enum"]:
            return (
                f"{name} of index {part['name']} is of type {kind}, whose equal values may differ"
            )
        if not part["is_exact"]:
            return f"{name} of index {part['name']} has a collation that holds texts equal"
    referring = {name for parent in table.parents for name in parent.child_columns}
    for column in columns:
        name, kind = column["name"], column["base_type"]
        if name in referring and kind not in KEY_TYPES and not column["is_enum"]:
            return f"column {name} of a key is of type {kind}, whose equal values may differ"
        if name in referring and not column["is_exact"]:
            return f"column {name} of a key has a collation that holds texts equal"
        if column["unfit_part"]:
            return f"column {name} has a {column['unfit_part']}, whose text is this server's own"
    return ""
