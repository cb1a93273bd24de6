"""A short run of the checker: real processes are killed, and every answer holds."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


def test_all_answers_hold_while_processes_are_killed() -> None:
    command = [sys.executable, "-m", "tests.checker", "--kills", "4", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "violations 0" in done.stdout
