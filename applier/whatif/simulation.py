"""A simulation: the applier's coordinator and scheme, on a virtual clock, without real work.

The model of time: a worker is occupied from the start of a job until it is committed. A job takes
the execution times of its transactions, or a part its share of one. The coordinator decides what
commits: all that is ready at the head of a lane is one group, which takes the commit time once;
groups of independent lanes commit at the same time. Events of the same moment are processed in
order: ends, then commits, then starts.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice

from ..engine.coordinator import Coordinator, CoordinatorOptions
from ..queue.job import CommitGroup, Job
from ..queue.relay_group import RelayEntry
from ..schemes import Cause, Scheme
from .dependencies import count_overtakers
from .width import WidthSeries
from .workload import Stamps, Workload

PROGRESS_ENTRIES = 4_096
"""Entries that the coordinator holds beyond what it may hand over, so that it never lacks one."""
OPTIONS = CoordinatorOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of a stream under one scheme with one number of workers, in microseconds.

    The workers' time, `workers` times `makespan_us`, is all accounted for: `executing_us`, then
    `waiting_us` for the turn to commit, `committing_us`, and `idle_us` by what held the next
    transaction back (None: nothing was left to start). `held_us`: how long the head of the queue
    was held back, by cause, and `holds` how many transactions were. `fallbacks`: how often parallel
    execution stopped. `overtakers`: transactions that started before one that they follow was
    visible; None where transactions are divided, because parts follow only parts.
    """

    workers: int
    makespan_us: int
    executing_us: int
    waiting_us: int
    committing_us: int
    idle_us: Mapping[Cause | None, int]
    held_us: Mapping[Cause, int]
    holds: Mapping[Cause, int]
    fallbacks: Mapping[Cause, int]
    jobs: int
    commit_groups: int
    width_max: int
    width_bucket_us: int
    widths_us: tuple[int, ...]
    overtakers: int | None
    unseen_us: int = 0
    """Idle time of which no cause is known; only where causes are taken from windows."""


def simulate(
    workload: Workload,
    stamps: Stamps,
    scheme: Scheme,
    workers: int,
    options: CoordinatorOptions = OPTIONS,
) -> Run:
    """Applies the workload with 1 or more workers and returns the run.

    Cost: O(entries) of the scheme's own cost, and the logarithm of the workers.
    """
    simulation = _Simulation(workload, stamps, scheme, workers, options)
    simulation.run()
    return simulation.result()


class _Simulation:
    """Drives the coordinator: a heap of the coming ends, and the list of idle workers."""

    def __init__(
        self,
        workload: Workload,
        stamps: Stamps,
        scheme: Scheme,
        workers: int,
        options: CoordinatorOptions,
    ) -> None:
        assert workers > 0, "somebody has to work"
        self._workload = workload
        self._entries: Iterator[RelayEntry] = workload.entries(stamps)
        self._scheme = scheme
        self._coordinator: Coordinator[None] = Coordinator(scheme, options)
        self._held_max = options.assigned_transactions_max + PROGRESS_ENTRIES
        self._commit_us = workload.costs.commit_us
        self._workers = workers
        self._idle = list(range(1, workers + 1))
        self._now = 0
        self._ends: list[tuple[int, int, Job[None] | CommitGroup[None]]] = []
        self._scheduled = 0
        self._executing = self._committing = 0
        self._executing_us = self._waiting_us = self._committing_us = 0
        self._idle_us: Counter[Cause | None] = Counter()
        self._held_us: Counter[Cause] = Counter()
        self._jobs = 0
        self._width = WidthSeries()
        self._divided = False
        self._started_us = array("Q", bytes(8 * len(workload)))
        self._visible_us = array("Q", bytes(8 * len(workload)))
        self._job_numbers = array("I", bytes(4 * len(workload)))

    def run(self) -> None:
        """Runs until every entry is visible."""
        coordinator = self._coordinator
        while True:
            if coordinator.length < self._held_max:
                coordinator.append(list(islice(self._entries, PROGRESS_ENTRIES)))
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

    def result(self) -> Run:
        """Returns the measurements of the run."""
        coordinator = self._coordinator
        overtakers = None
        if not self._divided:
            edges = self._workload.dependencies
            overtakers = count_overtakers(
                edges.offsets,
                edges.followed,
                self._started_us,
                self._visible_us,
                self._job_numbers,
            )
        return Run(
            workers=self._workers,
            makespan_us=self._now,
            executing_us=self._executing_us,
            waiting_us=self._waiting_us,
            committing_us=self._committing_us,
            idle_us=dict(self._idle_us),
            held_us=dict(self._held_us),
            holds=dict(coordinator.holds),
            fallbacks=dict(coordinator.fallbacks),
            jobs=self._jobs,
            commit_groups=coordinator.committed_groups,
            width_max=self._width.width_max,
            width_bucket_us=self._width.bucket_us,
            widths_us=tuple(self._width.areas_us(self._now)),
            overtakers=overtakers,
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
        self._schedule(self._commit_us, group)

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
