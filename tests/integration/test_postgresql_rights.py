"""What code of a table's owner can do where rows of others are executed: nothing beyond its rights.

Aim: an index, a CHECK, a domain or a generated column of an attached table calls a function of the
table's owner, who has one that looks harmless when the table is attached and tries to rise later.
Each way out that PostgreSQL has is tried; at the end nobody has other rights, and another owner's
rows are as they were.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest
from psycopg import sql

from groupcert.certifier.gtid import Gtid
from groupcert.members.errors.membership import NotComparable
from groupcert.members.postgresql.attachment import attach, detach
from groupcert.members.postgresql.commit_order import Entry
from groupcert.members.postgresql.database import Database
from groupcert.members.postgresql.ddl import change_for, try_at
from groupcert.members.postgresql.server_rows import ServerRows
from groupcert.members.postgresql.statements import batch_of
from groupcert.members.wire.row_changes import encode_changes
from tests import servers

pytestmark = pytest.mark.database

SCHEMA = """
CREATE ROLE {owner} LOGIN;
CREATE SCHEMA mine AUTHORIZATION {owner};
CREATE TABLE public.vault (id int PRIMARY KEY, note text);
INSERT INTO vault VALUES (1, 'kept');
SET ROLE {owner};
CREATE FUNCTION mine.seen(value int) RETURNS int IMMUTABLE LANGUAGE plpgsql
    AS 'BEGIN RETURN value; END';
CREATE DOMAIN mine.number AS int CHECK (mine.seen(VALUE) IS NOT NULL);
CREATE TABLE mine.checked (id int PRIMARY KEY, value int CHECK (mine.seen(value) IS NOT NULL));
CREATE TABLE mine.indexed (id int PRIMARY KEY, value int);
CREATE INDEX ON mine.indexed (mine.seen(value));
CREATE INDEX ON mine.indexed ((value + mine.seen(1)));
CREATE TABLE mine.generated (id int PRIMARY KEY, value int,
    twice int GENERATED ALWAYS AS (mine.seen(value) * 2) STORED);
CREATE TABLE mine.typed (id int PRIMARY KEY, value mine.number);
RESET ROLE;
"""
RISE = """
CREATE FUNCTION mine.rise() RETURNS int LANGUAGE plpgsql AS $$
DECLARE step text;
BEGIN
    FOREACH step IN ARRAY ARRAY[
        'RESET ROLE', 'RESET SESSION AUTHORIZATION', 'SET SESSION AUTHORIZATION postgres',
        'SET ROLE postgres', 'SET session_replication_role TO origin',
        'ALTER ROLE {owner} SUPERUSER', 'GRANT groupcert_applier TO {owner}',
        'UPDATE public.vault SET note = ''stolen''', 'DELETE FROM groupcert.executed',
        'SELECT groupcert."put public.vault"(''[{{"id": 1, "note": "stolen"}}]'', NULL)',
        'SELECT groupcert.note_executed(ARRAY[99], ARRAY[''x''], ARRAY[99], ARRAY[99])',
        'CREATE OR REPLACE FUNCTION groupcert."put mine.checked"(rows json, deleted json)'
        ' RETURNS void LANGUAGE sql AS ''SELECT NULL''',
        'ALTER FUNCTION groupcert."put mine.checked"(json, json) RESET ALL'
    ] LOOP
        BEGIN EXECUTE step; EXCEPTION WHEN others THEN NULL; END;
    END LOOP;
    RETURN 1;
END $$;
CREATE FUNCTION mine.rising() RETURNS trigger LANGUAGE plpgsql
    AS 'BEGIN PERFORM mine.rise(); RETURN NULL; END';
