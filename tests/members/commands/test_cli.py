"""The command: exit codes, one line for an error, answers alone on standard output."""

import json
import subprocess
import sys

import pytest

from groupcert import OutcomeUnknown
from groupcert.certifier.errors import InvalidSetting, NotServing
from groupcert.members.commands import cli, replay

LINE = '{"type":"transaction","member":"m1","snapshot_version":"","write_set":["t/a"]}\n'


def run(*arguments: str, standard_input: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    """Runs the command as its users do."""
    return subprocess.run(
        [sys.executable, "-m", "groupcert.members", *arguments],
        input=standard_input,
        capture_output=True,
    )


def code_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Returns the exit code of the command, run here."""
    monkeypatch.setattr(sys, "argv", ["groupcert", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code


def test_replay_reads_standard_input_and_answers_on_standard_output() -> None:
    done = run("replay", "-", "--json", standard_input=LINE.encode() * 2)
    decisions = [json.loads(line)["decision"] for line in done.stdout.splitlines()]
    assert decisions == ["certified", "conflict"]
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
def test_a_member_that_is_not_there_exits_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("groupcert.members.commands.status_views.TIMEOUT_MS", 200)
    assert code_of(monkeypatch, "status", "127.0.0.1:1", "--json") == 3
    captured = capsys.readouterr()
    assert captured.err.startswith("groupcert: member 127.0.0.1:1 is UNREACHABLE")
    error = json.loads(captured.out)["error"]
    assert (error["reason"], error["exit_code"]) == ("NOT_SERVING", 3)
    assert error["fields"]["member"] == "127.0.0.1:1"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidSetting(name="workers", value=-1, expected="0 or more"), 2),
        (NotServing(member="m1", state="RECOVERING"), 3),
        (OutcomeUnknown(transaction_id=b"\1", cause="gone"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_of_error_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(replay, "replay", fail)
    assert code_of(monkeypatch, "replay", "-") == code
    assert capsys.readouterr().err == f"groupcert: {error}\n"


def test_python_that_ignores_assertions_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-m", "groupcert.members", "--help"],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"groupcert: python -O removes")
