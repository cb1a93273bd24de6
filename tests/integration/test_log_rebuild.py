"""A log that is gone or cut is made again from what members hold: no acknowledged commit is lost.

Method: real members on a real log server commit; the server's folder is destroyed, or put back to
an earlier state, while they run. Then an operator stops the members and types `groupcert log
rebuild`.
"""

import json
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from groupcert import Client
from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.demo.local_group import LocalGroup
from tests.integration.test_membership import command
from tests.integration.test_shortened_log import is_in
from tests.integration.waiting import wait_for
from tests.log_servers import running_etcd

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.in_turns]

ROWS = 20
LARGE_BYTES = 3 << 20
"""Bytes of a row whose transaction goes through the log in fragments."""
SETTINGS: dict[str, object] = {"stable_set_period_ms": 200}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalGroup]:
    """Three members, and a log server that none of them brings."""
    with LocalGroup(tmp_path, settings=SETTINGS, certification_logs=tmp_path / "logs") as group:
        yield group


def commit_rows(group: LocalGroup, kind: str, *names: str) -> set[bytes]:
    """Commits rows through members, and returns the keys of those that were acknowledged."""
    keys = set()
    for name in names or group.names:
        with Client(group.addresses[name]) as client:
            for number in range(ROWS):
                key = f"{kind}/{name}/{number}".encode()
                with client.transaction() as transaction:
                    transaction.put(key, key)
                keys.add(key)
    return keys


def has_everywhere(group: LocalGroup, version: int) -> bool:
    """Whether all members have committed a version: others than the client's hear of it later."""
    return all(group.status(name).observer.committed_version == version for name in group.names)


def keys_at(group: LocalGroup, name: str) -> set[bytes]:
    with Client(group.addresses[name], timeout_ms=60_000) as client:
        transaction = client.transaction()
        found = {key for key, _ in transaction.scan()}
        transaction.rollback()
    return found


def lose_log(group: LocalGroup) -> None:
    """The disk of the one log server is gone; a new one is empty."""
    group.log_server.kill()
    shutil.rmtree(group.folder / "log-server")
    group.log_server.start()


def words_for(group: LocalGroup, *names: str, log: str = "") -> list[str]:
    """The command that rebuilds the log from the folders of some members; from all by default."""
    folders = [str(group.folder / name) for name in names or group.names]
    log = log or group.log_server.address
    return ["log", "rebuild", *folders, "--group", "local", "--log-server", log]


def answer(
    capsys: pytest.CaptureFixture[str], words: list[str], *flags: str, code: int = 0
) -> dict[str, Any]:
    """What a command prints with `--json`, when it ends with an exit code."""
    capsys.readouterr()
    assert command(*words, "--json", *flags) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def refused(capsys: pytest.CaptureFixture[str], words: list[str], code: int = 2) -> tuple[str, str]:
    """The reason and the message with which a command is refused."""
    error = answer(capsys, words, code=code)["error"]
    return error["reason"], error["message"]


def content_of(folder: Path) -> dict[str, bytes]:
    """All files of a folder, byte by byte."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def start_all(group: LocalGroup) -> None:
    """Starts the members; those come back by themselves that the loss of the log has fenced."""
    for name in group.names:
        group.start_member(name)
    group.wait_online()


def stop_all(group: LocalGroup) -> None:
    """Stops members at once; without a log each waits a while until it leaves."""
    running = [*group.processes]
    for process in group.processes.values():
        process.send_signal(signal.SIGTERM)
    for name in running:
        assert group.stop_member(name) == 0


def test_after_the_log_is_destroyed_all_acknowledged_commits_are_there(
    group: LocalGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    acknowledged = commit_rows(group, "before")
    words = words_for(group)
    assert refused(capsys, words)[0] == "FOLDER_IN_USE"
    wait_for("all have read all", lambda: has_everywhere(group, len(acknowledged)))
    lose_log(group)
    stop_all(group)
    planned = answer(capsys, words)
    assert (planned["result"], planned["replaces"]) == ("planned", None)
    assert planned["version"] == len(acknowledged)
    logs = ("--certification-log", str(group.folder / "logs"))
    told = answer(capsys, words, *logs)["certification_logs"]
    assert [(each["member"], each["lacking_gtids"]) for each in told] == [
        (name, "") for name in group.names
    ]
    assert {each["compared"] for each in told} == {len(acknowledged)}
    done = answer(capsys, words, "--yes")
    assert done == {**planned, "result": "rebuilt"}
    reason, message = refused(capsys, words)
    assert (reason, "nothing is to be rebuilt" in message) == ("LOG_IS_WHOLE", True)
    start_all(group)
    for name in group.names:
        assert keys_at(group, name) == acknowledged
    acknowledged |= commit_rows(group, "after")
    for name in group.names:
        wait_for(name, partial(lambda name: keys_at(group, name) == acknowledged, name))


@pytest.mark.parametrize("order", ["jetstream", pytest.param("etcd", marks=pytest.mark.etcd)])
def test_all_acknowledged_commits_are_there_after_members_and_log_were_killed(
    order: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the members had not stored of their states is in their binary logs."""
    with ExitStack() as stack:
        etcd = stack.enter_context(running_etcd(tmp_path / "etcd", 1)) if order == "etcd" else None
        log = etcd.settings if etcd else {}
        group = stack.enter_context(LocalGroup(tmp_path, settings={**SETTINGS, **log}))
        acknowledged = commit_rows(group, "before")
        with Client(group.addresses["m2"]) as client, client.transaction() as transaction:
            transaction.put(b"large", random.Random(1).randbytes(LARGE_BYTES))
        acknowledged.add(b"large")
        for name in group.names:
            group.kill(name)
        if etcd:
            etcd.kill("log1")
            shutil.rmtree(etcd.folder / "log1")
            etcd.start("log1")
            etcd.wait_ready()
        else:
            lose_log(group)
        words = words_for(group, log=etcd.addresses[0] if etcd else "")
        done = answer(capsys, words, "--yes")
        assert (done["result"], done["lost_gtids"]) == ("rebuilt", "")
        rebuilt = GtidSet.parse(done["rebuilt_gtids"]).count()
        assert done["version"] + rebuilt == len(acknowledged)
        start_all(group)
        acknowledged |= commit_rows(group, "after", "m2")
        for name in group.names:
            wait_for(name, partial(lambda name: keys_at(group, name) == acknowledged, name))


