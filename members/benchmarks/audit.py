"""The audit's benchmark: how long verifying a history takes, how much memory, how much is moved.

The rule it keeps: each run is a process of its own, measured from outside with all that it starts
(Java, Spark's Python workers), from the start of Python to the answer; and each answer is checked.
On the same files DuckDB, if it is there, answers the question as far as these histories raise it
(`duckdb-all`), and the part of it about stamps and verdicts alone (`duckdb`).
"""

import importlib.util
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import time

import psutil
import typer
from rich.console import Console
from rich.table import Table

from groupcert.certifier.audit.spark.java import is_heap
from groupcert.certifier.errors import InvalidSetting
from groupcert.members.benchmarks.audit_history import FILE_ROWS, Workload, make
from groupcert.members.benchmarks.machine import answer, machine
from groupcert.members.benchmarks.spark_stages import Stage, stages
from groupcert.members.host.interruption import Course, beginning_undisturbed

TARGETS = {
    "transactions": 10_000_000,
    "seconds_max": 180,
    "memory_peak_mb_max": 8_590,
    "growth_from_1_to_10_million_max": 12,
}
WRONG_STAMPS = 100
TRANSACTIONS_MIN = 1_000
"""So many that all wrong stamps find a place."""
DUCKDB_MEMORY = "6GB"
_SAMPLE_SECONDS = 0.1
_STAGE_SECONDS_MIN = 1.0
_MEGABYTE = 1_000_000

