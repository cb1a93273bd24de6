"""What the command's processes keep on disk is their user's alone, down to the last file.

Members, their log server, certification logs, a replica, a backup, a restored folder and an export
are the real ones, started as an operator starts them, by a shell whose files everybody may read.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from groupcert import Client
from groupcert.members.demo.command_process import CommandProcess
from groupcert.members.host.loopback import HOST, free_port
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster]


def groupcert(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "groupcert.members", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def exposed(folder: Path) -> dict[str, str]:
    """Returns the modes of what others may read of it, itself included."""
    return {
        str(path): oct(path.stat().st_mode)
        for path in (folder, *folder.rglob("*"))
        if path.stat().st_mode & 0o077
    }


@contextmanager
def running(*arguments: str, log: Path) -> Iterator[None]:
    process = CommandProcess(arguments, log)
    with process:
        yield
    assert process.poll() == 0, process.said()


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, object]:
    return {
        "group": "shop",
        "member": "m1",
        "address": f"{HOST}:{free_port()}",
        "log_server": "embedded",
        "data_folder": str(tmp_path / "m1"),
        "certification_log": str(tmp_path / "logs" / "m1"),
        "certification_log_file_seconds": 1,
        "stable_set_period_ms": 200,
    }


@contextmanager
def member(settings: dict[str, object], folder: Path) -> Iterator[None]:
    config = folder / "m1.toml"
    config.write_text("".join(f"{name} = {json.dumps(each)}\n" for name, each in settings.items()))
    with (
        running("member", "--config", str(config), log=folder / "m1.log"),
        Client(str(settings["address"]), timeout_ms=120_000) as client,
    ):
        client.run(lambda transaction: transaction.put(b"key", b"row"))
        yield


def test_nobody_else_may_read_what_a_member_and_its_verbs_write(
    settings: dict[str, object], tmp_path: Path
) -> None:
    address = str(settings["address"])
    with member(settings, tmp_path):
        target = tmp_path / "replica"
        arguments = ("--replica", "r1", "--target", f"rocksdb:{target}")
        with running("replica", address, *arguments, log=tmp_path / "replica.log"):
            wait_for("the replica has its store", (target / "rocksdb" / "CURRENT").exists)
        groupcert("backup", address, "--out", str(tmp_path / "backup"))
        [log_server] = (tmp_path / "m1" / "log-server").glob("*.ports")
        servers = json.loads(log_server.read_text())["nats"]
        out = ("--out", str(tmp_path / "export"))
        groupcert("export", "--log-server", servers[0], "--group", "shop", *out)
    restored = ("--data-folder", str(tmp_path / "restored"), "--member", "m2")
    groupcert("restore", str(tmp_path / "backup"), *restored)
    made = ("m1", "logs", "replica", "backup", "export", "restored", "m1.log", "replica.log")
    assert list((tmp_path / "logs" / "m1").glob("*.parquet"))
    assert list((tmp_path / "export").glob("*.parquet"))
    assert not {name: found for name in made if (found := exposed(tmp_path / name))}


def test_nobody_else_may_read_what_a_lasting_group_keeps(tmp_path: Path) -> None:
    folder = tmp_path / "group"
    at = ("--data-folder", str(folder))
    groupcert("up", "--detach", "--members", "1", *at)
    try:
        assert not exposed(folder)
    finally:
        groupcert("down", *at)
    assert not exposed(folder)


def test_a_folder_that_others_may_read_is_named_at_start(
    settings: dict[str, object], tmp_path: Path
) -> None:
    open_to_all = Path(tempfile.mkdtemp(dir="/tmp"))
    open_to_all.chmod(0o755)
    at = ("--data-folder", str(open_to_all))
    try:
        said = groupcert("up", "--detach", "--members", "1", *at)
        groupcert("down", *at)
        log = (open_to_all / "up.log").read_text()
        with member({**settings, "data_folder": str(open_to_all / "m")}, tmp_path):
            assert "folder_exposed" not in (tmp_path / "m1.log").read_text()
        (open_to_all / "m").chmod(0o755)
        with member({**settings, "data_folder": str(open_to_all / "m")}, tmp_path):
            assert "folder_exposed" in (tmp_path / "m1.log").read_text()
    finally:
        shutil.rmtree(open_to_all)
    for text in (said, log):
        assert f"chmod -R go= {open_to_all}" in text
