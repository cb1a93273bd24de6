"""Ctrl-C in `load`, `demo` and `bench`: what was measured is printed, nothing is left behind."""

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
def running(folder: Path, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """Runs the command as the leader of a group of processes, as a shell does."""
    with (folder / "err").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "groupcert.members", *arguments],
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


def wait_for_part(folder: Path, number: int) -> None:
    """Waits until a benchmark says that it has come to a part."""
    wait_for(f"part {number}", lambda: f"[{number}/" in (folder / "err").read_text())


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


def test_the_certifiers_benchmark_keeps_the_sizes_that_are_done(tmp_path: Path) -> None:
    with running(tmp_path, "bench", "certify", "--json") as bench:
        wait_for_part(tmp_path, 2)
        started = psutil.Process(bench.pid).children(recursive=True)
        document = json.loads(press_ctrl_c(bench))
        assert bench.returncode == INTERRUPTED
    assert [size["resident_items"] for size in document["sizes"]] == [10_000]
    assert document["interrupted"] is True
    assert document["not_run"] == ["1,000,000 resident items", "5,000,000 resident items"]
    assert_nothing_left(tmp_path, started)


def test_the_benchmark_of_a_group_keeps_the_loads_that_are_done(tmp_path: Path) -> None:
    with running(tmp_path, "bench", "group", "--seconds", "2", "--json") as bench:
        wait_for_part(tmp_path, 2)
        started = psutil.Process(bench.pid).children(recursive=True)
        assert len(started) >= 4, "a log server and three members"
        document = json.loads(press_ctrl_c(bench))
        assert bench.returncode == INTERRUPTED
    assert [result["load"] for result in document["results"]] == ["stream"]
    assert document["not_run"] == ["commits of 8 clients", "commits of 32 clients"]
    assert_nothing_left(tmp_path, started)


def test_a_benchmark_that_has_measured_nothing_says_so(tmp_path: Path) -> None:
    with running(tmp_path, "bench", "group", "--seconds", "2") as bench:
        wait_for("a group that starts", lambda: list(tmp_path.glob("groupcert-bench-*/group")))
        printed = press_ctrl_c(bench)
        assert bench.returncode == INTERRUPTED
    assert printed.startswith("interrupted; not run: stream; ")
    assert_nothing_left(tmp_path, [])


def test_a_demo_has_nothing_to_keep_and_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "demo", "--seconds", "600", "--json") as demo:
        wait_for("three members", lambda: len(list(tmp_path.glob("*/m3.log"))))
        started = psutil.Process(demo.pid).children(recursive=True)
        error = json.loads(press_ctrl_c(demo))["error"]
        assert demo.returncode == error["exit_code"] == INTERRUPTED
    assert error["reason"] == "INTERRUPTED"
    assert_nothing_left(tmp_path, started)
