"""Servers join a group, and come back to it, whose log has what they lack, or has it no longer.

Aim: all servers have the same rows at the end, whatever was committed meanwhile; where no member
has what a server lacks, an error says so at the member and at the server.
"""

import shutil
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from groupcert.applier.queue.relay_queue import RelayQueue
from groupcert.certifier.storage.store import Store, StoreIdentity
from groupcert.members.demo.postgresql_servers import GroupAtServers
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.postgresql.join import join
from tests import servers
from tests.integration.postgresql_group import PostgresqlGroup, Primary, increments, total_of
from tests.integration.test_recovery import events_of, trim
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database, pytest.mark.in_turns]

MESSAGES_AHEAD = 40
FILL = """
INSERT INTO bulk SELECT {}, '', string_agg(decode(md5(random()::text), 'hex'), '')
FROM generate_series(1, 65536)"""
"""So many are more than the log sends ahead of who reads it."""


def test_a_server_joins_while_others_commit(servers3: PostgresqlGroup, empty: Primary) -> None:
    first = servers3.primaries[0]
    shown = []
    before = total_of(servers3)
    with increments(servers3.primaries, [1, 2, 3]) as load:
        wait_for("some commits", lambda: min(load.done) > 5)
        joined = join(
            empty.dsn, first.dsn, sequence_offset=4, show=lambda *both: shown.append(both)
        )
        copied = sum(load.done)
        wait_for("more commits", lambda: sum(load.done) > copied + 5)
        empty.start_member(servers3.group)
        wait_for("it takes commits", empty.takes_commits)
        empty.query("INSERT INTO counters (count) VALUES (9)")
    assert 0 < joined.version < first.query("SELECT max(version) FROM groupcert.executed")[0][0]
    assert shown[-1][0] == joined.dump_bytes
    balances, _, _, counters, *_ = servers3.settle(empty)
    total = sum(balance for _, balance, _ in balances) - before
    assert sum(load.done) <= total <= sum(load.done) + load.unknown
    assert [number % 4 for number, count in counters if count == 9] == [0]
    settings = "SELECT socket_path, token FROM groupcert.settings"
    assert first.query(settings) != empty.query(settings)


async def test_a_server_joins_by_the_copy_of_a_member_with_a_server_once_the_log_is_trimmed(
    servers3: PostgresqlGroup, empty: Primary
) -> None:
    """A member without a server is the first that could be asked, by its name."""
    first = servers3.primaries[0]
    group = servers3.group
    group.addresses["a"] = f"{HOST}:{free_port()}"
    group.start_member("a")
    with increments(servers3.primaries, [1, 2, 3]) as load:
        join(empty.dsn, first.dsn, sequence_offset=4)
        copied = sum(load.done)
        wait_for("more commits", lambda: sum(load.done) > copied + 5)
        group.wait_online()
        await trim(group, group.status("m1").observer.log_sequence)
        empty.start_member(group)
        wait_for("it takes commits", empty.takes_commits)
    servers3.settle(empty)
    assert events_of(group, "empty", "recovery_copied")
    group.stop_member("a")


def versions_kept(data_folder: Path) -> list[int]:
    """The versions in the relay queue of a member that was stopped."""
    identity = StoreIdentity(group="local", member=data_folder.name)
    with closing(Store(data_folder, identity)) as store:
        return [each.version for group in RelayQueue(store).load() for each in group if each.gtid]


async def test_a_member_of_a_server_comes_back_by_a_copy_once_the_log_is_trimmed(
    servers3: PostgresqlGroup,
) -> None:
    """One that was stopped, with its disk and without, and one that stood still."""
    *_, last = servers3.primaries
    group = servers3.group

    async def let_others_go_on() -> None:
        with increments(servers3.primaries[:2], [1, 2, 3]) as load:
            wait_for("some commits", lambda: min(load.done) > 20)
        await trim(group, group.status("m1").observer.log_sequence)

    for has_disk in (True, False):
        group.stop_member("m3")
        versions = versions_kept(group.folder / "m3")
        assert versions == list(range(versions[0], versions[-1] + 1))
        await let_others_go_on()
        if not has_disk:
            shutil.rmtree(group.folder / "m3")
        group.start_member("m3")
        wait_for("it takes commits", last.takes_commits)
        assert servers3.settle()
    with servers3.member_stopped(2):
        for number in range(MESSAGES_AHEAD):
            servers3.primaries[0].query(FILL.format(number))
        await let_others_go_on()
    wait_for("it takes commits", last.takes_commits)
    assert servers3.settle()
    assert len(events_of(group, "m3", "recovery_copied")) == 3


async def test_a_server_that_lacks_more_than_any_member_keeps_says_what_to_do(
    tmp_path: Path,
) -> None:
    """Members keep no executed transactions here; one keeps rows in its store. What the message
    says helps, at a server that nobody has prepared.
    """
    primary, other, another = (Primary(name, tmp_path) for name in ("m1", "m2", "m3"))
    settings = {"binary_log_retention_bytes": 1}
    (tmp_path / "group").mkdir()
    with servers.where_installed(), ExitStack() as stack:
        for each in (primary, other, another):
            stack.enter_context(each.server)
        for each in (primary, other):
            each.attach("CREATE TABLE t (id int PRIMARY KEY)")
        group = GroupAtServers([primary, other], tmp_path / "group", settings=settings)
        stack.enter_context(group)
        other.query("INSERT INTO t VALUES (1)")
        group.addresses["rows"] = f"{HOST}:{free_port()}"
        group.start_member("rows")
        group.wait_online()
        group.stop_member("m2")
        shutil.rmtree(group.folder / "m2")
        for number in range(2, 6):
            primary.query(f"INSERT INTO t VALUES ({number})")
        wait_for("it is on disk", lambda: group.status("m1").observer.relay_first_version == 6)
        await trim(group, group.status("m1").observer.log_sequence)
        group.start_member("m2")
        wait_for("it ends", lambda: not group.processes["m2"].is_running)
        said = group.processes["m2"].last_line()
        ((told,),) = other.query("SELECT out_of_group FROM groupcert.settings")
        join(another.dsn, primary.dsn)
        group.start_member("m2", {"postgresql": another.dsn})
        another.wait_until_it_takes_writes()
        another.query("INSERT INTO t VALUES (6)")
        assert another.query("SELECT count(*) FROM t") == [(6,)]
    for text in (said, told):
        assert "has transactions from version 6 on, and the server needs 2: copy a running" in text
        assert "groupcert postgresql join --dsn EMPTY --from RUNNING" in text
        assert "rows at" in text and "keeps rows in its store" in text
