"""A simulation: the applier's coordinator and scheme, on a virtual clock, without real work.

The model of time: a worker is occupied from the start of a job until it is committed. A job takes
the execution times of its transactions, or a part its share of one: on the applier's interpreter,
on a processor of the target, waiting, in this order. The coordinator decides what commits: all that
is ready at the head of a lane is one group, whose jobs take their times of processors one after the
other, and the sync once or each; groups of independent lanes commit at the same time. Events of the
same moment are processed in order: ends, then commits, then starts.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple

from ..engine.coordinator import Coordinator, CoordinatorOptions
from ..queue.job import CommitGroup, Job
from ..schemes import Cause, Scheme
from .costs import Costs
from .dependencies import count_overtakers
from .processors import Activity, Kind, Processors, Step
from .width import WidthSeries
from .workload import Stamps, Workload

PROGRESS_ENTRIES = 4_096
"""Entries that the coordinator holds beyond what it may hand over, so that it never lacks one."""
OPTIONS = CoordinatorOptions()
What = Job[None] | CommitGroup[None]
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
    `workers` times `makespan_us`, is all accounted for: `executing_us`, `processor_us` when the
    execution waited for a processor, then `waiting_us` for the turn to commit, `committing_us`, and
    `idle_us` by what held the next transaction back (None: nothing was left to start). `held_us`:
    how long the head of the queue was held back, by cause, and `holds` how many transactions were.
    `fallbacks`: how often parallel execution stopped.
    """

    workers: int
    windows: Sequence[WindowRun]
    makespan_us: int
    executing_us: int
    processor_us: int
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
    _processors: Processors[What]

    def __init__(self, workers: int) -> None:
        assert workers > 0, "somebody has to work"
        self._workers = workers
        self._idle = list(range(1, workers + 1))
        self._now = 0
        self._ends: list[tuple[int, int, Activity[What]]] = []
        self._scheduled = 0
        self._executing = self._queued = self._committing = 0
        self._executing_us = self._processor_us = self._waiting_us = self._committing_us = 0
        self._visible: Counter[int] = Counter()
        """Jobs of a group that are visible before the rest of it, by its tick."""
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
        self._processors = Processors(window.costs.cores, window.costs.handover_us)
        self._visible.clear()
        entries, has_more = window.entries(stamps), True
        while True:
            if has_more and coordinator.length < HELD_MAX:
                taken = list(islice(entries, PROGRESS_ENTRIES))
                coordinator.append(taken)
                has_more = bool(taken)
            while group := coordinator.take_committable():
                self._commit(group)
            if self._idle:
                for job in coordinator.next_jobs(self._idle):
                    self._start(job)
            if not self._ends:
                break
            self._advance(self._ends[0][0])
            while self._ends and self._ends[0][0] == self._now:
                self._end_step(heappop(self._ends)[2])
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
            processor_us=self._processor_us,
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
        costs = self._workload.costs
        time_us = costs.job_us
        for entry in job.entries:
            number = entry.position - 1
            self._started_us[number] = self._now
            self._job_numbers[number] = self._jobs
            time_us += self._workload.execution_us(number, job.part, job.parts)
        if costs.table_us and len(job.entries) > 1:
            written = (self._workload.tables(entry.position - 1) for entry in job.entries)
            time_us += costs.table_us * max(0, len(set().union(*written)) - 1)
        if job.keeps_newest:
            time_us = -(-time_us * costs.newest_percent // 100)
        self._next_step(Activity(job, _execution(costs, time_us)))

    def _commit(self, group: CommitGroup[None]) -> None:
        self._committing += len(group.jobs)
        self._next_step(Activity(group, _commits(self._workload.costs, len(group.jobs))))

    def _next_step(self, activity: Activity[What]) -> None:
        """Begins the next step of an activity, or queues it; ends it after its last one."""
        for step in activity.steps:
            if step.kind == Kind.VISIBLE:
                self._show_next(activity.what)
                continue
            activity.step = step
            if step.kind == Kind.WAIT or self._processors.ask(activity):
                self._begin_step(activity)
            else:
                activity.is_queued = isinstance(activity.what, Job)
                self._queued += activity.is_queued
            return
        self._end(activity.what)

    def _begin_step(self, activity: Activity[What]) -> None:
        self._queued -= activity.is_queued
        activity.is_queued = False
        self._scheduled += 1
        # The number decides between ends of one moment, as jobs have no order.
        heappush(self._ends, (self._now + activity.step.time_us, self._scheduled, activity))

    def _end_step(self, activity: Activity[What]) -> None:
        if activity.step.kind != Kind.WAIT:
            for begun in self._processors.release(activity.step):
                self._begin_step(begun)
        self._next_step(activity)

    def _show_next(self, group: What) -> None:
        """Makes the next job of a group visible, before the rest of it."""
        assert isinstance(group, CommitGroup), "a job that is visible before it commits"
        jobs = group.jobs[self._visible[group.tick] :][:1]
        self._visible[group.tick] += 1
        self._coordinator.visible(jobs)
        self._free(jobs)

    def _free(self, jobs: Sequence[Job[None]]) -> None:
        """Takes note of visible jobs, whose workers are idle now."""
        self._committing -= len(jobs)
        for job in jobs:
            for entry in job.entries:
                self._visible_us[entry.position - 1] = self._now
            self._idle.append(job.worker)

    def _end(self, what: What) -> None:
        if isinstance(what, Job):
            self._executing -= 1
            self._coordinator.executed(what, None)
            return
        visible = self._visible.pop(what.tick, 0)
        self._free(what.jobs[visible:])
        self._coordinator.committed(what, visible)

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
        executing = self._executing - self._queued
        self._executing_us += executing * passed_us
        self._processor_us += self._queued * passed_us
        self._committing_us += self._committing * passed_us
        at_work = self._executing + self._committing
        self._waiting_us += (self._workers - idle - at_work) * passed_us
        self._width.add(self._now, passed_us, executing)
        self._now = to_us


def _execution(costs: Costs, time_us: int) -> Iterator[Step]:
    """Returns the steps of an execution."""
    if costs.cores is None:
        return iter((Step(Kind.WAIT, time_us),))
    demand = costs.demand(time_us)
    return iter(
        (
            Step(Kind.APPLIER, demand.applier_us),
            Step(Kind.SERVER, demand.server_us),
            Step(Kind.WAIT, demand.wait_us),
        )
    )


def _commits(costs: Costs, jobs: int) -> Iterator[Step]:
    """Returns the steps in which jobs commit as a group."""
    if costs.commit_processors_us:
        return _commits_on_processors(costs, jobs)
    syncs = 1 if costs.syncs_together else jobs
    return iter((Step(Kind.WAIT, syncs * costs.commit_us),))


def _commits_on_processors(costs: Costs, jobs: int) -> Iterator[Step]:
    sync = Step(Kind.WAIT, costs.commit_us)
    for job in range(jobs):
        yield Step(Kind.APPLIER, costs.commit_applier_us)
        yield Step(Kind.SERVER, costs.commit_server_us)
        if job == jobs - 1 or not costs.syncs_together:
            yield sync
        if job < jobs - 1:
            yield Step(Kind.VISIBLE, 0)
