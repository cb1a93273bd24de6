"""A group of two PostgreSQL servers and a third site: a member with rows in its store, or without.

Aim: with one server down the others have a majority and go on, and what comes back has all rows.
"""

import json
from collections.abc import Iterator

import pytest

from groupcert import Client
from groupcert.certifier.storage.reading import reading
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.recovery.copies import OF_ROWS
from tests import servers
from tests.commands import groupcert
from tests.integration.postgresql_group import PostgresqlGroup, increments, postgresql_group
from tests.integration.test_recovery import assert_one_digest, events_of, lose
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database, pytest.mark.in_turns]

THIRD = "m3"


@pytest.fixture(scope="module", params=["kept", "none"])
def rows(request: pytest.FixtureRequest) -> str:
    """The setting of the member without a server."""
    return str(request.param)


@pytest.fixture(scope="module")
def mixed(rows: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresqlGroup]:
    """Two servers with their members, and a member without a server."""
    folder = tmp_path_factory.mktemp("mixed")
    with servers.where_installed(), postgresql_group(folder, ("m1", "m2")) as group:
        group.group.addresses[THIRD] = f"{HOST}:{free_port()}"
        group.group.start_member(THIRD, {"rows": rows})
        yield group


def stored_balances(group: PostgresqlGroup) -> dict[int, int]:
    """The balances that clients have written since, as the third member's store has them."""
    with Client(group.group.addresses[THIRD]) as client, client.transaction() as transaction:
        rows = [
            json.loads(value)
            for _, value in transaction.scan(b"public.accounts/", b"public.accounts0")
        ]
    return {row["id"]: row["balance"] for row in rows}


def test_two_of_three_go_on_whichever_is_killed(mixed: PostgresqlGroup, rows: str) -> None:
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
    if rows == "none":
        said = groupcert("verify", mixed.group.addresses[THIRD])
        assert said.returncode == 0, said.stdout
        assert said.stdout.startswith(f"left out, without rows: {THIRD}\nequal at m1, m2: ")
        return

    def has_all() -> bool:
        found = stored_balances(mixed)
        return {1, 2, 3, 4, 5} <= found.keys() and found.items() <= balances.items()

    assert wait_for("the third member has the rows, too", has_all)


async def test_a_third_site_that_lost_its_disk_copies_a_servers_member_without_rows(
    mixed: PostgresqlGroup, rows: str
) -> None:
    if rows == "kept":
        pytest.skip("a store with rows has nobody here to copy from")
    await lose(mixed.group, THIRD)
    mixed.group.start_member(THIRD, {"rows": rows})
    mixed.group.wait_online()
    assert events_of(mixed.group, THIRD, "recovery_copied")
    assert_one_digest(mixed.group)
    assert mixed.group.stop_member(THIRD) == 0
    with reading(mixed.group.folder / THIRD) as store:
        assert [each for each in OF_ROWS if next(store.scan(each), None)] == []
