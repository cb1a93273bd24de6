"""A group of two PostgreSQL servers and a member that keeps rows in its store, as a third site.

Aim: with one server down the others have a majority and go on, and what comes back has all rows.
"""

import json
from collections.abc import Iterator

import pytest

from groupcert import Client
from groupcert.members.host.loopback import HOST, free_port
from tests import servers
from tests.integration.postgresql_group import PostgresqlGroup, increments, postgresql_group
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database, pytest.mark.in_turns]

THIRD = "m3"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresqlGroup]:
    """Two servers with their members, and a member without a server."""
    folder = tmp_path_factory.mktemp("mixed")
    with servers.where_installed(), postgresql_group(folder, ("m1", "m2")) as group:
        group.group.addresses[THIRD] = f"{HOST}:{free_port()}"
        group.group.start_member(THIRD)
        yield group


def stored_balances(group: PostgresqlGroup) -> dict[int, int]:
    """The balances that clients have written since, as the third member's store has them."""
    with Client(group.group.addresses[THIRD]) as client, client.transaction() as transaction:
        rows = [
            json.loads(value)
            for _, value in transaction.scan(b"public.accounts/", b"public.accounts0")
        ]
    return {row["id"]: row["balance"] for row in rows}


def test_two_of_three_go_on_whichever_is_killed(mixed: PostgresqlGroup) -> None:
    first, second = mixed.primaries
    with increments([first], [1, 2, 3]) as load:
        wait_for("some commits", lambda: load.done[0] > 10)
        second.server.kill()
        second.member.kill()
        done = load.done[0]
        wait_for("more commits", lambda: load.done[0] > done + 50)
        second.server.start()
        second.server.wait_ready()
        second.member.start()
        wait_for("the second server takes commits", second.takes_commits)
        mixed.group.processes[THIRD].kill()
        done = load.done[0]
        wait_for("more commits", lambda: load.done[0] > done + 50)
        mixed.group.processes[THIRD].start()
    with increments([second], [4, 5]) as load:
        wait_for("commits at the second server", lambda: load.done[0] > 10)
    balances = {row[0]: row[1] for row in mixed.settle()[0]}

    def has_all() -> bool:
        found = stored_balances(mixed)
        return {1, 2, 3, 4, 5} <= found.keys() and found.items() <= balances.items()

    assert wait_for("the third member has the rows, too", has_all)
