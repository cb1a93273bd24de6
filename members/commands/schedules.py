"""The runs of a comparison: in this process, and in others where there is much to do.

A short stream is scheduled by the coordinator, run by run. Of a long one each run has two halves:
the loops schedule all of it, the coordinator its windows, and both are compared on each window.
Compiled loops stay in this process, which has the stream; other processes get the windows alone.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, as_completed
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from groupcert.applier.whatif.comparison import Line, run_line
from groupcert.applier.whatif.loops.compiler import PLAIN, Loops, compiled, digest
from groupcert.applier.whatif.loops.schedule import Schedule, Scheduler
from groupcert.applier.whatif.loops.windows import check_window, combined, windows_of
from groupcert.applier.whatif.simulation import Run
from groupcert.applier.whatif.workload import Workload
from groupcert.members.host.progress import progress
from groupcert.members.host.worker_processes import WorkerProcesses

Task = tuple[Line, int]
Result = Schedule | list[Run]

SHARED_ENTRIES_MIN = 500_000
"""Entries over all runs above which more processes are worth it."""


def runs_of(workload: Workload, tasks: Sequence[Task], processes: int) -> dict[Task, Run]:
    """Returns the run of each line and number of workers, computed by so many processes.

    Raises:
        SchedulesDiffer: The loops are wrong.
    """
    windows = windows_of(len(workload))
    if not windows:
        if len(workload) * len(tasks) < SHARED_ENTRIES_MIN:
            processes = 1
        with progress("scheduling", len(tasks), "{:.0f} runs".format) as state:
            whole = [workload]
            done = dict(state.counted(_coordinated(whole, tasks, processes)))
        return {task: runs[0] for task, runs in done.items()}
    loops = _loops()
    parts = [workload.window(window.start, window.stop) for window in windows]
    checkers = [Scheduler(part, loops) for part in parts]
    schedules: dict[Task, Schedule] = {}
    windowed: dict[Task, list[Run]] = {}
    with progress("scheduling", 2 * len(tasks), "{:.0f} halves of runs".format) as state:
        for task, result in state.counted(_halves(workload, parts, tasks, processes, loops)):
            line, workers = task
            if isinstance(result, Schedule):
                schedules[task] = result
                continue
            for window, checker, run in zip(windows, checkers, result, strict=True):
                check_window(line, window, run, checker.schedule(line, workers))
            windowed[task] = result
    return {task: combined(schedules[task], task[1], windowed[task]) for task in tasks}


def has_compiler() -> bool:
    """Returns whether numba is installed, which comes with the extra `whatif`."""
    return find_spec("numba") is not None


def _loops() -> Loops:
    """Returns the loops compiled, if numba is installed; they are kept in the user's cache folder,
    where that can be written.
    """
    if not has_compiler():
        return PLAIN
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    versions = f"{version('numba')}-{sys.implementation.cache_tag}-{digest()}"
    folder = Path(base) / "groupcert" / "loops" / versions
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return compiled(folder if os.access(folder, os.W_OK) else None)


def _coordinated(
    streams: Sequence[Workload], tasks: Sequence[Task], processes: int
) -> Iterator[tuple[Task, list[Run]]]:
    """Yields each task with the coordinator's runs of all streams, as they are done."""
    processes = min(processes, len(tasks))
    if processes == 1:
        for line, workers in tasks:
            yield (line, workers), [run_line(stream, line, workers) for stream in streams]
        return
    with WorkerProcesses(processes, partial(_Process.begin, streams, None)) as pool:
        futures = {pool.submit(_Process.run, *task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _halves(
    workload: Workload,
    parts: Sequence[Workload],
    tasks: Sequence[Task],
    processes: int,
    loops: Loops,
) -> Iterator[tuple[Task, Result]]:
    """Yields the schedule of the stream and the runs of its windows, for each task."""
    if processes == 1:
        yield from _scheduled(workload, tasks, loops)
        yield from _coordinated(parts, tasks, 1)
        return
    stream = None if loops.is_compiled else workload
    with WorkerProcesses(processes, partial(_Process.begin, parts, stream)) as pool:
        futures: dict[Future[Any], Task] = {}
        for task in tasks:
            futures[pool.submit(_Process.run, *task)] = task
        if loops.is_compiled:
            yield from _scheduled(workload, tasks, loops)
        else:
            for task in tasks:
                futures[pool.submit(_Process.schedule, *task)] = task
        for future in as_completed(futures):
            yield futures[future], future.result()


def _scheduled(
    workload: Workload, tasks: Sequence[Task], loops: Loops
) -> Iterator[tuple[Task, Schedule]]:
    scheduler = Scheduler(workload, loops)
    for line, workers in tasks:
        yield (line, workers), scheduler.schedule(line, workers)


class _Process:
    """State that one of several processes keeps between its runs."""

    streams: Sequence[Workload]
    scheduler: Scheduler | None

    @classmethod
    def begin(cls, streams: Sequence[Workload], whole: Workload | None) -> None:
        """Takes the streams once; `whole`: the one that the loops schedule here."""
        cls.streams = streams
        cls.scheduler = None if whole is None else Scheduler(whole, PLAIN)

    @classmethod
    def run(cls, line: Line, workers: int) -> list[Run]:
        """Computes the coordinator's run of each stream."""
        return [run_line(stream, line, workers) for stream in cls.streams]

    @classmethod
    def schedule(cls, line: Line, workers: int) -> Schedule:
        """Computes a schedule of the whole stream."""
        assert cls.scheduler, "it was given no whole stream"
        return cls.scheduler.schedule(line, workers)