Check = Callable[[Path, str, str], tuple[dict[str, int], float]]
"""From a log, a limit of memory and a folder for what does not fit: what is wrong, by code, and
when the engine was up.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is measured. `file_rows`: of each file of a history. `memory`: heap of Spark's Java.
    `folder`: where histories are kept; None: they are made anew.
    """

    transactions: tuple[int, ...] = (1_000_000, 3_000_000, 10_000_000)
    items: tuple[str, ...] = ("uniform", "zipf", "hot")
    file_rows: int = FILE_ROWS
    memory: str = "4g"
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

    @property
    def workloads(self) -> list[Workload]:
        """Right histories of all sizes, and one with wrong stamps of the smallest."""
        sizes = sorted(set(self.transactions))
        return [
            Workload(transactions=size, items=items, wrong_stamps=wrong, file_rows=self.file_rows)
            for items in self.items
            for size, wrong in ((sizes[0], WRONG_STAMPS), *((size, 0) for size in sizes))
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one engine took for one history.

    `seconds`: from the start of its process; `seconds_in_session`: without the start of Python,
    Java and Spark. `cpu_seconds` and `memory_peak_mb`: of all its processes, the largest sum of
    resident pages. `shuffle_write_mb`, `spilled_mb`: None where that was not Spark; `stages`: those
    of Spark that took a second or more. Spark verifies all that the job does; so does `duckdb-all`;
    `duckdb` is about stamps and verdicts alone.
    """

    items: str
    transactions: int
    wrong_stamps: int
    engine: str
    seconds: float
    seconds_in_session: float
    cpu_seconds: float
    memory_peak_mb: int
    shuffle_write_mb: int | None
    spilled_mb: int | None
    stages: list[Stage]
    findings: dict[str, int]
    is_right: bool


def main(options: BenchOptions, *, as_json: bool, output: Path | None) -> int:
    """Measures all histories, prints a table or one JSON document; 1 if an answer was wrong."""
    kept = tempfile.TemporaryDirectory() if options.folder is None else nullcontext(options.folder)
    engines: dict[str, tuple[Check, str]] = {"spark": (verified, options.memory)}
    if importlib.util.find_spec("duckdb"):
        engines |= {"duckdb": (queried, DUCKDB_MEMORY), "duckdb-all": (queried_all, DUCKDB_MEMORY)}
    runs = []
    parts = [(workload, engine) for workload in options.workloads for engine in engines]
    with Course(parts, lambda part: f"{part[1]}, {part[0].name}") as course, kept as folder:
        for workload, engine in course:
            check, memory = engines[engine]
            runs.append(measure(workload, engine, check, make(Path(folder), workload), memory))
            typer.echo(f"{engine}, {workload.name}: {runs[-1].seconds} s", err=True)
    document = {
        "benchmark": "audit",
        **machine(),
        "versions": {
            name: version(name) for name in ("groupcert", "pyspark", *engines.keys() & {"duckdb"})
        },
        "targets": TARGETS,
        "memory": options.memory,
        "results": [asdict(run) for run in runs],
        **course.document(),
    }
    if not answer(document, as_json=as_json, output=output):
        _print(runs)
        typer.echo(course.text(), nl=False)
    return course.exit_code(0) if all(run.is_right for run in runs) else 1


def measure(workload: Workload, engine: str, check: Check, log: Path, memory: str) -> Run:
    """Runs a check in a new process and looks at it until it has answered.

    Raises:
        ChildProcessError: the process ended without an answer, as one does that the system kills
            for its memory.
    """
    processes = get_context("spawn")
    receiver, sender = processes.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as scratch:
        process = processes.Process(target=_answer, args=(check, log, memory, scratch, sender))
        began = time()
        with beginning_undisturbed():
            process.start()
        sender.close()
        assert process.pid
        peaks = Peaks(process.pid)
        try:
            while not receiver.poll(_SAMPLE_SECONDS):
                peaks.look()
            peaks.look()
            findings, ready = receiver.recv()
            ended = time()
            process.join()
        except EOFError:
            process.join()
            had = f"{peaks.bytes // _MEGABYTE:,} MB at the most"
            text = f"checking {log} ended with exit code {process.exitcode}; it had {had}"
            raise ChildProcessError(text) from None
        finally:
            _kill(process.pid)
        ran = stages(Path(scratch)) if engine == "spark" else []
    wrong = workload.wrong_stamps
    expected = {"STAMP_TOO_LOW": wrong, "STAMP_TOO_HIGH": wrong} if wrong else {}
    return Run(
        items=workload.items,
        transactions=workload.transactions,
        wrong_stamps=wrong,
        engine=engine,
        seconds=round(ended - began, 1),
        seconds_in_session=round(ended - ready, 1),
        cpu_seconds=round(sum(peaks.cpu_seconds.values()), 1),
        memory_peak_mb=peaks.bytes // _MEGABYTE,
        shuffle_write_mb=sum(each.shuffle_write_mb for each in ran) if ran else None,
        spilled_mb=sum(each.spilled_mb for each in ran) if ran else None,
        stages=[each for each in ran if each.seconds >= _STAGE_SECONDS_MIN],
        findings=findings,
        is_right=findings == expected,
    )


class Peaks:
    """What a process and all that it has started take, as they are looked at now and then."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.cpu_seconds: dict[tuple[int, float], float] = {}
        self.bytes = 0

    def look(self) -> None:
        """Takes what they have now; those that have gone count no more.

        What Java starts is Java itself until it is another program, under the name of a thread, and
        has the same memory: that counts once.
        """
        total = 0
        javas = set()
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                with process.oneshot():
                    resident, times = process.memory_info().rss, process.cpu_times()
                    key, parent = (process.pid, process.create_time()), process.ppid()
                    is_java = Path(process.exe()).name == "java"
            except psutil.NoSuchProcess:
                continue
            if is_java and parent in javas:
                continue
            if is_java:
                javas.add(process.pid)
            self.cpu_seconds[key] = times.user + times.system
            total += resident
        self.bytes = max(self.bytes, total)


def verified(folder: Path, memory: str, scratch: str) -> tuple[dict[str, int], float]:
    """Runs the whole verify job on the log below `folder`; a `Check`."""
    from groupcert.certifier.audit.rows.log import Log
    from groupcert.certifier.audit.spark.session import spark_session
    from groupcert.certifier.audit.verify import verify

    settings = {f"spark.eventLog.{name}": "false" for name in ("rolling.enabled", "compress")}
    settings |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": Path(scratch).as_uri()}
    with spark_session(memory=memory, settings=settings) as spark:
        ready = time()
        return dict(verify.run(Log(spark, [str(folder)])).counts), ready


def queried(folder: Path, memory: str, scratch: str) -> tuple[dict[str, int], float]:
    """Runs DuckDB's check of stamps and verdicts on the same files; a `Check`."""
    from groupcert.members.benchmarks.audit_duckdb import check_stamps

    return check_stamps(folder, memory, scratch)


def queried_all(folder: Path, memory: str, scratch: str) -> tuple[dict[str, int], float]:
    """Runs DuckDB's check of all that `verify` asks on the same files; a `Check`."""
    from groupcert.members.benchmarks.audit_duckdb import check_all

    return check_all(folder, memory, scratch)


def _kill(pid: int) -> None:
    """Ends a process with all that it has started, which would else say how it misses its files."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in (*process.children(recursive=True), process):
            with suppress(psutil.NoSuchProcess):
                each.kill()


def _answer(check: Check, log: Path, memory: str, scratch: str, sender: Connection) -> None:
    sender.send(check(log, memory, scratch))


def _print(runs: list[Run]) -> None:
    table = Table(
        *("history", "engine", "seconds", "CPU s", "peak MB", "moved MB", "findings"),
        title=f"groupcert bench audit: {machine()['processor']}, {machine()['cores']} cores",
    )
    for run in runs:
        table.add_row(
            *(f"{run.transactions:,} {run.items}", run.engine, f"{run.seconds}"),
            *(f"{run.cpu_seconds}", f"{run.memory_peak_mb:,}", f"{run.shuffle_write_mb or ''}"),
            f"{sum(run.findings.values())}" + ("" if run.is_right else " WRONG"),
        )
    Console().print(table)
