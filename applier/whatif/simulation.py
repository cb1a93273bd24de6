"""A simulation: the applier's coordinator and scheme, on a virtual clock, without real work.

The model of time: a worker is occupied from the start of a job until it is committed. A job takes
the execution times of its transactions, or a part its share of one. The coordinator decides what
commits: all that is ready at the head of a lane is one group, which takes the commit time once;
groups of independent lanes commit at the same time. Events of the same moment are processed in
order: ends, then commits, then starts.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple

from ..engine.coordinator import Coordinator, CoordinatorOptions
from ..queue.job import CommitGroup, Job
from ..schemes import Cause, Scheme
from .dependencies import count_overtakers
from .width import WidthSeries
from .workload import Stamps, Workload

PROGRESS_ENTRIES = 4_096
"""Entries that the coordinator holds beyond what it may hand over, so that it never lacks one."""
OPTIONS = CoordinatorOptions()
HELD_MAX = OPTIONS.assigned_transactions_max + PROGRESS_ENTRIES


class WindowRun(NamedTuple):
    """The part of a run that is of one window. `overtakers`: transactions that started before one
    that they follow was visible; None where transactions are divided, because parts follow only
    parts.
    """

    makespan_us: int
    jobs: int
    overtakers: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of windows under one scheme with one number of workers, in microseconds.

    The windows are run one after the other, each from its begin to its end. The workers' time,
    `workers` times `makespan_us`, is all accounted for: `executing_us`, then `waiting_us` for the
    turn to commit, `committing_us`, and `idle_us` by what held the next transaction back (None:
    nothing was left to start). `held_us`: how long the head of the queue was held back, by cause,
    and `holds` how many transactions were. `fallbacks`: how often parallel execution stopped.
    """

    workers: int
    windows: Sequence[WindowRun]
    makespan_us: int
    executing_us: int
    waiting_us: int
    committing_us: int
    idle_us: Mapping[Cause | None, int]
    held_us: Mapping[Cause, int]
    holds: Mapping[Cause, int]
    fallbacks: Mapping[Cause, int]
    commit_groups: int
    width_max: int
    width_bucket_us: int
    widths_us: Sequence[int]

    @property
    def jobs(self) -> int:
        """Jobs of all windows."""
        return sum(window.jobs for window in self.windows)

    @property
    def overtakers(self) -> int | None:
        """Overtakers of all windows; None where transactions are divided in any."""
        counts = [window.overtakers for window in self.windows]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None


def simulate(
    windows: Sequence[Workload], stamps: Stamps, make: Callable[[], Scheme], workers: int
) -> Run:
    """Applies the windows with 1 or more workers, each with a new scheme, and returns the run.

    Cost: O(entries) of the scheme's own cost, and the logarithm of the workers.
    """
    simulation = _Simulation(workers)
    for window in windows:
        simulation.apply(window, stamps, make())
    return simulation.result()


