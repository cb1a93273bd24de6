"""The coordinator: which transactions start, on how many workers, and which become visible.

The rule it keeps: what the scheme lets start is handed over in the total order; what was executed
is committed in the total order, one group at a time. A pure state machine: no threads, no clock,
no locks; its driver is `applier.applier`.

Its own clock ticks with each group commit. A transaction that was handed over at tick s and became
visible with tick c ran in [s, c): two transactions ran at once if and only if each started before
the other was visible. Starts during a group's commit bear the tick before it, so that the record
never shows less overlap than there was.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic

from applier.commit_order import CommitOrder
from applier.job import FIRST_TICK, CommitGroup, Execution, Job
from applier.relay_queue import RelayEntry
from applier.schemes import Scheme
from certifier.errors import InvalidSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorOptions:
    """How transactions are bundled. The defaults suit a target that commits in microseconds; one
    that waits for each execution wants jobs of 1.

    `job_transactions_max`: transactions that one worker gets at a time. `job_transactions_min`:
    how many a worker gets at least before another is woken (waking a thread costs as much as a few
    executions). `assigned_transactions_max`: transactions handed over and not committed; bounds
    what waits for a slow one at the head. `group_transactions_max`: transactions committed as one
    group."""

    job_transactions_max: int = 64
    job_transactions_min: int = 1
    assigned_transactions_max: int = 16_384
    group_transactions_max: int = 4_096

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise InvalidSetting(name=name, value=getattr(self, name), expected="1 or more")
        if self.job_transactions_min > self.job_transactions_max:
            raise InvalidSetting(
                name="job_transactions_min",
                value=self.job_transactions_min,
                expected=f"job_transactions_max ({self.job_transactions_max}) or less",
            )


class Coordinator(Generic[Execution]):
    """Pending entries in; jobs, then commit groups out."""

    def __init__(
        self, scheme: Scheme, options: CoordinatorOptions, *, tick: int = FIRST_TICK
    ) -> None:
        """`tick`: the last group commit of an earlier process, where the clock goes on."""
        self.tick = tick
        self.committed_entries = 0
        self._scheme = scheme
        self._options = options
        self._pending: deque[RelayEntry] = deque()
        self._order: CommitOrder[Execution] = CommitOrder()
        self._committing: CommitGroup[Execution] | None = None
        self._appended_position = -1
        self._assigned_entries = 0
        self._jobs_at_work = 0
        self._handed_over = 0
        self._parallelism_sum = 0

    def append(self, entries: Sequence[RelayEntry]) -> None:
        """Takes the next entries of the total order."""
        if entries:
            assert entries[0].position > self._appended_position, "appended out of order"
            self._appended_position = entries[-1].position
            self._pending.extend(entries)

    def append_alone(self, entries: Sequence[RelayEntry]) -> CommitGroup[Execution]:
        """Takes the next entries and returns them as a group to commit now: with no workers nothing
        runs at once, and there is nothing to schedule. `committed` has to follow.
        """
        assert not self.length, "there is something before them"
        assert entries[0].position > self._appended_position, "appended out of order"
        self._appended_position = entries[-1].position
        self._assigned_entries += len(entries)
        self._handed_over += len(entries)
        self._parallelism_sum += len(entries)
        tick = self.tick + 1
        job: Job[Execution] = Job(entries, tick, at_commit=True, is_ready=True)
        self._committing = CommitGroup(tick, [job])
        return self._committing

    def next_jobs(self, idle_workers: int) -> list[Job[Execution]]:
        """Returns at most one job for each idle worker; they count as started.

        Local transactions at the head of the queue go to the commit order without a job. Cost:
        O(transactions started).
        """
        jobs: list[Job[Execution]] = []
        while self._pending:
            room = self._options.assigned_transactions_max - self._assigned_entries
            if room <= 0:
                break
            if self._pending[0].local:
                self._enqueue_local(room)
                continue
            workers = idle_workers - len(jobs)
            if not workers:
                break
            taken = self._scheme.take(
                self._pending, min(room, workers * self._options.job_transactions_max)
            )
            if not taken:
                break
            jobs += self._split(taken, workers)
        self._jobs_at_work += len(jobs)
        for job in jobs:
            self._handed_over += len(job.entries)
            self._parallelism_sum += len(job.entries) * self._jobs_at_work
        return jobs

    def executed(self, job: Job[Execution], executions: Sequence[Execution]) -> None:
        """Takes a job back from its worker."""
        assert not job.is_ready, "executed twice"
        assert len(executions) == len(job.entries)
        job.executions = executions
        job.is_ready = True
        self._jobs_at_work -= 1

    def take_committable(self) -> CommitGroup[Execution] | None:
        """Returns what may commit now; None while another group is committing, or if nothing
        may.
        """
        if self._committing or not self._order.is_ready:
            return None
        jobs = self._order.take(self._options.group_transactions_max)
        self._committing = CommitGroup(self.tick + 1, jobs)
        return self._committing

    def committed(self, group: CommitGroup[Execution]) -> None:
        """The group that was taken is visible: what waited for it may start."""
        assert group is self._committing, "only the group that was taken can be committed"
        for job in group.jobs:
            if not job.at_commit:
                self._scheme.committed(job)
            self._assigned_entries -= len(job.entries)
            self.committed_entries += len(job.entries)
        self.tick = group.tick
        self._committing = None

    @property
    def length(self) -> int:
        """Entries that are not visible yet."""
        return len(self._pending) + self._assigned_entries

    @property
    def parallelism_mean(self) -> float:
        """Workers that were at work when a transaction was handed over, its own among them; the
        mean over all of those.
        """
        return self._parallelism_sum / self._handed_over if self._handed_over else 0.0

    def _enqueue_local(self, entries_max: int) -> None:
        """Moves the local transactions at the head of the queue to the commit order."""
        pending = self._pending
        limit = min(entries_max, self._options.job_transactions_max)
        entries = [pending.popleft()]
        while pending and pending[0].local and len(entries) < limit:
            entries.append(pending.popleft())
        self._assigned_entries += len(entries)
        self._order.append(Job(entries, self.tick, at_commit=True, is_ready=True))

    def _split(self, entries: list[RelayEntry], workers: int) -> list[Job[Execution]]:
        """Starts transactions as jobs of nearly the same size, for no more workers than pay."""
        workers = min(workers, max(1, len(entries) // self._options.job_transactions_min))
        size, larger = divmod(len(entries), workers)
        jobs = []
        start = 0
        for number in range(min(workers, len(entries))):
            stop = start + size + (number < larger)
            job: Job[Execution] = Job(entries[start:stop], self.tick)
            self._scheme.started(job)
            self._order.append(job)
            jobs.append(job)
            start = stop
        self._assigned_entries += len(entries)
        return jobs

    def check_invariants(self) -> None:
        """Counters agree with what is held; pending entries follow the assigned ones."""
        self._scheme.check_invariants()
        self._order.check_invariants()
        committing = self._committing.jobs if self._committing else []
        held = [*committing, *self._order.jobs]
        assert self._assigned_entries == sum(len(job.entries) for job in held)
        assert self._jobs_at_work == sum(not job.is_ready for job in held)
        assert all(job.is_ready for job in committing)
        assert all(job.started <= self.tick for job in held)
        entries = [entry for job in held for entry in job.entries] + list(self._pending)
        assert all(earlier.position < later.position for earlier, later in pairwise(entries))
