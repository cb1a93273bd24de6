"""How long `groupcert whatif` takes for a long history: reading it, and scheduling it 65 times.

The stream: single-row transactions over 100,000 rows of 32 tables in 8 databases, whose snapshots
lag by up to `--lag` transactions. All lines are compared at five numbers of workers. `--whole` has
the coordinator schedule everything, as it does short streams. `--results` writes
`results/whatif.json`, with the files of `--before` in it.
"""

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from groupcert.applier.whatif.comparison import LINES, bounds
from groupcert.applier.whatif.loops import windows
from groupcert.applier.whatif.report import Compared, document
from groupcert.applier.whatif.trace_work import TraceWork
from groupcert.applier.whatif.workload import Costs, Workload, load
from groupcert.members.benchmarks.machine import answer, circumstances
from groupcert.members.commands.options import GcWindow, trace_options
from groupcert.members.commands.whatif import runs_of

GROUP = UUID("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa")
WORKERS = (1, 2, 4, 8, 16)
ROWS = 100_000
GROUP_TRANSACTIONS = 4
RESULTS = Path(__file__).parent / "results" / "whatif.json"


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds on the clock and of the processors, child processes included."""

    wall_seconds: float
    cpu_seconds: float

    @classmethod
    def now(cls) -> "Spent":
        """Returns what was spent up to now."""
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu_seconds = sum(one.ru_utime + one.ru_stime for one in used)
        return cls(time.monotonic(), cpu_seconds)

    def since(self) -> dict[str, float]:
        """Returns what was spent since then."""
        now = Spent.now()
        return {
            "wall_seconds": round(now.wall_seconds - self.wall_seconds, 1),
            "cpu_seconds": round(now.cpu_seconds - self.cpu_seconds, 1),
        }


def lines(transactions: int, lag: int, seed: int) -> Iterator[str]:
    """The trace, none of whose transactions conflicts."""
    chance = random.Random(seed)
    writers: dict[int, int] = {}
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
        yield json.dumps(line, separators=(",", ":")) + "\n"


def read(path: Path) -> Workload:
    """The workload of a trace."""
    reader = TraceWork(trace_options(GROUP, 1, GcWindow.CLOSE))
    with path.open() as source:
        workload = load(reader.read(source), Costs())
    workload.group(GROUP_TRANSACTIONS)
    return workload


def measure(transactions: int, lag: int, seed: int, processes: int) -> dict[str, object]:
    """Reads, schedules and reports a stream of so many transactions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        path.write_text("".join(lines(transactions, lag, seed)))
        began = begin = Spent.now()
        workload = read(path)
    reading = begin.since()
    begin = Spent.now()
    tasks = [(line, workers) for line in LINES for workers in WORKERS]
    done = runs_of(workload, tasks, processes)
    scheduling = begin.since()
    begin = Spent.now()
    compared = [Compared(line, [done[line, workers] for workers in WORKERS]) for line in LINES]
    chosen = windows.windows_of(len(workload))
    report = document({}, workload, bounds(workload), compared, WORKERS, chosen)
    used = {"self": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_024}
    per_run = scheduling["cpu_seconds"] * 1e6 / len(workload) / len(tasks)
    return {
        "transactions": len(workload),
        "runs": len(tasks),
        "snapshot_lag_max": lag,
        "seed": seed,
        "processes": processes,
        "windows": report["windows"],
        "reading": reading,
        "scheduling": scheduling,
        "cpu_us_a_transaction_and_run": round(per_run, 3),
        "report": begin.since(),
        "all": began.since(),
        "memory_mb_max": used,
        "makespans_us": {line.label: done[line, WORKERS[-1]].makespan_us for line in LINES},
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--lag", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--whole", action="store_true", help="all by the coordinator")
    parser.add_argument("--before", type=Path, nargs="*", default=[], help="answers to keep")
    parser.add_argument("--results", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    if options.whole:
        windows.WINDOWS = 1 << 62
    found = measure(options.transactions, options.lag, options.seed, options.processes)
    result = {
        "benchmark": "whatif",
        **circumstances(),
        "scheduled_by": "the coordinator" if options.whole else "loops, and windows of them",
        "result": found,
        "before": [json.loads(path.read_text()) for path in options.before],
    }
    answer(result, as_json=True, output=RESULTS if options.results else None)


if __name__ == "__main__":
    main()
