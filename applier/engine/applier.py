"""The applier: threads around the coordinator, from a stream of transactions to a target.

There is no coordinator thread: the thread that appends, or the worker that has finished a job, asks
the coordinator under one lock for the next jobs, keeps its own and wakes the workers of the others.
The thread that completed the head of a lane commits the whole ready prefix. The lock is never held
while the target works.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from queue import SimpleQueue
from time import monotonic, time_ns
from typing import Any, Generic

from ...certifier.gtid import Gtid
from ..errors import OF_ROWS, TABLE_CHANGED, TransientFailure
from ..queue.job import CommitGroup, Execution, Job
from ..queue.relay_group import RelayEntry, first_gtid, first_position, last_gtid
from ..queue.target_progress import Checkpoint, LastError, Stage, TargetProgress
from ..schemes import Cause, Hold, Scheme
from ..targets import Target
from .coordinator import Coordinator, CoordinatorOptions
from .worker import Worker, WorkerState, WorkerStatus, check_workers


class ApplierState(Enum):
    """The state of an applier: RUNNING, until it is stopped or a transaction cannot be executed."""

    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplierStatus:
    """The status of an applier.

    `length`, `pending_bytes`: entries not visible yet, and their payloads. `committed_total` and
    `skipped_total`: entries that became visible, and that were executed before. `low_water_mark`:
    the newest entry of which this applier knows that nothing before it is missing.
    `hold`: what the head of the queue waits for. `holds`, `fallbacks`: heads that were held, and
    returns to sequential execution, by cause. `failure`: why it does not run.
    """

    state: ApplierState
    length: int = 0
    assigned: int = 0
    pending_bytes: int = 0
    committed_total: int = 0
    groups_total: int = 0
    skipped_total: int = 0
    parallelism_mean: float = 0.0
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    low_water_mark: RelayEntry | None = None
    hold: Hold | None = None
    is_sequential: bool = False
    holds: dict[Cause, int] = field(default_factory=dict)
    fallbacks: dict[Cause, int] = field(default_factory=dict)
    workers: tuple[WorkerStatus, ...] = ()
    failure: LastError | None = None

    @property
    def has_gaps(self) -> bool:
        """True if something is executed and something older is not."""
        return self.checkpoint.missing > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplierOptions:
    """Settings of an applier.

    `coordinator`: its limits. `workers_hold_jobs`: a worker is occupied until its job is committed,
    because its session holds the job's changes; else only while it executes. `transaction_retries`:
    how often a transient failure is retried (MySQL's default), after `retry_pause_ms`, doubled each
    time. `checkpoint_group`, `checkpoint_period_ms`: groups and time after which the target saves
    its checkpoint, if commits only note what they did (WL#5569's defaults). `scheme`: its name, for
    the checkpoint. `is_slow`: whether a worker has to commit a group, not the thread that appends.
    """

    coordinator: CoordinatorOptions = field(default_factory=CoordinatorOptions)
    workers_hold_jobs: bool = True
    transaction_retries: int = 10
    retry_pause_ms: int = 5
    checkpoint_group: int = 512
    checkpoint_period_ms: int = 300
    scheme: str = ""
    is_slow: Callable[[CommitGroup[Any]], bool] = lambda _: False


class Applier(Generic[Execution]):
    """Executes transactions on a target, in parallel as a scheme allows."""

    def __init__(
        self,
        target: Target[Execution],
        scheme: Scheme,
        workers: int,
        on_committed: Callable[[int, int], None],
        on_error: Callable[[Exception], None],
        options: ApplierOptions | None = None,
    ) -> None:
        """Starts the workers; call `recover` before the first `append`.

        Args:
            workers: 0 to `WORKERS_MAX`; with 0 the appending thread executes and commits, in order.
            on_committed: called with version and position of what is visible now, by the thread
                that committed: a worker's, or that of `append`; ascending where commits are in the
                source's order.
            on_error: called once, by the thread that failed. The applier has then stopped; what it
                did not commit is not executed.
        """
        check_workers(workers)
        checkpoint = target.checkpoint() or Checkpoint()
        self._target = target
        self._on_committed = on_committed
        self._on_error = on_error
        self._options = options = options or ApplierOptions()
        self._progress = TargetProgress(replace(checkpoint, scheme=options.scheme))
        self._recovered = checkpoint
        self._unsaved_groups, self._saved_seconds = 0, monotonic()
        self._saving = threading.Lock()
        self._coordinator: Coordinator[Execution] = Coordinator(
            scheme, options.coordinator, tick=checkpoint.tick, alone=not workers
        )
        self._state = ApplierState.RUNNING
        self._failure: LastError | None = None
        self._skipped_total = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._awaited: list[Callable[[], bool]] = []
        self._ends: set[int] = set()
        self._appended: deque[Sequence[RelayEntry]] = deque()
        self._workers = [Worker(number) for number in range(max(workers, 1))]
        self._queues: list[SimpleQueue[Job[Execution] | CommitGroup[Execution] | None]] = [
            SimpleQueue() for _ in self._workers
        ]
        self._idle = dict.fromkeys(range(workers))
        self._holding: set[int] = set()
        self._committing: set[int] = set()
        self._visible: dict[int, int] = {}
        self._left: CommitGroup[Execution] | None = None
        self._giving_way: dict[int, list[Job[Execution]]] = {}
        self._threads = [
            threading.Thread(
                target=self._run, args=(worker,), name=f"applier-{worker.number}", daemon=True
            )
            for worker in self._workers[:workers]
        ]
        for thread in self._threads:
            thread.start()

    def recover(self, groups: Iterable[Sequence[RelayEntry]]) -> int:
        """Appends the entries that a relay queue kept from an earlier process; returns how many.

        Entries that the checkpoint has are skipped: by position, and by GTID if executed
        elsewhere (WL#8440, "WL#7165 applier recovery"); such an entry commits empty. Local
        transactions have lost the client that executed them: they run alone, as their stamps of
        0 and 0 say.
        """
        executed = self._recovered.gtid_executed
        recovered = 0
        for entries in groups:
            left = [entry._replace(local=False) for entry in self._not_executed(entries)]
            for index, entry in enumerate(left):
                if entry.gtid and entry.gtid in executed:
                    left[index] = entry._replace(payload=b"")
                    self._skipped_total += 1
            recovered += len(left)
            self.append(left)
        return recovered

    def end_group_after(self, position: int) -> None:
        """Makes `on_committed` hear of the entry at `position` by itself: nothing after it is
        visible then. Call it before the entry is appended; an entry that is alone in its job.
        """
        with self._lock:
            if self._threads:
                self._coordinator.end_group_after(position)
            else:
                self._ends.add(position)

    def append(self, entries: Sequence[RelayEntry]) -> None:
        """Takes the next entries of the source's order.

        Returns at once, or after work that needs no worker: local transactions with nothing
        before them are visible at return. Any thread may call it, one at a time. After a stop or a
        failure the entries are not taken.
        """
        entries = self._not_executed(entries)
        if not self._threads:
            self._apply_alone(entries)
            return
        with self._lock:
            # Nothing may be queued behind what failed: the log has it, and the next process reads
            # it again.
            if self._state is not ApplierState.RUNNING:
                return
            self._coordinator.append(entries)
            self._hand_out()
            group = self._take_quick()
        while group:
            group = self._commit_as_appender(group)

    def translate(self, entries: Sequence[RelayEntry]) -> None:
        """Has the target make entries ready that are appended next, on the calling thread. Without
        workers they are one job; workers do it for themselves.
        """
        if not self._threads:
            self._target.translate(entries)

    def wait_for_room(self, entries_max: int, bytes_max: int, timeout_seconds: float) -> bool:
        """Waits until fewer than `entries_max` entries with fewer than `bytes_max` bytes are not
        visible; False after `timeout_seconds`, or if the applier does not run.
        """
        coordinator = self._coordinator

        def has_room() -> bool:
            return coordinator.length < entries_max and coordinator.pending_bytes < bytes_max

        self._wait(has_room, timeout_seconds)
        return has_room() and self._state is ApplierState.RUNNING

    def drain(self, timeout_seconds: float | None = None) -> bool:
        """Waits until all that was appended is visible; False on timeout or failure."""
        self._wait(lambda: not self._coordinator.length, timeout_seconds)
        return not self._coordinator.length

    def stop(self, timeout_seconds: float) -> bool:
        """Takes no more entries from the queue and waits until the assigned ones are committed;
        False after `timeout_seconds`: the rest is then abandoned and may leave gaps.
        """
        deadline = monotonic() + timeout_seconds
        self._coordinator.takes = False
        # The assigned ones first: where commits have no order, a worker that stopped before its
        # commit would leave a gap behind younger ones that are visible.
        self._wait(lambda: not self._coordinator.assigned, timeout_seconds)
        with self._lock:
            if self._state is ApplierState.RUNNING:
                self._state = ApplierState.STOPPED
            self._changed.notify_all()
        for queue in self._queues:
            queue.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        ended = not any(thread.is_alive() for thread in self._threads)
        if ended and self._state is ApplierState.STOPPED:
            self._target.save(self._progress.checkpoint)
        return ended and not self._coordinator.assigned

    def note(self, error: LastError) -> None:
        """Keeps an error in the target, for the next process; raises what `Target.save` does."""
        self._progress.note(error)
        with self._saving:
            self._target.save(self._progress.checkpoint)

    def status(self) -> ApplierStatus:
        """Returns the applier's present state and counters."""
        with self._lock:
            coordinator = self._coordinator
            return ApplierStatus(
                state=self._state,
                length=coordinator.length,
                assigned=coordinator.assigned,
                pending_bytes=coordinator.pending_bytes,
                committed_total=coordinator.committed_entries,
                groups_total=coordinator.committed_groups,
                skipped_total=self._skipped_total,
                parallelism_mean=coordinator.parallelism_mean,
                checkpoint=self._progress.checkpoint,
                low_water_mark=coordinator.low_water_mark,
                hold=coordinator.hold,
                is_sequential=coordinator.is_sequential,
                holds=dict(coordinator.holds),
                fallbacks=dict(coordinator.fallbacks),
                workers=tuple([each.status(coordinator.waiting) for each in self._workers]),
                failure=self._failure,
            )

    def _run(self, worker: Worker) -> None:
        """Runs in a worker's thread: does each task of its queue, until None."""
        queue = self._queues[worker.number]
        while task := queue.get():
            self._work(worker, *((None, task) if isinstance(task, Job) else (task, None)))
        worker.state = WorkerState.STOPPED

    def _work(
        self, worker: Worker, group: CommitGroup[Execution] | None, job: Job[Execution] | None
    ) -> None:
        """Executes jobs and commits groups, one after the other, until there is none left."""
        coordinator = self._coordinator
        try:
            while True:
                if group:
                    worker.state = WorkerState.COMMITTING
                    worker.gtid = group.jobs[0].entries[0].gtid
                    self._commit(group)
                    with self._lock:
                        self._committed(group)
                        # Under the same lock: what becomes ready after this step finds the worker
                        # idle.
                        group, job = self._next(worker.number)
                elif job:
                    execution = self._execute(worker, job)
                    with self._lock:
                        worker.queue_length -= len(job.entries)
                        coordinator.executed(job, execution)
                        group, job = self._next(worker.number)
                else:
                    break
        except Exception as error:
            if group:
                self._fail_commit(error, group, worker)
            else:
                self._fail(Stage.EXECUTING, error, worker.number, worker.gtid)
        holds = worker.number in self._holding
        worker.state = WorkerState.WAITING if holds else WorkerState.IDLE

    def _execute(self, worker: Worker, job: Job[Execution]) -> Execution | None:
        """Executes a job, with retries; returns None if an earlier process executed it."""
        worker.state = WorkerState.EXECUTING
        worker.gtid = first_gtid(job.entries)
        job.started_us, job.executed_us = time_ns() // 1000, 0
        if self._is_executed(job):
            return None
        failures = 0
        while True:
            try:
                execution = self._target.execute(job)
            except TransientFailure as failure:
                failures += 1
                retries_max = self._options.transaction_retries
                if failure.kind == TABLE_CHANGED:
                    retries_max = 1  # After what is before it, only a target that is opened again.
                if failures > retries_max:
                    if failure.kind in OF_ROWS:
                        worker.gtid = self._culprit(job)
                    raise
                worker.retried_total += 1
                self._prepare_retry(worker, job, failures)
            except Exception:
                worker.gtid = self._culprit(job)
                raise
            else:
                job.executed_us = time_ns() // 1000
                worker.executed_total += len(job.entries)
                worker.last_gtid, worker.last_us = last_gtid(job.entries), job.executed_us
                return execution

    def _culprit(self, job: Job[Execution]) -> Gtid | None:
        """Returns the GTID of the first entry that fails after those of its job before it."""
        # A job's transactions are executed as one, and the error does not say whose it is. Alone,
        # one that builds on another of its job would fail, too.
        fine, failing = 0, len(job.entries)
        while failing - fine > 1:
            middle = (fine + failing) // 2
            part: Job[Execution] = replace(job, entries=job.entries[:middle])
            try:
                part.execution = self._target.execute(part)
            except Exception:
                failing = middle
            else:
                self._target.abandon(part)
                fine = middle
        return job.entries[failing - 1].gtid

    def _prepare_retry(self, worker: Worker, job: Job[Execution], failures: int) -> None:
        """Waits for the turn of a job that failed, and has the jobs behind it give way."""
        worker.state = WorkerState.RETRYING
        if self._options.workers_hold_jobs and not job.at_commit:
            # Whatever holds the lock that it needs is committed by then, or younger: those have
            # been executed, wait for this one's commit, and give way.
            self._wait(lambda: self._coordinator.is_next(job), None)
            self._make_way(job)
        pause_seconds = self._options.retry_pause_ms / 1000 * 2 ** (failures - 1)
        if failures > 1:
            self._wait(lambda: False, min(pause_seconds, 1.0))

    def _make_way(self, job: Job[Execution]) -> None:
        """Abandons the jobs that are executed and wait behind `job`: one may hold a lock that it
        needs, to execute or, for a constraint that is checked then, to commit.
        """
        with self._lock:
            younger = self._coordinator.retract(job)
            # They start again when this job is visible, see `_release`: earlier, they might take
            # the lock again.
            self._giving_way.setdefault(job.entries[0].position, []).extend(younger)
        for younger_job in younger:
            self._target.abandon(younger_job)
            younger_job.execution = None

    def _next(self, number: int) -> tuple[CommitGroup[Execution] | None, Job[Execution] | None]:
        """Returns the next task of a worker that holds the lock: a group to commit, else a job,
        else neither, and it is idle. One step: work that becomes ready later finds it idle.
        """
        self._idle.pop(number, None)
        self._committing.discard(number)
        # After a stop, groups still commit: `stop` waits for what is assigned.
        if self._state is not ApplierState.FAILED and (
            group := self._left or self._coordinator.take_committable()
        ):
            self._left = None
            self._committing.add(number)
            # Before its own commit, which may take long: the others get their jobs meanwhile.
            self._hand_out()
            return group, None
        # Its session still has the changes of a job that waits for its turn.
        if number not in self._holding:
            self._idle[number] = None
        return None, self._hand_out(number)

    def _hand_out(self, own: int = -1) -> Job[Execution] | None:
        """Gives jobs to idle workers and wakes waiting threads; returns the job for `own`."""
        mine = None
        if self._state is ApplierState.RUNNING:
            for job in self._coordinator.next_jobs([*reversed(self._idle)]):
                del self._idle[job.worker]
                self._workers[job.worker].queue_length += len(job.entries)
                if self._options.workers_hold_jobs:
                    self._holding.add(job.worker)
                if job.worker == own:
                    mine = job
                else:
                    # Queued with the lock held, so that two jobs for a worker never change places.
                    self._queues[job.worker].put(job)
        self._notify()
        return mine

    def _committed(self, group: CommitGroup[Execution]) -> None:
        """Informs the coordinator of a commit and frees the workers; the lock is held."""
        visible = self._visible.pop(group.tick, 0)
        self._coordinator.committed(group, visible)
        self._release(group.jobs[visible:])

    def _became_visible(self, group: CommitGroup[Execution], count: int) -> None:
        """Informs the coordinator that the next `count` jobs of a group are visible."""
        with self._lock:
            first = self._visible.get(group.tick, 0)
            self._visible[group.tick] = first + count
            jobs = group.jobs[first : first + count]
            self._coordinator.visible(jobs)
            self._release(jobs)
            self._hand_out()

    def _release(self, jobs: Sequence[Job[Execution]]) -> None:
        """Marks the workers of visible jobs as idle, and restarts jobs that gave way to them."""
        for job in jobs:
            if job.worker in self._holding and not job.at_commit:
                self._holding.remove(job.worker)
                # A worker that commits right now is idle once `_next` finds nothing for it.
                if job.worker not in self._committing:
                    self._workers[job.worker].state = WorkerState.IDLE
                    self._idle[job.worker] = None
            for younger in self._giving_way.pop(job.entries[0].position, ()):
                self._workers[younger.worker].queue_length += len(younger.entries)
                self._queues[younger.worker].put(younger)

    def _apply_alone(self, entries: Sequence[RelayEntry]) -> None:
        """Executes and commits in the appending thread; a callback's entries come after."""
        # A callback of a commit may append: the outer call takes those entries after its own, as a
        # commit within a commit would overtake the rest of them.
        self._appended.append(entries)
        if len(self._appended) > 1:
            return
        worker = self._workers[0]
        try:
            while self._appended and self._state is ApplierState.RUNNING:
                self._commit_alone(self._appended[0])
                self._appended.popleft()
        except Exception as error:
            is_committing = worker.state is WorkerState.COMMITTING
            stage = Stage.COMMITTING if is_committing else Stage.EXECUTING
            self._fail(stage, error, 0, worker.gtid)
        worker.state = WorkerState.IDLE

    def _commit_alone(self, entries: Sequence[RelayEntry]) -> None:
        size = self._options.coordinator.group_transactions_max
        left: Sequence[RelayEntry] = entries
        while left:
            part = left[:size] if len(left) > size else left
            if self._ends:
                ends = [
                    place for place, entry in enumerate(part, 1) if entry.position in self._ends
                ]
                # Only the first end cuts this part; the others are met again in what is left.
                self._ends -= {part[place - 1].position for place in ends[:1]}
                part = part[: ends[0]] if ends else part
            left = left[len(part) :] if len(part) < len(left) else ()
            with self._lock:
                if not self._coordinator.takes:
                    return
                group = self._coordinator.append_alone(part)
            self._commit(group)
            with self._lock:
                self._coordinator.committed(group)
                self._notify()

    def _commit_as_appender(self, group: CommitGroup[Execution]) -> CommitGroup[Execution] | None:
        """Commits a group and returns the next; None while a worker is active, which takes it."""
        try:
            self._commit(group)
        except Exception as error:
            self._fail_commit(error, group, self._workers[0])
            return None
        with self._lock:
            self._committed(group)
            self._hand_out()
            # A worker that is active asks for the next group when it is done, and this thread is
            # free to read on.
            return None if self._coordinator.is_busy else self._take_quick()

    def _take_quick(self) -> CommitGroup[Execution] | None:
        """Returns the group that the appending thread commits now, with the lock held; a slow one
        is left to a worker.
        """
        group = self._coordinator.take_committable()
        if group is None or not self._options.is_slow(group):
            return group
        if self._idle:
            self._queues[self._idle.popitem()[0]].put(group)
        else:
            # All workers are occupied, and a group that was taken cannot go back: the next one that
            # asks gets it.
            self._left = group
        return None

    def _commit(self, group: CommitGroup[Execution]) -> None:
        """Makes a group visible; called only by the thread that took it."""
        for job in group.jobs:
            if job.at_commit:
                # A local transaction was executed by its client; only without workers all others
                # come here, and these may be tried again.
                alone = not self._threads
                job.execution = (
                    self._execute(self._workers[0], job) if alone else self._target.execute(job)
                )
        if not self._threads:
            self._workers[0].state = WorkerState.COMMITTING
        # An earlier process had committed all of it before it could note that.
        if all(map(self._is_executed, group.jobs)):
            self._progress.advance(group)
        else:
            if self._threads:
                group = group._replace(
                    visible=partial(self._became_visible, group),
                    make_way=partial(self._make_way, group.jobs[-1]),
                )
            self._target.commit(group, self._progress)
        self._save_if_due()
        checkpoint = self._progress.checkpoint
        self._on_committed(checkpoint.version, checkpoint.position)

    def _save_if_due(self) -> None:
        """Saves the checkpoint after `checkpoint_group` groups or `checkpoint_period_ms`."""
        self._unsaved_groups += 1
        options = self._options
        age_seconds = monotonic() - self._saved_seconds
        is_due = age_seconds * 1000 >= options.checkpoint_period_ms
        if self._unsaved_groups < options.checkpoint_group and not is_due:
            return
        # One at a time. Who comes second does not wait: a later commit saves more.
        if self._saving.acquire(blocking=False):
            try:
                self._unsaved_groups, self._saved_seconds = 0, monotonic()
                self._target.save(self._progress.checkpoint)
            finally:
                self._saving.release()

    def _is_executed(self, job: Job[Execution]) -> bool:
        """Returns whether an earlier process executed this part of a transaction."""
        parts = self._recovered.parts
        if not parts:
            return False
        gtid = job.entries[0].gtid
        return gtid is not None and str(job.part) in parts.get(gtid, ())

    def _fail_commit(
        self, error: Exception, group: CommitGroup[Execution], committer: Worker
    ) -> None:
        """Fails the applier by the group's first job that is not visible: names its worker or, if
        the job is executed at commit, the committer.
        """
        job = group.jobs[self._visible.get(group.tick, 0)]
        number = committer.number if job.at_commit else job.worker
        self._fail(Stage.COMMITTING, error, number, job.entries[0].gtid)

    def _fail(self, stage: Stage, error: Exception, number: int, gtid: object) -> None:
        """Stops the applier with `error`, and names worker `number` and transaction `gtid`."""
        error.add_note(f"in worker {number}")
        with self._lock:
            is_first = self._state is ApplierState.RUNNING  # Failures after a stop are ignored.
            if is_first:
                self._state = ApplierState.FAILED
                self._failure = LastError.of(stage, error, number, gtid)
            self._changed.notify_all()
        if is_first:
            self._on_error(error)

    def _wait(self, happened: Callable[[], bool], timeout_seconds: float | None) -> None:
        """Waits until `happened()`, the end of the applier, or `timeout_seconds`."""
        with self._changed:
            self._awaited.append(happened)
            try:
                self._changed.wait_for(
                    lambda: happened() or self._state is not ApplierState.RUNNING, timeout_seconds
                )
            finally:
                self._awaited.remove(happened)

    def _notify(self) -> None:
        """Wakes the waiting threads, with the lock held, if one's condition is true."""
        # Most steps make no condition true, and a wake-up in vain costs a change of threads.
        if self._awaited and any(happened() for happened in self._awaited):
            self._changed.notify_all()

    def _not_executed(self, entries: Sequence[RelayEntry]) -> Sequence[RelayEntry]:
        """Returns the entries after the recovered checkpoint; counts the others as skipped."""
        position = self._recovered.position
        if not entries or first_position(entries) > position:
            return entries
        left = [entry for entry in entries if entry.position > position]
        self._skipped_total += len(entries) - len(left)
        return left
