"""One measured run of a check of certification logs, in a process of its own.

The rule it keeps: what is measured is the process with all that it starts (Java, Spark's Python
workers), from outside. Wall time ends when the answer is there. What Spark moved and spilled is
what its own event log says. What those processes write to standard error is shown if they fail.
"""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import time
from typing import NamedTuple, TypeAlias

import psutil

_SAMPLE_SECONDS = 0.1
_MEGABYTE = 1_000_000
_CAUSE_LINES = 20
OnLook: TypeAlias = Callable[[int], None]
"""Told, several times a second, how many megabytes a run has had at the most so far."""
_EVENT_LOG = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}


class Answer(NamedTuple):
    """What a check found, by code, and when: seconds since 1970."""

    counts: dict[str, int]
    ready: float
    """When the engine was up, before it was asked."""
    done: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run took.

    `seconds`: from the start of its process; `seconds_in_session`: without the start of Python,
    Java and Spark. `cpu_seconds`: of all its processes. Memory: the largest sum of all processes'
    resident pages (shared ones count in each), the peak of its Java, and the largest sum of the
    Python workers'. Shuffled, spilled: None where that was not Spark. Spark verifies all that the
    job does; DuckDB's answer is about stamps and verdicts alone.
    """

    engine: str
    seconds: float
    seconds_in_session: float
    cpu_seconds: float
    memory_peak_mb: int
    java_peak_mb: int
    python_workers_peak_mb: int
    shuffle_read_mb: int | None
    shuffle_write_mb: int | None
    spilled_to_disk_mb: int | None
    findings: dict[str, int]


def spark_run(folder: Path, memory: str, on_look: OnLook) -> Run:
    """The whole verify job on the log below `folder`."""
    with tempfile.TemporaryDirectory() as events:
        measured = _measured(_verified, folder, memory, events, on_look)
        moved = _moved(next(Path(events).iterdir()))
    return _as_run("spark", measured, moved)


def duckdb_run(folder: Path, memory: str, on_look: OnLook) -> Run:
    """DuckDB's check of stamps and verdicts on the same files."""
    with tempfile.TemporaryDirectory() as spilled:
        return _as_run("duckdb", _measured(_queried, folder, memory, spilled, on_look), None)


class _Peaks:
    """What a process and all that it has started take, as they are looked at now and then."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._cpu_seconds: dict[tuple[int, float], float] = {}
        self.all = self.java = self.workers = 0

    @property
    def cpu_seconds(self) -> float:
        """Of all processes that were seen."""
        return sum(self._cpu_seconds.values())

    def look(self) -> None:
        """Takes what they have now; those that have gone count no more.

        What Java starts is Java itself until it is another program, under the name of a thread, and
        has the same memory: that counts once.
        """
        total = workers = 0
        javas = set()
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                with process.oneshot():
                    resident = process.memory_info().rss
                    times = process.cpu_times()
                    key = (process.pid, process.create_time())
                    is_java = Path(process.exe()).name == "java"
                    parent = process.ppid()
            except psutil.NoSuchProcess:
                continue
            if is_java and parent in javas:
                continue
            self._cpu_seconds[key] = times.user + times.system
            total += resident
            if is_java:
                javas.add(process.pid)
                self.java = max(self.java, _high_water(process.pid))
            elif process.pid != self._process.pid:
                workers += resident
        self.all = max(self.all, total)
        self.workers = max(self.workers, workers)


class _Measured(NamedTuple):
    answer: Answer
    started: float
    peaks: _Peaks


class _Moved(NamedTuple):
    read: int
    written: int
    spilled: int


def _measured(
    check: Callable[[Path, str, str], Answer],
    folder: Path,
    memory: str,
    scratch: str,
    on_look: OnLook,
) -> _Measured:
    """Runs a check in a new process and looks at it until it has answered.

    Raises:
        ChildProcessError: the process ended without an answer, as one does that the system kills
            for its memory.
    """
    processes = get_context("spawn")
    receiver, sender = processes.Pipe(duplex=False)
    with tempfile.NamedTemporaryFile() as said:
        given = (check, folder, memory, scratch, sender, said.name)
        process = processes.Process(target=_answer, args=given)
        started = time()
        process.start()
        sender.close()
        assert process.pid
        peaks = _Peaks(process.pid)
        try:
            while not receiver.poll(_SAMPLE_SECONDS):
                peaks.look()
                on_look(peaks.all // _MEGABYTE)
            peaks.look()
            answer = receiver.recv()
            process.join()
        except EOFError:
            process.join()
            took = f"{peaks.all // _MEGABYTE:,} MB at the most"
            text = f"checking {folder} ended with exit code {process.exitcode}; it had {took}"
            last = said.read().decode(errors="replace").splitlines()[-_CAUSE_LINES:]
            raise ChildProcessError("\n".join([text, *last])) from None
        finally:
            process.terminate()
    return _Measured(answer, started, peaks)


def _answer(
    check: Callable[[Path, str, str], Answer],
    folder: Path,
    memory: str,
    scratch: str,
    sender: Connection,
    said: str,
) -> None:
    aside = os.open(said, os.O_WRONLY | os.O_APPEND)
    os.dup2(aside, 2)
    os.close(aside)
    sender.send(check(folder, memory, scratch))


def _verified(folder: Path, memory: str, events: str) -> Answer:
    from certifier.audit import verify
    from certifier.audit.log import Log
    from certifier.audit.session import spark_session

    settings = {**_EVENT_LOG, "spark.eventLog.dir": Path(events).as_uri()}
    with spark_session(memory=memory, settings=settings) as spark:
        ready = time()
        result = verify.run(Log(spark, [str(folder)]))
        return Answer(dict(result.counts), ready, time())


def _queried(folder: Path, memory: str, spilled: str) -> Answer:
    from members.bench_audit_duckdb import check_stamps

    return check_stamps(folder, memory, spilled)


def _as_run(engine: str, measured: _Measured, moved: _Moved | None) -> Run:
    answer, started, peaks = measured
    return Run(
        engine=engine,
        seconds=round(answer.done - started, 1),
        seconds_in_session=round(answer.done - answer.ready, 1),
        cpu_seconds=round(peaks.cpu_seconds, 1),
        memory_peak_mb=peaks.all // _MEGABYTE,
        java_peak_mb=peaks.java // _MEGABYTE,
        python_workers_peak_mb=peaks.workers // _MEGABYTE,
        shuffle_read_mb=moved and moved.read // _MEGABYTE,
        shuffle_write_mb=moved and moved.written // _MEGABYTE,
        spilled_to_disk_mb=moved and moved.spilled // _MEGABYTE,
        findings=answer.counts,
    )


def _moved(event_log: Path) -> _Moved:
    """What all tasks together read and wrote for shuffles, and spilled to disk."""
    read = written = spilled = 0
    with event_log.open() as lines:
        for line in lines:
            if '"SparkListenerTaskEnd"' not in line[:60]:
                continue
            metrics = json.loads(line).get("Task Metrics")
            if metrics is None:
                continue
            from_others = metrics["Shuffle Read Metrics"]
            read += from_others["Remote Bytes Read"] + from_others["Local Bytes Read"]
            written += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
            spilled += metrics["Disk Bytes Spilled"]
    return _Moved(read, written, spilled)


def _high_water(pid: int) -> int:
    """The most resident bytes that a process has ever had; 0 when it has gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else 0
