"""The command: exit codes, one line for an error, answers alone on standard output."""

import json
import subprocess
import sys
from pathlib import Path

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


def test_a_malformed_trace_is_one_line_of_error_and_no_traceback() -> None:
    done = run("replay", "-", "--json", standard_input=b"[]\n")
    assert done.stderr.splitlines() == [
        b"groupcert: trace line 1: it is a JSON list; expected one JSON object a line"
    ]
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["exit_code"], error["reason"]) == (2, 2, "INVALID_TRACE")
    assert error["fields"]["line"] == 1


def test_a_missing_file_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert code_of(monkeypatch, "replay", str(tmp_path / "none")) == 2
    assert capsys.readouterr().err == f"groupcert: {tmp_path / 'none'}: No such file or directory\n"


def test_the_options_of_replay_reach_the_certifier(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [LINE, LINE.replace("m1", "m2").replace("t/a", "t/b")]
    trace.write_text("".join(lines))
    uuid = "bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb"
    options = ["--group-uuid", uuid, "--gtid-assignment-block-size", "100", "--gc-window", "tight"]
    assert code_of(monkeypatch, "replay", str(trace), "--json", *options) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["gtid"] for answer in answers] == [f"{uuid}:1", f"{uuid}:101"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("replay",),
        ("replay", "-", "--gc-window", "ajar"),
        ("replay", "-", "--group-uuid", "no"),
        ("replay", "-", "--gtid-assignment-block-size", "0"),
        ("backup",),
        ("nonsense",),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert code_of(monkeypatch, *arguments) == 2
    assert capsys.readouterr().out == ""


def test_a_member_without_settings_says_all_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(monkeypatch, "member", "--group", "shop", "--address", "x") == 2
    error = capsys.readouterr().err
    assert "member is missing" in error
    assert "address is 'x': expected host:port" in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_a_member_that_is_not_there_exits_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("groupcert.members.commands.group_view.TIMEOUT_MS", 200)
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


def test_help_says_what_the_exit_codes_mean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(monkeypatch, "--help") == 0
    assert "Exit codes: 0 fine, 1 finding" in capsys.readouterr().out
