"""Who gets into a group of PostgreSQL servers: neither other users of the machine, nor copies of a
server's database.

Aim: rows reach nobody but the member, no server commits at the word of somebody else, and what
is committed in a backup that was restored beside its server does not reach the others.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from socket import SO_ACCEPTCONN, SOL_SOCKET

import psycopg
import pytest
from psycopg import conninfo

from groupcert.certifier.gtid import Gtid
from groupcert.members.host.postgresql_server import postgresql_program
from groupcert.members.postgresql.attachment import attach, detach
from groupcert.members.postgresql.backend_socket import BackendSocket
from groupcert.members.postgresql.backends import Backend, BackendServer, Request, Wait
from groupcert.members.postgresql.commit_order import Entry
from groupcert.members.postgresql.sequences import Numbering
from tests import servers
from tests.integration.postgresql_group import SERVERS_MAX, PostgresqlGroup, Primary
from tests.integration.waiting import SECONDS_MAX, wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database, pytest.mark.in_turns]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="processes of other accounts need root")

COPY = "is a copy of an attached one"
INTRUDER = """
import socket, sys
for attempt in ("connect", "bind"):
    try:
        getattr(socket.socket(socket.AF_UNIX), attempt)(sys.argv[1])
        print(attempt, "went well")
    except PermissionError:
        print(attempt, "was refused")
"""
LISTENER = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).listen(); sys.stdin.read()"


@contextmanager
def without_member(primary: Primary) -> Iterator[BackendSocket]:
    """Kills a member for the block; yields where it was, with another token."""
    primary.member.kill()
    with psycopg.connect(primary.dsn) as session:
        ((path, uid),) = session.execute(
            "SELECT socket_path, uid FROM groupcert.settings, groupcert.prepare_socket(socket_path)"
        ).fetchall()
    try:
        yield BackendSocket(Path(path), "another token", uid)
    finally:
        primary.member.start()
        wait_for("it takes commits", primary.takes_commits)


@pytest.fixture
def beside(servers3: PostgresqlGroup, tmp_path: Path) -> Iterator[Primary]:
    """A dump of the first server's database, restored beside it."""
    first = servers3.primaries[0]
    servers3.settle()
    dump = tmp_path / "dump"
    with psycopg.connect(first.dsn, autocommit=True) as session:
        session.execute("CREATE DATABASE beside TEMPLATE template0")
        dsn = conninfo.make_conninfo(first.dsn, dbname="beside")
        subprocess.run(["pg_dump", "-Fc", "-f", str(dump), "-d", first.dsn], check=True)
        subprocess.run(["pg_restore", "-d", dsn, str(dump)], check=True)
        primary = Primary("beside", tmp_path, dsn=dsn)
        yield primary
        primary.end_member()
        session.execute("DROP DATABASE beside WITH (FORCE)")


def refusal_of(dsn: str) -> psycopg.Error:
    """What a client of a server is refused with."""
    with closing(psycopg.connect(dsn)) as session:
        session.read_only = False
        session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        session.execute("UPDATE accounts SET balance = 4000 WHERE id = 39")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as raised:
            session.commit()
    return raised.value


@as_root
def test_another_user_of_the_machine_neither_reaches_nor_takes_the_socket(
    servers3: PostgresqlGroup,
) -> None:
    first = servers3.primaries[0]
    said = []
    as_nobody = ["setpriv", "--reuid=nobody", "--clear-groups", sys.executable, "-c", INTRUDER]
    with psycopg.connect(first.dsn) as session:
        (path,) = session.execute("SELECT socket_path FROM groupcert.settings").fetchone() or ("",)

    def intrude() -> None:
        done = subprocess.run([*as_nobody, path], capture_output=True, text=True, check=True)
        said.append(done.stdout.split("\n")[:-1])

    intrude()
    with without_member(first):
        intrude()
    assert said == [["connect was refused", "bind was refused"]] * 2


