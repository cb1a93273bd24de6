"""A client that was made before its process forks works in both processes.

Method: whole programs (`forking.py`) against a real group, since a test's process has gRPC at work
for other reasons. Each must end by itself.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from groupcert.members.client import forks
from groupcert.members.demo.local_group import LocalGroup
from tests.members.client.forking import PROGRAMS
from tests.sources import ROOT

pytestmark = [pytest.mark.nats, pytest.mark.cluster]


@pytest.mark.parametrize("name", [each.__name__ for each in PROGRAMS])
def test_clients_outlive_a_fork(local_group: LocalGroup, name: str) -> None:
    command = [sys.executable, "-m", "tests.members.client.forking", name]
    command += local_group.addresses.values()
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout.strip()) == (0, "done"), ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_thread_that_ends_while_threads_are_listed_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ended(path: Path) -> str:
        raise ProcessLookupError(path)

    monkeypatch.setattr(Path, "read_text", ended)
    assert not forks.grpc_runs(0.0)
