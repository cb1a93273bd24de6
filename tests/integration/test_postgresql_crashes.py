"""A PostgreSQL server of a group that crashes loses its last commits, and gets them again."""

import os
import signal
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from groupcert.members.demo.postgresql_servers import GroupAtServers
from groupcert.members.host.loopback import HOST
from tests import servers
from tests.frozen import frozen
from tests.integration.postgresql_group import (
    SETTINGS,
    PostgresqlGroup,
    Primary,
    balances,
    has_asked,
)
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database]

CRASHES = 5


def test_commits_that_a_crash_has_lost_are_there_again_before_others(
    servers3: PostgresqlGroup,
) -> None:
    """The server takes clients again before its member has seen that it crashed."""
    first, *_ = servers3.primaries
    for balance in range(CRASHES):
        with closing(first.connect()) as victim:
            for number in (21, 22, 23):
                first.query(f"UPDATE accounts SET balance = {balance} WHERE id = {number}")
            os.kill(victim.info.backend_pid, signal.SIGKILL)
        wait_for("the server takes commits", first.takes_commits)
        found = first.query("SELECT DISTINCT balance FROM accounts WHERE id IN (21, 22, 23)")
        assert found == [(balance,)]
    first.query("UPDATE accounts SET balance = 100 WHERE id IN (21, 22, 23)")
    servers3.settle()


def test_a_client_that_knows_all_servers_goes_on_where_writes_are_taken(
    servers3: PostgresqlGroup,
) -> None:
    """libpq asks a server whether sessions begin read-only: one does that is out of its group."""
    first, second, third = servers3.primaries
    hosts = ",".join(f"{HOST}:{primary.server.port}" for primary in servers3.primaries)
    dsn = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
    increment = "UPDATE accounts SET balance = balance + 1 WHERE id = 24"

    def incremented_at() -> int:
        with suppress(psycopg.OperationalError), closing(psycopg.connect(dsn)) as session:
            with session.transaction():
                session.execute(increment)
            return session.info.port
        return 0

    with closing(psycopg.connect(dsn)) as session:
        session.execute(increment)
        session.commit()
        first.server.kill()
        with pytest.raises(psycopg.OperationalError):
            session.execute(increment)
    assert wait_for("a commit", incremented_at) == second.server.port
    second.end_member()
    assert wait_for("a commit", incremented_at) == third.server.port
    second.start_member(servers3.group, **SETTINGS)
    first.server.start()
    first.server.wait_ready()
    for primary in servers3.primaries:
        wait_for("it takes commits", primary.takes_commits)
    assert balances(servers3)[24] == 103
    assert wait_for("a commit", incremented_at) == first.server.port


def test_new_sessions_go_to_another_server_while_a_member_is_dead_or_stands_still(
    servers3: PostgresqlGroup,
) -> None:
    """Those of libpq's `target_session_attrs=read-write`; older ones are told why at COMMIT."""
    first, *_ = servers3.primaries
    ports = [primary.server.port for primary in servers3.primaries]
    dsn = psycopg.conninfo.make_conninfo(
        host=",".join(HOST for _ in ports),
        port=",".join(map(str, ports)),
        user="postgres",
        target_session_attrs="read-write",
    )

    def found() -> int:
        with psycopg.connect(dsn) as session:
            return session.info.port

    assert found() == ports[0]
    with closing(has_asked(first)) as old:
        first.member.kill()
        wait_for("another server is chosen", lambda: found() == ports[1])
        old.execute("UPDATE accounts SET balance = balance WHERE id = 40")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="its member has died"):
            old.commit()
    first.member.start()
    wait_for("it is chosen again", lambda: found() == ports[0])
    with servers3.member_stopped(0):
        wait_for("another server is chosen", lambda: found() == ports[1])
    wait_for("it is chosen again", lambda: found() == ports[0])
    wait_for("it takes commits", first.takes_commits)
    servers3.settle()


def test_a_member_gets_its_sessions_though_clients_hold_all_connections(
    servers3: PostgresqlGroup,
) -> None:
    """Those of a pool that waits for the server to take writes again."""
    first, *_ = servers3.primaries
    first.query("CREATE ROLE pool LOGIN")
    dsn = psycopg.conninfo.make_conninfo(first.dsn, user="pool")
    first.member.kill()
    with ExitStack() as held:
        with pytest.raises(psycopg.OperationalError, match="reserved"):
            while True:
                held.enter_context(closing(psycopg.connect(dsn)))
        first.member.start()
        wait_for("it takes commits", first.takes_commits)
    assert "session_ended_for_member" in first.member.log.read_text()
    first.query("DROP ROLE pool")
    servers3.settle()


def test_a_member_ends_when_it_is_told_to_though_its_server_stands_still(
    servers3: PostgresqlGroup,
) -> None:
    first, *_ = servers3.primaries
    group = servers3.group
    server = psutil.Process(first.server.pid)
    with ExitStack() as still:
        for process in (server, *server.children(recursive=True)):
            still.enter_context(frozen(process.pid))
        assert group.stop_member("m1") == 0
        group.start_member("m1")
        wait_for("it says so", lambda: "connection timeout" in first.member.log.read_text())
        assert group.stop_member("m1") == 0
    group.start_member("m1")
    wait_for("it takes commits", first.takes_commits)
    servers3.settle()


def test_a_server_that_was_put_back_behind_its_members_state_says_what_to_do(
    tmp_path: Path,
) -> None:
    """The member keeps executed transactions for a while, here none."""
    primary = Primary("m1", tmp_path)
    with servers.where_installed(), primary.server:
        primary.attach("CREATE TABLE t (id int PRIMARY KEY)")
        settings = {"binary_log_retention_bytes": 1}
        with GroupAtServers([primary], tmp_path / "group", settings=settings) as group:
            for number in range(3):
                primary.query(f"INSERT INTO t VALUES ({number})")
            # What it has not stored yet it stores as it stops, and lets go of in the next run.
            assert primary.member.stop() == 0
            primary.member.start()
            primary.wait_until_it_takes_writes()
            wait_for(
                "nothing is kept", lambda: group.status("m1").observer.relay_first_version == 4
            )
            assert primary.member.stop() == 0
            with psycopg.connect(primary.dsn) as session:
                session.read_only = False
                session.execute("DELETE FROM groupcert.executed WHERE version > 1")
            primary.member.start()
            wait_for("it says why", lambda: "COPY_NEEDED" in primary.member.log.read_text())
            said = primary.member.log.read_text()
    assert "has executed all up to version 1, and its member has nothing before version" in said
    assert "groupcert postgresql join --dsn EMPTY --from RUNNING" in said