def test_a_log_that_was_put_back_goes_on_from_what_members_have_read_since(
    group: LocalGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """One member was down meanwhile, and catches up."""
    acknowledged = commit_rows(group, "before")
    assert group.stop_member("m3") == 0
    group.log_server.kill()
    folder = group.folder / "log-server"
    earlier = shutil.copytree(folder, group.folder / "earlier")
    group.log_server.start()
    acknowledged |= commit_rows(group, "since", "m1", "m2")
    group.log_server.kill()
    shutil.rmtree(folder)
    earlier.rename(folder)
    group.log_server.start()
    stop_all(group)
    words = words_for(group)
    before = {name: content_of(group.folder / name) for name in group.names}
    planned = answer(capsys, words, "--dry-run")
    replaced = planned["replaces"]  # Members that ran may have filled it again: they report.
    assert replaced["differs_at"] or replaced["last_sequence"] < planned["log_sequence"]
    assert answer(capsys, words) == planned
    done = answer(capsys, words, "--yes")
    assert {name: content_of(group.folder / name) for name in group.names} == before
    assert done == {**planned, "result": "rebuilt"}
    then = ["goes on by itself", "goes on by itself", "copies another member"]
    assert [each["next"] for each in done["members"]] == then
    start_all(group)
    for name in group.names:
        wait_for(name, partial(lambda name: keys_at(group, name) == acknowledged, name))


@pytest.fixture
def down(tmp_path: Path) -> Iterator[LocalGroup]:
    """Two members, which have committed rows and are down; only the log server runs."""
    group = LocalGroup(tmp_path, members=2, settings=SETTINGS)
    with group:
        commit_rows(group, "both")
        stop_all(group)
        yield group


def test_members_that_contradict_each_other_are_named_and_nothing_is_made(
    down: LocalGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has committed on the same log alone, as that was put back between them."""
    folder = down.folder / "log-server"
    down.log_server.stop()
    earlier = shutil.copytree(folder, down.folder / "earlier")
    for name in down.names:
        shutil.rmtree(folder)
        shutil.copytree(earlier, folder)
        down.log_server.start()
        down.start_member(name)
        waits = partial(is_in, "RECOVERING", down, name, "waits for")
        wait_for(f"{name} waits for others", waits)
        trusts = ("group", "rejoin", "--trust-log", down.addresses[name])
        assert command(*trusts) == 0
        down.wait_online()
        commit_rows(down, f"alone-{name}", name)
        assert down.stop_member(name) == 0
        down.log_server.stop()
    shutil.rmtree(folder)
    down.log_server.start()
    document = answer(capsys, words_for(down), "--yes", code=1)
    (found,) = document["contradictions"]
    assert (document["result"], sorted(found["members"])) == ("contradiction", ["m1", "m2"])
    both = 2 * ROWS
    assert f"as transaction {both + 1} m" in found["what"]
    assert command(*words_for(down)) == 1
    assert "contradict each other at message" in capsys.readouterr().out
    one = answer(capsys, words_for(down, "m1"), "--without", "m2")
    assert (one["result"], one["without"]) == ("planned", ["m2"])


def test_what_does_not_belong_together_is_refused(
    down: LocalGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    words = words_for(down)
    m1, m2 = (str(down.folder / name) for name in down.names)
    reason, message = refused(capsys, words)
    assert (reason, "start the members" in message) == ("LOG_IS_WHOLE", True)
    lose_log(down)
    reason, message = refused(capsys, [m1 if each == m2 else each for each in words])
    assert (reason, "member m1, too" in message) == ("MEMBERS_DIFFER", True)
    reason, message = refused(capsys, ["shop" if each == "local" else each for each in words])
    assert (reason, "group shop" in message) == ("MEMBERS_DIFFER", True)
    reason, message = refused(capsys, [*words, str(down.folder / "log-server")])
    assert (reason, "the data folder of a member" in message) == ("INVALID_SETTING", True)
    damaged = shutil.copytree(m2, down.folder / "damaged")
    tables = sorted(damaged.rglob("*.sst"))
    assert tables
    for table in tables:
        content = bytearray(table.read_bytes())
        content[len(content) // 2] ^= 0xFF
        table.write_bytes(content)
    words = [str(damaged) if each == m2 else each for each in words]
    assert refused(capsys, words, code=1)[0] == "CORRUPT_STORE"
