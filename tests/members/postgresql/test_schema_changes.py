"""Schema changes at one server: what is refused, what is left, and what a failure leaves."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from hypothesis import given, strategies

from groupcert.applier.errors import UnsuitableTarget
from groupcert.certifier.gtid import Gtid
from groupcert.members.errors.postgresql_servers import SchemaChangeFailed, SchemaChangeRefused
from groupcert.members.postgresql.attachment import attach
from groupcert.members.postgresql.commit_order import Entry
from groupcert.members.postgresql.database import Database
from groupcert.members.postgresql.ddl import approve_at, change_for, try_at
from groupcert.members.postgresql.schema_changes import (
    KEY,
    SchemaChange,
    change_of,
    execute_change,
    in_turns,
)
from groupcert.members.postgresql.sequences import Numbering
from groupcert.members.postgresql.tables import attached_tables, matches
from groupcert.members.wire.row_changes import encode_changes
from tests import servers

SCHEMA = """
CREATE TYPE colour AS ENUM ('red');
CREATE TABLE people (id int PRIMARY KEY, name text, colour colour);
CREATE TABLE teams (id int PRIMARY KEY, name text UNIQUE);
CREATE FUNCTION shown(text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1';
CREATE UNIQUE INDEX "the team's ""small"" name" ON teams (shown(name)) WHERE id < 9;
CREATE TABLE keyless (note text);
INSERT INTO people VALUES (1, 'Ann', 'red');
"""
ROWS = Entry(1, Gtid("u", 1), [encode_changes([b"public.people/1"], [b"{}"])])


@contextmanager
def session(dsn: str) -> "Iterator[psycopg.Connection[Any]]":
    """A session of a client whose statements commit."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@contextmanager
def explained(connection: "psycopg.Connection[Any]") -> Iterator[list[str]]:
    """Collects the plans of all that a session runs, those of functions too."""
    plans: list[str] = []
    connection.execute(
        "LOAD 'auto_explain'; SET auto_explain.log_min_duration TO 0;"
        " SET auto_explain.log_nested_statements TO on; SET auto_explain.log_analyze TO on;"
        " SET jit_above_cost TO 0; SET client_min_messages TO log"
    )
    connection.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))
    yield plans


def prepared(dsn: str) -> str:
    """Attaches tables."""
    with session(dsn) as connection:
        connection.execute(SCHEMA.encode())
    attach(dsn, ["public.*"], numbering=Numbering(2, 3))
    return dsn


@pytest.fixture
def dsn(postgresql_dsn: str) -> str:
    """A server with attached tables."""
    return prepared(postgresql_dsn)


@pytest.fixture(scope="module")
def refusing(postgresql: servers.PostgreSqlServer) -> Iterator[str]:
    """The same, for tests that leave it as it was."""
    with servers.postgresql_database(postgresql, "schema_changes") as dsn:
        yield prepared(dsn)


def change(dsn: str, statements: str, *, rewrite: bool = False) -> SchemaChange:
    """A change that attaches new tables."""
    return change_for(dsn, statements, attach=True, rewrite=rewrite)


def entry_of(changed: SchemaChange, version: int) -> Entry:
    """A change as the binary log has it."""
    return Entry(version, Gtid("u", version), [encode_changes([KEY], [changed.encode()])])


def execute(dsn: str, changed: SchemaChange, version: int) -> None:
    """Executes a change, as the member does in its turn."""
    with session(dsn) as connection:
        assert execute_change(connection, changed, entry_of(changed, version))