class _Simulation:
    """Drives coordinators: a heap of the coming ends, and the list of idle workers."""

    _workload: Workload
    _scheme: Scheme
    _coordinator: Coordinator[None]
    _started_us: "array[int]"
    _visible_us: "array[int]"
    _job_numbers: "array[int]"

    def __init__(self, workers: int) -> None:
        assert workers > 0, "somebody has to work"
        self._workers = workers
        self._idle = list(range(1, workers + 1))
        self._now = 0
        self._ends: list[tuple[int, int, Job[None] | CommitGroup[None]]] = []
        self._scheduled = 0
        self._executing = self._committing = 0
        self._executing_us = self._waiting_us = self._committing_us = 0
        self._idle_us: Counter[Cause | None] = Counter()
        self._held_us: Counter[Cause] = Counter()
        self._holds: Counter[Cause] = Counter()
        self._fallbacks: Counter[Cause] = Counter()
        self._jobs = self._commit_groups = 0
        self._divided = False
        self._width = WidthSeries()
        self._windows: list[WindowRun] = []

    def apply(self, window: Workload, stamps: Stamps, scheme: Scheme) -> None:
        """Runs until every entry of a window is visible."""
        began_us, jobs = self._now, self._jobs
        self._workload, self._scheme, self._divided = window, scheme, False
        self._started_us = array("Q", bytes(8 * len(window)))
        self._visible_us = array("Q", bytes(8 * len(window)))
        self._job_numbers = array("I", bytes(4 * len(window)))
        coordinator = self._coordinator = Coordinator(scheme, OPTIONS)
        entries = window.entries(stamps)
        while True:
            if coordinator.length < HELD_MAX:
                coordinator.append(list(islice(entries, PROGRESS_ENTRIES)))
            while group := coordinator.take_committable():
                self._commit(group)
            if self._idle:
                for job in coordinator.next_jobs(self._idle):
                    self._start(job)
            if not self._ends:
                break
            self._advance(self._ends[0][0])
            while self._ends and self._ends[0][0] == self._now:
                self._end(heappop(self._ends)[2])
        assert not coordinator.length, "nothing runs, and something is left"
        self._holds.update(coordinator.holds)
        self._fallbacks.update(coordinator.fallbacks)
        self._commit_groups += coordinator.committed_groups
        self._windows.append(WindowRun(self._now - began_us, self._jobs - jobs, self._overtakers()))

    def result(self) -> Run:
        """Returns the measurements of the run."""
        return Run(
            workers=self._workers,
            windows=tuple(self._windows),
            makespan_us=self._now,
            executing_us=self._executing_us,
            waiting_us=self._waiting_us,
            committing_us=self._committing_us,
            idle_us=dict(self._idle_us),
            held_us=dict(self._held_us),
            holds=dict(self._holds),
            fallbacks=dict(self._fallbacks),
            commit_groups=self._commit_groups,
            width_max=self._width.width_max,
            width_bucket_us=self._width.bucket_us,
            widths_us=tuple(self._width.areas_us(self._now)),
        )

    def _overtakers(self) -> int | None:
        if self._divided:
            return None
        return count_overtakers(
            self._workload.dependencies, self._started_us, self._visible_us, self._job_numbers
        )

    def _start(self, job: Job[None]) -> None:
        self._idle.remove(job.worker)
        self._executing += 1
        self._jobs += 1
        self._divided = self._divided or job.parts > 1
        duration_us = 0
        for entry in job.entries:
            number = entry.position - 1
            self._started_us[number] = self._now
            self._job_numbers[number] = self._jobs
            duration_us += self._workload.execution_us(number, job.part, job.parts)
        self._schedule(duration_us, job)

    def _commit(self, group: CommitGroup[None]) -> None:
        self._committing += len(group.jobs)
        self._schedule(self._workload.costs.commit_us, group)

    def _schedule(self, duration_us: int, what: Job[None] | CommitGroup[None]) -> None:
        self._scheduled += 1
        # The number decides between ends of one moment, as jobs have no order.
        heappush(self._ends, (self._now + duration_us, self._scheduled, what))

    def _end(self, what: Job[None] | CommitGroup[None]) -> None:
        if isinstance(what, Job):
            self._executing -= 1
            self._coordinator.executed(what, None)
            return
        self._committing -= len(what.jobs)
        for job in what.jobs:
            for entry in job.entries:
                self._visible_us[entry.position - 1] = self._now
            self._idle.append(job.worker)
        self._coordinator.committed(what)

    def _advance(self, to_us: int) -> None:
        """Adds the time until the next end to the counters."""
        passed_us = to_us - self._now
        if not passed_us:
            return
        idle = len(self._idle)
        hold = self._scheme.hold
        if idle:
            self._idle_us[hold.cause if hold else None] += idle * passed_us
        if hold:
            # While all workers are occupied, they are what the head waits for, whatever the scheme
            # said last.
            self._held_us[hold.cause if idle else Cause.WORKER] += passed_us
        self._executing_us += self._executing * passed_us
        self._committing_us += self._committing * passed_us
        at_work = self._executing + self._committing
        self._waiting_us += (self._workers - idle - at_work) * passed_us
        self._width.add(self._now, passed_us, self._executing)
        self._now = to_us
