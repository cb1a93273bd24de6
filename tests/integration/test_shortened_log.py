"""A log server's disk loses the log's end, and a member loses its own: nobody commits on the rest.

Method: a bit is flipped in the file of the one log server, which was killed. When it starts again,
it reads all of the file, and cuts the log at the message that it cannot read any more.
"""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from groupcert import Client
from groupcert.members.demo.local_group import LocalGroup
from groupcert.v1 import group_pb2
from tests.integration.test_membership import command
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.in_turns]

ROWS = 60
SETTINGS: dict[str, object] = {"stable_set_period_ms": 200}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalGroup]:
    """Three members, and a log server that none of them brings."""
    with LocalGroup(tmp_path, members=3, settings=SETTINGS) as group:
        yield group


def commit_rows(group: LocalGroup) -> None:
    with Client(group.addresses["m1"]) as client:
        for number in range(ROWS):
            with client.transaction() as transaction:
                transaction.put(b"row/%d" % number, b"%d" % number)


def rows_at(group: LocalGroup, name: str) -> int:
    with Client(group.addresses[name], timeout_ms=60_000) as client:
        transaction = client.transaction()
        found = sum(1 for _ in transaction.scan(b"row/", b"row0"))
        transaction.rollback()
    return found


def stop_all(group: LocalGroup) -> None:
    for name in group.names:
        assert group.stop_member(name) == 0
    group.log_server.kill()


def damage_log(group: LocalGroup) -> None:
    """Flips a bit in the message in the middle of the log's file."""
    (block,) = (group.folder / "log-server").rglob("msgs/*.blk")
    content = bytearray(block.read_bytes())
    row = content.index(b"row/%d" % (ROWS // 2))
    content[row] ^= 1
    block.write_bytes(content)


def status_of(group: LocalGroup, name: str) -> group_pb2.MemberStatus:
    try:
        return group.status(name).observer
    except Exception:
        return group_pb2.MemberStatus()


def is_in(state: str, group: LocalGroup, name: str, words: str = "") -> str:
    """The reason that a member gives, if it is in a state and has some words in it."""
    observer = status_of(group, name)
    wanted = group_pb2.MemberState.Value(f"MEMBER_STATE_{state}")
    found = observer.state == wanted and words in observer.reason
    return (observer.reason or "none") if found else ""


def test_an_empty_member_does_not_commit_on_a_log_that_lost_its_end(group: LocalGroup) -> None:
    commit_rows(group)
    wait_for("all have all", lambda: all(rows_at(group, name) == ROWS for name in group.names))
    stop_all(group)
    kept = shutil.copytree(group.folder / "log-server", group.folder / "log-server-kept")
    damage_log(group)
    shutil.rmtree(group.folder / "m3")
    group.log_server.start()
    for name in ("m3", "m1", "m2"):
        group.start_member(name)
    for name in ("m1", "m2"):
        words = f"before what member {name} has read"
        wait_for(f"{name} says so", partial(is_in, "RECOVERING", group, name, words))
        assert rows_at(group, name) == ROWS
    reason = wait_for("m3 knows", lambda: is_in("RECOVERING", group, "m3", "the log ends at "))
    assert ", before what member m" in reason
    wait_for("m3 is fenced", lambda: is_in("FENCED", group, "m3", "LOG_CUT_SHORT: the log ends"))
    for name in ("m1", "m2"):
        wait_for("a fence", partial(is_in, "FENCED", group, name, "the log, which ends at"))
        assert rows_at(group, name) == ROWS
    assert rows_at(group, "m3") < ROWS
    group.log_server.stop()
    shutil.rmtree(group.folder / "log-server")
    kept.rename(group.folder / "log-server")
    group.log_server.start()
    for address in group.addresses.values():
        assert command("group", "rejoin", "--unfence", address) == 0
    group.wait_online()
    wait_for("m3 has all", lambda: rows_at(group, "m3") == ROWS)


def test_a_group_goes_on_without_what_is_lost_if_its_operators_want_that(
    group: LocalGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody who knows more is there: only an operator can say that the log is whole."""
    commit_rows(group)
    stop_all(group)
    damage_log(group)
    for name in ("m1", "m3"):
        shutil.rmtree(group.folder / name)
    group.log_server.start()
    for name in ("m3", "m1"):
        group.start_member(name)
    reason = wait_for("m3 waits", lambda: is_in("RECOVERING", group, "m3", "waits for m"))
    address = group.addresses["m3"]
    assert f"`groupcert group rejoin --trust-log {address}`" in reason
    assert f"m2 ({group.addresses['m2']}: UNREACHABLE)" in reason
    wait_for("m1 waits", lambda: is_in("RECOVERING", group, "m1", "waits for m"))
    assert command("group", "rejoin", "--trust-log", address) == 0
    assert "it joins without asking others" in capsys.readouterr().out
    group.wait_online()
    with Client(address) as client, client.transaction() as transaction:
        transaction.put(b"row/new", b"1")
