"""Which database was attached, and where its member's socket is.

Aim: nobody but the server's account and root has to do with the socket, no other role of the server
keeps a member from starting, and a copy of a database has nothing to do with the group.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from groupcert.applier.errors import UnsuitableTarget
from groupcert.members.postgresql.attachment import attach, detach
from groupcert.members.postgresql.backend_socket import BackendSocket
from groupcert.members.postgresql.database import Database
from groupcert.members.postgresql.status import ask_member

SETTINGS = "SELECT socket_path, token, database_oid::bigint FROM groupcert.settings"
COPY = "is a copy of an attached one: .*; to make it a database like others: .* detach"


@pytest.fixture
def attached(postgresql_dsn: str) -> str:
    """A database with one attached table."""
    with psycopg.connect(postgresql_dsn) as session:
        session.execute("CREATE TABLE things (id serial PRIMARY KEY)")
    attach(postgresql_dsn, ["public.*"], set_isolation=True)
    return postgresql_dsn


@pytest.fixture
def copy(attached: str) -> Iterator[str]:
    """A copy of it beside it."""
    name = conninfo.conninfo_to_dict(attached)["dbname"]
    server = conninfo.make_conninfo(attached, dbname="postgres")
    with psycopg.connect(server, autocommit=True) as session:
        session.execute(f"CREATE DATABASE {name}_copy TEMPLATE {name}".encode())
        yield conninfo.make_conninfo(attached, dbname=f"{name}_copy")
        session.execute(f"DROP DATABASE {name}_copy WITH (FORCE)".encode())


def ask(dsn: str, query: str) -> tuple[object, ...]:
    """The only row of a query."""
    with psycopg.connect(dsn) as session:
        (row,) = session.execute(query.encode()).fetchall()
        return tuple(row)


def path_of(dsn: str) -> Path:
    """Where a database's member listens."""
    return Path(str(ask(dsn, SETTINGS)[0]))


def test_the_socket_is_in_a_folder_of_the_account_alone(attached: str) -> None:
    path = path_of(attached)
    data = Path(str(ask(attached, "SHOW data_directory")[0])).resolve()
    assert path == data / "groupcert" / f"{ask(attached, SETTINGS)[2]}.sock"
    found = path.parent.stat()
    assert stat.S_IMODE(found.st_mode) == 0o700
    assert found.st_uid == data.stat().st_uid
    assert Path(f"{path}.lock").stat().st_mode & 0o777 == 0o600
    detach(attached)
    assert not path.exists()


def test_what_a_detach_that_failed_has_removed_is_not_missed_by_the_next(attached: str) -> None:
    """Files do not come back with the transaction."""
    with psycopg.connect(attached, autocommit=True) as session:
        session.execute("CREATE FUNCTION theirs() RETURNS int LANGUAGE plpython3u AS 'return 1'")
        with pytest.raises(UnsuitableTarget, match="function theirs"):
            detach(attached)
        session.execute("DROP FUNCTION theirs")
        assert detach(attached) == ["public.things"]


def test_a_server_that_prepares_transactions_is_refused(target_dsn: str) -> None:
    with pytest.raises(UnsuitableTarget, match="it has max_prepared_transactions = "):
        attach(target_dsn, ["public.*"])


@pytest.mark.parametrize(
    ("folder", "problem"),
    [
        ("/tmp", "is owned by uid 0|has mode 1777"),
        ("/proc/groupcert", "cannot be used by"),
        ("{data}/open", "has mode 0770: others may write to it"),
    ],
)
def test_a_folder_that_others_may_write_to_is_refused(
    attached: str, folder: str, problem: str
) -> None:
    data = Path(str(ask(attached, "SHOW data_directory")[0]))
    path = Path(folder.format(data=data)) / "member.sock"
    if path.parent.is_relative_to(data):
        with psycopg.connect(attached) as session:
            session.execute("SELECT groupcert.prepare_socket(%s)", (str(path),))
        path.parent.chmod(0o770)
    with pytest.raises(UnsuitableTarget, match=problem) as raised:
        attach(attached, ["public.*"], socket=path)
    assert "install -d -o" in str(raised.value)
    assert path_of(attached) != path


def test_another_socket_is_made_where_it_is_wanted(attached: str) -> None:
    before = ask(attached, SETTINGS)
    wanted = path_of(attached).parent / "deeper" / "member.sock"
    assert attach(attached, ["public.*"], socket=wanted).is_moved
    after = ask(attached, SETTINGS)
    assert after[0] == str(wanted) and after[1] != before[1]
    assert not attach(attached, ["public.*"], socket=wanted).is_moved
    assert ask(attached, SETTINGS) == after


@pytest.mark.parametrize("lock", ["(1735156336)", "(1735156336, 7)"])
async def test_no_role_keeps_a_member_from_starting(attached: str, lock: str) -> None:
    """One that looks like a COMMIT is taken for that, and ended as one that does not go on."""
    with closing(psycopg.connect(attached)) as session:
        session.execute(f"SELECT pg_advisory_lock{lock}".encode())
        database = await Database(attached, turn_seconds=0.5).open()
        assert await database.run("SELECT 1") == [(1,)]
        await database.close()


async def test_a_member_of_another_account_is_refused(
    attached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4_242)
    database = Database(attached)
    with pytest.raises(UnsuitableTarget, match=r"as uid 4242; expected sudo -u .* groupcert"):
        await database.open()
    await database.close()


async def test_a_member_of_another_machine_is_refused(
    attached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There a folder of the same name may be that of another server."""
    monkeypatch.setattr(BackendSocket, "lock", lambda _: True)
    database = Database(attached)
    with pytest.raises(UnsuitableTarget, match="is another machine's here"):
        await database.open()
    await database.close()


async def test_a_copy_is_refused_until_it_is_detached(attached: str, copy: str) -> None:
    with psycopg.connect(copy) as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("INSERT INTO things DEFAULT VALUES")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as raised:
            session.commit()
    diag = raised.value.diag
    assert diag.message_primary == (
        "this server is read-only: its database is a copy of an attached one"
    )
    assert f"attached was database {ask(attached, SETTINGS)[2]}" in str(diag.message_detail)
    assert "groupcert postgresql detach --dsn" in str(diag.message_hint)
    database = Database(copy)
    with pytest.raises(UnsuitableTarget, match=COPY):
        await database.open()
    await database.close()
    with pytest.raises(UnsuitableTarget, match=COPY):
        ask_member(copy)
    assert detach(copy) == ["public.things"]
    with psycopg.connect(copy) as session:
        session.execute("INSERT INTO things DEFAULT VALUES")
        schemas = session.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'groupcert'")
        assert not schemas.fetchall()
    assert path_of(attached).parent.exists()


async def test_a_copy_that_is_attached_is_a_server_of_its_own(attached: str, copy: str) -> None:
    with psycopg.connect(copy) as session:
        assert session.execute("SHOW default_transaction_isolation").fetchone() == (
            "read committed",
        )
    assert attach(copy, ["public.*"]).is_moved
    assert not {*ask(attached, SETTINGS)} & {*ask(copy, SETTINGS)}
    assert ask(copy, "SHOW default_transaction_isolation") == ("repeatable read",)
    for each in (attached, copy):
        database = await Database(each).open()
        await database.close()
    detach(copy)
    assert ask(copy, "SHOW default_transaction_isolation") == ("read committed",)
