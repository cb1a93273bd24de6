"""The verbs below `groupcert group`, with `--json`: each answer and each refusal is a document."""

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupcert.members.commands import cli
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.loopback import HOST, free_port
from tests.integration.test_interruption import INTERRUPTED, press_ctrl_c, running
from tests.integration.waiting import wait_for

FINE, FINDING, USAGE, UNAVAILABLE = range(4)
Answer = Callable[..., Any]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Answer:
    """Runs the command here; its last line as JSON, once it has ended with `code`."""

    def run(line: str, *more: str, code: int = FINE) -> Any:
        monkeypatch.setattr(sys, "argv", ["groupcert", *line.split(), *more, "--json"])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = capsys.readouterr()
        assert (caught.value.code or FINE) == code, printed
        return json.loads(printed.out.splitlines()[-1])

    return run


def test_settings_and_modes(group: LocalGroup, answer: Answer) -> None:
    at = group.addresses["m1"]
    version = answer("group settings", at)["settings_version"]
    checked = answer("group set flow_control_lag_max=20000 --dry-run", at)
    assert checked == {"settings_version": version, "changed": False}
    changed = answer("group set flow_control_lag_max=20000", at)
    assert changed == {"settings_version": version + 1, "changed": True}
    assert answer("group settings", at)["settings"]["flow_control_lag_max"] == "20000"
    answer("group set flow_control_lag_max=25000", at)
    single = answer("group mode single-primary --primary m2", at)
    assert single == {"mode": "single-primary", "primary": "m2"}
    assert answer("group primary m1", at) == {"primary": "m1"}
    assert answer("group mode multi-primary", at) == {"mode": "multi-primary", "primary": ""}


def test_members_that_leave_and_come_back(group: LocalGroup, answer: Answer) -> None:
    at, third = group.addresses["m1"], group.addresses["m3"]
    answer("group leave", third)
    wait_for(
        "m3 out", lambda: group.status("m3").observer.state != group.status("m1").observer.state
    )
    rejoined = answer("group rejoin", third)
    assert rejoined == {"rejoins": True, "discarded_path": None}
    group.wait_online()
    expelled = answer("group expel m3", at)
    assert (expelled["expelled"], expelled["view_id"] > 0) == ("m3", True)
    group.wait_online()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("group set lag=3", "INVALID_SETTING"),
        ("group primary m9", "INVALID_SETTING"),
        ("group expel m9", "INVALID_SETTING"),
        ("group forget m9", "INVALID_SETTING"),
        ("group rejoin", "INVALID_SETTING"),
        ("group skip 1", "INVALID_SETTING"),
        ("group restart --run true", "INVALID_SETTING"),
    ],
)
def test_what_is_refused(group: LocalGroup, answer: Answer, line: str, reason: str) -> None:
    error = answer(line, group.addresses["m1"], code=USAGE)["error"]
    assert (error["reason"], error["exit_code"]) == (reason, USAGE)


@pytest.mark.parametrize(
    "line",
    [
        *("set flow_control_lag_max=1", "mode single-primary", "primary m2", "expel m2"),
        *("forget m2", "leave", "rejoin", "skip 1", "restart --run {name}"),
    ],
)
def test_another_group_than_the_one_that_is_meant_is_left_alone(
    group: LocalGroup, answer: Answer, line: str
) -> None:
    at = group.addresses["m1"]
    before = answer("group settings", at), answer("status", at)["view_id"]
    error = answer(f"group {line} --group other", at, code=USAGE)["error"]
    expected = f"--group is 'other': expected local, which is the group at {at}; nothing was"
    assert error["message"].startswith(expected)
    assert (answer("group settings", at), answer("status", at)["view_id"]) == before


@pytest.mark.parametrize(
    "line",
    [
        *("status", "status --applier", "load --seconds 1", "backup --out b", "group settings"),
        *("group set lag=3", "group mode single-primary", "group primary m1", "group expel m1"),
        *("group forget m1", "group leave", "group rejoin", "group skip 1"),
    ],
)
def test_a_member_that_is_not_there(answer: Answer, line: str) -> None:
    address = f"{HOST}:{free_port()}"
    error = answer(line, address, code=UNAVAILABLE)["error"]
    assert (error["reason"], error["exit_code"]) == ("NOT_SERVING", UNAVAILABLE)
    assert address in error["message"]


def test_health(group: LocalGroup, answer: Answer) -> None:
    at = group.addresses["m1"]
    assert answer("health", at) == {"address": at, "serving": True, "state": "SERVING"}
    nobody = answer("health", f"{HOST}:{free_port()}", code=UNAVAILABLE)
    assert (nobody["serving"], nobody["state"].partition(":")[0]) == (False, "UNREACHABLE")


def test_a_rolling_restart_tells_its_steps(
    group: LocalGroup, answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    at = group.addresses["m1"]
    words = ("--run", "restart {name}")
    assert answer("group restart --dry-run", at, *words) == {"result": "nothing was restarted"}
    stuck = answer("group restart --only members", at, "--run", "false {name}", code=FINDING)
    assert stuck["result"] == "stuck"
    assert "the command ended with 1" in stuck["why"]


def test_a_status_that_waits_is_interrupted(tmp_path: Path) -> None:
    """Somebody listens, and never says anything."""
    with socket.create_server((HOST, 0)) as silent:
        address = f"{HOST}:{silent.getsockname()[1]}"
        with running(tmp_path, "status", address, "--json") as status:
            with silent.accept()[0]:
                error = json.loads(press_ctrl_c(status))["error"]
            assert status.returncode == INTERRUPTED
    assert error["reason"] == "INTERRUPTED"