CREATE FUNCTION mine.unnest(bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql
    AS 'BEGIN PERFORM mine.rise(); RETURN QUERY SELECT 1::bigint; END';
"""
WAYS = {
    "at once": "PERFORM mine.rise()",
    "a cursor that is read at COMMIT": """
        EXECUTE 'DECLARE risen CURSOR WITH HOLD FOR SELECT mine.rise()'""",
    "a deferred trigger": """
        CREATE TEMPORARY TABLE IF NOT EXISTS rising (id int);
        EXECUTE 'CREATE CONSTRAINT TRIGGER rising AFTER INSERT ON rising DEFERRABLE INITIALLY'
            ' DEFERRED FOR EACH ROW EXECUTE FUNCTION mine.rising()';
        EXECUTE 'ALTER TABLE rising ENABLE ALWAYS TRIGGER rising';
        EXECUTE 'INSERT INTO rising VALUES (1)'""",
    "prepared statements": """
        EXECUTE 'DEALLOCATE ALL';
        FOR number IN 0..9 LOOP
            EXECUTE format('PREPARE _pg3_%s AS SELECT mine.rise()', number);
        END LOOP""",
    "a search path": "PERFORM set_config('search_path', 'mine, pg_catalog', false)",
    "settings": """
        PERFORM set_config('datestyle', 'German', false);
        PERFORM set_config('statement_timeout', '1', false);
        PERFORM set_config('default_transaction_read_only', 'on', false)""",
    "temporary tables in the catalogue's place": """
        EXECUTE 'CREATE TEMPORARY VIEW pg_class AS'
            ' SELECT mine.rise() AS oid, ''vault'' AS relname'""",
}
OWNER = "rights_owner"
TABLES = ("checked", "indexed", "generated", "typed")
RIGHTS = (
    "SELECT rolname, rolsuper, rolcreaterole, rolbypassrls FROM pg_roles ORDER BY 1",
    "SELECT roleid::regrole::text, member::regrole::text FROM pg_auth_members ORDER BY 1, 2",
    "SELECT * FROM public.vault",
    "SELECT proname, prosrc, proowner FROM pg_proc WHERE pronamespace = 'groupcert'::regnamespace"
    " ORDER BY 1",
)


@pytest.fixture(scope="module")
def dsn(postgresql: servers.PostgreSqlServer) -> Iterator[str]:
    """Attached tables of an owner who is no superuser, and one of somebody else."""
    with servers.postgresql_database(postgresql, "rights") as dsn:
        with psycopg.connect(dsn) as session:
            session.execute(SCHEMA.format(owner=OWNER).encode())
        done = attach(dsn, ["*.*"])
        assert done.kept_out == {}
        yield dsn
        detach(dsn)
        with psycopg.connect(dsn) as session:
            session.execute(f"DROP OWNED BY {OWNER} CASCADE; DROP ROLE {OWNER}".encode())


def rights(dsn: str) -> list[list[tuple[Any, ...]]]:
    """Who may do what, and what another owner's table holds."""
    with psycopg.connect(dsn) as session:
        return [session.execute(query.encode()).fetchall() for query in RIGHTS]


def entry(version: int, table: str) -> Entry:
    """A transaction of another server with two rows of a table."""
    rows = [{"id": number, "value": version} for number in (1, 2)]
    for row in rows:
        if table == "generated":
            row["twice"] = version * 2
    keys = [f"mine.{table}/{row['id']}".encode() for row in rows]
    values = [json.dumps(row).encode() for row in rows]
    return Entry(version, Gtid("s", version), [encode_changes(keys, values)])


def compare(dsn: str, version: int) -> None:
    """Reads all rows as a comparison does; PostgreSQL asks an index of a constant to plan that."""

    async def opened() -> ServerRows:
        database = await Database(dsn).open()
        try:
            rows = ServerRows(await database.open_reader())
            rows.begin(version, None, database.attached)
            return rows
        finally:
            await database.close()

    with closing(asyncio.run(opened())) as rows, suppress(NotComparable):
        for table in TABLES:
            [*rows.scan(f"mine.{table}".encode())]


def execute(dsn: str, entries: Sequence[Entry]) -> None:
    """Executes transactions, one after the other, in the same sessions."""

    async def run() -> None:
        database = await Database(dsn).open()
        try:
            for each in entries:
                assert await database.execute(batch_of([each]), None, lambda _: None)
        finally:
            await database.close()

    asyncio.run(run())


def replace(dsn: str, way: str) -> None:
    """Has the owner's function try a way."""
    with psycopg.connect(dsn) as session:
        session.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(OWNER)))
        session.execute("DROP FUNCTION IF EXISTS mine.rise, mine.rising, mine.unnest CASCADE")
        session.execute(RISE.format(owner=OWNER).encode())
        handled = "duplicate_object OR duplicate_table OR duplicate_cursor"
        body = (
            f"BEGIN {way}; EXCEPTION WHEN {handled} OR duplicate_prepared_statement THEN NULL; END"
        )
        session.execute(
            sql.SQL(
                "CREATE OR REPLACE FUNCTION mine.way() RETURNS void LANGUAGE plpgsql AS {}"
            ).format(f"DECLARE number int; BEGIN {body}; END")
        )
        session.execute(
            "CREATE OR REPLACE FUNCTION mine.seen(value int) RETURNS int IMMUTABLE LANGUAGE plpgsql"
            " AS 'BEGIN PERFORM mine.way(); RETURN value; END'"
        )


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_code_of_an_owner_has_no_rights_but_the_owners(dsn: str, way: str) -> None:
    replace(dsn, "NULL")
    before = rights(dsn)
    replace(dsn, way)
    with psycopg.connect(dsn) as session:
        ((first,),) = session.execute(
            "SELECT coalesce(max(version), 0) FROM groupcert.executed"
        ).fetchall()
    versions = range(first + 1, first + 1 + 8 * len(TABLES))
    execute(dsn, [entry(version, TABLES[version % len(TABLES)]) for version in versions])
    compare(dsn, versions[-1])
    assert rights(dsn)[:3] == before[:3]
    with psycopg.connect(dsn) as session:
        found = session.execute("SELECT version, source FROM groupcert.executed").fetchall()
        assert [row for row in found if row[0] in versions] == [(v, "s") for v in versions]
        replica = session.execute("SHOW session_replication_role").fetchall()
    assert replica == [("origin",)]


@pytest.mark.parametrize("way", sorted(WAYS.keys() - {"settings"}))
def test_a_trial_of_a_schema_change_has_the_rights_of_its_role(dsn: str, way: str) -> None:
    replace(dsn, "NULL")
    with psycopg.connect(dsn) as session:
        session.execute("SET session_replication_role TO replica")
        session.execute("INSERT INTO mine.indexed VALUES (77, 1) ON CONFLICT DO NOTHING")
    before = rights(dsn)
    replace(dsn, WAYS[way])
    statements = "ALTER TABLE mine.indexed ADD CONSTRAINT c CHECK (mine.seen(value) > 0)"
    try_at(dsn, change_for(dsn, statements, role=OWNER))
    assert rights(dsn)[:3] == before[:3]
