"""The coordinator: decides which transactions start on which workers, and which become visible.

It hands over the jobs that the scheme lets start, and commits executed ones in the scheme's order.
A pure state machine: no threads, no clock, no locks; its driver is `applier.engine.applier`.

Its own clock ticks with each group commit. A transaction that was handed over at tick s and became
visible with tick c ran in [s, c): where commits are ordered, two transactions ran at once if and
only if each started before the other was visible. Starts during a group's commit bear the tick
before it, so that the record never shows less overlap than there was.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic

from ...certifier.errors import InvalidSetting
from ..queue.job import FIRST_TICK, CommitGroup, Execution, Job
from ..queue.relay_group import RelayEntry, payloads_of, positions_of
from ..schemes import Cause, Hold, Ordering, Scheme
from ..schemes.assigned_partitions import AssignedPartitions
from .commit_order import CommitOrder

LOCALS_MAX = 64
"""Most local transactions that are queued as one job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorOptions:
    """Limits of the transactions that the coordinator holds.

    `assigned_transactions_max`: transactions taken from the queue and not committed; bounds how
    many wait for a slow one at the head. `group_transactions_max`: transactions committed as one
    group.
    """

    assigned_transactions_max: int = 16_384
    group_transactions_max: int = 4_096

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise InvalidSetting(name=name, value=getattr(self, name), expected="1 or more")


