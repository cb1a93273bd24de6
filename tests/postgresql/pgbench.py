"""`pgbench` at every server at once, started again whenever its sessions have been ended."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests import servers
from tests.laboratory.at_work import AtWork
from tests.postgresql.bank import PGBENCH_SCRIPT

CLIENTS = 2
RUN_SECONDS = 3
"""Of one run: a client of pgbench whose session was ended is missing until the next one."""
PAUSE_SECONDS = 0.2
PROCESSED = re.compile(r"number of transactions actually processed: (\d+)")


class Pgbench(AtWork):
    """At work at all servers during the block; `processed` counts what it was acknowledged."""

    def __init__(self, dsns: Sequence[str], folder: Path, seed: int) -> None:
        """`folder` gets its script."""
        super().__init__(len(dsns))
        self._program = servers.postgresql_program("pgbench")
        self._dsns = dsns
        self._script = folder / "tpc-b.sql"
        self._seed = seed
        self._processed = [0] * len(dsns)
        self._script.write_text(PGBENCH_SCRIPT)

    @property
    def processed(self) -> int:
        """Transactions that it was told are committed, once each run has ended."""
        return sum(self._processed)

    def work(self, number: int) -> None:
        """Runs it again and again at a server."""
        runs = 0
        while not self.stopped.wait(PAUSE_SECONDS):
            runs += 1
            done = subprocess.run(
                [
                    str(self._program),
                    "--no-vacuum",
                    "--file",
                    str(self._script),
                    "--client",
                    str(CLIENTS),
                    "--time",
                    str(RUN_SECONDS),
                    "--max-tries",
                    "0",
                    "--random-seed",
                    str(self._seed * 10_000 + number * 1_000 + runs),
                    self._dsns[number],
                ],
                capture_output=True,
                text=True,
            )
            self._processed[number] += sum(map(int, PROCESSED.findall(done.stdout)))
