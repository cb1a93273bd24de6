"""In which order the processes of a group are restarted, and what a group lacks to be whole."""

import pytest

from groupcert.certifier.errors import InvalidSetting
from groupcert.members.commands.rolling_restart import (
    LAG_MAX,
    Commands,
    Group,
    Process,
    next_of,
    restart_group,
    why_not_whole,
)
from groupcert.members.security.credentials import ANONYMOUS
from groupcert.v1 import group_pb2

GROUP = Group({"m1": "h1:1", "m2": "h2:1"}, frozenset({"log1", "log2", "log3"}))


def status_of(name: str, *, primary: str = "", leader: str = "log1") -> group_pb2.GroupStatus:
    """What a member of a whole group says."""
    status = group_pb2.GroupStatus(primary=primary)
    for number, member in enumerate(GROUP.members, start=1):
        status.members.add(name=member, incarnation=number)
    status.observer.name = name
    status.observer.state = group_pb2.MEMBER_STATE_ONLINE
    status.observer.log.leader = leader
    for server in sorted(GROUP.log_servers):
        status.observer.log.servers.add(
            name=server, state=group_pb2.LOG_SERVER_STATE_CURRENT, current=True
        )
    return status


def whole(**given: str) -> dict[str, group_pb2.GroupStatus | str]:
    return {name: status_of(name, **given) for name in GROUP.members}


def test_log_servers_come_first_and_of_each_kind_the_one_that_leads_last() -> None:
    waiting = [Process(name, True) for name in sorted(GROUP.log_servers)]
    waiting += [Process(name, False) for name in GROUP.members]
    statuses = whole(primary="m1", leader="log1")
    order = []
    while waiting:
        order.append(next_of(waiting, statuses))
        waiting.remove(order[-1])
    assert [each.name for each in order] == ["log2", "log3", "log1", "m2", "m1"]


def test_a_group_is_whole_when_all_are_online_and_the_log_is_everywhere() -> None:
    assert why_not_whole(GROUP, whole()) == ""


def test_each_thing_that_is_missing_is_named() -> None:
    statuses = whole()
    statuses["m2"] = "it is UNREACHABLE"
    assert why_not_whole(GROUP, statuses) == "m2 does not answer: it is UNREACHABLE"

    joining = status_of("m2")
    joining.observer.state = group_pb2.MEMBER_STATE_JOINING
    joining.observer.reason = "waiting for its view"
    assert why_not_whole(GROUP, {**whole(), "m2": joining}).startswith("m2 is JOINING")

    alone = status_of("m1")
    del alone.members[1]
    expected = "m1 sees m1 in the view, expected m1, m2"
    assert why_not_whole(GROUP, {**whole(), "m1": alone}) == expected

    ahead = status_of("m1")
    ahead.observer.committed_version = ahead.observer.certified_version = LAG_MAX + 1
    expected = f"m2 lacks {LAG_MAX + 1} transactions, the limit is {LAG_MAX}"
    assert why_not_whole(GROUP, {**whole(), "m1": ahead}) == expected

    behind = status_of("m2")
    behind.observer.log.servers[2].state = group_pb2.LOG_SERVER_STATE_BEHIND
    assert "log3" in why_not_whole(GROUP, {**whole(), "m2": behind})

    unknown = status_of("m2")
    del unknown.observer.log.servers[:]
    expected = "log1, log2, log3 does not have all of the log, says m2"
    assert why_not_whole(GROUP, {**whole(), "m2": unknown}) == expected


def test_a_certification_log_that_waits_for_its_disk_keeps_nobody_from_restarting() -> None:
    full = status_of("m1")
    full.observer.certification_log_error = "no space left"
    assert why_not_whole(GROUP, {**whole(), "m1": full}) == ""


def test_a_command_names_what_it_restarts() -> None:
    commands = Commands("docker restart 'a {name}'", "ssh {name} systemctl restart nats")
    assert commands.of(Process("m1", False), GROUP) == ["docker", "restart", "a m1"]
    assert commands.of(Process("log1", True), GROUP)[1] == "log1"
    by_address = Commands("restart {address}", "restart {name}")
    assert by_address.of(Process("m2", False), GROUP) == ["restart", "h2:1"]
    with pytest.raises(InvalidSetting, match=r"expected \{name\} in it"):
        restart_group(
            ["127.0.0.1:1"],
            Commands("systemctl restart groupcert", "restart {name}"),
            ANONYMOUS,
            limit_s=1,
            log_servers=True,
            members=True,
            dry_run=False,
        )
