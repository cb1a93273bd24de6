"""The commit order: jobs commit in the order that their scheme asks for, whichever is executed
first.

Within a lane, a group commit is a prefix of the entries appended and not yet taken: the whole
prefix that is ready; the next one waits until it is visible. All transactions are in one lane, or
those of a domain are, or each is on its own. The low-water mark is the newest transaction that is
known to be committed with all before it.

Source: WL#8440, "Session commit order" (`slave_preserve_commit_order`); MDEV-4506 (lanes); WL#5569
(low-water mark).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Generic

from ..queue.job import Execution, Job
from ..queue.relay_group import RelayEntry
from ..schemes import Ordering


class CommitOrder(Generic[Execution]):
    """Holds the transactions that are not committed, and the executed jobs among them."""

    __slots__ = (
        "_committed_early",
        "_ends",
        "_lanes",
        "_loose",
        "_newest",
        "_ordering",
        "_queue",
    )

    def __init__(self, ordering: Ordering = Ordering.SOURCE) -> None:
        self._newest: Sequence[RelayEntry] = ()
        """Ends with the low-water mark; of columns an entry is made where somebody asks."""
        self._ordering = ordering
        self._lanes: dict[int, _Lane[Execution]] = {}
        self._loose: deque[Job[Execution]] = deque()
        self._queue: deque[RelayEntry] = deque()
        self._committed_early: set[int] = set()
        self._ends: set[int] = set()

    def append(self, entries: Sequence[RelayEntry]) -> None:
        """Adds transactions that follow all others in the source's order."""
        if self._ordering is Ordering.SOURCE:
            self._lane(0).waiting.extend([entry.position for entry in entries])
            return
        self._queue.extend(entries)
        if self._ordering is Ordering.DOMAIN:
            for entry in entries:
                self._lane(entry.header.domain_id).waiting.append(entry.position)

    def end_group_after(self, position: int) -> None:
        """Makes the group that has the entry at `position`, which is not taken yet, its last."""
        self._ends.add(position)

    def executed(self, job: Job[Execution]) -> None:
        """Adds a job that is ready to commit."""
        if self._ordering is Ordering.NONE:
            self._loose.append(job)
        else:
            ready = self._lane_of(job).ready
            ready.setdefault(job.entries[0].position, []).append(job)

    def take(self, transactions_max: int) -> list[Job[Execution]]:
        """Removes and returns the jobs that may commit as one group: of a lane that is not
        committing, the ready prefix, at least one transaction and as many as fit
        `transactions_max`. All jobs of a divided transaction go together, unless nothing is
        ordered.
        """
        if self._loose:
            return [self._loose.popleft()]
        for lane in self._lanes.values():
            if jobs := lane.take(transactions_max, self._ends):
                return jobs
        return []

    def visible(self, finished: Sequence[RelayEntry]) -> None:
        """Advances the low-water mark by `finished` transactions, visible with all their parts."""
        if self._ordering is Ordering.SOURCE:
            # All commits are in order, so nothing before it is missing.
            self._newest = finished or self._newest
            return
        queue, early = self._queue, self._committed_early
        early.update(entry.position for entry in finished)
        # Those that committed ahead of an older one count when that one has.
        while queue and queue[0].position in early:
            newest = queue.popleft()
            early.remove(newest.position)
            self._newest = (newest,)

    def ended(self, job: Job[Execution]) -> None:
        """Allows the next group of the job's lane: all of the job's group is visible."""
        if self._ordering is not Ordering.NONE:
            self._lane_of(job).committing = False

    def retract(self, job: Job[Execution]) -> list[Job[Execution]]:
        """Removes and returns the ready jobs that wait for the turn of `job`: one of them may hold
        a lock that it needs.
        """
        if self._ordering is Ordering.NONE:
            return []
        ready = self._lane_of(job).ready
        # An older one commits before the job, and needs nothing of it.
        younger = [position for position in ready if position > job.entries[0].position]
        return [retracted for position in younger for retracted in ready.pop(position)]

    def is_next(self, job: Job[Execution]) -> bool:
        """Returns whether `job`, which was not taken, is the next to commit."""
        if self._ordering is Ordering.NONE:
            return True
        lane = self._lane_of(job)
        return not lane.committing and lane.waiting[0] == job.entries[0].position

    @property
    def low_water_mark(self) -> RelayEntry | None:
        """Newest transaction that is known to be committed with all before it."""
        return self._newest[-1] if self._newest else None

    @property
    def ready_jobs(self) -> Iterator[Job[Execution]]:
        """Jobs that are executed and were not taken."""
        yield from self._loose
        for lane in self._lanes.values():
            for jobs in lane.ready.values():
                yield from jobs

    def _lane(self, number: int) -> "_Lane[Execution]":
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = _Lane()
        return lane

    def _lane_of(self, job: Job[Execution]) -> "_Lane[Execution]":
        in_one = self._ordering is Ordering.SOURCE
        return self._lane(0 if in_one else job.entries[0].header.domain_id)

    def check_invariants(self) -> None:
        """Asserts that positions ascend in each lane, that ready jobs wait in their lane, and that
        the low-water mark's successor is not committed.
        """
        for lane in self._lanes.values():
            assert all(earlier < later for earlier, later in pairwise(lane.waiting))
            assert set(lane.ready) <= set(lane.waiting)
        assert not self._queue or self._queue[0].position not in self._committed_early


class _Lane(Generic[Execution]):
    """A lane: positions not taken yet, and executed jobs by their first entry's position."""

    __slots__ = ("committing", "ready", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        self.ready: dict[int, list[Job[Execution]]] = {}
        self.committing = False

    def take(self, transactions_max: int, ends: set[int]) -> list[Job[Execution]]:
        taken: list[Job[Execution]] = []
        waiting = self.waiting
        transactions = 0
        while waiting and not self.committing:
            jobs = self.ready.get(waiting[0])
            # A divided transaction becomes visible with all its parts.
            if not jobs or len(jobs) < jobs[0].parts:
                break
            transactions += len(jobs[0].entries)
            # The first job is taken whatever its size: else it, and all behind it, would wait for
            # ever.
            if taken and transactions > transactions_max:
                break
            del self.ready[waiting[0]]
            for _ in range(len(jobs[0].entries)):
                waiting.popleft()
            taken += jobs
            if ends and (last := jobs[0].entries[-1].position) in ends:
                ends.remove(last)
                break
        # Until `ended`: a group that was taken later must not be visible before this one.
        self.committing = self.committing or bool(taken)
        return taken
