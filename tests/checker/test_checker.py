"""Short runs of the checker: every answer of this tree holds, and those of wrong members do not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

MUTANT_FOLDER = ROOT / "tests" / "cluster" / "mutant"
"""A `sitecustomize.py` that makes all members wrong."""


def check(folder: Path, kills: int, *, order: str = "nats", mutant: str = "") -> tuple[int, str]:
    """Runs the command with its files in a folder; returns its exit code, and what it printed."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    if mutant:
        environment |= {"MUTANT": mutant, "PYTHONPATH": f"{MUTANT_FOLDER}:{ROOT}"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.checker", "--kills", str(kills)),
            *("--seed", "3", "--order", order),
        ],
        capture_output=True,
        text=True,
        env=environment,
    )
    return done.returncode, done.stdout + done.stderr


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
