"""Assigned partitions: which worker has which databases or tables, and the queue of each worker.

While a transaction that updates a partition is assigned and not committed, all transactions that
update it go to the same worker, who executes its queue in the source's order. So transactions that
share a partition never run at once nor overtake each other. A worker waits only for older
transactions, so the oldest one can always proceed, in whatever order commits are required.

Source: WL#5569. `records` is its APH, of tuples (P_id, N, W_id); the partitions that are kept
beside a queued job are its CGAP, which becomes the CGEP when the job is committed; a queue is its
WQ, from which a job goes only when it is committed. Its GAQ is the coordinator's commit order.
Differs: a transaction that spans several workers is assigned when one of them is left, whichever;
there it stays with the first, which may be the one that is left last.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from ...certifier.errors import InvalidSetting
from ..queue.job import Job
from ..queue.relay_group import RelayEntry
from ..queue.row_parts import Part
from . import Cause, Hold

WORKER_QUEUE_MAX = 1_024


class Share(NamedTuple):
    """A worker's share of a transaction: the partitions, and the part if that is not all."""

    partitions: Sequence[str]
    part: Part | None = None


Division = Callable[[RelayEntry], Sequence[Share] | None]
"""Divides a transaction; returns None if its partitions are not known: it then uses all of them."""


@dataclass(slots=True)
class Record:
    """The worker that has a partition, and how many jobs in its queue update it."""

    worker: int
    usage: int = 0


_UNDIVIDED = (Share(()),)


class _Assignment(NamedTuple):
    job: Job[Any]
    partitions: Sequence[str]


class AssignedPartitions:
    """Keeps the partitions in use, and a queue for each worker that was ever idle. What the schemes
    that assign partitions have in common; each says how it divides a transaction.
    """

    def __init__(self, worker_queue_max: int, divide: Division) -> None:
        """Limits a worker's queue to `worker_queue_max` jobs, the executing one included: a full
        queue takes no further transaction. A transaction's parts are queued together, so that a
        queue exceeds the limit by at most these.
        """
        if worker_queue_max < 1:
            raise InvalidSetting(
                name="worker_queue_max", value=worker_queue_max, expected="1 or more"
            )
        self.hold: Hold | None = None
        self.records: dict[str, Record] = {}
        self._queues: dict[int, deque[_Assignment]] = {}
        self._queue_max = worker_queue_max
        self._divide = divide
        self._executing: set[int] = set()
        self._alone: Job[Any] | None = None

    def take(self, pending: deque[RelayEntry], idle: Sequence[int], room: int) -> list[Job[Any]]:
        """Implements `Scheme.take`.

        Cost: O(workers + partitions) for each transaction that is taken or held.
        """
        for worker in idle:
            if worker not in self._queues:
                self._queues[worker] = deque()
        self.hold = None
        while pending:
            entry = pending[0]
            shares = self._divide(entry) if entry.gtid else None
            placed = self._place(entry, shares) if room else Hold(Cause.QUEUE)
            if isinstance(placed, Hold):
                self.hold = placed
                break
            room -= 1
            pending.popleft()
            for worker, (partitions, part) in zip(placed, shares or _UNDIVIDED, strict=True):
                job: Job[Any] = Job([entry], worker, part, parts=len(placed))
                self._assign(job, partitions)
                if shares is None:
                    self._alone = job
        return self._start(idle)

    def committed(self, job: Job[Any]) -> None:
        """Releases the partitions of a committed job that no other job uses."""
        assigned, partitions = self._queues[job.worker].popleft()
        assert assigned is job, "a worker's queue is executed in its order"
        self._executing.remove(job.worker)
        for partition in partitions:
            record = self.records[partition]
            record.usage -= 1
            if not record.usage:
                del self.records[partition]
        if job is self._alone:
            self._alone = None

    @property
    def waiting(self) -> dict[int, int]:
        """Jobs in each worker's queue behind the one that it was given."""
        queues = self._queues.items()
        return {worker: len(queue) - (worker in self._executing) for worker, queue in queues}

    def _place(self, entry: RelayEntry, shares: Sequence[Share] | None) -> list[int] | Hold:
        """Returns the worker of each share, or the reason for which the transaction waits."""
        if self._alone:
            alone = self._alone.entries[0]
            name = alone.gtid or f"position {alone.position}"
            return Hold(Cause.TRANSACTION, f"{name} with worker {self._alone.worker}")
        # It uses all partitions: nothing may be queued before it, and `_alone` keeps others off
        # after it.
        if shares is None and (jobs := sum(map(len, self._queues.values()))):
            cause = Cause.ALL_PARTITIONS if entry.gtid else Cause.ALONE
            return Hold(cause, f"{jobs} not committed")
        if not self._queues:
            return Hold(Cause.WORKER)
        loads = {
            worker: len(queue)
            for worker, queue in self._queues.items()
            if len(queue) < self._queue_max
        }
        if not loads:
            return Hold(Cause.QUEUE, "all workers")
        placed = []
        for partitions, _ in shares or _UNDIVIDED:
            worker = self._owner(partitions)
            if isinstance(worker, Hold):
                return worker
            if worker is None:
                worker = min(loads, key=loads.__getitem__)
            if worker not in loads:
                return Hold(Cause.QUEUE, f"worker {worker}")
            # All shares find a place before any is queued: a transaction that has to wait occupies
            # nobody.
            loads[worker] += 1
            placed.append(worker)
        return placed

    def _owner(self, partitions: Sequence[str]) -> int | Hold | None:
        """Returns the worker that has the partitions in use; None if none is in use."""
        owner = None
        for partition in partitions:
            if record := self.records.get(partition):
                # Two workers have parts of it: either one could overtake the other's transaction.
                if owner is not None and record.worker != owner:
                    return Hold(Cause.PARTITION, f"{partition} with worker {record.worker}")
                owner = record.worker
        return owner

    def _assign(self, job: Job[Any], partitions: Sequence[str]) -> None:
        self._queues[job.worker].append(_Assignment(job, partitions))
        for partition in partitions:
            record = self.records.setdefault(partition, Record(job.worker))
            record.usage += 1

    def _start(self, idle: Sequence[int]) -> list[Job[Any]]:
        workers = [worker for worker in idle if self._queues[worker]]
        assert self._executing.isdisjoint(workers), "a worker is occupied until its job's commit"
        self._executing.update(workers)
        return [self._queues[worker][0].job for worker in workers]

    def check_invariants(self) -> None:
        """Asserts that records agree with the queues, which are in order and in their limit."""
        usage: Counter[tuple[str, int]] = Counter()
        for worker, queue in self._queues.items():
            entries = [job.entries[0] for job, _ in queue]
            assert all(one.position <= two.position for one, two in pairwise(entries))
            older = [entry for entry in entries if entry is not entries[-1]]
            assert len(older) < self._queue_max, "more than the limit and one transaction's parts"
            for job, partitions in queue:
                assert job.worker == worker
                usage.update((partition, worker) for partition in partitions)
        assert usage == {(name, each.worker): each.usage for name, each in self.records.items()}
        assert all(self._queues[worker] for worker in self._executing)
        if self._alone:
            assert sum(map(len, self._queues.values())) == 1, "something beside what is alone"
