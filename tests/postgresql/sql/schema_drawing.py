"""Draws what a case makes at all servers: types, functions, tables with keys, rules and rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from tests.postgresql.sql.case import CLIENTS, MARKS, OWNERS, SUPERUSER, Definition
from tests.postgresql.sql.literals import (
    KEY_TYPES,
    TYPES,
    TYPES_OF_SCHEMA,
    USUAL_KEY_TYPES,
    ColumnType,
    draw_value,
    literal,
    quoted,
)

TABLES_MAX = 3
ROWS_MAX = 4
"""Of each table, before it is attached."""
TABLE_NAMES = ("t", "Übung", "with space", 'quo"te', "50%", "%s", "select", "o'clock", "x" * 63)
COLUMN_NAMES = (
    "id",
    "Größe",
    "a b",
    'quo"te',
    "50%",
    "%s",
    "order",
    "o'clock",
    "n" * 63,
    "UPPER",
    "{x}",
    "new",
    "old",
    "value",
    "tableoid_",
    "a,b",
)
PLAIN_NAMES = tuple("abcdefghijklmnop")
"""In most cases: odd names would hide what else is wrong with a tree that does not take them."""
ACTIONS = ("NO ACTION", "RESTRICT", "CASCADE", "SET NULL", "SET DEFAULT")
INTEGER, TEXT, BOOLEAN = (
    next(each for each in TYPES if each.sql == name) for name in ("int", "text", "boolean")
)
EMAIL = ColumnType("text", ("a@x", "b@x"), True)
ATTEMPTS = (
    "RESET ROLE",
    "SET ROLE NONE",
    "SET SESSION AUTHORIZATION DEFAULT",
    *(f"ALTER ROLE {quoted(name)} SUPERUSER" for name in (*OWNERS, *CLIENTS)),
    f"GRANT {quoted(OWNERS[0])} TO {CLIENTS[0]}",
    "ALTER TABLE groupcert.settings OWNER TO client_a",
    "GRANT SELECT ON groupcert.settings TO PUBLIC",
)
"""What functions of owners try, in whoever's session they are called."""


class Column(NamedTuple):
    """A column by its name as SQL takes it; `is_given` unless the server computes it."""

    name: str
    type: ColumnType
    is_given: bool = True


@dataclass(slots=True)
class Table:
    """A table as sessions write it; names are as SQL takes them."""

    schema: str
    own_name: str
    owner: str
    columns: list[Column] = field(default_factory=list)
    key: tuple[str, ...] = ()
    conflicts: list[str] = field(default_factory=list)
    """Targets of ON CONFLICT."""
    partial: list[tuple[str, str]] = field(default_factory=list)
    """Columns of unique indexes over the rows that a flag is not set in, each with the flag."""
    triggers: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """With its schema."""
        return f"{self.schema}.{self.own_name}"

    @property
    def given(self) -> list[Column]:
        """Columns that a session may write."""
        return [column for column in self.columns if column.is_given]


class Drawn(NamedTuple):
    """What a schema drawing is."""

    schemas: tuple[str, ...]
    preamble: list[Definition]
    definitions: list[Definition]
    tables: list[Table]


def draw_schemas(chance: Random, seed: int) -> Drawn:
    """Returns two schemas, one an owner, with their tables."""
    is_odd = chance.random() < 0.3
    odd_schema = chance.choice((f'case_{seed}_B "q%', f"case_{seed}_ü o'b"))
    schemas = (f"case_{seed}_a", odd_schema if is_odd else f"case_{seed}_b")
    preamble = [
        definition
        for schema, owner in zip(map(quoted, schemas), OWNERS, strict=True)
        for definition in _preamble_of(schema, owner)
    ]
    marks = f"CREATE TABLE {quoted(schemas[0])}.{MARKS} (id int PRIMARY KEY)"
    preamble.append(Definition(OWNERS[0], marks))
    definitions = [
        *_definitions_of(OWNERS[0], TYPES_OF_SCHEMA, quoted(schemas[0])),
        *(
            definition
            for schema, owner in zip(map(quoted, schemas), OWNERS, strict=True)
            for definition in _functions_of(schema, owner)
        ),
    ]
    tables: list[Table] = []
    names = chance.sample(TABLE_NAMES if is_odd else ("one", "two", "three"), TABLES_MAX)
    column_names = COLUMN_NAMES if is_odd else PLAIN_NAMES
    for name in names[: chance.randint(1, TABLES_MAX)]:
        place = chance.choice((0, 0, 1))
        table = Table(quoted(schemas[place]), quoted(name), OWNERS[place])
        drawing = _TableDrawing(chance, table, tables, quoted(schemas[0]), column_names)
        definitions += _definitions_of(table.owner, drawing.statements(), table.schema)
        tables.append(table)
    for table in tables:
        definitions += _definitions_of(table.owner, _late_statements(chance, table), table.schema)
    return Drawn(schemas, preamble, definitions, tables)


