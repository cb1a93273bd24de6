"""A PostgreSQL server of a group that crashes loses its last commits, and gets them again."""

import os
import signal
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from groupcert.members.demo.postgresql_servers import GroupAtServers
from groupcert.members.host.loopback import HOST
from tests import servers
from tests.integration.postgresql_group import SETTINGS, PostgresqlGroup, Primary, balances
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
            wait_for("it is on disk", lambda: group.status("m1").observer.durable_version == 3)
            assert primary.member.stop() == 0
            with psycopg.connect(primary.dsn) as session:
                session.read_only = False
                session.execute("DELETE FROM groupcert.executed WHERE version > 1")
            primary.member.start()
            wait_for("it says why", lambda: "COPY_NEEDED" in primary.member.log.read_text())
            said = primary.member.log.read_text()
    assert "has executed all up to version 1, and its member has nothing before version" in said
    assert "groupcert postgresql join --dsn EMPTY --from RUNNING" in said
