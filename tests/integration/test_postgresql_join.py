"""A PostgreSQL server that joins a group of others with a copy of one of them.

Aim: it has all rows of the group at the end, whatever was committed while it was copied; where it
cannot join, an error says why, and the database is as it was. The server that joins is a database
of its own beside one of the others.
"""

from collections.abc import Iterator
from pathlib import Path

import grpc
import psycopg
import pytest
from psycopg import conninfo

from groupcert.applier.errors import UnsuitableTarget
from groupcert.certifier.errors import InvalidSetting
from groupcert.members.postgresql.join import join
from groupcert.v1 import binary_log_pb2
from groupcert.v1.binary_log_pb2_grpc import BinaryLogServiceStub
from tests.integration.postgresql_group import PostgresqlGroup, Primary, increments
from tests.integration.waiting import SECONDS_MAX, wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database]


@pytest.fixture
def empty(servers3: PostgresqlGroup, tmp_path: Path) -> Iterator[Primary]:
    """An empty database beside the last server's, whose member its companion is at."""
    *_, last = servers3.primaries
    with psycopg.connect(last.dsn, autocommit=True) as session:
        session.execute("CREATE DATABASE joined TEMPLATE template0")
        dsn = conninfo.make_conninfo(last.dsn, dbname="joined")
        primary = Primary(dsn, last.member, tmp_path / "companion.log")
        yield primary
        primary.kill()
        session.execute("DROP DATABASE joined WITH (FORCE)")


def tables_of(primary: Primary) -> list[str]:
    """The tables of a database."""
    query = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    return [name for (name,) in primary.query(query)]


def test_a_server_joins_while_others_commit(servers3: PostgresqlGroup, empty: Primary) -> None:
    first = servers3.primaries[0]
    shown = []
    with increments(servers3.primaries, [1, 2, 3]) as done:
        wait_for("some commits", lambda: min(done) > 5)
        joined = join(
            empty.dsn, first.dsn, sequence_offset=4, show=lambda *both: shown.append(both)
        )
        copied = sum(done)
        wait_for("more commits", lambda: sum(done) > copied + 5)
        empty.start()
        wait_for("it takes commits", empty.takes_commits)
        empty.query("INSERT INTO counters (count) VALUES (9)")
    assert 0 < joined.version < first.query("SELECT max(version) FROM groupcert.executed")[0][0]
    assert shown[-1][0] == joined.dump_bytes
    balances, *_, counters, _ = servers3.settle(empty)
    assert sum(balance for _, balance, _ in balances) == 4_000 + sum(done)
    assert [number % 4 for number, count in counters if count == 9] == [0]
    settings = "SELECT socket_path, token FROM groupcert.settings"
    assert first.query(settings) != empty.query(settings)


def test_a_copy_that_the_binary_log_does_not_reach_says_what_to_do(
    servers3: PostgresqlGroup, empty: Primary
) -> None:
    first = servers3.primaries[0]
    join(empty.dsn, first.dsn, sequence_offset=4)
    for _ in range(3):
        assert first.takes_commits()
    servers3.settle()
    with grpc.insecure_channel(empty.member) as channel:
        service = BinaryLogServiceStub(channel)
        rotated = service.Rotate(binary_log_pb2.RotateRequest()).file
        service.Purge(binary_log_pb2.PurgeRequest(to_file=rotated))
    empty.start()
    assert empty.companion and empty.companion.wait(SECONDS_MAX) == 1
    said = empty.log.read_text()
    assert "groupcert postgresql join --dsn EMPTY --from RUNNING" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("offset", "problem"),
    [
        (1, "1 to 4, which no other server has: the running one has 1"),
        (None, "'': expected the new server's own"),
    ],
)
def test_a_server_with_the_numbers_of_another_one_is_not_copied_to(
    servers3: PostgresqlGroup, empty: Primary, offset: int | None, problem: str
) -> None:
    with pytest.raises(InvalidSetting, match=problem):
        join(empty.dsn, servers3.primaries[0].dsn, sequence_offset=offset)
    assert tables_of(empty) == []


@pytest.mark.parametrize("what", ["TABLE mine ()", "SCHEMA groupcert"])
def test_a_database_that_is_not_empty_is_refused(
    servers3: PostgresqlGroup, empty: Primary, what: str
) -> None:
    empty.query(f"CREATE {what}")
    before = tables_of(empty)
    with pytest.raises(UnsuitableTarget, match=r"the database has .*; expected an empty one"):
        join(empty.dsn, servers3.primaries[0].dsn, sequence_offset=4)
    assert tables_of(empty) == before


def test_a_copy_that_fails_leaves_nothing(servers3: PostgresqlGroup, empty: Primary) -> None:
    """The last table of the running server holds a row that cannot be restored."""
    first = servers3.primaries[0]
    first.query("CREATE TABLE zebras (id int DEFAULT 1)")
    first.query("CREATE FUNCTION wild() RETURNS boolean LANGUAGE sql AS 'SELECT true'")
    first.query("INSERT INTO zebras VALUES (1)")
    first.query("ALTER TABLE zebras ADD CHECK (wild())")
    first.query("CREATE OR REPLACE FUNCTION wild() RETURNS boolean LANGUAGE sql AS 'SELECT false'")
    try:
        with pytest.raises(UnsuitableTarget, match=r"pg_restore failed: .*zebras"):
            join(empty.dsn, first.dsn, sequence_offset=4)
    finally:
        first.query("DROP TABLE zebras; DROP FUNCTION wild")
    assert tables_of(empty) == []


def test_without_pg_dump_an_error_names_its_package(
    servers3: PostgresqlGroup, empty: Primary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsuitableTarget, match="apt-get install postgresql-client-1"):
        join(empty.dsn, servers3.primaries[0].dsn, sequence_offset=4)
    old = tmp_path / "pg_dump"
    old.write_text("#!/bin/sh\necho 'pg_dump (PostgreSQL) 9.6.24'\n")
    old.chmod(0o755)
    with pytest.raises(UnsuitableTarget, match=r"9\.6\.24.*apt-get install"):
        join(empty.dsn, servers3.primaries[0].dsn, sequence_offset=4)


def test_a_server_that_is_in_no_group_is_not_copied(
    servers3: PostgresqlGroup, empty: Primary
) -> None:
    with pytest.raises(UnsuitableTarget, match="nothing is attached"):
        join(servers3.primaries[0].dsn, empty.dsn)
    assert servers3.primaries[0].takes_commits()