def test_changes_stand_alone_among_transactions() -> None:
    changed = SchemaChange(
        statements="SELECT 1", role="r", search_path="p", attach=False, rewrite=False
    )
    entry = entry_of(changed, 3)
    assert change_of(entry) == changed
    assert change_of(ROWS) is None
    assert in_turns([ROWS, ROWS, entry, entry, ROWS]) == [[ROWS, ROWS], [entry], [entry], [ROWS]]


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        ("ALTER TABLE people ADD COLUMN x nonsense", 'type "nonsense" does not exist'),
        ("CREATE INDEX CONCURRENTLY ON people (name)", r"a transaction block; .* run it at each"),
        ("VACUUM people", r"a transaction block; .* run it at each"),
        ("ALTER TABLE people ADD x int; COMMIT; SELECT 1", "leave BEGIN, COMMIT and the like out"),
        ("UPDATE people SET name = 'Bob'", "it changes rows of public.people: change them by SQL"),
        ("CREATE TABLE new (id int PRIMARY KEY); INSERT INTO new VALUES (1)", "rows of public.new"),
        ("ALTER TABLE people DROP CONSTRAINT people_pkey", "people so that it has no primary key"),
        ("ALTER TABLE people ALTER id TYPE bigint", "it writes public.people anew"),
        ("TRUNCATE people", "it writes public.people anew"),
        ("CREATE TABLE new (note text)", "it leaves public.new so that it has no primary key"),
        ("ALTER TABLE people ADD at timestamptz DEFAULT now()", "column at of public.people gets"),
        ("ALTER TABLE people ADD number serial", "column number of public.people gets other"),
    ],
)
def test_what_a_group_cannot_run_is_refused_before_it_is_certified(
    refusing: str, statements: str, problem: str
) -> None:
    with pytest.raises(SchemaChangeRefused, match=problem):
        try_at(refusing, change(refusing, statements))
    with session(refusing) as connection:
        assert attached_tables(connection).keys() == {"public.people", "public.teams"}
        assert connection.execute("SELECT * FROM people").fetchall() == [(1, "Ann", "red")]


def test_a_change_is_tried_and_then_left_as_attach_would_leave_it(dsn: str) -> None:
    changed = change(
        dsn,
        "ALTER TABLE people ADD team int DEFAULT 1 + 1, ADD twice int GENERATED ALWAYS AS (id * 2)"
        " STORED; ALTER TABLE people RENAME name TO called;"
        "CREATE UNIQUE INDEX called ON people (called);"
        "ALTER TYPE colour ADD VALUE 'blue';"
        "SET search_path TO pg_catalog; SET session_replication_role TO origin;"
        "CREATE TABLE public.pets (id serial PRIMARY KEY, owner int REFERENCES public.people)",
        rewrite=True,
    )
    assert try_at(dsn, changed) == 0
    with session(dsn) as connection:
        assert "public.pets" not in attached_tables(connection)
    approve_at([dsn], changed)
    execute(dsn, changed, 7)
    with session(dsn) as connection:
        tables = attached_tables(connection)
        query = "SELECT prosrc FROM pg_proc WHERE proname = 'note insert public.people'"
        ((noted,),) = connection.execute(query).fetchall()
        assert connection.execute("SELECT nextval('pets_id_seq')").fetchone() == (2,)
        executed = connection.execute("SELECT version FROM groupcert.executed").fetchall()
        people = connection.execute("SELECT * FROM people").fetchall()
    assert tables.keys() == {"public.people", "public.teams", "public.pets"}
    assert 'SELECT "id", "called" FROM new_rows' in noted
    assert executed == [(7,)]
    assert people == [(1, "Ann", "red", 2, 2)]
    assert try_at(dsn, change(dsn, "SELECT 1")) == 7


def test_a_change_that_nobody_approved_is_not_run(refusing: str) -> None:
    with pytest.raises(SchemaChangeFailed, match="nobody has approved it") as failure:
        execute(refusing, change(refusing, "DROP TABLE teams"), 7)
    assert "DROP TABLE teams" in str(failure.value)
    with session(refusing) as connection:
        assert "public.teams" in attached_tables(connection)


