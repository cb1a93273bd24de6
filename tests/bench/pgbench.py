"""Runs PostgreSQL's own `pgbench`, at one server or at several at once, and reads its logs.

The rule it keeps: a transaction counts once it has committed, with all the times that it was run
again. The first half of a run does not count: sessions begin, and their backends start Python.
"""

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.clients import ROWS, VALUE_BYTES, Answers
from tests.bench.harness import Clock
from tests.servers import postgresql_program

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


@dataclass(frozen=True, slots=True)
class Counted:
    """What the logs of `pgbench` have of some seconds: commits, `answers.rejected` for those run
    again, the processor time; and the first latency of each session.
    """

    answers: Answers
    seconds: float
    cpu_s: float
    first_ms: Sequence[float]


def run_pgbench(
    script: str,
    databases: Sequence[str],
    *,
    clients: int,
    seconds: int,
    folder: Path,
    processes: Sequence[int] = (),
    synchronous_commit: str = "on",
    rate: int = 0,
) -> Counted:
    """Runs the clients, an equal share of them at each database.

    Args:
        script: One of `SCRIPTS`.
        folder: For the script and the logs.
        processes: Those whose processor time counts.
        rate: Transactions a second at each database, whose latency counts from when they were
            due; 0: as many as are answered.

    Raises:
        subprocess.CalledProcessError: A client could not go on; its output says why.
    """
    path = folder / f"{script}.sql"
    path.write_text(SCRIPTS[script])
    for old in folder.glob("log.*"):
        old.unlink()
    isolation = "default_transaction_isolation=repeatable\\ read"
    command = [
        *(str(postgresql_program("pgbench")), "--no-vacuum", "--protocol=prepared", "--log"),
        *(f"--client={max(1, clients // len(databases))}", f"--time={seconds}"),
        *(f"--file={path}", f"--max-tries={TRIES_MAX}", *([f"--rate={rate}"] if rate else [])),
    ]
    running = [
        subprocess.Popen(
            [*command, f"--log-prefix={folder}/log.{number}", database],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "PGOPTIONS": f"-c {isolation} -c synchronous_commit={synchronous_commit}",
            },
        )
        for number, database in enumerate(databases)
    ]
    try:
        time.sleep(seconds / 2)
        began_s, clock = time.time(), Clock(servers=processes)
        time.sleep(seconds / 2 - END_SECONDS)
        ended_s, spent_s = time.time(), clock.spent()[1]["servers"]
        for process in running:
            output, _ = process.communicate(timeout=seconds + WAIT_SECONDS_MAX)
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, process.args, output)
    finally:
        for process in running:
            process.kill()
    answers, first_ms = _read(folder, began_s, ended_s)
    return Counted(answers, ended_s - began_s, spent_s, first_ms)


def _read(folder: Path, began_s: float, ended_s: float) -> tuple[Answers, list[float]]:
    """Returns what the logs have of the time between two moments, and all first latencies."""
    answers, first_ms = Answers(), []
    for path in folder.glob("log.*"):
        started: set[str] = set()
        for line in path.read_text().splitlines():
            client, _, taken_us, _, second, us, *_lag, retries = line.split()
            taken_ms, at_s = int(taken_us) / 1e3, int(second) + int(us) / 1e6
            if client not in started:
                started.add(client)
                first_ms.append(taken_ms)
            if began_s <= at_s < ended_s:
                answers.certified += 1
                answers.rejected += int(retries)
                answers.latencies_ms.append(taken_ms)
    assert answers.certified, "no commit in the second half of the run: give it more seconds"
    return answers, first_ms
