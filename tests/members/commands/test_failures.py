"""Failures of the command: one line on standard error, and with `--json` one document beside it."""

import json
import shlex
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.core import TyperCommand
from typer.main import get_command

from groupcert.members.commands import cli, replay


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


PROCESSES = {("member",), ("replica",)}
"""They run until they are stopped: what they tell is their log."""


def test_every_verb_that_answers_does_so_as_json_if_asked_to() -> None:
    without = {
        words
        for words, verb in VERBS.items()
        if not any("--json" in parameter.opts for parameter in verb.params)
    }
    assert without == PROCESSES


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
