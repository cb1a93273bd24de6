"""Failures of the command: one line on standard error, and with `--json` one document beside it."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperCommand
from typer.main import get_command

from groupcert.members.commands import cli, replay
from groupcert.members.host.loopback import HOST, free_port


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Returns the exit code of the command, run here."""
    monkeypatch.setattr(sys, "argv", ["groupcert", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code


def verbs(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields each verb with its words, those below others too."""
    below = getattr(command, "commands", {})
    if words and (not below or command.invoke_without_command):
        yield words, command
    for name, each in below.items():
        yield from verbs(each, (*words, name))


VERBS = dict(verbs(get_command(cli.app)))


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_the_help_of_every_verb_ends_with_an_example_that_can_be_given(
    words: tuple[str, ...],
) -> None:
    verb: TyperCommand = VERBS[words]
    lead, _, line = str(verb.epilog).partition("Example: groupcert ")
    assert lead == ""
    given = shlex.split(line)
    assert tuple(given[: len(words)]) == words
    assert verb.make_context(words[-1], given[len(words) :]).params


PROCESSES = {("member",), ("replica",), ("postgresql",)}
"""They run until they are stopped: what they tell is their log."""


def test_every_verb_that_answers_does_so_as_json_if_asked_to() -> None:
    without = {
        words
        for words, verb in VERBS.items()
        if not any("--json" in parameter.opts for parameter in verb.params)
    }
    assert without == PROCESSES


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("backup", "out is missing: give it as --out; for example: groupcert backup 127.0.0.1"),
        ("restore", "DIR is missing: give it behind the verb; for example: groupcert restore b"),
        ("whatif", "TRACE is missing: give it behind the verb, or --binlog FILE; for example: gr"),
        ("export --out x", "source is missing: give it as one of --trace TRACE, --binlog FILE, --"),
        ("group primary", "MEMBER is missing: give it behind the verb; for example: groupcert gr"),
        ("group restart", "run is missing: give it as --run; for example: groupcert group restar"),
        ("postgresql", "member is missing: give it as --member; for example: groupcert postgresq"),
        ("postgresql detach", "dsn is missing: give it as --dsn; for example: groupcert postgres"),
        ("replica", "sources is missing: give it as ADDRESS, in the file or as GROUPCERT_SOURCES"),
        ("member", "group is missing: give it as --group, in the file or as GROUPCERT_GROUP; mem"),
        ("bootstrap --group a", "log_servers is missing: give it as --log-server, in the file or"),
    ],
)
def test_what_is_missing_is_told_in_one_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, missing: str
) -> None:
    assert ended(monkeypatch, *line.split()) == 2
    captured = capsys.readouterr()
    assert missing in captured.err
    assert "; for example: groupcert " in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "reason", "text"),
    [
        ("backup --json", "MISSING_OPTION", "out is missing"),
        ("load --jsn --json", "INVALID_USAGE", "no such option: --jsn"),
        ("load --clients many --json", "INVALID_USAGE", "--clients: "),
        ("nonsense --json", "INVALID_USAGE", "no such command 'nonsense'; see groupcert --help"),
        ("status m1 --json", "INVALID_OPTION", "ADDRESS is 'm1': expected host:port"),
        ("replay /no/such --json", "SYSTEM_ERROR", "/no/such: No such file or directory"),
        ("whatif - --workers 0 --json", "INVALID_SETTING", "expected numbers from 1"),
        ("postgresql status --dsn foo=secret --json", "INVALID_USAGE", "--dsn cannot be read: "),
        ("postgresql join --dsn a=b --from c --json", "INVALID_USAGE", "--from cannot be read: "),
    ],
)
def test_with_json_a_failure_is_one_document_on_standard_output(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    reason: str,
    text: str,
) -> None:
    assert ended(monkeypatch, *line.split()) == 2
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert (error["reason"], error["exit_code"]) == (reason, 2)
    assert text in error["message"]
    assert captured.err == f"groupcert: {error['message']}\n"


def test_the_file_of_a_system_error_is_a_field(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, "whatif", "/no/such", "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["fields"] == {"path": "/no/such"}


def test_a_postgresql_server_that_is_not_there_is_told_by_its_place_without_its_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dsn = f"postgresql://postgres:secret@{HOST}:{free_port()}/shop"
    assert ended(monkeypatch, "postgresql", "status", "--dsn", dsn, "--json") == 3
    printed = capsys.readouterr().out
    fields = json.loads(printed)["error"]["fields"]
    assert fields["member"] == f"PostgreSQL {dsn.partition('@')[2]}"
    assert fields["state"].startswith("UNREACHABLE (")
    assert "secret" not in printed


def test_what_was_not_up_is_told_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert ended(monkeypatch, "down", "--data-folder", str(tmp_path), "--json") == 1
    document = {"result": "nothing was up", "data_folder": str(tmp_path)}
    assert json.loads(capsys.readouterr().out) == document


def test_what_nobody_expected_is_told_too_and_its_traceback_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(replay, "replay", fail)
    monkeypatch.setattr(sys, "argv", ["groupcert", "replay", "-", "--json"])
    with pytest.raises(ZeroDivisionError):
        cli.main()
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["reason"], error["exit_code"]) == ("UNEXPECTED", 1)
    assert error["message"] == "ZeroDivisionError: a bug"
