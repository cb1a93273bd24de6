"""A PostgreSQL server of a group that crashes loses its last commits, and gets them again."""

import os
import signal
from contextlib import closing

import pytest

from tests.integration.postgresql_group import PostgresqlGroup
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
