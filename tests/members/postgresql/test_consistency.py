"""Who may call what of the schemas of a group, and how an attached server gets it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg
import pytest
from psycopg import conninfo

from groupcert.applier.errors import UnsuitableTarget
from groupcert.members.postgresql.attachment import attach, detach
from groupcert.members.postgresql.database import Database

Session: TypeAlias = "psycopg.Connection[Any]"

ROUTINES = """
SELECT format('%I.%I', nspname, proname), prokind = 'p', prosecdef,
    coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false), ARRAY(
    SELECT format_type(type, NULL) FROM unnest(proargtypes) type)
FROM pg_proc JOIN pg_namespace n ON n.oid = pronamespace
WHERE nspname LIKE 'groupcert%' AND prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype)
"""
RELATIONS = "SELECT oid::regclass FROM pg_class WHERE relnamespace = 'groupcert'::regnamespace"
CLIENT = {
    "groupcert_client.ask_member",
    "groupcert_client.executed_version",
    "groupcert_client.wait_for_executed",
    "groupcert_client.wait_for_member",
}


@pytest.fixture
def attached(postgresql_dsn: str) -> str:
    """A database with one attached table, and no member."""
    with psycopg.connect(postgresql_dsn) as session:
        session.execute("CREATE TABLE things (id int PRIMARY KEY)")
    attach(postgresql_dsn, ["public.*"])
    return postgresql_dsn


@contextmanager
def ordinary(dsn: str) -> Iterator[Session]:
    """A session of a role that has no rights but those of all."""
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute("CREATE ROLE groupcert_reader; SET SESSION AUTHORIZATION groupcert_reader")
        try:
            yield session
        finally:
            session.execute("RESET SESSION AUTHORIZATION; RESET ALL")
            session.execute("DROP OWNED BY groupcert_reader; DROP ROLE groupcert_reader")


def test_an_ordinary_role_calls_nothing_but_what_is_for_clients(attached: str) -> None:
    refused: set[str] = set()
    with ordinary(attached) as session:
        routines = session.execute(ROUTINES).fetchall()
        for name, is_procedure, _, _, types in routines:
            arguments = ", ".join(f"NULL::{each}" for each in types)
            try:
                session.execute(
                    f"{'CALL' if is_procedure else 'SELECT'} {name}({arguments})".encode()
                )
            except psycopg.errors.InsufficientPrivilege as error:
                assert "schema groupcert" in str(error)
                refused.add(name)
            except psycopg.Error as error:
                assert name in CLIENT, error
        for (relation,) in session.execute(RELATIONS).fetchall():
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(f"SELECT FROM {relation}".encode())
    assert {name for name, *_ in routines} - refused == CLIENT
    assert len(refused) > 20


def test_what_runs_with_more_rights_looks_names_up_nowhere_else(attached: str) -> None:
    with psycopg.connect(attached) as session:
        routines = session.execute(ROUTINES).fetchall()
    definers = {name: pinned for name, _, is_definer, pinned, _ in routines if is_definer}
    ours = {name: pinned for name, pinned in definers.items() if name in CLIENT}
    assert ours == {
        "groupcert_client.ask_member": True,
        "groupcert_client.executed_version": True,
    }


def test_names_of_others_are_not_called_with_the_rights_of_who_waits(attached: str) -> None:
    """As a role with a schema of its own before all others might have it."""
    with ordinary(attached) as session:
        session.execute("RESET SESSION AUTHORIZATION")
        session.execute(
            "CREATE SCHEMA mine; CREATE TYPE mine.text AS (none int); CREATE TABLE mine.called ();"
            "CREATE FUNCTION mine.pg_current_xact_id_if_assigned() RETURNS xid8 LANGUAGE sql AS"
            " 'INSERT INTO mine.called DEFAULT VALUES; SELECT NULL::xid8';"
            "SET search_path TO mine, pg_catalog"
        )
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="its member does not ans"):
            session.execute("CALL groupcert_client.wait_for_executed()")
        assert session.execute("SELECT FROM mine.called").fetchall() == []
        session.execute("RESET search_path; DROP SCHEMA mine CASCADE")


def test_a_version_that_is_executed_needs_no_member(attached: str) -> None:
    with psycopg.connect(attached, autocommit=True) as session:
        session.execute("INSERT INTO groupcert.executed VALUES (7, 'source', 1, 1)")
        session.execute("CALL groupcert_client.wait_for_executed(7)")
        query = "SELECT groupcert_client.executed_version()"
        assert session.execute(query).fetchone() == (7,)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as raised:
            session.execute("CALL groupcert_client.wait_for_executed(8)")
        assert "groupcert member" in (raised.value.diag.message_hint or "")


async def test_attach_renews_functions_of_another_release_while_no_member_runs(
    attached: str,
) -> None:
    older = (
        "SET session_replication_role TO replica;"
        "COMMENT ON SCHEMA groupcert IS 'another release';"
        "CREATE OR REPLACE FUNCTION groupcert.decide(transaction_id text, relation text,"
        " before json, after json, seal bigint) RETURNS text[] LANGUAGE sql AS"
        " 'SELECT NULL::text[]'; RESET session_replication_role"
    )
    with psycopg.connect(attached, autocommit=True) as session:
        session.execute(older)
        database = await Database(attached).open()
        try:
            with pytest.raises(UnsuitableTarget, match="another release's, and its member runs"):
                attach(attached, ["public.*"])
        finally:
            await database.close()
        attach(attached, ["public.*"])
        for statement in (
            "CALL groupcert_client.wait_for_executed()",
            "INSERT INTO things VALUES (1)",
        ):
            with pytest.raises(psycopg.Error, match=r"its member does not answer|READ COMMITTED"):
                session.execute(statement.encode())
        before = session.execute("SELECT xmin, oid FROM pg_proc ORDER BY oid").fetchall()
        attach(attached, ["public.*"])
        assert session.execute("SELECT xmin, oid FROM pg_proc ORDER BY oid").fetchall() == before


def test_a_schema_of_that_name_that_somebody_else_has_is_not_taken(postgresql_dsn: str) -> None:
    with psycopg.connect(postgresql_dsn) as session:
        session.execute("CREATE SCHEMA groupcert_client; CREATE TABLE things (id int PRIMARY KEY)")
    with pytest.raises(UnsuitableTarget, match='schema "groupcert_client" already exists'):
        attach(postgresql_dsn, ["public.*"])


@pytest.mark.parametrize(
    "change",
    [
        "DROP SCHEMA groupcert_client CASCADE",
        "DROP FUNCTION groupcert_client.executed_version()",
        "CREATE FUNCTION groupcert_client.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    ],
)
def test_nobody_changes_what_clients_call(attached: str, change: str) -> None:
    with psycopg.connect(attached) as session:
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="groupcert_client"):
            session.execute(change.encode())


def test_detach_removes_it_but_nothing_that_needs_it(attached: str) -> None:
    with psycopg.connect(attached, autocommit=True) as session:
        query = "SELECT to_regnamespace('groupcert'), to_regnamespace('groupcert_client')"
        session.execute("CREATE VIEW newest AS SELECT groupcert_client.executed_version()")
        with pytest.raises(UnsuitableTarget, match="view newest depends on function"):
            detach(attached)
        assert session.execute("SELECT * FROM newest").fetchone() == (0,)
        assert session.execute(query).fetchone() == ("groupcert", "groupcert_client")
        session.execute("DROP VIEW newest")
        detach(attached)
        assert session.execute(query).fetchone() == (None, None)


def test_detach_removes_the_role_if_attach_made_it_and_no_database_needs_it(
    attached: str,
) -> None:
    role = "SELECT to_regrole('groupcert_applier')"
    other = conninfo.make_conninfo(attached, dbname="postgres")
    with psycopg.connect(attached, autocommit=True) as session:
        attach(other, ["public.*"], new_tables="refuse")
        detach(attached)
        assert session.execute(role).fetchone() == ("groupcert_applier",)
        query = "SELECT has_parameter_privilege(%s, 'session_replication_role', 'SET')"
        assert session.execute(query, ("groupcert_applier",)).fetchone() == (True,)
        detach(other)
        assert session.execute(role).fetchone() == (None,)
        session.execute("CREATE ROLE groupcert_applier LOGIN; CREATE TABLE theirs (id int)")
        session.execute("ALTER TABLE theirs OWNER TO groupcert_applier")
        attach(attached, ["public.things"])
        detach(attached)
        query = "SELECT tableowner FROM pg_tables WHERE tablename = 'theirs'"
        assert session.execute(query).fetchone() == ("groupcert_applier",)
        session.execute("DROP OWNED BY groupcert_applier; DROP ROLE groupcert_applier")
