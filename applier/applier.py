"""The applier: threads around the coordinator, from relay queue to target.

The rule it keeps: whoever makes progress goes on with it. There is no coordinator thread: the
thread that appends, or the worker that has finished a job, asks the coordinator under one lock what
comes next, keeps one job for itself and wakes as many workers as there are other jobs. The thread
that completed the head of the commit order commits the whole ready prefix. The lock is never held
while the target works.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from queue import SimpleQueue
from time import monotonic
from typing import Generic

from applier.checkpoint import Checkpoint, Progress
from applier.coordinator import Coordinator, CoordinatorOptions
from applier.job import CommitGroup, Execution, Job
from applier.relay_queue import RelayEntry, RelayQueue
from applier.schemes.logical_clock import LogicalClock
from applier.targets import Target
from applier.worker import Worker, WorkerState, WorkerStatus, execute
from certifier.errors import InvalidSetting

WORKERS_MAX = 1024


class ApplierState(Enum):
    """RUNNING, until it is told to stop or a transaction cannot be executed."""

    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplierStatus:
    """The applier as others see it.

    `length`: entries not visible yet; `relay_bytes`: their bytes in the store. `committed_total`
    and `skipped_total`: entries that became visible, and that were executed before. `error`: why it
    failed."""

    state: ApplierState
    length: int
    relay_bytes: int
    committed_total: int
    skipped_total: int
    parallelism_mean: float
    checkpoint: Checkpoint
    workers: tuple[WorkerStatus, ...]
    error: str


class Applier(Generic[Execution]):
    """Executes the relay queue's transactions on a target."""

    def __init__(
        self,
        target: Target[Execution],
        relay_queue: RelayQueue,
        workers: int,
        on_committed: Callable[[int, int], None],
        on_error: Callable[[Exception], None],
        options: CoordinatorOptions | None = None,
    ) -> None:
        """Starts the workers; call `recover` before the first `append`.

        Args:
            workers: 0 to `WORKERS_MAX`; with 0 whoever appends executes and commits, in order.
            on_committed: called with version and position when everything up to them is visible,
                ascending, by the thread that committed: a worker's, or that of `append`.
            on_error: called once, by the thread that failed. The applier has then stopped; what it
                did not commit is still in the relay queue.
        """
        if not 0 <= workers <= WORKERS_MAX:
            raise InvalidSetting(name="workers", value=workers, expected=f"0 to {WORKERS_MAX}")
        checkpoint = target.checkpoint() or Checkpoint()
        self._target = target
        self._relay_queue = relay_queue
        self._on_committed = on_committed
        self._on_error = on_error
        self._progress = Progress(checkpoint)
        self._checkpoint = self._recovered = checkpoint
        self._options = options or CoordinatorOptions()
        self._coordinator: Coordinator[Execution] = Coordinator(
            LogicalClock(), self._options, tick=checkpoint.tick
        )
        self._state = ApplierState.RUNNING
        self._error = ""
        self._skipped_total = 0
        self._lock = threading.Lock()
        self._quiet = threading.Condition(self._lock)
        self._appended: deque[Sequence[RelayEntry]] = deque()
        self._jobs: SimpleQueue[Job[Execution] | None] = SimpleQueue()
        self._workers = [Worker(number, target) for number in range(max(workers, 1))]
        self._idle_workers = len(self._workers)
        self._threads = [
            threading.Thread(
                target=self._run, args=(worker,), name=f"applier-{worker.number}", daemon=True
            )
            for worker in self._workers[:workers]
        ]
        for thread in self._threads:
            thread.start()

    def recover(self) -> int:
        """Takes up what the relay queue kept from an earlier process; returns how many entries.

        What the checkpoint has is skipped: by position, and by GTID where it was executed
        elsewhere (WL#8440, "WL#7165 applier recovery"); of that, only its place is executed. Local
        transactions have no client any more that executed them: they run alone, as their stamps of
        0 and 0 say.

        Raises:
            CorruptStore: the queue cannot be read.
        """
        executed = self._recovered.gtid_executed
        recovered = 0
        for entries in self._relay_queue.load():
            left = [entry._replace(local=False) for entry in self._not_executed(entries)]
            for index, entry in enumerate(left):
                if entry.gtid and entry.gtid in executed:
                    left[index] = entry._replace(payload=b"")
                    self._skipped_total += 1
            recovered += len(left)
            self.append(left)
        return recovered

    def append(self, entries: Sequence[RelayEntry]) -> None:
        """Takes the next entries of the total order, which the relay queue has stored already.

        Returns at once, or after what needs no worker: local transactions that nothing stands
        before are visible at return. Any thread may call it, one at a time. After a stop or a
        failure the entries stay in the relay queue.
        """
        entries = self._not_executed(entries)
        if not self._threads:
            self._apply_alone(entries)
            return
        with self._lock:
            if self._state is not ApplierState.RUNNING:
                return
            self._coordinator.append(entries)
            self._wake_workers()
            group = self._coordinator.take_committable()
        while group:
            group = self._commit_as_appender(group)

    def drain(self, timeout_seconds: float | None = None) -> bool:
        """Waits until all that was appended is visible; False if it is not by then, or never."""
        with self._quiet:
            self._quiet.wait_for(
                lambda: not self._coordinator.length or self._state is not ApplierState.RUNNING,
                timeout_seconds,
            )
            return not self._coordinator.length

    def stop(self, timeout_seconds: float) -> bool:
        """Starts nothing more, lets workers finish and commit what they have; False if one takes
        longer.
        """
        with self._lock:
            if self._state is ApplierState.RUNNING:
                self._state = ApplierState.STOPPED
            self._quiet.notify_all()
        for _ in self._threads:
            self._jobs.put(None)
        deadline = monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def status(self) -> ApplierStatus:
        """The applier now."""
        with self._lock:
            return ApplierStatus(
                state=self._state,
                length=self._coordinator.length,
                relay_bytes=self._relay_queue.bytes,
                committed_total=self._coordinator.committed_entries,
                skipped_total=self._skipped_total,
                parallelism_mean=self._coordinator.parallelism_mean,
                checkpoint=self._checkpoint,
                workers=tuple(worker.status() for worker in self._workers),
                error=self._error,
            )

    def _run(self, worker: Worker[Execution]) -> None:
        """A worker's thread."""
        while job := self._jobs.get():
            self._work(worker, None, job)
        worker.state = WorkerState.STOPPED

    def _work(
        self,
        worker: Worker[Execution],
        group: CommitGroup[Execution] | None,
        job: Job[Execution] | None,
    ) -> None:
        """Goes on from one group or job to the next for as long as there is one."""
        coordinator = self._coordinator
        try:
            while True:
                if group:
                    worker.state = WorkerState.COMMITTING
                    self._commit(group)
                    with self._lock:
                        coordinator.committed(group)
                        group, job = self._next()
                elif job:
                    executions = worker.execute(job)
                    with self._lock:
                        coordinator.executed(job, executions)
                        group, job = self._next()
                else:
                    break
        except Exception as error:
            error.add_note(f"in worker {worker.number}")
            self._fail(error)
        worker.state = WorkerState.IDLE

    def _next(self) -> tuple[CommitGroup[Execution] | None, Job[Execution] | None]:
        """What a worker that holds the lock does next: a group to commit, else a job, else nothing,
        which makes it idle. One step, so that whatever becomes ready later finds it idle.
        """
        self._wake_workers()
        if self._state is not ApplierState.FAILED and (
            group := self._coordinator.take_committable()
        ):
            return group, None
        if self._state is ApplierState.RUNNING and (jobs := self._coordinator.next_jobs(1)):
            return None, jobs[0]
        self._idle_workers += 1
        return None, None

    def _wake_workers(self) -> None:
        """Gives jobs to idle workers, and word to those who wait for the queue to be empty."""
        if self._state is ApplierState.RUNNING:
            jobs = self._coordinator.next_jobs(self._idle_workers)
            self._idle_workers -= len(jobs)
            for job in jobs:
                self._jobs.put(job)
        if not self._coordinator.length:
            self._quiet.notify_all()

    def _apply_alone(self, entries: Sequence[RelayEntry]) -> None:
        """Executes and commits in the thread that appends; what a callback appends comes after."""
        self._appended.append(entries)
        if len(self._appended) > 1:
            return
        try:
            while self._appended and self._state is ApplierState.RUNNING:
                self._commit_alone(self._appended[0])
                self._appended.popleft()
        except Exception as error:
            error.add_note(f"in worker {self._workers[0].number}")
            self._fail(error)

    def _commit_alone(self, entries: Sequence[RelayEntry]) -> None:
        size = self._options.group_transactions_max
        for start in range(0, len(entries), size):
            group = self._coordinator.append_alone(entries[start : start + size])
            self._commit(group)
            with self._lock:
                self._coordinator.committed(group)
                self._workers[0].executed_total += len(group.jobs[0].entries)

    def _commit_as_appender(self, group: CommitGroup[Execution]) -> CommitGroup[Execution] | None:
        """Commits a group and returns the next, unless a worker is at work: it will take it, so
        that whoever appends is not kept for longer than its own entries need.
        """
        try:
            self._commit(group)
        except Exception as error:
            self._fail(error)
            return None
        with self._lock:
            self._coordinator.committed(group)
            self._wake_workers()
            is_alone = self._idle_workers == len(self._workers)
            return self._coordinator.take_committable() if is_alone else None

    def _commit(self, group: CommitGroup[Execution]) -> None:
        """Makes a group visible; only the thread that took it comes here."""
        for job in group.jobs:
            if job.at_commit:
                job.executions = execute(self._target, job)
        checkpoint = self._progress.advance(group)
        self._target.commit(group, checkpoint)
        self._checkpoint = checkpoint
        self._on_committed(checkpoint.version, checkpoint.position)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            is_first = self._state is not ApplierState.FAILED
            self._state = ApplierState.FAILED
            self._error = self._error or repr(error)
            self._quiet.notify_all()
        if is_first:
            self._on_error(error)

    def _not_executed(self, entries: Sequence[RelayEntry]) -> Sequence[RelayEntry]:
        """The entries after the checkpoint that was recovered; the others count as skipped."""
        position = self._recovered.position
        if not entries or entries[0].position > position:
            return entries
        left = [entry for entry in entries if entry.position > position]
        self._skipped_total += len(entries) - len(left)
        return left