def test_a_change_that_fails_leaves_nothing(dsn: str) -> None:
    changed = change(dsn, "ALTER TABLE people ADD x int; ALTER TABLE people ADD CHECK (id > 1)")
    approve_at([dsn], changed)
    with pytest.raises(SchemaChangeFailed, match="is violated by some row") as failure:
        execute(dsn, changed, 7)
    assert failure.value.gtid == "u:7"
    with session(dsn) as connection:
        assert connection.execute("SELECT * FROM groupcert.executed").fetchall() == []
        assert "x" not in attached_tables(connection)["public.people"].column_names


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE people ADD x int",
        "ALTER TABLE people RENAME name TO called",
        "DROP TABLE people",
        "CREATE UNIQUE INDEX ON people (name)",
        'DROP INDEX "the team\'s ""small"" name"',
        "DROP FUNCTION shown CASCADE",
        "ALTER TABLE teams DROP CONSTRAINT teams_name_key",
        "ALTER TYPE colour ADD VALUE 'blue'",
        "CREATE RULE none AS ON DELETE TO people DO INSTEAD NOTHING",
        "ALTER TRIGGER groupcert_update ON people RENAME TO mine",
        "DROP TRIGGER groupcert_update ON people",
        "ALTER TABLE people DISABLE TRIGGER ALL",
        "ALTER SCHEMA public RENAME TO shop",
        "CREATE TABLE child () INHERITS (people)",
        'ALTER FUNCTION groupcert."put public.people"(json, json) RESET ALL',
        "DROP FUNCTION groupcert.decide(text, text, json, json, bigint) CASCADE",
    ],
)
def test_a_change_of_one_server_alone_is_refused_with_a_hint(refusing: str, statement: str) -> None:
    with session(refusing) as connection:
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="is refused") as failure:
            connection.execute(statement.encode())
        assert "groupcert postgresql ddl FILE" in (failure.value.diag.message_hint or "")
        with connection.transaction(force_rollback=True):
            connection.execute("SET LOCAL session_replication_role TO replica")
            connection.execute(statement.encode())


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE UNIQUE /* */ INDEX CONCURRENTLY again ON public.people USING btree (name)",
        "CREATE UNIQUE INDEX CONCURRENTLY again ON PUBLIC.PEOPLE (name)",
        'drop index concurrently if exists public."the team\'s ""small"" name"',
        "ALTER TABLE parts DETACH PARTITION part CONCURRENTLY",
    ],
)
def test_what_commits_in_its_midst_is_refused_before_it_begins(dsn: str, statement: str) -> None:
    """Refused at its end it would have left an index that is invalid, or a partition half gone."""
    indexes = "SELECT indexrelid::regclass, indisvalid, indislive FROM pg_index ORDER BY 1"
    with session(dsn) as connection:
        connection.execute("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        connection.execute("CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (9)")
        attach(dsn, ["public.*"])
        before = connection.execute(indexes).fetchall()
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="is refused"):
            connection.execute(statement.encode())
        assert connection.execute(indexes).fetchall() == before
        pending = "SELECT FROM pg_inherits WHERE inhdetachpending"
        assert connection.execute(pending).fetchall() == []


def test_what_changes_no_attached_table_is_let_through(dsn: str) -> None:
    with session(dsn) as connection:
        for statement in (
            "CREATE INDEX CONCURRENTLY plain ON people (name)",
            "DROP INDEX CONCURRENTLY plain",
            "CREATE TABLE mine (id int UNIQUE)",
            "CREATE UNIQUE INDEX CONCURRENTLY again ON mine (id)",
            "DROP INDEX again",
            "ALTER TABLE mine ADD x int",
            "DROP TABLE mine, keyless",
            "CREATE TEMPORARY TABLE people (id int)",
            "ANALYZE public.people",
            "COMMENT ON TABLE public.people IS 'all'",
            "GRANT SELECT ON public.people TO PUBLIC",
        ):
            connection.execute(statement.encode())
        assert attached_tables(connection).keys() == {"public.people", "public.teams"}


