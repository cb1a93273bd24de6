"""How long `groupcert whatif` takes for a long history: reading it, and scheduling it 65 times.

The stream: single-row transactions over 100,000 rows of 32 tables in 8 databases, in a trace; or
over as many rows of 8 tables, in a binary log that a MariaDB writes. All lines are compared at five
numbers of workers.
"""

import json
import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

from groupcert.applier.mysql_logs.binary_log_reader import read_binary_log
from groupcert.applier.whatif.binary_log_work import BinaryLogWork
from groupcert.applier.whatif.comparison_report import Compared, document
from groupcert.applier.whatif.costs import Costs
from groupcert.applier.whatif.scheme_comparison import LINES, sample_of
from groupcert.applier.whatif.trace_work import TraceWork
from groupcert.applier.whatif.workload import Workload, load
from groupcert.members.commands.verb_options import GcWindow, trace_options
from groupcert.members.commands.whatif import runs_of
from tests.bench.harness import Document, Load, Run, circumstances, scratch
from tests.bench.source_log import source_log

GROUP = UUID("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa")
WORKERS = (1, 2, 4, 8, 16)
ROWS = 100_000
GROUP_TRANSACTIONS = 4


def whatif(
    run: Run,
    transactions: int = 1_000_000,
    lag: int = 64,
    seed: int = 1,
    processes: int = 2,
    whole: bool = False,
    log: bool = False,
    before: tuple[str, ...] = (),
) -> Document:
    """Reads, schedules and reports a long stream.

    Args:
        transactions: Of one row each.
        lag: Of snapshots, in transactions, at most.
        seed: Of the stream.
        processes: That schedule.
        whole: All of the stream is scheduled, not windows of it.
        log: The stream is a binary log of a MariaDB server that is started for it.
        before: Files of earlier answers, which the document keeps.
    """
    loads = [Load("whatif", partial(_compared, processes, whole, _of_log if log else _of_trace))]
    stream = source_log(transactions) if log else _trace(transactions, lag, seed)
    results = run.measure(loads, stream)
    measured = results.get("whatif", [{}])[0]
    chosen = {
        "log": log,
        "whole": whole,
        "snapshot_lag_max": lag,
        "seed": seed,
        "processes": processes,
    }
    return {
        "benchmark": "whatif",
        **circumstances(),
        "result": {**measured, **chosen},
        "before": [json.loads(Path(path).read_text()) for path in before],
    }


@contextmanager
def _trace(transactions: int, lag: int, seed: int) -> Iterator[Path]:
    """Yields the file of a trace, none of whose transactions conflicts."""
    chance = random.Random(seed)
    writers: dict[int, int] = {}
    with scratch() as folder, (folder / "trace.jsonl").open("w") as file:
        for number in range(1, transactions + 1):
            row = chance.randrange(ROWS)
            snapshot = max(writers.get(row, 0), number - 1 - chance.randrange(lag), 0)
            writers[row] = number
            line = {
                "type": "transaction",
                "member": f"m{number % 3 + 1}",
                "snapshot_version": f"{GROUP}:1-{snapshot}" if snapshot else "",
                "write_set": [f"shop{row % 8}.orders{row // 8 % 4}/{row}"],
            }
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
        file.flush()
        yield Path(file.name)


def _of_trace(path: Path, _whole: bool) -> Workload:
    reader = TraceWork(trace_options(GROUP, 1, GcWindow.CLOSE))
    with path.open() as source:
        workload = load(reader.read(source), Costs())
    workload.group(GROUP_TRANSACTIONS)
    return workload


def _of_log(path: Path, whole: bool) -> Workload:
    reader = BinaryLogWork()
    workload = load(reader.read_files([read_binary_log(path)], whole=whole), Costs())
    workload.passed = reader.passed
    return workload


def _compared(
    processes: int, whole: bool, read_stream: Callable[[Path, bool], Workload], path: Path
) -> Document:
    """Reads, schedules and reports a stream."""
    began = _spent()
    workload = read_stream(path, whole)
    read = _spent()
    tasks = [(line, workers) for line in LINES for workers in WORKERS]
    sample = sample_of(workload, whole=whole)
    done = runs_of(sample.windows, tasks, processes)
    scheduled = _spent()
    compared = [Compared(line, [done[line, workers] for workers in WORKERS]) for line in LINES]
    report = document({}, workload, sample, compared, WORKERS)
    reported = _spent()
    per_run = (scheduled[1] - read[1]) * 1e6 / sample.entries / len(tasks)
    return {
        "transactions": len(workload) + workload.passed,
        "runs": len(tasks),
        "windows": report["windows"],
        "reading": _between(began, read),
        "scheduling": _between(read, scheduled),
        "cpu_us_a_transaction_and_run": round(per_run, 3),
        "report": _between(scheduled, reported),
        "all": _between(began, reported),
        "memory_mb_max": {"self": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_024},
        "speedups": {
            line.label: round(sample.serial_us / runs[-1].makespan_us, 3) for line, runs in compared
        },
    }


def _spent() -> tuple[float, float]:
    """Returns seconds on the clock and of the processors, child processes included."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.monotonic(), sum(each.ru_utime + each.ru_stime for each in used)


def _between(began: tuple[float, float], ended: tuple[float, float]) -> dict[str, float]:
    wall, cpu = (round(later - sooner, 1) for sooner, later in zip(began, ended, strict=True))
    return {"wall_seconds": wall, "cpu_seconds": cpu}
