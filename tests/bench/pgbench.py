"""Runs PostgreSQL's own `pgbench`, at one server or at several at once, and reads its logs.

The rule it keeps: a transaction counts once it has committed, with all the times that it was run
again. The first half of a run does not count: sessions begin, and their backends start Python.
"""

import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.clients import ROWS, VALUE_BYTES, Answers
from tests.bench.harness import Clock, scratch
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


Numbers = dict[str, float]


def pgbench(
    script: str,
    databases: Sequence[str],
    processes: Sequence[int],
    *,
    clients: int,
    seconds: int,
    more: Sequence[str] = (),
    synchronous_commit: str = "on",
) -> tuple[Answers, Numbers]:
    """Runs clients, an equal share of them at each database; returns what they were told.

    Args:
        script: One of `SCRIPTS`.
        processes: Those whose processor time counts.
        more: Options of `pgbench`.

    Raises:
        subprocess.CalledProcessError: A client could not go on; its output says why.
    """
    settings = (
        "default_transaction_isolation=repeatable\\ read",
        f"synchronous_commit={synchronous_commit}",
    )
    environment = {**os.environ, "PGOPTIONS": " ".join(f"-c {each}" for each in settings)}
    with scratch() as folder:
        path = folder / "script.sql"
        path.write_text(SCRIPTS[script])
        command = [
            str(postgresql_program("pgbench")),
            "--no-vacuum",
            "--protocol=prepared",
            "--log",
            f"--client={max(1, clients // len(databases))}",
            f"--time={seconds}",
            f"--file={path}",
            f"--max-tries={TRIES_MAX}",
            *more,
        ]
        running = [
            subprocess.Popen(
                [*command, f"--log-prefix={folder}/log.{number}", database],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
            )
            for number, database in enumerate(databases)
        ]
        try:
            time.sleep(seconds / 2)
            began_s, clock = time.time(), Clock(servers=processes)
            time.sleep(seconds / 2 - END_SECONDS)
            ended_s, spent = time.time(), clock.spent()[1]["servers"]
            for process in running:
                output, _ = process.communicate(timeout=seconds + WAIT_SECONDS_MAX)
                if process.returncode:
                    raise subprocess.CalledProcessError(process.returncode, process.args, output)
        finally:
            for process in running:
                process.kill()
        answers, first_ms = _read(folder, began_s, ended_s)
    return answers, numbers_of(answers, ended_s - began_s, first_ms, spent)


def numbers_of(
    answers: Answers, seconds: float, first_ms: Sequence[float], cpu_seconds: float
) -> Numbers:
    """Returns the numbers of one load. `first_ms`: the median of the sessions' first transactions.
    `cpu_us`: processor time of all servers and members for each commit.
    """
    latencies = answers.latencies()
    return {
        "commits_per_second": round(answers.certified / seconds, 1),
        "avg_ms": round(statistics.fmean(answers.latencies_ms), 3),
        "p50_ms": latencies["p50"],
        "p99_ms": latencies["p99"],
        "retried": answers.rejected,
        "first_ms": round(statistics.median(first_ms), 1),
        "cpu_us": round(cpu_seconds / answers.certified * 1e6, 1),
    }


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
