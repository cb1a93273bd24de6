"""A group whose log has no space: clients, status and metrics say so, and it goes on with space.

The log's disk is a small one, really full; the group is that of `groupcert up`, as anybody runs it.
"""

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from groupcert import Client, LogFull
from groupcert.members.commands.cli_up import Ready
from groupcert.members.demo.command_process import CommandProcess
from groupcert.members.host.loopback import HOST, free_port
from groupcert.v1.group_pb2 import MEMBER_STATE_ONLINE, MemberStatus
from tests.commands import groupcert
from tests.integration.waiting import wait_for
from tests.small_disk import fill, make_room, small_disk

pytestmark = [pytest.mark.nats, pytest.mark.cluster]

TIMEOUT_MS = 60_000
"""Far more than a refusal takes that comes at once."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A group's folder, of which the log server's part is a disk of 64 MiB."""
    folder = tmp_path / "group"
    with small_disk(folder / "log-server", 64):
        ready = folder / "group.json"  # Else `up` takes it for a folder of somebody else.
        ready.write_text('{"group": "local", "members": {}, "consoles": {}, "log_servers": []}')
        yield folder
        groupcert("down", "--data-folder", str(folder))


@pytest.fixture
def ready(folder: Path) -> Ready:
    """The group, which is up."""
    done = groupcert("up", "--detach", "--json", "--members", "2", "--data-folder", str(folder))
    assert done.returncode == 0, done.stderr
    ready: Ready = json.loads(done.stdout)
    return ready


def status_of(client: Client) -> MemberStatus:
    status: MemberStatus = client.status().observer
    return status


def document_of(address: str) -> tuple[int, dict[str, Any]]:
    done = groupcert("status", address, "--json")
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


def put(client: Client, key: bytes) -> None:
    with client.transaction() as transaction:
        transaction.put(key, b"here")


def test_a_full_disk_is_named_at_once_and_ends_by_itself_once_there_is_room(
    folder: Path, ready: Ready
) -> None:
    address = ready["members"]["m1"]
    with Client(address, timeout_ms=TIMEOUT_MS) as client:
        put(client, b"before")
        fill(folder / "log-server")
        wait_for("the log is full", lambda: status_of(client).log.full)
        began = time.monotonic()
        with pytest.raises(LogFull, match="nothing of this attempt was ordered") as refused:
            put(client, b"meanwhile")
        assert time.monotonic() - began < TIMEOUT_MS / 1000 / 2, "not after the time limit"
        assert "no space left on device" in refused.value.cause
        with pytest.raises(LogFull):
            client.run(lambda transaction: transaction.put(b"later", b"here"), timeout_ms=1_000)

        code, document = document_of(address)
        problems = {each["kind"]: each["text"] for each in document["problems"]}
        assert code == 1 and "no space left on device" in problems["log_full"]
        assert "log_unacknowledged" not in problems

        make_room(folder / "log-server")
        client.run(lambda transaction: transaction.put(b"after", b"here"))
        with client.transaction() as transaction:
            found = [transaction.get(key) for key in (b"before", b"meanwhile", b"later", b"after")]
        assert found == [b"here", None, None, b"here"]
        wait_for("the log has space", lambda: not status_of(client).log.full)
    assert "for want of space" in (folder / "up.log").read_text()


def test_the_log_of_a_lasting_group_is_trimmed_and_its_limit_is_shown(
    folder: Path, ready: Ready
) -> None:
    settings = (folder / "m2.toml").read_text()
    assert f'log_trim_servers = ["{ready["log_server"]}"]' in settings
    assert "log_retention_bytes = " in settings
    with Client(ready["members"]["m1"], timeout_ms=TIMEOUT_MS) as client:
        wait_for("the limit", lambda: status_of(client).log.bytes_max)
        limit, row = status_of(client).log.bytes_max, bytes(100_000)
        assert 32 << 20 < limit < 64 << 20

        def write(tenths: int) -> None:
            for _ in range(limit * tenths // 10 // len(row)):
                client.run(lambda transaction: transaction.put(b"key", row))

        write(6)
        wait_for("its size is known", lambda: status_of(client).log.bytes > limit * 5 // 10)
        for _ in range(2):  # Then members look every second, and drop 8 MiB or more at a time.
            before = trims_in(folder)
            write(3)
            wait_for("a trim", partial(has_more_trims, folder, before))
            wait_for("room", lambda: status_of(client).log.bytes < limit * 7 // 10)


def test_an_embedded_log_server_that_ends_is_started_again_by_its_member(tmp_path: Path) -> None:
    address = f"{HOST}:{free_port()}"
    where = ("--address", address, "--data-folder", str(tmp_path / "m1"))
    named = ("--group", "g", "--member", "m1", "--log-server", "embedded")
    log = tmp_path / "m1.log"
    member = CommandProcess(("member", *named, *where), log)
    with member:
        with Client(address, timeout_ms=TIMEOUT_MS) as client:
            put(client, b"before")
            (server,) = (
                each
                for each in psutil.Process(member.pid).children(recursive=True)
                if each.name() == "nats-server"
            )
            server.kill()
            client.run(lambda transaction: transaction.put(b"after", b"here"))
            assert status_of(client).state == MEMBER_STATE_ONLINE
    assert member.poll() == 0
    assert "log_server_restart" in log.read_text()


def has_more_trims(folder: Path, before: int) -> bool:
    return trims_in(folder) > before


def trims_in(folder: Path) -> int:
    return sum((folder / f"{name}.log").read_text().count("log_trimmed") for name in ("m1", "m2"))