def _preamble_of(schema: str, owner: str) -> Iterator[Definition]:
    yield Definition(SUPERUSER, f"CREATE SCHEMA {schema} AUTHORIZATION {quoted(owner)}")
    yield Definition(owner, f"GRANT USAGE ON SCHEMA {schema} TO PUBLIC")
    for kind in ("TABLES", "SEQUENCES"):
        granted = f"IN SCHEMA {schema} GRANT ALL ON {kind} TO PUBLIC"
        yield Definition(owner, f"ALTER DEFAULT PRIVILEGES {granted}")


def _definitions_of(owner: str, statements: Sequence[str], own: str) -> list[Definition]:
    return [Definition(owner, statement.replace("OWN.", f"{own}.")) for statement in statements]


def _functions_of(schema: str, owner: str) -> list[Definition]:
    """Returns functions for expressions, checks and triggers; each tries to gain rights."""
    tried = "\n".join(
        f"BEGIN EXECUTE {literal(attempt)}; EXCEPTION WHEN OTHERS THEN NULL; END;"
        for attempt in (*ATTEMPTS, "SELECT set_config('role', 'postgres', false)")
    )
    functions = (
        ("attempt() RETURNS void VOLATILE", tried),
        ("shown(text) RETURNS text IMMUTABLE", "PERFORM OWN.attempt(); RETURN lower($1);"),
        ("holds(text) RETURNS boolean IMMUTABLE", "PERFORM OWN.attempt(); RETURN $1 <> 'never';"),
        ("found(text) RETURNS boolean IMMUTABLE", "RETURN holds($1);"),
        ("tries() RETURNS trigger", "PERFORM OWN.attempt(); RETURN NEW;"),
    )
    statements = [
        f"CREATE FUNCTION OWN.{head} LANGUAGE plpgsql AS $$ BEGIN {body} END $$"
        for head, body in functions
    ]
    collation = "(provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    statements.append(f"CREATE COLLATION OWN.alike {collation}")
    return _definitions_of(owner, statements, schema)