def test_who_listens_there_without_the_token_gets_no_row(servers3: PostgresqlGroup) -> None:
    first = servers3.primaries[0]
    requests = []
    before = servers3.settle()

    async def take(backend: Backend, request: Request | Wait) -> None:
        requests.append(request)
        backend.grant(Entry(4_000, Gtid("a", 1), ()), None)

    async def listen(impostor: BackendSocket) -> psycopg.Error:
        async with BackendServer(impostor, take, lambda: None, dict):
            return await asyncio.to_thread(refusal_of, first.dsn)

    with without_member(first) as impostor:
        failure = asyncio.run(listen(impostor))
    assert "cannot prove that it is the member" in str(failure.diag.message_detail)
    assert not requests
    assert servers3.settle()[0] == before[0]


@as_root
def test_who_listens_there_of_another_account_is_told_nothing(servers3: PostgresqlGroup) -> None:
    first = servers3.primaries[0]
    as_nobody = ["setpriv", "--reuid=nobody", "--clear-groups", sys.executable, "-c", LISTENER]
    with without_member(first) as impostor, impostor.bind() as bound:
        handed = [*as_nobody, str(bound.fileno())]
        with subprocess.Popen(handed, pass_fds=[bound.fileno()], stdin=subprocess.PIPE) as listener:
            wait_for("it listens", lambda: bound.getsockopt(SOL_SOCKET, SO_ACCEPTCONN))
            failure = refusal_of(first.dsn)
            listener.communicate()
    assert "has uid 65534, and is no member" in str(failure.diag.message_detail)


def test_a_dump_that_is_restored_beside_its_server_writes_nowhere_else(
    servers3: PostgresqlGroup, beside: Primary
) -> None:
    before = servers3.settle()
    failure = refusal_of(beside.dsn)
    assert COPY in str(failure.diag.message_primary)
    assert "groupcert postgresql detach --dsn" in str(failure.diag.message_hint)
    beside.start_member(servers3.group)
    assert beside.member.wait(SECONDS_MAX) == 2
    said = beside.member.log.read_text()
    assert COPY in said and "detach" in said and "Traceback" not in said
    detach(beside.dsn)
    with psycopg.connect(beside.dsn) as session:
        session.execute("UPDATE accounts SET balance = 4000 WHERE id = 39")
        left = session.execute("SELECT FROM pg_namespace WHERE nspname = 'groupcert'").fetchall()
    assert not left
    assert servers3.settle() == before


def test_a_dump_that_is_restored_and_attached_goes_on_as_a_server(
    servers3: PostgresqlGroup, beside: Primary
) -> None:
    first = servers3.primaries[0]
    first.query("UPDATE accounts SET balance = balance + 1 WHERE id = 38")
    assert attach(beside.dsn, ["public.*"], numbering=Numbering(4, SERVERS_MAX)).is_moved
    beside.start_member(servers3.group)
    wait_for("it takes commits", beside.takes_commits)
    beside.query("UPDATE accounts SET balance = balance + 1 WHERE id = 38")
    servers3.settle(beside)


def test_a_base_backup_at_another_place_is_refused_until_that_is_noted(
    servers3: PostgresqlGroup, tmp_path: Path
) -> None:
    first = servers3.primaries[0]
    before = servers3.settle()
    data = tmp_path / "restored" / "postgresql"
    program = str(postgresql_program("pg_basebackup"))
    subprocess.run([program, "--checkpoint=fast", "-D", str(data), "-d", first.dsn], check=True)
    if os.geteuid() == 0:
        for path in (data, *data.rglob("*")):
            shutil.chown(path, "postgres", "postgres")
    with ExitStack() as stack:
        server = stack.enter_context(servers.PostgreSqlServer(data.parent))
        restored = Primary("restored", tmp_path, dsn=server.dsn)
        stack.callback(restored.end_member)
        assert COPY in str(refusal_of(restored.dsn))
        restored.start_member(servers3.group)
        assert restored.member.wait(SECONDS_MAX) == 2
        assert COPY in restored.member.log.read_text()
        assert servers3.settle() == before
        assert attach(restored.dsn, ["public.*"], numbering=Numbering(4, SERVERS_MAX)).is_moved
        restored.start_member(servers3.group)
        wait_for("it takes commits", restored.takes_commits)
        servers3.settle(restored)
