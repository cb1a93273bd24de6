"""The audit: how long verifying a history takes, how much memory, how much is moved.

The rule it keeps: each run is a process of its own, measured from outside with all that it starts
(Java, Spark's Python workers), from the start of Python to the answer; and each answer is checked.
On the same files DuckDB answers the question as far as these histories raise it (`duckdb-all`), and
the part of it about stamps and verdicts alone (`duckdb`).
"""

import tempfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import time

import psutil

from groupcert.certifier.audit.spark.java import is_heap
from groupcert.certifier.errors import InvalidSetting
from groupcert.members.host.interruption import beginning_undisturbed
from tests.audit.duckdb_checks import ALL, STAMPS, wrong_by
from tests.audit.long_history import FILE_ROWS, Workload, make
from tests.bench.harness import Document, Load, Run, machine, scratch
from tests.bench.spark_stages import stages

TARGETS = {
    "transactions": 10_000_000,
    "seconds_max": 180,
    "memory_peak_mb_max": 8_590,
    "growth_from_1_to_10_million_max": 12,
}
WRONG_STAMPS = 100
TRANSACTIONS_MIN = 1_000
"""So many that all wrong stamps find a place."""
SPARK = "spark"
DUCKDB_MEMORY = "6GB"
SAMPLE_SECONDS = 0.1
STAGE_SECONDS_MIN = 1.0
MEGABYTE = 1_000_000

Check = Callable[[Path, str, str], tuple[dict[str, int], float]]
"""From a log, a limit of memory and a folder for what does not fit: what is wrong, by code, and
when the engine was up.
"""


def audit(
    run: Run,
    transactions: tuple[int, ...] = (1_000_000, 3_000_000, 10_000_000),
    items: tuple[str, ...] = ("uniform", "zipf", "hot"),
    file_rows: int = FILE_ROWS,
    memory: str = "4g",
    folder: Path | None = None,
) -> Document:
    """Verifies long histories with Spark and with DuckDB: right ones of all sizes, and one with
    wrong stamps of the smallest.

    Exits with 1 if an answer was wrong.

    Args:
        transactions: Of the histories.
        items: Uniform, zipf or hot.
        file_rows: Of each file.
        memory: Heap of Spark's Java.
        folder: Histories are kept there, so that each is made once; None: nowhere.
    """
    if not is_heap(memory):
        raise InvalidSetting(name="--memory", value=memory, expected="such as 4g or 800m")
    sizes = sorted(set(transactions))
    if sizes[0] < TRANSACTIONS_MIN:
        expected = f"{TRANSACTIONS_MIN} or more"
        raise InvalidSetting(name="transactions", value=sizes[0], expected=expected)
    engines: dict[str, tuple[Check, str]] = {
        SPARK: (verified, memory),
        "duckdb": (partial(wrong_by, STAMPS), DUCKDB_MEMORY),
        "duckdb-all": (partial(wrong_by, ALL), DUCKDB_MEMORY),
    }
    workloads = [
        Workload(transactions=size, items=kind, wrong_stamps=wrong, file_rows=file_rows)
        for kind in items
        for size, wrong in ((sizes[0], WRONG_STAMPS), *((size, 0) for size in sizes))
    ]
    loads = [
        Load(f"{engine}, {workload.name}", partial(measure, workload, engine, check, limit))
        for workload in workloads
        for engine, (check, limit) in engines.items()
    ]
    results = run.measure(loads, nullcontext(folder) if folder else scratch())
    for name, (result,) in results.items():
        run.check(result["is_right"], f"{name}: {result['findings']}")
    return {
        "benchmark": "audit",
        **machine(),
        "versions": {name: version(name) for name in ("groupcert", "pyspark", "duckdb")},
        "targets": TARGETS,
        "memory": memory,
        "results": [result for (result,) in results.values()],
    }


def measure(workload: Workload, engine: str, check: Check, memory: str, folder: Path) -> Document:
    """Runs a check in a new process and looks at it until it has answered.

    Returns:
        `seconds`: from the start of its process; `seconds_in_session`: without the start of
        Python, Java and Spark. `cpu_seconds` and `memory_peak_mb`: of all its processes, the
        largest sum of resident pages. `shuffle_write_mb`, `spilled_mb`: None where that was not
        Spark; `stages`: those of Spark that took a second or more. Spark verifies all that the job
        does; so does `duckdb-all`; `duckdb` is about stamps and verdicts alone.

    Raises:
        ChildProcessError: The process ended without an answer, as one does that the system kills
            for its memory.
    """
    log = make(folder, workload)
    processes = get_context("spawn")
    receiver, sender = processes.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as spill:
        process = processes.Process(target=_answer, args=(check, log, memory, spill, sender))
        began = time()
        with beginning_undisturbed():
            process.start()
        sender.close()
        assert process.pid
        peaks = Peaks(process.pid)
        try:
            while not receiver.poll(SAMPLE_SECONDS):
                peaks.look()
            peaks.look()
            findings, ready = receiver.recv()
            ended = time()
            process.join()
        except EOFError:
            process.join()
            had = f"{peaks.bytes // MEGABYTE:,} MB at the most"
            text = f"checking {log} ended with exit code {process.exitcode}; it had {had}"
            raise ChildProcessError(text) from None
        finally:
            _kill(process.pid)
        ran = stages(Path(spill)) if engine == SPARK else []
    wrong = workload.wrong_stamps
    return {
        "items": workload.items,
        "transactions": workload.transactions,
        "wrong_stamps": wrong,
        "engine": engine,
        "seconds": round(ended - began, 1),
        "seconds_in_session": round(ended - ready, 1),
        "cpu_seconds": round(sum(peaks.cpu_seconds.values()), 1),
        "memory_peak_mb": peaks.bytes // MEGABYTE,
        "shuffle_write_mb": sum(each["shuffle_write_mb"] for each in ran) if ran else None,
        "spilled_mb": sum(each["spilled_mb"] for each in ran) if ran else None,
        "stages": [each for each in ran if each["seconds"] >= STAGE_SECONDS_MIN],
        "findings": findings,
        "is_right": findings
        == ({"STAMP_TOO_LOW": wrong, "STAMP_TOO_HIGH": wrong} if wrong else {}),
    }


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


def verified(folder: Path, memory: str, spill: str) -> tuple[dict[str, int], float]:
    """Runs the whole verify job on the log below `folder`; a `Check`."""
    from groupcert.certifier.audit.rows.certification_log import Log
    from groupcert.certifier.audit.spark.spark_session import spark_session
    from groupcert.certifier.audit.verify import verify

    settings = {f"spark.eventLog.{name}": "false" for name in ("rolling.enabled", "compress")}
    settings |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": Path(spill).as_uri()}
    with spark_session(memory=memory, settings=settings) as spark:
        ready = time()
        return dict(verify.run(Log(spark, [str(folder)])).counts), ready


def _kill(pid: int) -> None:
    """Ends a process with all that it has started, which would else say how it misses its files."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in (*process.children(recursive=True), process):
            with suppress(psutil.NoSuchProcess):
                each.kill()


def _answer(check: Check, log: Path, memory: str, spill: str, sender: Connection) -> None:
    sender.send(check(log, memory, spill))