@pytest.mark.parametrize(
    "statement",
    ["CREATE TABLE late (id int)", "CREATE TABLE late AS SELECT 1", "SELECT 1 AS id INTO late"],
)
def test_a_new_table_that_matches_a_pattern_is_told_or_refused(dsn: str, statement: str) -> None:
    said: list[str] = []
    with session(dsn) as connection:
        connection.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
        connection.execute("CREATE TEMPORARY TABLE late (id int); DROP TABLE late")
        connection.execute("CREATE SCHEMA other; CREATE TABLE other.late (id int)")
        assert said == []
        connection.execute(statement.encode())
        assert said == ["rows of public.late stay at this server of the group"]
        connection.execute("DROP TABLE late")
        attach(dsn, ["public.*"], new_tables="refuse")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match=r"of public\.late is refused"):
            connection.execute(statement.encode())
        assert connection.execute("SELECT to_regclass('late')").fetchall() == [(None,)]


def test_a_server_matches_patterns_as_attach_does(dsn: str) -> None:
    """Else a new table that `attach` would take stays here without a word."""
    texts = strategies.text("ab.*?[]!-^$()|+\\{}1é\n", max_size=8)
    with session(dsn) as connection:

        @given(texts, strategies.lists(texts, max_size=2))
        def agree(name: str, patterns: list[str]) -> None:
            connection.execute("UPDATE groupcert.settings SET patterns = %s", (patterns,))
            said = connection.execute("SELECT groupcert.matches(%s)", (name,)).fetchall()
            assert said == [(matches(name, patterns),)]

        agree()


def test_the_looks_at_a_schema_change_are_not_compiled(dsn: str) -> None:
    """Compiling them takes two seconds of each statement, where many tables are attached."""
    with session(dsn) as connection:
        query = "SELECT pg_jit_available() FROM pg_class WHERE relpages >= 0 LIMIT 1"
        with explained(connection) as plans:
            ((is_available,),) = connection.execute(query).fetchall()
            connection.execute("CREATE TABLE late (id int PRIMARY KEY); DROP TABLE late")
    compiled = ["pg_event_trigger" in plan for plan in plans if "JIT:" in plan]
    assert not any(compiled)
    assert bool(compiled) == is_available


def test_what_is_dropped_is_not_looked_for_at_each_pair_of_table_and_function(dsn: str) -> None:
    """It takes five seconds of each index, where many tables are attached."""
    with session(dsn) as connection, explained(connection) as plans:
        connection.execute("CREATE TABLE late (id int PRIMARY KEY); DROP TABLE late")
    looks = [plan for plan in plans if "strpos" in plan]
    assert looks
    pairs = re.compile(r"Join Filter: \(strpos.*\n *Rows Removed by Join Filter")
    assert not [plan for plan in looks if pairs.search(plan)]


async def test_what_goes_past_the_group_is_in_the_status(dsn: str) -> None:
    with session(dsn) as connection:
        connection.execute("CREATE TABLE late (id serial)")
        connection.execute("CREATE TABLE numbered (id serial PRIMARY KEY)")
    attach(dsn, ["public.*"])
    database = await Database(dsn).open()
    try:
        assert (database.status.rows_outside, [*database.status.astray_sequences]) == (0, [])
        with session(dsn) as connection:
            connection.execute("INSERT INTO late SELECT FROM generate_series(1, 3)")
            connection.execute("SELECT setval('numbered_id_seq', 100)")
            connection.execute("SELECT pg_stat_force_next_flush()")
        await database.fold(1)
        assert [*database.status.astray_sequences] == ["public.numbered_id_seq"]
        async with asyncio.timeout(60):
            while database.status.rows_outside < 3:
                await asyncio.sleep(0.1)
                await database.fold(1)
    finally:
        await database.close()


