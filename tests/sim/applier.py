"""The applier without its threads: the coordinator's steps, one at a time, by whoever schedules.

The rule it keeps: it does what `engine/applier.py` does between two moments at which that one's
threads may be held up, and decides nothing of its own.
"""

import random
from collections.abc import Callable, Iterable, Sequence

from groupcert.applier.engine.coordinator import Coordinator, CoordinatorOptions
from groupcert.applier.queue.job import CommitGroup, Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.relay_queue import RelayQueue
from groupcert.applier.queue.target_progress import Checkpoint, TargetProgress
from groupcert.applier.schemes.logical_clock import LogicalClock
from groupcert.applier.targets.rocksdb import RocksDbTarget, RowChanges

OPTIONS = CoordinatorOptions(assigned_transactions_max=12, group_transactions_max=5)


class SimulatedApplier:
    """Coordinator, target and imagined workers."""

    def __init__(
        self,
        target: RocksDbTarget,
        relay_queue: RelayQueue,
        workers: int,
        on_committed: Callable[[int, int], None],
    ) -> None:
        checkpoint = target.checkpoint() or Checkpoint()
        self._target = target
        self._relay_queue = relay_queue
        self._workers = workers
        self._on_committed = on_committed
        self._progress = TargetProgress(checkpoint)
        self._recovered = checkpoint
        self.position = checkpoint.position
        self.coordinator: Coordinator[RowChanges] = Coordinator(
            LogicalClock(job_transactions_max=3), OPTIONS, tick=checkpoint.tick
        )
        self._running: list[Job[RowChanges]] = []
        self._committing: CommitGroup[RowChanges] | None = None

    def recover(self, groups: Iterable[Sequence[RelayEntry]]) -> None:
        """See `Applier.recover`."""
        for entries in groups:
            self.append([self._as_recovered(entry) for entry in entries])

    def end_group_after(self, position: int) -> None:
        """See `Applier.end_group_after`."""
        self.coordinator.end_group_after(position)

    def append(self, entries: Sequence[RelayEntry]) -> None:
        """See `Applier.append`; nothing is executed yet."""
        position = self._recovered.position
        self.coordinator.append([entry for entry in entries if entry.position > position])

    def step(self, dice: random.Random) -> None:
        """Does one of the things that a thread could do next."""
        finish = [lambda job=job: self._finish(job) for job in self._running]
        dice.choice([self._start, self._commit, *finish])()

    def drain(self) -> None:
        """Executes and commits all that was appended."""
        while self.coordinator.length:
            length = self.coordinator.length
            self._start()
            for job in list(self._running):
                self._finish(job)
            self._commit()
            self._commit()
            assert self.coordinator.length < length, "the applier is stuck"

    def _as_recovered(self, entry: RelayEntry) -> RelayEntry:
        is_executed = entry.gtid is not None and entry.gtid in self._recovered.gtid_executed
        return entry._replace(local=False, payload=b"" if is_executed else entry.payload)

    def _start(self) -> None:
        """Gives jobs to idle workers."""
        at_work = {job.worker for job in self._running}
        idle = [worker for worker in range(self._workers) if worker not in at_work]
        self._running += self.coordinator.next_jobs(idle)

    def _finish(self, job: Job[RowChanges]) -> None:
        """A worker is done with its job."""
        self._running.remove(job)
        self.coordinator.executed(job, self._target.execute(job))

    def _commit(self) -> None:
        """Takes what may commit, or makes visible what was taken."""
        group = self._committing
        if group is None:
            self._committing = self.coordinator.take_committable()
            return
        for job in group.jobs:
            if job.at_commit:
                job.execution = self._target.execute(job)
        self._target.commit(group, self._progress)
        checkpoint = self._progress.checkpoint
        self.coordinator.committed(group)
        self._committing = None
        self.position = checkpoint.position
        self._on_committed(checkpoint.version, checkpoint.position)
