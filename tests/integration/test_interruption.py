"""Ctrl-C in `load` and `demo`: what was measured is printed, nothing is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from groupcert.members.demo.local_group import LocalGroup
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow, pytest.mark.in_turns]

INTERRUPTED = 130
GRPC_ENDS = re.compile(
    r"Traceback [^\n]*\n  File [^\n]*shutdown_grpc_aio[^\n]*\n(?:  .*\n)*ValueError: Invalid file"
    r" descriptor: -1\n"
)
"""What gRPC itself may say of its own end, at a loop that is closed already."""


@contextmanager
def running(
    folder: Path, *arguments: str, module: str = "groupcert.members"
) -> "Iterator[subprocess.Popen[str]]":
    """Runs the command as the leader of a group of processes, as a shell does."""
    with (folder / "err").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(folder)},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def press_ctrl_c(process: "subprocess.Popen[str]") -> str:
    """Sends what a terminal sends, to all processes of the group; returns what is printed then."""
    os.killpg(process.pid, signal.SIGINT)
    return process.communicate()[0]


def assert_nothing_left(folder: Path, started: list[psutil.Process]) -> None:
    """Checks that processes have ended, and folders are gone."""
    assert {path.name for path in folder.iterdir()} == {"err"}
    _, alive = psutil.wait_procs(started, timeout=120)
    assert alive == []
    assert "Traceback" not in GRPC_ENDS.sub("", (folder / "err").read_text())


def test_a_load_prints_what_its_clients_were_told_so_far(group: LocalGroup, tmp_path: Path) -> None:
    address = group.addresses["m1"]
    before = group.status("m1").observer.transactions_certified
    with running(tmp_path, "load", address, "--seconds", "600", "--rows", "50", "--json") as load:
        wait_for(
            "commits",
            lambda: group.status("m1").observer.transactions_certified > before + 50,
        )
        document = json.loads(press_ctrl_c(load))
        assert load.returncode == INTERRUPTED
    assert document["interrupted"] is True
    assert document["commits"] > 0
    assert 0 < document["seconds"] < 600
    assert document["total_unchanged"] is True
    assert_nothing_left(tmp_path, [])


def test_sigterm_is_told_alike_as_a_table(group: LocalGroup, tmp_path: Path) -> None:
    address = group.addresses["m1"]
    before = group.status("m1").observer.transactions_certified
    flags = ("--workload", "append", "--seconds", "600")
    with running(tmp_path, "load", address, *flags) as load:
        wait_for(
            "commits",
            lambda: group.status("m1").observer.transactions_certified > before + 50,
        )
        load.terminate()
        printed, _ = load.communicate()
        assert load.returncode == INTERRUPTED
    assert "interrupted" in printed


def test_a_demo_has_nothing_to_keep_and_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "demo", "--seconds", "600", "--json") as demo:
        wait_for("three members", lambda: len(list(tmp_path.glob("*/m3.log"))))
        started = psutil.Process(demo.pid).children(recursive=True)
        error = json.loads(press_ctrl_c(demo))["error"]
        assert demo.returncode == error["exit_code"] == INTERRUPTED
    assert error["reason"] == "INTERRUPTED"
    assert_nothing_left(tmp_path, started)