class Coordinator(Generic[Execution]):
    """Takes pending entries; returns jobs, then commit groups."""

    def __init__(
        self,
        scheme: Scheme,
        options: CoordinatorOptions,
        *,
        tick: int = FIRST_TICK,
        alone: bool = False,
    ) -> None:
        """Starts at `tick`, the last group commit of an earlier process. With `alone` there are no
        workers: only `append_alone` is used, and everything commits in order.
        """
        self.tick = tick
        self.committed_entries = 0
        self.committed_groups = 0
        self.pending_bytes = 0
        self.holds: Counter[Cause] = Counter()
        self.fallbacks: Counter[Cause] = Counter()
        self.is_sequential = False
        self.takes = True
        self._scheme = scheme
        self._options = options
        self._pending: deque[RelayEntry] = deque()
        self._order: CommitOrder[Execution] = CommitOrder(
            Ordering.SOURCE if alone else scheme.ordering
        )
        self._committing: list[CommitGroup[Execution]] = []
        self._parts_left: dict[int, int] = {}
        self._appended_position = -1
        self._assigned_entries = 0
        self._given_tick = tick
        self._held_position = -1
        self._held_causes: set[Cause] = set()
        self._at_work: dict[int, Job[Execution]] = {}
        self._handed_over = 0
        self._parallelism_sum = 0

    def append(self, entries: Sequence[RelayEntry]) -> None:
        """Adds the next entries of the source's order."""
        if entries:
            self._note_appended(entries)
            self._pending.extend(entries)
            self._order.append(entries)

    def end_group_after(self, position: int) -> None:
        """Makes the entry at `position` the last of its group: what follows becomes visible after
        the driver has heard of it. Call it before the entry is appended.
        """
        self._order.end_group_after(position)

    def append_alone(self, entries: Sequence[RelayEntry]) -> CommitGroup[Execution]:
        """Adds the next entries and returns them as a group to commit now: without workers nothing
        runs at once, and there is nothing to schedule. Call `committed` next.
        """
        assert not self.length, "there is something before them"
        self._note_appended(entries)
        self._assigned_entries += len(entries)
        self._handed_over += len(entries)
        self._parallelism_sum += len(entries)
        # It starts at the tick with which it becomes visible: an empty interval, beside which
        # nothing ran.
        job: Job[Execution] = Job(entries, started=self.tick + 1, at_commit=True, is_ready=True)
        return self._group([job])

    def next_jobs(self, idle: Sequence[int]) -> list[Job[Execution]]:
        """Returns at most one job for each idle worker; they count as started.

        Local transactions at the head of the queue go to the commit order without a job. Cost:
        O(transactions started).
        """
        jobs: list[Job[Execution]] = []
        pending = self._pending
        free = list(idle)
        while True:
            if pending and pending[0].local:
                self._enqueue_locals()
            if not free:
                break
            before = len(pending)
            started = self._scheme.take(pending, free, self._room)
            self._assigned_entries += before - len(pending)
            for job in started:
                self._start(job)
                free.remove(job.worker)
            jobs += started
            handed_over = sum([len(job.entries) for job in started])
            self._handed_over += handed_over
            self._parallelism_sum += handed_over * len(self._at_work)
            # The scheme stopped at a local transaction, which is none of its business: once that is
            # out of the way, others behind it may start.
            if not (before > len(pending) and pending and pending[0].local):
                break
        self._note_hold(bool(free))
        return jobs

    def executed(self, job: Job[Execution], execution: Execution | None) -> None:
        """Takes an executed job back from its worker."""
        assert not job.is_ready, "executed twice"
        job.execution = execution
        job.is_ready = True
        del self._at_work[job.worker]
        self._order.executed(job)

    def retract(self, job: Job[Execution]) -> list[Job[Execution]]:
        """Gives the ready jobs that wait for the turn of `job` back to their workers, to be
        executed again after it: their locks stand in its way until the target abandons them.
        """
        retracted = self._order.retract(job)
        for younger in retracted:
            younger.is_ready = False
            self._at_work[younger.worker] = younger
        return retracted

    def is_next(self, job: Job[Execution]) -> bool:
        """Returns whether `job`, which is being executed, is the next to commit."""
        return self._order.is_next(job)

    def take_committable(self) -> CommitGroup[Execution] | None:
        """Returns the group that may commit now; None if there is none, or an earlier one is
        committing.
        """
        jobs = self._order.take(self._options.group_transactions_max)
        return self._group(jobs) if jobs else None

    def visible(self, jobs: Sequence[Job[Execution]]) -> None:
        """Records that `jobs`, the next ones of a group, are visible: transactions that waited for
        them may start, though the group is not done.
        """
        for job in jobs:
            # The scheme has never seen a job that no worker executed.
            if not job.at_commit:
                self._scheme.committed(job)
            if job.parts == 1 or self._is_last_part(job):
                finished = job.entries
                self._order.visible(finished)
                self._assigned_entries -= len(finished)
                self.committed_entries += len(finished)
                self.pending_bytes -= sum(map(len, payloads_of(finished)))

    def committed(self, group: CommitGroup[Execution], visible: int = 0) -> None:
        """Records that a group is visible, its first `visible` jobs by earlier calls: the next
        group may be taken.
        """
        self._committing.remove(group)
        self.visible(group.jobs[visible:])
        # Last: the next group of the lane may be taken from here on.
        self._order.ended(group.jobs[0])
        self.committed_groups += 1
        # Groups of different lanes may end in another order than they were taken in.
        self.tick = max(self.tick, group.tick)

    @property
    def length(self) -> int:
        """Entries that are not visible yet."""
        return len(self._pending) + self._assigned_entries

    @property
    def assigned(self) -> int:
        """Entries taken from the queue that are not visible yet."""
        return self._assigned_entries

    @property
    def is_busy(self) -> bool:
        """True while a job is executed or a group commits: its thread will call again."""
        return bool(self._at_work or self._committing)

    @property
    def hold(self) -> Hold | None:
        """The cause for which the head of the queue waits."""
        return self._scheme.hold if self._pending else None

    @property
    def waiting(self) -> Mapping[int, int]:
        """Jobs that the scheme keeps for a worker, which has another."""
        return self._scheme.waiting if isinstance(self._scheme, AssignedPartitions) else {}

    @property
    def low_water_mark(self) -> RelayEntry | None:
        """Newest entry that is known to be committed with all before it."""
        return self._order.low_water_mark

    @property
    def parallelism_mean(self) -> float:
        """Workers that were executing when a transaction was handed over, its own included; the
        mean over all transactions handed over.
        """
        return self._parallelism_sum / self._handed_over if self._handed_over else 0.0

    @property
    def _room(self) -> int:
        if not self.takes:
            return 0
        return max(0, self._options.assigned_transactions_max - self._assigned_entries)

    def _note_appended(self, entries: Sequence[RelayEntry]) -> None:
        positions = positions_of(entries)
        assert positions[0] > self._appended_position, "appended out of order"
        self._appended_position = positions[-1]
        self.pending_bytes += sum(map(len, payloads_of(entries)))

    def _group(self, jobs: list[Job[Execution]]) -> CommitGroup[Execution]:
        """Returns jobs as the next group; it is committing until `committed` is called."""
        # Given when a group is taken, and counted in `tick` only when it is visible.
        self._given_tick += 1
        group = CommitGroup(self._given_tick, jobs)
        self._committing.append(group)
        return group

    def _enqueue_locals(self) -> None:
        """Moves the local transactions at the head of the queue to the commit order."""
        pending = self._pending
        room = self._room
        # Many in one job: each job costs the commit order a step, and there is nothing to execute.
        while pending and pending[0].local and room > 0:
            entries = [pending.popleft()]
            while pending and pending[0].local and len(entries) < min(room, LOCALS_MAX):
                entries.append(pending.popleft())
            room -= len(entries)
            self._assigned_entries += len(entries)
            self._order.executed(Job(entries, started=self.tick, at_commit=True, is_ready=True))

    def _start(self, job: Job[Execution]) -> None:
        job.started = self.tick
        self._at_work[job.worker] = job
        if job.parts > 1:
            # Parts of a transaction may start at different times: only the first one sets the
            # count.
            self._parts_left.setdefault(job.entries[0].position, job.parts)
        if len(self._at_work) > 1:
            self.is_sequential = False

    def _is_last_part(self, job: Job[Execution]) -> bool:
        position = job.entries[0].position
        self._parts_left[position] -= 1
        if self._parts_left[position]:
            return False
        del self._parts_left[position]
        return True

    def _note_hold(self, has_idle_workers: bool) -> None:
        """Counts why the head of the queue is held: each head once for each cause."""
        if not self._pending:
            return
        if self._pending[0].position != self._held_position:
            self._held_position = self._pending[0].position
            self._held_causes.clear()
        # Without an idle worker the scheme was not asked, and what it said last is out of date.
        hold = self._scheme.hold if has_idle_workers else _NO_WORKER
        if hold is None or hold.cause in self._held_causes:
            return
        self._held_causes.add(hold.cause)
        self.holds[hold.cause] += 1
        if hold.cause.is_sequential and not self.is_sequential:
            self.is_sequential = True
            self.fallbacks[hold.cause] += 1

    def check_invariants(self) -> None:
        """Asserts that counters agree with the jobs held and that pending entries ascend."""
        self._scheme.check_invariants()
        self._order.check_invariants()
        committing = [job for group in self._committing for job in group.jobs]
        assert all(job.is_ready for job in committing)
        assert not any(job.is_ready for job in self._at_work.values())
        held = [*committing, *self._order.ready_jobs, *self._at_work.values()]
        entries = {entry.position for job in held for entry in job.entries}
        assert len(entries) <= self._assigned_entries
        assert all(job.started <= self.tick + 1 for job in held)
        assert all(one.position < two.position for one, two in pairwise(self._pending))


_NO_WORKER = Hold(Cause.WORKER)
