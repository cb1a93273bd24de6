"""Short runs of the checker: every answer of this tree holds, and those of wrong members do not."""

from pathlib import Path

import pytest

from tests.laboratory.mutants import environment_of, run_program

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


def check(folder: Path, kills: int, *, order: str = "nats", mutant: str = "") -> tuple[int, str]:
    """Runs the command, on members that are a mutant if it is named."""
    environment = environment_of("tests.cluster.mutants", mutant) if mutant else {}
    arguments = ("--kills", str(kills), "--seed", "3", "--order", order)
    return run_program(folder, "tests.checker", *arguments, environment=environment)


@pytest.mark.parametrize("order", ["nats", pytest.param("etcd", marks=pytest.mark.etcd)])
def test_all_answers_hold_while_processes_are_killed(tmp_path: Path, order: str) -> None:
    code, text = check(tmp_path, 4, order=order)
    assert code == 0, text
    assert "violations 0" in text


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mutant", "words"),
    [
        ("ignore-last-item", "was acknowledged, the log has"),
        ("ignore-read-set", "was acknowledged, the log has CONFLICT"),
        ("stamp-one-too-early", "at m4: it is"),
        ("acknowledge-before-the-log", "was acknowledged as"),
    ],
)
def test_answers_of_wrong_members_are_found(tmp_path: Path, mutant: str, words: str) -> None:
    code, text = check(tmp_path, 2, mutant=mutant)
    assert code == 1, text
    assert words in text, text
