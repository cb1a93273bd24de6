"""A short run of the load under kills; `make nightly` has a long one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import servers
from tests.sources import ROOT

pytestmark = [
    *(pytest.mark.nats, pytest.mark.cluster, pytest.mark.database, pytest.mark.slow),
    pytest.mark.timeout(600),
]


def test_nothing_is_lost_or_doubled_while_processes_are_killed(tmp_path: Path) -> None:
    try:
        servers.postgresql_program("pgbench")
    except servers.ServerMissing as error:
        if os.environ.get("REQUIRE_DATABASES") == "1":
            raise
        pytest.skip(str(error))
    done = subprocess.run(
        [sys.executable, "-m", "tests.postgresql", "--seconds", "8", "--seed", "4"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "violations 0" in done.stdout
