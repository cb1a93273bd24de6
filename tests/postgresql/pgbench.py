"""`pgbench` at every server at once, started again whenever its sessions have been ended."""

import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests import servers
from tests.postgresql.bank import PGBENCH_SCRIPT

CLIENTS = 2
RUN_SECONDS = 3
"""Of one run: a client of pgbench whose session was ended is missing until the next one."""
PAUSE_SECONDS = 0.2
PROCESSED = re.compile(r"number of transactions actually processed: (\d+)")


class Pgbench:
    """At work during the block `working`; `processed` counts what it was acknowledged."""

    def __init__(self, dsns: Sequence[str], folder: Path, seed: int) -> None:
        """`folder` gets its script."""
        self._program = servers.postgresql_program("pgbench")
        self._dsns = dsns
        self._script = folder / "tpc-b.sql"
        self._seed = seed
        self._stopped = threading.Event()
        self.processed = 0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Runs it at all servers, and returns when each run has ended."""
        self._script.write_text(PGBENCH_SCRIPT)
        with ThreadPoolExecutor(len(self._dsns)) as pool:
            running = [pool.submit(self._run, n, dsn) for n, dsn in enumerate(self._dsns)]
            try:
                yield
            finally:
                self._stopped.set()
            self.processed = sum(each.result() for each in running)

    def _run(self, number: int, dsn: str) -> int:
        processed = runs = 0
        while not self._stopped.wait(PAUSE_SECONDS):
            runs += 1
            done = subprocess.run(
                [
                    *(str(self._program), "--no-vacuum", "--file", str(self._script)),
                    *("--client", str(CLIENTS), "--time", str(RUN_SECONDS), "--max-tries", "0"),
                    *("--random-seed", str(self._seed * 10_000 + number * 1_000 + runs), dsn),
                ],
                capture_output=True,
                text=True,
            )
            processed += sum(map(int, PROCESSED.findall(done.stdout)))
        return processed
