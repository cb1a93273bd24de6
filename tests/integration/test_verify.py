"""Rows of members are compared: what a disk or a person has changed is found and not served.

Members are real processes; a row is changed in a member's own store while that is stopped.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from groupcert import Client
from groupcert.applier.targets.rocksdb import ROW_PREFIX
from groupcert.certifier.storage.store import ROCKSDB_FOLDER, Family, Store, StoreIdentity
from groupcert.members.demo.local_group import LocalGroup
from groupcert.v1 import group_pb2
from tests.commands import groupcert
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster]

ROWS = 3_000
FENCED, ONLINE = group_pb2.MEMBER_STATE_FENCED, group_pb2.MEMBER_STATE_ONLINE


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalGroup]:
    """Three members with some rows; however busy the machine is, none is expelled."""
    with LocalGroup(tmp_path, settings={"member_expel_timeout_ms": 600_000}) as group:
        with Client(group.addresses["m1"]) as client, client.transaction() as transaction:
            for number in range(ROWS):
                transaction.put(b"row/%d" % number, b"value of %d" % number)
        yield group


def command(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code of the command, and its answer."""
    done = groupcert(*arguments, "--json")
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def changed(group: LocalGroup, name: str) -> Store:
    """The store of a member that does not run."""
    return Store(group.folder / name, StoreIdentity(group="local", member=name))


def change_rows(group: LocalGroup, name: str) -> None:
    """Changes a row, deletes one and adds one, while the member is stopped."""
    group.stop_member(name)
    with changed(group, name) as store:
        batch = store.batch()
        batch.put(Family.DATA, ROW_PREFIX + b"row/7", b"another value")
        batch.delete(Family.DATA, ROW_PREFIX + b"row/8")
        batch.put(Family.DATA, ROW_PREFIX + b"new", b"")
        store.write(batch)
        store.flush()
    group.start_member(name)
    group.wait_online()


def problems_at(address: str) -> set[tuple[str, str]]:
    """What is wrong, but for members that were not heard of for some seconds: on a busy machine
    that may be any of them, and one that has fenced itself tells the others nothing.
    """
    _, status = command("status", address)
    found = {(each["kind"], each["name"]) for each in status["problems"]}
    return {problem for problem in found if problem[0] != "member_silent"}


def state_of(group: LocalGroup, name: str) -> int:
    """A member's state."""
    return group.status(name).observer.state


def test_rows_that_one_member_has_otherwise_are_named_and_it_fences_itself(
    group: LocalGroup,
) -> None:
    address = group.addresses["m1"]
    code, found = command("verify", address)
    assert (code, found["equal"], found["differences"]) == (0, True, [])
    assert [(each["member"], each["rows"]) for each in found["members"]] == [
        (name, ROWS) for name in group.names
    ]
    change_rows(group, "m3")
    assert problems_at(address) == set(), "nothing has looked at the rows so far"
    code, found = command("verify", address)
    assert (code, found["equal"]) == (1, False)
    assert {each["member"]: len(each["differing_ranges"]) for each in found["members"]} == {
        "m1": 0,
        "m2": 0,
        "m3": 3,
    }
    assert {(each["member"], each["difference"], each["key"]) for each in found["differences"]} == {
        ("m3", "other value", "row/7"),
        ("m3", "missing", "row/8"),
        ("m3", "extra", "new"),
    }
    wait_for("m3 to be fenced", lambda: state_of(group, "m3") == FENCED)
    assert "ROWS_DIFFER" in group.status("m3").observer.reason
    assert problems_at(address) == {("member_state", "m3"), ("rows_differ", "m3")}
    assert command("status", address)[0] == 1
    command("group", "rejoin", "--discard-state", group.addresses["m3"])
    wait_for("m3 to be back", lambda: state_of(group, "m3") == ONLINE)
    code, found = command("verify", address)
    assert (code, found["equal"]) == (0, True)
    wait_for("nothing to be wrong", lambda: command("status", address)[0] == 0)


