"""Histories come back from their files as they were, and are checked again by the command."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.laboratory.breakages import MUTANTS
from tests.laboratory.check import main
from tests.laboratory.history import Fault, load_history
from tests.laboratory.interleaving import interleave


def test_a_history_comes_back_from_its_file(tmp_path: Path) -> None:
    history = interleave(1, transactions=200)
    history.faults.append(Fault(7, "kill m1"))
    history.finals[0] = replace(history.finals[0], rows={b"\x00\xff": b"\xfe\n", b"": b""})
    path = tmp_path / "history.jsonl"
    history.save(path)
    assert load_history(path) == history


def test_the_command_finds_nothing_in_a_right_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interleave(1, transactions=200).save(tmp_path / "h")
    assert main([str(tmp_path / "h")]) == 0
    answer = capsys.readouterr().out
    assert "findings      none" in answer
    assert "lost          0\n" in answer


def test_the_command_finds_what_is_wrong_and_says_what_was_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MUTANTS["acknowledge-and-drop"].install():
        interleave(1, transactions=200).save(tmp_path / "h")
    assert main([str(tmp_path / "h")]) == 1
    answer = capsys.readouterr().out
    assert "acknowledged-lost: m1 has no transaction T" in answer
    assert "lost          0\n" not in answer


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"type":"operation"}', '{"type":"run","seed":1}', '{"type":"other"}'],
)
def test_what_is_no_history_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "h"
    path.write_text(text)
    assert main([str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_file_that_is_missing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err