class _TableDrawing:
    """Draws one table; the statements name its columns before they are renamed."""

    def __init__(
        self,
        chance: Random,
        table: Table,
        earlier: Sequence[Table],
        first_schema: str,
        column_names: Sequence[str],
    ) -> None:
        self._chance = chance
        self._table = table
        self._earlier = earlier
        self._first_schema = first_schema
        self._names = chance.sample(column_names, len(column_names))
        self._written: list[str] = []

    def statements(self) -> list[str]:
        """Returns what makes the table, its keys and rules, and fills `table`."""
        self._draw_columns()
        return [*self._create(), *self._keys(), *self._references(), *self._rules()]

    def _is(self, share: float) -> bool:
        return self._chance.random() < share

    def _add(self, column_type: ColumnType, more: str = "", *, is_given: bool = True) -> str:
        name = quoted(self._names.pop())
        self._table.columns.append(Column(name, column_type, is_given))
        # The types are the first owner's, whoever has the table.
        written = column_type.sql.replace("OWN.", f"{self._first_schema}.")
        self._written.append(f"{name} {written} {more}".rstrip())
        return name

    def _draw_columns(self) -> None:
        chance = self._chance
        if self._is(0.15):
            self._written.append("dropped int DEFAULT 7")
        identity = chance.choice(("ALWAYS", "BY DEFAULT"))
        may_be_given = identity != "ALWAYS" or self._is(0.3)
        key = [
            self._add(INTEGER, "NOT NULL")
            if (drawn := chance.random()) < 0.4
            else self._add(INTEGER, f"GENERATED {identity} AS IDENTITY", is_given=may_be_given)
            if drawn < 0.65
            else self._add(ColumnType("serial", INTEGER.values))
            if drawn < 0.7
            else self._add(self._key_type(), self._collation(0.1) + "NOT NULL")
        ]
        if self._is(0.25):
            key.append(self._add(self._key_type(), "NOT NULL"))
        self._table.key = tuple(key)
        for _ in range(chance.randint(1, 3)):
            self._add(chance.choice(TYPES))
        if self._is(0.6):
            self._add(EMAIL, self._collation(0.15))
        if self._is(0.6):
            self._add(BOOLEAN, "NOT NULL DEFAULT false")
        if self._is(0.2):
            source = chance.choice(key)
            shown = f"{self._table.schema}.shown({source}::text)"
            self._add(TEXT, f"GENERATED ALWAYS AS ({shown}) STORED", is_given=False)

    def _key_type(self) -> ColumnType:
        return self._chance.choice(KEY_TYPES if self._is(0.15) else USUAL_KEY_TYPES)

    def _collation(self, share: float) -> str:
        if not self._is(share):
            return ""
        collations = (f"{self._table.schema}.alike", 'pg_catalog."C"', 'pg_catalog."und-x-icu"')
        return f"COLLATE {self._chance.choice(collations)} "

    def _create(self) -> Iterator[str]:
        name, columns = self._table.name, ", ".join(self._written)
        drawn = self._chance.random()
        if drawn < 0.04:
            yield f"CREATE TABLE {name} ({columns}) PARTITION BY HASH ({self._table.key[0]})"
            for number in range(2):
                part = f"{self._table.schema}.part_{number}_{len(self._earlier)}"
                values = f"(MODULUS 2, REMAINDER {number})"
                yield f"CREATE TABLE {part} PARTITION OF {name} FOR VALUES WITH {values}"
        elif drawn < 0.08 and self._earlier:
            parent = self._chance.choice(self._earlier).name
            yield f"CREATE TABLE {name} ({columns}) INHERITS ({parent})"
        else:
            yield f"CREATE {'UNLOGGED ' if drawn > 0.97 else ''}TABLE {name} ({columns})"
        if self._written[0].startswith("dropped"):
            yield f"ALTER TABLE {name} DROP dropped"

    def _keys(self) -> Iterator[str]:
        chance, table = self._chance, self._table
        deferred = chance.choice(("", " DEFERRABLE INITIALLY DEFERRED")) if self._is(0.15) else ""
        key = ", ".join(table.key)
        if self._is(0.94):
            yield f"ALTER TABLE {table.name} ADD PRIMARY KEY ({key}){deferred}"
            table.conflicts.append(f"({key})")
        flags = [each.name for each in table.columns if each.type is BOOLEAN]
        candidates = [each for each in table.columns if each.type.is_key and each.is_given]
        for number in range(chance.choice((0, 1, 1, 2)) if candidates else 0):
            emails = [each for each in candidates if each.type is EMAIL]
            column = chance.choice(emails if emails and self._is(0.6) else candidates).name
            index = f"CREATE UNIQUE INDEX ON {table.name}"
            flag = chance.choice(flags) if flags else ""
            partial = f"NOT {flag}" if flag else f"{column} IS NOT NULL"
            constraint = f"ALTER TABLE {table.name} ADD CONSTRAINT unique_{number} UNIQUE"
            kinds: tuple[tuple[str, str], ...] = (
                (f"{constraint} ({column})", f"({column})"),
                (f"{constraint} ({column}) DEFERRABLE INITIALLY DEFERRED", ""),
                (f"{index} ({column}) NULLS NOT DISTINCT", f"({column})"),
                (f"{index} ({column}) WHERE {partial}", f"({column}) WHERE {partial}"),
                (f"{index} ({column}) WHERE {partial}", f"({column}) WHERE {partial}"),
                (f"{index} (lower({column}::text))", ""),
                (f"{index} ({table.schema}.shown({column}::text))", ""),
            )
            statement, target = chance.choice(kinds)
            yield statement
            if flag and statement.endswith(f" WHERE {partial}"):
                table.partial.append((column, flag))
            if target:
                table.conflicts.append(target)
        if self._is(0.03):
            excluded = f"EXCLUDE USING btree ({table.key[0]} WITH =)"
            yield f"ALTER TABLE {table.name} ADD {excluded}"

    def _references(self) -> Iterator[str]:
        chance, table = self._chance, self._table
        if not self._is(0.5):
            return
        parents = [each for each in (*self._earlier, table) if len(each.key) == 1]
        if not parents:
            return
        parent = chance.choice(parents)
        parent_key = next(each for each in parent.columns if each.name == parent.key[0])
        own_name = quoted(self._names.pop())
        referring = ColumnType(parent_key.type.sql.replace("serial", "int"), parent_key.type.values)
        table.columns.append(Column(own_name, referring))
        written = referring.sql.replace("OWN.", f"{self._first_schema}.")
        yield f"ALTER TABLE {table.name} ADD {own_name} {written}"
        target = f"{parent.name} ({parent.key[0]})"
        actions = f"ON DELETE {chance.choice(ACTIONS)} ON UPDATE {chance.choice(ACTIONS)}"
        deferred = chance.choice(("", " DEFERRABLE", " DEFERRABLE INITIALLY DEFERRED"))
        reference = f"FOREIGN KEY ({own_name}) REFERENCES {target} {actions}{deferred}"
        yield f"ALTER TABLE {table.name} ADD CONSTRAINT refers {reference}"

    def _rules(self) -> Iterator[str]:
        table, key = self._table, self._table.key[0]
        if self._is(0.2):
            function = "found" if self._is(0.15) else "holds"
            check = f"{table.schema}.{function}({key}::text)"
            yield f"ALTER TABLE {table.name} ADD CONSTRAINT holds CHECK ({check})"
        if self._is(0.2):
            yield f"CREATE INDEX ON {table.name} ({table.schema}.shown({key}::text))"
        for _ in range(self._chance.choice((0, 0, 1))):
            yield from self._trigger()

    def _trigger(self) -> Iterator[str]:
        chance, table = self._chance, self._table
        name = f"trigger_{len(self._earlier)}"
        function = f"{table.schema}.{name}()"
        texts = [each.name for each in table.given if each.type in (TEXT, EMAIL)]
        others = [each for each in (*self._earlier, table) if each.given]
        other = chance.choice(others) if others else table
        bodies = ["PERFORM OWN.attempt();", f"INSERT INTO {table.schema}.log VALUES (TG_OP);"]
        if texts:
            column = chance.choice(texts)
            bodies.append(f"IF TG_OP <> 'DELETE' THEN NEW.{column} := upper(NEW.{column}); END IF;")
        if other is not table:
            column = chance.choice(other.given).name
            bodies.append(f"UPDATE {other.name} SET {column} = {column};")
        body = f"{chance.choice(bodies)} RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;"
        yield "CREATE TABLE IF NOT EXISTS OWN.log (operation text)"
        made = f"CREATE FUNCTION {function} RETURNS trigger LANGUAGE plpgsql"
        yield f"{made} AS $$ BEGIN {body} END $$"
        when = chance.choice(("BEFORE", "BEFORE", "AFTER"))
        events = f"{when} INSERT OR UPDATE OR DELETE ON {table.name}"
        yield f"CREATE TRIGGER {name} {events} FOR EACH ROW EXECUTE FUNCTION {function}"
        table.triggers.append(name)
        if self._is(0.1):
            yield f"ALTER TABLE {table.name} ENABLE ALWAYS TRIGGER {name}"