def test_rows_are_compared_as_of_one_version_while_clients_write(group: LocalGroup) -> None:
    stopped = threading.Event()

    def write(name: str) -> None:
        with Client(group.addresses[name]) as client:
            number = 0
            while not stopped.is_set():
                number += 1
                key = b"%s/%d" % (name.encode(), number % 100)
                client.run(lambda transaction: transaction.put(key, b"%d" % number))  # noqa: B023

    writers = [threading.Thread(target=write, args=(name,)) for name in group.names]
    for writer in writers:
        writer.start()
    try:
        versions = []
        for _ in range(5):
            code, found = command("verify", group.addresses["m2"])
            assert (code, found["equal"]) == (0, True)
            versions.append(found["version"])
    finally:
        stopped.set()
        for writer in writers:
            writer.join()
    assert versions == sorted(set(versions)), "somebody wrote all the time"


def test_rows_are_compared_by_themselves_after_a_period(tmp_path: Path) -> None:
    with LocalGroup(tmp_path, members=2, settings={"compare_period_s": 1}) as group:
        seen = group.status("m1").comparison.position

        def compared() -> bool:
            found = group.status("m2").comparison
            return found.position > seen and all(each.answered for each in found.members)

        wait_for("two comparisons", compared)
        assert [each.name for each in group.status("m2").comparison.members] == ["m1", "m2"]
        seen = group.status("m2").comparison.position
        wait_for("another one", compared)


def test_a_block_that_nobody_reads_and_that_cannot_be_read_is_found(tmp_path: Path) -> None:
    with LocalGroup(tmp_path) as group:
        with Client(group.addresses["m1"]) as client:
            for number in range(20):
                with client.transaction() as transaction:
                    transaction.put(b"row/%d" % number, os.urandom(10_000))
        group.stop_member("m3")
        with changed(group, "m3") as store:
            store.flush_tables()
        for file in (tmp_path / "m3" / ROCKSDB_FOLDER).glob("*.sst"):
            content = bytearray(file.read_bytes())
            if len(content) > 100_000:  # The rows; and the binary log, which has them, too.
                content[len(content) // 3] ^= 0x10
                file.write_bytes(content)
        group.start_member("m3")
        group.wait_online()
        with Client(group.addresses["m1"]) as client:
            client.run(lambda transaction: transaction.put(b"other", b"row"))
        assert state_of(group, "m3") == ONLINE
        words = [sys.executable, "-m", "groupcert.members", "verify", group.addresses["m1"]]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as asked:
            wait_for("m3 to be fenced", lambda: state_of(group, "m3") == FENCED)
            assert "CORRUPT_STORE" in group.status("m3").observer.reason
            asked.wait()  # The others expel m3, which is waited for no more.
            assert asked.returncode == 0


def test_a_copy_is_compared_before_its_member_is_online(tmp_path: Path) -> None:
    with LocalGroup(tmp_path / "group", members=4) as group:
        with Client(group.addresses["m1"]) as client, client.transaction() as transaction:
            for number in range(ROWS):
                transaction.put(b"row/%d" % number, b"x")
        assert command("verify", group.addresses["m1"])[0] == 0
        backup, folder = tmp_path / "backup", group.folder / "m4"
        command("backup", group.addresses["m1"], "--out", str(backup))
        for is_changed in (False, True):
            group.stop_member("m4")
            shutil.rmtree(folder)
            command("restore", str(backup), "--data-folder", str(folder), "--member", "m4")
            if is_changed:
                with changed(group, "m4") as store:
                    batch = store.batch()
                    batch.put(Family.DATA, ROW_PREFIX + b"row/7", b"y")
                    store.write(batch)
                    store.flush()
            compared = group.status("m1").comparison.position
            group.start_member("m4")
            expected = FENCED if is_changed else ONLINE
            wait_for("m4 to be judged", partial(is_in, group, "m4", expected))
            status = group.status("m1")
            assert status.comparison.position > compared
            assert ("m4" in {each.name for each in status.members}) is not is_changed
        assert "ROWS_DIFFER" in group.status("m4").observer.reason


def is_in(group: LocalGroup, name: str, state: int) -> bool:
    """Whether a member is in a state."""
    return state_of(group, name) == state
