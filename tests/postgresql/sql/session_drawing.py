"""Draws what sessions do: transactions of a few statements, and the order in which they interleave.

One driver runs the steps in their order, so that who saw what is drawn, too, as far as servers let
it: after most commits it waits until all servers have it.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random

from tests.postgresql.sql.case import (
    CLIENTS,
    MARKS,
    OWNERS,
    Case,
    Session,
    Step,
)
from tests.postgresql.sql.literals import draw_value, literal, quoted
from tests.postgresql.sql.schema_drawing import (
    BOOLEAN,
    Column,
    Drawn,
    Table,
    draw_schemas,
    insert_of,
    row_of,
)

SERVERS = 3
SESSIONS = 6
TRANSACTIONS = 20
OPEN_MAX = 3
"""Transactions that are open at the same time."""
STATEMENTS_MAX = 4
RACES_SHARE = 0.04
"""Of the steps behind which two servers change one table at once."""
DROPS_SHARE = 0.2
"""Of the cases whose owners have a session, those in which one drops a unique index."""
LOCK_CLASS = 1_735_156_336
"""Of the advisory locks by which a member sees transactions at their COMMIT."""
SETTINGS = (
    "datestyle = German",
    "datestyle = 'SQL, DMY'",
    "timezone = 'Asia/Kathmandu'",
    "intervalstyle = iso_8601",
    "intervalstyle = sql_standard",
    "extra_float_digits = 0",
    "extra_float_digits = -15",
    "bytea_output = escape",
    "xmloutput = document",
    "xmloption = document",
    "lc_monetary = 'C'",
    "statement_timeout = 40",
    "lock_timeout = 30",
    "transaction_isolation = 'serializable'",
    "default_transaction_isolation = 'read committed'",
    "row_security = off",
    "session_replication_role = replica",
    "check_function_bodies = off",
    "standard_conforming_strings = off",
    "search_path = ''",
    "search_path = pg_temp, public",
    "default_transaction_read_only = on",
    "default_transaction_deferrable = on",
    "synchronous_commit = off",
    "client_encoding = 'LATIN1'",
    "array_nulls = off",
    "transform_null_equals = on",
    "enable_seqscan = off",
    "plan_cache_mode = force_generic_plan",
    "escape_string_warning = off",
    "backslash_quote = on",
    "client_min_messages = debug1",
    "idle_in_transaction_session_timeout = 60",
    "quote_all_identifiers = on",
)


def draw_case(seed: int) -> Case:
    """Returns the case of a seed."""
    chance = Random(seed)
    drawn = draw_schemas(chance, seed)
    sessions = tuple(
        Session(number % SERVERS, chance.choice(CLIENTS * 2 + OWNERS)) for number in range(SESSIONS)
    )
    steps = tuple(
        _with_dropped_index(seed, drawn, sessions, [*_Drawing(chance, drawn, sessions).steps()])
    )
    preamble, definitions = tuple(drawn.preamble), tuple(drawn.definitions)
    return Case(seed, drawn.schemas, preamble, definitions, sessions, steps)


def _with_dropped_index(
    seed: int, drawn: Drawn, sessions: Sequence[Session], steps: Sequence[Step]
) -> Iterator[Step]:
    """Yields the steps, in some cases one more: an owner drops a unique index at one server. It is
    drawn by itself, so that other steps stay those of their seeds.
    """
    chance = Random(f"dropped index {seed}")
    table = chance.choice(drawn.tables)
    owned = [number for number, session in enumerate(sessions) if session.role == table.owner]
    place = chance.randrange(len(steps)) if owned and chance.random() < DROPS_SHARE else len(steps)
    for number, step in enumerate(steps):
        if number == place:
            name = literal(table.name)
            found = (
                "SELECT format('DROP INDEX %s', indexrelid::regclass) FROM pg_index WHERE"
                f" indrelid = {name}::regclass AND indisunique AND NOT indisprimary LIMIT 1"
            )
            drop = f"DO $do$ BEGIN EXECUTE ({found}); END $do$"
            yield Step(chance.choice(owned), step.transaction, "sql", drop)
        yield step


class _Drawing:
    def __init__(self, chance: Random, drawn: Drawn, sessions: Sequence[Session]) -> None:
        self._chance = chance
        self._tables = drawn.tables
        self._schemas = [quoted(schema) for schema in drawn.schemas]
        self._marks = f"{self._schemas[0]}.{MARKS}"
        self._sessions = sessions
        self._count = 0
        self._marked = 0

    def steps(self) -> Iterator[Step]:
        """Yields the steps of all sessions in one order."""
        chance = self._chance
        opened: dict[int, list[Step]] = {}
        current = 0
        for session in range(len(self._sessions)):
            if chance.random() < 0.4:
                path = f"SET search_path = {', '.join(self._schemas)}, public"
                yield self._step(session, "sql", path)
        while self._count < TRANSACTIONS or opened:
            if self._count < TRANSACTIONS and chance.random() < RACES_SHARE:
                yield from self._race([n for n in range(len(self._sessions)) if n not in opened])
                if self._count == TRANSACTIONS and not opened:
                    break
            if current not in opened or chance.random() < 0.5:
                is_full = len(opened) >= OPEN_MAX or self._count >= TRANSACTIONS
                current = chance.choice([*opened] if is_full else range(len(self._sessions)))
            if current not in opened:
                self._count += 1
                opened[current] = list(self._transaction(current))
            step = opened[current].pop(0)
            yield step
            if not opened[current]:
                del opened[current]
                if chance.random() < 0.6:
                    yield Step(current, step.transaction, "settle")

    def _race(self, idle: Sequence[int]) -> Iterator[Step]:
        """Yields two transactions at two servers that do not see each other, on one table."""
        chance, table = self._chance, self._table()
        first = chance.choice(idle)
        others = [n for n in idle if self._sessions[n].server != self._sessions[first].server]
        if not others or not table.given:
            return
        self._count += 1
        racing = (first, chance.choice(others))
        flags = [column for column in table.given if column.type is BOOLEAN]
        statements = (self._statement(table), self._statement(table))
        if table.partial and chance.random() < 0.7:
            before, *both = self._statements_on_partial_index(table)
            yield self._step(first, "sql", before)
            yield self._step(first, "settle")
            statements = (both[0], both[1])
        elif flags and chance.random() < 0.6:
            value = chance.choice(("false", "false", "true"))
            flag = f"UPDATE {table.name} SET {flags[-1].name} = {value}"
            statements = (flag, insert_of(chance, table))
        for session in racing:
            yield self._step(session, "begin", "BEGIN")
        for session, statement in zip(racing, statements, strict=True):
            yield self._step(session, "sql", statement)
        for session in racing:
            yield self._step(session, "commit", "COMMIT")
        yield self._step(first, "settle")

    def _statements_on_partial_index(self, table: Table) -> tuple[str, str, str]:
        """Returns an UPDATE that takes a row out of the index, one that brings it back, and one by
        which another row, which is there, takes its value.
        """
        column, flag = self._chance.choice(table.partial)
        key = ", ".join(table.key)
        by_key = f"FROM {table.name} ORDER BY {', '.join(f'{name} DESC' for name in table.key)}"
        last = f"(SELECT {key} {by_key} LIMIT 1)"
        set_flag = f"UPDATE {table.name} SET {flag} = ({key}) IN {last}"
        value = f"(SELECT {column} {by_key} LIMIT 1)"
        other = f"({key}) IN (SELECT {key} {by_key} OFFSET 1 LIMIT 1)"
        return (
            set_flag,
            f"UPDATE {table.name} SET {flag} = false WHERE ({key}) IN {last}",
            f"UPDATE {table.name} SET {column} = {value} WHERE {other}",
        )

    def _transaction(self, session: int) -> Iterator[Step]:
        """Yields the steps of one transaction, or of what is none."""
        drawn = self._chance.random()
        if drawn < 0.72:
            yield from self._block(session)
        elif drawn < 0.8:
            setting = self._chance.choice(SETTINGS)
            if self._chance.random() < 0.3:
                setting = f"search_path = {', '.join(self._schemas)}, public"
            yield self._step(session, "sql", f"SET {setting}")
        elif drawn < 0.92:
            yield self._odd(session)
        else:
            yield self._schema_change(session)

    def _block(self, session: int) -> Iterator[Step]:
        chance = self._chance
        yield self._step(session, "begin", chance.choice(("BEGIN", "BEGIN", "START TRANSACTION")))
        if chance.random() < 0.5:
            yield self._mark(session)
        for _ in range(chance.randint(1, STATEMENTS_MAX)):
            if chance.random() < 0.15:
                yield from self._savepoint(session)
            elif chance.random() < 0.2:
                yield self._step(session, "sql", self._beside(session))
            else:
                yield self._change(session)
        if chance.random() < 0.3:
            yield self._mark(session)
        drawn = chance.random()
        if drawn < 0.06:
            name = f"prepared {session} {self._count}"
            before = chance.choice(("", "/* */ ", "-- x\n", f"{self._statement()}; "))
            yield self._step(session, "prepare", f"{before}PREPARE TRANSACTION '{name}'", name)
            ended = chance.choice(("COMMIT", "ROLLBACK"))
            yield self._step(session, "prepared", f"{ended} PREPARED '{name}'", name)
            yield self._step(session, "rollback", "ROLLBACK")
        elif drawn < 0.14:
            yield self._step(session, "rollback", "ROLLBACK")
        else:
            yield self._step(session, "commit", chance.choice(("COMMIT", "COMMIT", "END")))

    def _savepoint(self, session: int) -> Iterator[Step]:
        """Yields a savepoint that is rolled back to or released, mostly."""
        chance = self._chance
        name = chance.choice(("a", "b"))
        yield self._step(session, "savepoint", f"SAVEPOINT {name}", name)
        for _ in range(chance.randint(1, 2)):
            yield self._change(session)
        if chance.random() < 0.4:
            yield self._step(session, "sql", self._constraints())
        if chance.random() < 0.7:
            yield self._step(session, "rollback_to", f"ROLLBACK TO {name}", name)
            yield self._change(session)
        elif chance.random() < 0.6:
            yield self._step(session, "release", f"RELEASE {name}", name)

    def _constraints(self) -> str:
        chance = self._chance
        when = chance.choice(("IMMEDIATE", "DEFERRED"))
        own = [f"{schema}.groupcert_note" for schema in self._schemas]
        names = (*own, own[0], "ALL", "ALL", f"{self._schemas[0]}.refers", "groupcert_note")
        return f"SET CONSTRAINTS {chance.choice(names)} {when}"

    def _mark(self, session: int) -> Step:
        self._marked += 1
        statement = f"INSERT INTO {self._marks} VALUES ({self._marked})"
        return self._step(session, "mark", statement, str(self._marked))

    def _change(self, session: int) -> Step:
        table = self._table()
        if self._chance.random() < 0.05 and table.given:
            names = ", ".join(column.name for column in table.given)
            return self._copy(session, table, names)
        return self._step(session, "sql", self._statement(table))

    def _copy(self, session: int, table: Table, names: str) -> Step:
        chance = self._chance
        escaped = (
            column_values.replace("\\", "\\\\")
            for column_values in (chance.choice(column.type.values) for column in table.given)
        )
        copied = f"COPY {table.name} ({names}) FROM STDIN"
        return self._step(session, "copy", copied, "\t".join(escaped) + "\n")

    def _table(self) -> Table:
        return self._chance.choice(self._tables)

    def _statement(self, table: Table | None = None) -> str:
        """Returns a statement that changes rows of a table."""
        chance = self._chance
        table = table or self._table()
        makers: list[tuple[int, Callable[[Table], str]]] = [
            (28, lambda each: insert_of(chance, each, chance.choice((1, 1, 2, 3)))),
            (34, self._update),
            (12, self._delete),
            (10, self._upsert),
            (4, self._merge),
            (5, self._writing_query),
            (4, self._swap),
        ]
        make = chance.choices([each for _, each in makers], [weight for weight, _ in makers])[0]
        statement = make(table) if table.given else f"DELETE FROM {table.name}"
        if chance.random() < 0.1:  # It finds its table by search_path, or another one of that name.
            statement = statement.replace(table.name, table.own_name)
        return statement

    def _value(self, column: Column) -> str:
        value = draw_value(self._chance, column.type)
        return "DEFAULT" if self._chance.random() < 0.05 else value

    def _where(self, table: Table) -> str:
        """Returns a condition that holds for all rows, for one that is there, or for one of a key
        that may be there.
        """
        drawn = self._chance.random()
        if drawn < 0.15:
            return ""
        key = [column for column in table.columns if column.name in table.key]
        tests = [f"{column.name} = {draw_value(self._chance, column.type, 0)}" for column in key]
        if drawn < 0.6:
            names = ", ".join(table.key)
            found = f"SELECT {names} FROM {table.name} ORDER BY {names}"
            return f" WHERE ({names}) IN ({found} OFFSET {int(drawn * 100) % 3} LIMIT 1)"
        return f" WHERE {' AND '.join(tests)}"

    def _update(self, table: Table) -> str:
        chance = self._chance
        columns = chance.sample(table.given, min(len(table.given), chance.choice((1, 1, 2))))
        flags = [column for column in table.given if column.type is BOOLEAN]
        if flags and chance.random() < 0.25:  # Rows come under the predicates of partial indexes.
            columns = flags[-1:]
        values = ", ".join(f"{column.name} = {self._value(column)}" for column in columns)
        returning = chance.choice(("", "", " RETURNING *"))
        return f"UPDATE {table.name} SET {values}{self._where(table)}{returning}"

    def _delete(self, table: Table) -> str:
        return f"DELETE FROM {table.name}{self._where(table)}"

    def _upsert(self, table: Table) -> str:
        inserted = insert_of(self._chance, table, self._chance.choice((1, 2)))
        if not table.conflicts or self._chance.random() < 0.2:
            return f"{inserted} ON CONFLICT DO NOTHING"
        target = self._chance.choice(table.conflicts)
        name = self._chance.choice(table.given).name
        return f"{inserted} ON CONFLICT {target} DO UPDATE SET {name} = EXCLUDED.{name} RETURNING *"

    def _merge(self, table: Table) -> str:
        names = ", ".join(column.name for column in table.given)
        name = self._chance.choice(table.given).name
        values = row_of(self._chance, table)
        return (
            f"MERGE INTO {table.name} target USING (SELECT 1) source ON"
            f" {table.key[0]} IS NOT NULL{self._where(table).replace(' WHERE', ' AND')}"
            f" WHEN MATCHED THEN UPDATE SET {name} = {self._value(table.given[0])}"
            f" WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"
        )

    def _writing_query(self, table: Table) -> str:
        names = ", ".join(column.name for column in table.given)
        return (
            f"WITH gone AS (DELETE FROM {table.name}{self._where(table)} RETURNING *)"
            f" INSERT INTO {table.name} ({names}) SELECT {names} FROM gone"
        )

    def _swap(self, table: Table) -> str:
        """Returns an UPDATE that moves values between rows."""
        column = self._chance.choice(table.given)
        first, second = (draw_value(self._chance, column.type, 0) for _ in range(2))
        name = column.name
        return (
            f"UPDATE {table.name} SET {name} = CASE {name} WHEN {first} THEN {second}"
            f" WHEN {second} THEN {first} ELSE {name} END"
        )

    def _beside(self, session: int) -> str:
        """Returns what a transaction does beside changing rows."""
        chance, table = self._chance, self._table()
        owner = quoted(chance.choice((*OWNERS, *CLIENTS)))
        own_name = table.own_name
        number = self._count
        return chance.choice(
            (
                self._constraints(),
                self._constraints(),
                self._constraints(),
                f"SET LOCAL {chance.choice(SETTINGS)}",
                f"SET LOCAL {chance.choice(SETTINGS)}",
                f"DECLARE held_{number} CURSOR WITH HOLD FOR SELECT * FROM {table.name}",
                f"DECLARE c_{number} CURSOR FOR SELECT * FROM {table.name} FOR UPDATE",
                f"CREATE TEMP TABLE {own_name} (LIKE {table.name} INCLUDING ALL) ON COMMIT DROP",
                f"CREATE TEMP TABLE {own_name} AS SELECT * FROM {table.name}",
                "LISTEN news",
                "NOTIFY news, 'x'",
                "SELECT pg_notify('news', repeat('x', 7000))",
                f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE",
                f"SELECT pg_advisory_xact_lock_shared({LOCK_CLASS}, {chance.randint(0, 9)})",
                f"SELECT pg_try_advisory_lock({LOCK_CLASS}, {chance.randint(700, 1500)})",
                f"SET ROLE {owner}",
                f"SET LOCAL ROLE {owner}",
                f"SELECT * FROM {table.name} FOR NO KEY UPDATE",
                "SELECT 1/0",
                "SET SESSION AUTHORIZATION DEFAULT",
                "RESET ROLE",
                f"SELECT {table.schema}.attempt()",
            )
        )

    def _odd(self, session: int) -> Step:
        """Returns a step outside of a block."""
        chance, table = self._chance, self._table()
        statement, other = self._statement(), self._statement()
        drawn = chance.randrange(9)
        if drawn < 2:
            return self._mark(session)
        if drawn == 2:
            mark = self._mark(session)
            return mark._replace(sql=f"{statement}; {mark.sql}")
        if drawn == 3:
            return self._step(session, "cancel")
        bodies = (
            f"DO $do$ BEGIN {statement}; COMMIT; {other}; END $do$",
            f"DO $do$ BEGIN {statement}; ROLLBACK; {other}; COMMIT; END $do$",
            f"DO $do$ BEGIN {statement}; EXCEPTION WHEN OTHERS THEN NULL; END $do$",
            f"{statement}; BEGIN; {other}; COMMIT",
            f"TRUNCATE {table.name} CASCADE",
            f"SELECT pg_try_advisory_lock({LOCK_CLASS}, 7)",
            "DISCARD ALL",
            "RESET ALL",
            "UNLISTEN *",
            "SELECT pg_advisory_unlock_all()",
            "CREATE TEMP TABLE marks (id int PRIMARY KEY)",
            f"FETCH ALL FROM held_{self._count}",
            f"COPY {table.name} TO STDOUT",
            statement,
        )
        return self._step(session, "sql", chance.choice(bodies))

    def _schema_change(self, session: int) -> Step:
        """Returns what an owner changes at one server alone."""
        chance, table = self._chance, self._table()
        column, name = chance.choice(table.columns).name, table.name
        trigger = chance.choice((*table.triggers, "groupcert_note", "groupcert_note"))
        changes = (
            f"ALTER TABLE {name} RENAME {column} TO other",
            f"ALTER TABLE {name} RENAME TO other",
            f"ALTER TABLE {name} ADD other int DEFAULT 1",
            f"ALTER TABLE {name} DROP COLUMN {column}",
            f"ALTER TABLE {name} DISABLE TRIGGER {trigger}",
            f"ALTER TRIGGER {trigger} ON {name} RENAME TO mine",
            f"ALTER TABLE {name} DISABLE TRIGGER mine",
            f"ALTER TABLE {name} DISABLE TRIGGER ALL",
            f"ALTER SCHEMA {table.schema} RENAME TO other_{self._count}",
            f"ALTER FUNCTION {table.schema}.shown(text) RENAME TO other",
            f"ALTER FUNCTION {table.schema}.holds(text) SET search_path = ''",
            f"ALTER TABLE {name} SET SCHEMA {chance.choice(self._schemas)}",
            f"CREATE TABLE {table.schema}.child_{self._count} () INHERITS ({name})",
            f"CREATE TABLE {table.schema}.late_{self._count} (id int PRIMARY KEY)",
            f"CREATE UNIQUE INDEX ON {name} ({column})",
            f"CREATE RULE nothing AS ON INSERT TO {name} DO INSTEAD NOTHING",
            f"DROP TRIGGER {trigger} ON {name}",
            f"DROP TABLE {name} CASCADE",
            f"ALTER TYPE {self._schemas[0]}.mood ADD VALUE 'new'",
            f"ALTER TABLE {name} ALTER {column} TYPE text",
            "DROP OWNED BY CURRENT_USER",
            f"SELECT setval(pg_get_serial_sequence('{name.replace(chr(39), chr(39) * 2)}',"
            f" '{column.strip(chr(34)).replace(chr(39), chr(39) * 2)}'), 1)",
        )
        owned = [n for n, each in enumerate(self._sessions) if each.role == table.owner]
        if owned and chance.random() < 0.8:  # Others are mostly told that they may not.
            session = chance.choice(owned)
        return self._step(session, "sql", chance.choice(changes))

    def _step(self, session: int, kind: str, sql: str = "", argument: str = "") -> Step:
        return Step(session, self._count, kind, sql, argument)