def _late_statements(chance: Random, table: Table) -> list[str]:
    """Returns the rows, then what would stand in their way or rename what they name."""
    statements = [insert_of(chance, table) for _ in range(chance.randint(1, ROWS_MAX))]
    late: list[tuple[float, Callable[[], Sequence[str]]]] = [
        (0.1, lambda: _policies(chance, table)),
        (0.2, lambda: _renamed(chance, table)),
        (0.05, lambda: [f"ALTER TABLE {table.name} REPLICA IDENTITY FULL"]),
    ]
    for share, make in late:
        if chance.random() < share:
            statements += make()
    return statements


def _policies(chance: Random, table: Table) -> list[str]:
    rule = chance.choice(("true", "current_user <> 'client_b'", "pg_backend_pid() > 0"))
    statements = [
        f"ALTER TABLE {table.name} ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY some_rows ON {table.name} USING ({rule})",
    ]
    if chance.random() < 0.5:
        statements.append(f"ALTER TABLE {table.name} FORCE ROW LEVEL SECURITY")
    return statements


def _renamed(chance: Random, table: Table) -> list[str]:
    """Renames a column, and notes its new name."""
    place = chance.choice((0, chance.randrange(len(table.columns))))
    old = table.columns[place]
    new = quoted(f"{old.name.strip(chr(34))[:50]} renamed")
    table.columns[place] = old._replace(name=new)
    table.key = tuple(new if name == old.name else name for name in table.key)
    table.conflicts = [each.replace(old.name, new) for each in table.conflicts]
    table.partial = [pair for pair in table.partial if old.name not in pair]
    return [f"ALTER TABLE {table.name} RENAME {old.name} TO {new}"]


def insert_of(chance: Random, table: Table, rows: int = 1) -> str:
    """Returns an INSERT of some values into the columns that may be given."""
    columns = table.given
    if not columns:
        return f"INSERT INTO {table.name} DEFAULT VALUES"
    names = ", ".join(column.name for column in columns)
    values = ", ".join(f"({row_of(chance, table)})" for _ in range(rows))
    overriding = chance.choice(("", "", "OVERRIDING SYSTEM VALUE "))
    return f"INSERT INTO {table.name} ({names}) {overriding}VALUES {values}"


def row_of(chance: Random, table: Table) -> str:
    """Returns values of the columns that may be given."""
    return ", ".join(
        draw_value(chance, column.type, 0.0 if column.name in table.key else 0.12)
        for column in table.given
    )
