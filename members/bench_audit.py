"""The audit's benchmark: how long verifying a history takes, how much memory, how much is moved.

The rule it keeps: each run is a process of its own, from the start of Python to the answer, on
files that the certifier's own decisions were written to; and each answer is checked. On the same
files DuckDB, if it is there, answers the part of the question that is one query.
"""

import importlib.util
import json
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import monotonic

import typer
from rich.console import Console
from rich.table import Table

from certifier.audit.java import is_heap
from certifier.errors import InvalidSetting
from members.bench_audit_history import ITEMS, Workload, make
from members.bench_audit_progress import Steps, shown
from members.bench_audit_run import OnLook, Run, duckdb_run, spark_run
from members.machine import machine

TARGETS = {
    "transactions": 10_000_000,
    "seconds_max": 180,
    "memory_peak_mb_max": 8_590,
    "growth_from_1_to_10_million_max": 12,
}
WRONG_STAMPS = 100
TRANSACTIONS_MIN = 1_000
"""So many that all wrong stamps find a place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is measured.

    `memory`: heap of Spark's Java. `duckdb_memory`: limit of DuckDB. `folder`: where histories are
    kept; None: they are made anew.
    """

    transactions: tuple[int, ...] = (1_000_000, 3_000_000, 10_000_000)
    items: tuple[str, ...] = ("uniform", "zipf")
    memory: str = "4g"
    duckdb_memory: str = "6GB"
    folder: Path | None = None

    def __post_init__(self) -> None:
        if not is_heap(self.memory):
            raise InvalidSetting(name="--memory", value=self.memory, expected="such as 4g or 800m")
        for items in self.items:
            Workload(transactions=1, items=items)
        for transactions in self.transactions:
            if transactions < TRANSACTIONS_MIN:
                expected = f"{TRANSACTIONS_MIN} or more"
                raise InvalidSetting(name="transactions", value=transactions, expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One history, and what each engine took for it; `is_right`: they found what is wrong there."""

    items: str
    transactions: int
    wrong_stamps: int
    files_mb: int
    spark: Run
    duckdb: Run | None
    is_right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How much longer the largest history took than the smallest one."""

    items: str
    transactions_first: int
    transactions_last: int
    seconds: float
    seconds_in_session: float


def measure(folder: Path, workload: Workload, options: BenchOptions, steps: Steps) -> Measured:
    """Makes a history, if it is not there, and has it verified."""
    log, files_mb = _made(folder, workload, steps)
    wrong = workload.wrong_stamps
    expected = {"STAMP_TOO_LOW": wrong, "STAMP_TOO_HIGH": wrong} if wrong else {}

    def checked(engine: str, run: Callable[[OnLook], Run]) -> Run:
        steps.begin(f"{engine}, {_name(workload)}")
        result = run(lambda megabytes: steps.tell(f"peak {megabytes:,} MB"))
        found = f"{sum(result.findings.values())} findings"
        found += "" if result.findings == expected else " WRONG"
        steps.end(f"{result.seconds} s, {result.memory_peak_mb:,} MB, {found}")
        return result

    spark = checked("spark", lambda on_look: spark_run(log, options.memory, on_look))
    duckdb = None
    if _duckdb():
        duckdb = checked("duckdb", lambda on_look: duckdb_run(log, options.duckdb_memory, on_look))
    runs = [spark] if duckdb is None else [spark, duckdb]
    return Measured(
        items=workload.items,
        transactions=workload.transactions,
        wrong_stamps=wrong,
        files_mb=files_mb,
        spark=spark,
        duckdb=duckdb,
        is_right=all(run.findings == expected for run in runs),
    )


def growths(results: list[Measured]) -> list[Growth]:
    """Of each kind of items that was measured with several sizes."""
    found = []
    for items in ITEMS:
        mine = [each for each in results if each.items == items and not each.wrong_stamps]
        mine.sort(key=lambda each: each.transactions)
        if len(mine) < 2:
            continue
        first, last = mine[0].spark, mine[-1].spark
        found.append(
            Growth(
                items=items,
                transactions_first=mine[0].transactions,
                transactions_last=mine[-1].transactions,
                seconds=round(last.seconds / first.seconds, 1),
                seconds_in_session=round(last.seconds_in_session / first.seconds_in_session, 1),
            )
        )
    return found


def main(options: BenchOptions, *, as_json: bool, output: Path | None) -> int:
    """Measures all histories, prints a table or one JSON document; 1 if an answer was wrong."""
    kept = tempfile.TemporaryDirectory() if options.folder is None else nullcontext(options.folder)
    workloads = [each for items in options.items for each in _workloads(items, options)]
    steps_each = 2 + len(_duckdb())
    with kept as folder, shown(steps_each * len(workloads)) as steps:
        results = [measure(Path(folder), workload, options, steps) for workload in workloads]
    document = {
        "benchmark": "audit",
        **machine(),
        "versions": {name: version(name) for name in ("groupcert", "pyspark", *_duckdb())},
        "targets": TARGETS,
        "memory": options.memory,
        "results": [asdict(each) for each in results],
        "growth": [asdict(each) for each in growths(results)],
    }
    text = json.dumps(document, indent=2) + "\n"
    if output is not None:
        output.write_text(text)
    if as_json:
        typer.echo(text, nl=False)
    else:
        _print(results)
    return 0 if all(each.is_right for each in results) else 1


def _workloads(items: str, options: BenchOptions) -> list[Workload]:
    """Right histories of all sizes, and one with wrong stamps of the smallest."""
    sizes = sorted(set(options.transactions))
    wrong = Workload(transactions=sizes[0], items=items, wrong_stamps=WRONG_STAMPS)
    return [wrong, *(Workload(transactions=size, items=items) for size in sizes)]


def _made(folder: Path, workload: Workload, steps: Steps) -> tuple[Path, int]:
    """The folder of a history, and how many megabytes are in it."""
    steps.begin(f"history, {_name(workload)}", workload.transactions)
    begun = monotonic()
    log = make(folder, workload, lambda count: steps.tell(f"{count:,} transactions", count))
    files_mb = sum(path.stat().st_size for path in log.iterdir()) // 1_000_000
    steps.end(f"{files_mb:,} MB, there after {monotonic() - begun:.1f} s")
    return log, files_mb


def _name(workload: Workload) -> str:
    """A history as people are told of it."""
    wrong = f", {2 * workload.wrong_stamps} wrong" if workload.wrong_stamps else ""
    return f"{workload.transactions:,} {workload.items}{wrong}"


def _duckdb() -> list[str]:
    return ["duckdb"] if importlib.util.find_spec("duckdb") else []


def _print(results: list[Measured]) -> None:
    table = Table(
        *("history", "engine", "seconds", "CPU s", "peak MB", "moved MB", "findings"),
        title=f"groupcert bench audit: {machine()['processor']}, {machine()['cores']} cores",
    )
    for each in results:
        for run in (each.spark, each.duckdb):
            if run is None:
                continue
            moved = "" if run.shuffle_write_mb is None else f"{run.shuffle_write_mb:,}"
            table.add_row(
                *(f"{each.transactions:,} {each.items}", run.engine, f"{run.seconds}"),
                *(f"{run.cpu_seconds}", f"{run.memory_peak_mb:,}", moved),
                f"{sum(run.findings.values())}" + ("" if each.is_right else " WRONG"),
            )
    console = Console()
    console.print(table)
    for growth in growths(results):
        console.print(
            f"{growth.items}: {growth.transactions_last:,} transactions took {growth.seconds} "
            f"times as long as {growth.transactions_first:,}, {growth.seconds_in_session} times "
            "without the start of Spark"
        )
