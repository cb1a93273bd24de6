"""Runs PostgreSQL's own `pgbench`, at one server or at several at once, and reads its logs.

The rule it keeps: a transaction counts once it has committed, with all the times that it was run
again. The first half of a run does not count: sessions begin, and their backends start Python.
"""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from groupcert.members.benchmarks.clients import ROWS, VALUE_BYTES, Load
from groupcert.members.host.database_servers import postgresql_program

WAIT_SECONDS_MAX = 60.0
TRIES_MAX = 1_000
END_SECONDS = 0.1
"""Before the end of a run, when backends end and their processor time is not known for a moment."""
SCHEMA = f"""
CREATE TABLE item (id int PRIMARY KEY, value varchar({VALUE_BYTES}) NOT NULL);
INSERT INTO item SELECT number, '' FROM generate_series(0, {ROWS - 1}) number;
CREATE TABLE added (id bigint PRIMARY KEY, value varchar({VALUE_BYTES}) NOT NULL);
"""
SCRIPTS = {
    "update": f"""\\set id random(0, {ROWS - 1})
\\set number random(1, 1000000000)
UPDATE item SET value = rpad(:number::text, {VALUE_BYTES}, 'x') WHERE id = :id;
""",
    "insert": f"""\\set id random(1, 1000000000000000000)
INSERT INTO added VALUES (:id, rpad(:id::text, {VALUE_BYTES}, 'x'));
""",
}
"""Scripts of `pgbench`, one statement a transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PgBench:
    """One run of `pgbench` at each of some databases."""

    script: str
    clients: int
    seconds: int
    folder: Path
    """For its script and its logs."""
    synchronous_commit: str = "on"
    rate: int = 0
    """Transactions a second at each database, whose latency counts from when they were due; 0: as
    many as are answered."""

    def run(self, databases: Sequence[str], cpu_s: Callable[[], float]) -> "PgBenchLoad":
        """Runs the clients, an equal share of them at each database.

        Args:
            cpu_s: Returns the processor time spent so far by what is measured, in seconds.

        Raises:
            subprocess.CalledProcessError: A client could not go on; its output says why.
        """
        script = self.folder / f"{self.script}.sql"
        script.write_text(SCRIPTS[self.script])
        for old in self.folder.glob("log.*"):
            old.unlink()
        settings = (
            "default_transaction_isolation=repeatable\\ read",
            f"synchronous_commit={self.synchronous_commit}",
        )
        options = " ".join(f"-c {setting}" for setting in settings)
        share = max(1, self.clients // len(databases))
        command = [
            *(str(postgresql_program("pgbench")), "--no-vacuum", "--protocol=prepared"),
            *(f"--client={share}", f"--time={self.seconds}", f"--file={script}", "--log"),
            f"--max-tries={TRIES_MAX}",
            *([f"--rate={self.rate}"] if self.rate else []),
        ]
        running = [
            subprocess.Popen(
                [*command, f"--log-prefix={self.folder}/log.{number}", database],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "PGOPTIONS": options},
            )
            for number, database in enumerate(databases)
        ]
        try:
            time.sleep(self.seconds / 2)
            began_s, spent_s = time.time(), cpu_s()
            time.sleep(self.seconds / 2 - END_SECONDS)
            ended_s, spent_s = time.time(), cpu_s() - spent_s
            for process in running:
                output, _ = process.communicate(timeout=self.seconds + WAIT_SECONDS_MAX)
                if process.returncode:
                    raise subprocess.CalledProcessError(process.returncode, process.args, output)
        finally:
            for process in running:
                process.kill()
        return _load(self.folder, began_s, ended_s, spent_s)


@dataclass(frozen=True, slots=True)
class PgBenchLoad:
    """What the logs of `pgbench` have of some seconds: commits, `load.rejected` for those run
    again, the processor time; and the first latency of each session.
    """

    load: Load
    seconds: float
    cpu_s: float
    first_ms: Sequence[float]


def _load(folder: Path, began_s: float, ended_s: float, cpu_s: float) -> PgBenchLoad:
    load, first_ms = Load(), []
    for path in folder.glob("log.*"):
        started: set[str] = set()
        for line in path.read_text().splitlines():
            client, _, taken_us, _, second, us, *_lag, retries = line.split()
            taken_ms, at_s = int(taken_us) / 1e3, int(second) + int(us) / 1e6
            if client not in started:
                started.add(client)
                first_ms.append(taken_ms)
            if began_s <= at_s < ended_s:
                load.certified += 1
                load.rejected += int(retries)
                load.latencies_ms.append(taken_ms)
    assert load.certified, "no commit in the second half of the run: give it more seconds"
    return PgBenchLoad(load, ended_s - began_s, cpu_s, first_ms)
