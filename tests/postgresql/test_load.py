"""A short run of the load under kills; `make nightly` has a long one, and wrong companions."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import servers
from tests.sources import ROOT

pytestmark = [
    *(pytest.mark.nats, pytest.mark.cluster, pytest.mark.database, pytest.mark.slow),
    pytest.mark.timeout(600),
]


MUTANT_FOLDER = ROOT / "tests" / "postgresql" / "mutant"
"""A `sitecustomize.py` that makes all companions wrong."""


def check(folder: Path, *, environment: Mapping[str, str]) -> tuple[int, str]:
    """Runs the command with its files in a folder; returns its exit code, and what it printed."""
    with servers.where_installed():
        servers.postgresql_program("pgbench")
    done = subprocess.run(
        [sys.executable, "-m", "tests.postgresql", "--seconds", "8", "--seed", "4"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder), **environment},
    )
    return done.returncode, done.stdout + done.stderr


def test_nothing_is_lost_or_doubled_while_processes_are_killed(tmp_path: Path) -> None:
    code, text = check(tmp_path, environment={})
    assert code == 0, text
    assert "violations 0" in text


@pytest.mark.nightly
def test_updates_that_a_wrong_companion_loses_are_found(tmp_path: Path) -> None:
    code, text = check(tmp_path, environment={"PYTHONPATH": f"{MUTANT_FOLDER}:{ROOT}"})
    assert code == 1, text
    assert re.search("lost-append|incompatible-order|lost-update", text), text