async def test_a_migration_of_other_tables_that_is_open_holds_no_member_up(dsn: str) -> None:
    with session(dsn) as connection:
        connection.execute("CREATE TABLE parts (id serial, CHECK (id > 0)) PARTITION BY RANGE (id)")
        connection.execute("CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (9)")
        connection.execute("CREATE INDEX ON parts ((id + 1))")
        database = await Database(dsn).open()
        try:
            connection.execute("BEGIN")
            connection.execute("DROP TABLE parts")
            async with asyncio.timeout(20):
                await database.fold(1)
                await database.read_tables()
            open_still = connection.execute("SELECT to_regclass('parts')").fetchall()
            assert (open_still, [*database.status.astray_sequences]) == ([(None,)], [])
            connection.execute("COMMIT")
        finally:
            await database.close()


@pytest.mark.parametrize("change", ["DROP SEQUENCE s", "ALTER SEQUENCE s RESTART"])
async def test_a_sequence_that_somebody_changes_holds_no_member_up(dsn: str, change: str) -> None:
    """Reading a sequence waits for who changes it, and fails once it has been dropped."""
    with session(dsn) as connection:
        connection.execute("CREATE SEQUENCE s")
    attach(dsn, ["public.*"], numbering=Numbering(2, 3))
    database = await Database(dsn).open()
    try:
        with session(dsn) as connection:
            connection.execute("SELECT setval('s', 100)")
            await database.fold(1)
            for end in ("ROLLBACK", "COMMIT"):
                connection.execute(f"BEGIN; {change}".encode())
                folding = asyncio.create_task(database.fold(1))
                await asyncio.wait([folding], timeout=5)
                assert folding.done()
                connection.execute(end.encode())
                await folding
                assert [*database.status.astray_sequences] == ["public.s"]
            await database.fold(1)
            assert [*database.status.astray_sequences] == []
    finally:
        await database.close()


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        (
            "ALTER TABLE people DISABLE TRIGGER groupcert_update",
            "trigger groupcert_update of people",
        ),
        ("DROP TRIGGER groupcert_update ON people", "triggers of people"),
        ("ALTER EVENT TRIGGER groupcert_ddl DISABLE", "event trigger groupcert_ddl"),
    ],
)
async def test_a_member_ends_where_somebody_has_switched_off_what_notes_rows(
    dsn: str, statement: str, what: str
) -> None:
    database = await Database(dsn).open()
    try:
        with session(dsn) as connection:
            connection.execute("SET session_replication_role TO replica")
            connection.execute(statement.encode())
        with pytest.raises(UnsuitableTarget, match=f"{what} is switched off"):
            await database.fold(1)
    finally:
        await database.close()


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TYPE mood ADD VALUE 'bad'",
        "DROP FUNCTION plus CASCADE",
        "DROP DOMAIN moods CASCADE",
        "DROP TABLE unattached CASCADE",
        "ALTER INDEX odd_pkey RENAME TO other",
    ],
)
def test_what_reaches_a_table_by_its_types_or_by_cascade_is_refused(
    dsn: str, statement: str
) -> None:
    with session(dsn) as connection:
        connection.execute(
            "CREATE TABLE unattached (id int UNIQUE); CREATE TYPE mood AS ENUM ('ok');"
            "CREATE DOMAIN moods AS mood[];"
            "CREATE FUNCTION plus(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 + 1';"
            "CREATE TABLE odd (id int PRIMARY KEY, moods moods, x int REFERENCES unattached (id),"
            " y int GENERATED ALWAYS AS (plus(id)) STORED)"
        )
        attach(dsn, ["public.odd"])
        before = attached_tables(connection)
        with pytest.raises(psycopg.errors.FeatureNotSupported, match=r"of public\.odd is refused"):
            connection.execute(statement.encode())
        assert attached_tables(connection) == before


def test_a_table_that_refers_to_an_attached_one_renews_its_functions(dsn: str) -> None:
    query = "SELECT prosrc FROM pg_proc WHERE proname = 'changes public.people'"
    with session(dsn) as connection:
        ((before,),) = connection.execute(query).fetchall()
        connection.execute("CREATE TABLE pets (id int PRIMARY KEY, of int REFERENCES people)")
        attach(dsn, ["public.*"])
        ((after,),) = connection.execute(query).fetchall()
    assert "referenced" in after and "referenced" not in before
