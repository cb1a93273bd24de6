"""A replica: follows a member's binary log and executes it on a target, by a scheme.

The rule it keeps: the target's own checkpoint says what is executed, by GTID, with gaps. So a
replica that died at any moment begins again by asking for the rest; nothing else is stored. Entries
of the source go to the applier in order, within limits, when they are due.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from queue import Queue
from typing import Any, Self

import structlog

from ...applier.engine.applier import Applier, ApplierOptions, ApplierState, ApplierStatus
from ...applier.engine.until import Until
from ...applier.errors import OF_ROWS, TABLE_CHANGED, ApplyFailed, TransientFailure
from ...applier.mysql_logs.statement_payload import has_statements, skipped
from ...applier.mysql_servers.source_errors import SourceLost
from ...applier.queue.relay_group import RelayEntry
from ...applier.queue.target_progress import Checkpoint, LastError, Stage
from ...applier.schemes import Scheme
from ...applier.targets import Target
from ...certifier.errors import CorruptLog, GroupcertError, InvalidSetting
from ...certifier.gtid_set import GtidSet
from .sources import PAUSE_SECONDS, SourceNews, Sources

CHUNK_TRANSACTIONS = 256
CHUNK_BYTES = 1 << 20
WAKE_SECONDS = 0.2
RETRY_PAUSE_SECONDS_MAX = 5.0
QUEUE_TRANSACTIONS_MAX = 16_384
"""Transactions read from the source and not executed: they hide a second of waiting."""
STOP_SECONDS = 60.0
"""How long a stop waits for what is assigned: WL#5569's minute."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class ReplicaEnd(Enum):
    """Reasons for which a replica ends without an error."""

    STOPPED = "stopped"
    UNTIL = "until"


class Replica:
    """One replica, from its target's checkpoint on."""

    def __init__(
        self,
        name: str,
        sources: Sources,
        open_target: Callable[[], Target[Any]],
        make_scheme: Callable[[], Scheme],
        workers: int,
        options: ApplierOptions,
        *,
        make_until: Callable[[Checkpoint], Until | None] = lambda _: None,
        delay_s: int = 0,
        queue_transactions_max: int = QUEUE_TRANSACTIONS_MAX,
        pending_jobs_size_max: int = 128 << 20,
        skipped: GtidSet | None = None,
        retry_s: int = 0,
    ) -> None:
        """Prepares a replica; `run` calls `open_target` and `make_scheme` for each run of the
        applier, of which a lost connection may make several. `retry_s`: seconds after which it
        tries again what it cannot do; 0: it ends.
        """
        self.name = name
        self.activity = "starting"
        self.recovery = ""
        self.source_version = 0
        self.applier: Applier[Any] | None = None
        self.scheme = make_scheme()
        self._sources = sources
        self._appending: _Appending
        self._open_target = open_target
        self._make_scheme = make_scheme
        self._workers = workers
        self._options = options
        self._make_until = make_until
        self._until: Until | None = None
        self._delay_us = delay_s * 1_000_000
        self._queue_max = queue_transactions_max
        self._bytes_max = pending_jobs_size_max
        self._skipped = skipped or GtidSet()
        self._retry_s = retry_s
        self._is_failed = False
        self._left: LastError | None = None
        """An error that the target could not take; the next one that is opened gets it."""
        self.skipped = 0
        """How many transactions of the argument `skipped` have come."""
        self._skipped_met = GtidSet()
        self._received = GtidSet()
        self._position = 0
        self._first_committed_us = 0
        self._stopping = threading.Event()
        self._failed = threading.Event()
        self._error: Exception | None = None

    def run(self) -> ReplicaEnd:
        """Executes what the source commits until `stop`, or until its condition is met.

        Raises, with `retry_s` only what no later try may mend:
            ApplyFailed: A transaction cannot be executed. Nothing is lost.
            PurgedAtSource, ReplicaAhead: No source can serve this replica.
            UnsuitableTarget: The target cannot take its transactions.
        """
        while True:
            try:
                return self._run()
            except GroupcertError as error:
                is_bug = isinstance(error.__cause__, AssertionError)
                if not self._retry_s or is_bug or isinstance(error, (InvalidSetting, CorruptLog)):
                    raise
                log.warning(
                    "replica_failed", replica=self.name, text=str(error), retry_s=self._retry_s
                )
            self.activity = f"the next try, every {self._retry_s} s"
            self._is_failed = True
            if self._stopping.wait(self._retry_s):
                return ReplicaEnd.STOPPED
            self._is_failed = False

    def _run(self) -> ReplicaEnd:
        """Runs the applier until it cannot go on, and again where a server was away."""
        retries, executed, last = 0, -1, ""
        while True:
            try:
                return self._live()
            except TransientFailure as error:
                if self._stopping.is_set():
                    return ReplicaEnd.STOPPED
                # Failures with progress between them are not one after the other.
                before, executed = executed, self._executed_total()
                retries = 1 if executed > before else retries + 1
                retries_max = self._options.transaction_retries
                if error.kind in OF_ROWS:
                    retries_max = min(retries_max, 1)
                elif error.kind == TABLE_CHANGED:
                    # The first time nothing has failed; what another look does not mend never ends.
                    retries_max = 0 if str(error) == last and retries > 1 else max(retries_max, 1)
                last = str(error)
                if retries > retries_max:
                    if self.applier is None:
                        raise
                    raise _apply_failed(error, self.applier.status()) from error
                log.warning("target_failed", replica=self.name, text=str(error), retry=retries)
                self._stopping.wait(min(0.1 * 2 ** min(retries, 6), RETRY_PAUSE_SECONDS_MAX))

    def stop(self) -> None:
        """Takes nothing more from the source; `run` returns when assigned transactions are done."""
        self._stopping.set()
        self._sources.stop()

    @property
    def is_starting(self) -> bool:
        """True before there is an applier, or an error that kept one from being there."""
        return self.applier is None and self._left is None

    def status(self) -> ApplierStatus:
        """Returns the applier's status; there is one unless it `is_starting`."""
        assert not self.is_starting, "the replica is starting"
        if self.applier is None:
            return ApplierStatus(state=ApplierState.FAILED, failure=self._left)
        status = self.applier.status()
        if self._is_failed:
            status = replace(status, state=ApplierState.FAILED, hold=None)
        return replace(status, failure=status.failure or self._left)

    def lag(self, status: ApplierStatus, now_us: int) -> tuple[float, int]:
        """Returns the age of the newest state that the target shows whole, in seconds, and how many
        transactions of the source it lacks. WL#5569's Seconds_behind_master: 0 if none. At the
        beginning of a source's transactions that is the age of the first that it lacks, until one
        of them is committed.
        """
        newest = status.low_water_mark
        behind = max(0, self.source_version - status.checkpoint.gtid_executed.count())
        committed_us = newest.header.committed_us if newest else 0
        committed_us = committed_us or self._first_committed_us
        if not behind or not committed_us:
            return 0.0, behind
        return max(0.0, (now_us - committed_us) / 1e6), behind

    def _executed_total(self) -> int:
        return self.applier.status().checkpoint.gtid_executed.count() if self.applier else -1

    def _live(self) -> ReplicaEnd:
        """Runs the applier once."""
        self._failed.clear()
        self._error = None
        with self._noting(Stage.OPENING):
            target = self._opened()
        if target is None:
            return ReplicaEnd.STOPPED
        try:
            checkpoint = target.checkpoint() or Checkpoint()
            _check_scheme(checkpoint, self._options.scheme)
            # From here on, gaps are this scheme's: it says so before the first of them.
            target.save(replace(checkpoint, scheme=self._options.scheme))
            self.scheme = self._make_scheme()
            applier = self.applier = Applier(
                target,
                self.scheme,
                self._workers,
                on_committed=lambda version, position: None,
                on_error=self._note_error,
                options=self._options,
            )
            try:
                self._received = checkpoint.gtid_executed.copy()
                self._position = max(checkpoint.position, 0)
                self._first_committed_us = 0
                self._until = self._make_until(checkpoint)
                self._say_recovery(checkpoint)
                if self._left:
                    applier.note(self._left)
                    self._left = None
                with self._noting(Stage.READING), _Appending(applier) as self._appending:
                    self._feed(applier)
                return self._end(applier)
            finally:
                # After an error the applier still runs; otherwise `_end` has stopped it.
                applier.stop(0)
        finally:
            target.close()

    def _opened(self) -> Target[Any] | None:
        """Opens the target, with the tables as its source has them: waits for a source that does
        not answer, as for one that is lost later. Returns None at a stop.
        """
        while not self._stopping.is_set():
            try:
                return self._open_target()
            except SourceLost as error:
                self.activity = "connecting to its source"
                log.warning("source_unavailable", source=error.source, text=str(error))
            self._stopping.wait(PAUSE_SECONDS)
        return None

    @contextmanager
    def _noting(self, stage: Stage) -> Iterator[None]:
        """Notes an error of the block, which is no worker's."""
        try:
            yield
        except GroupcertError as error:
            noted = replace(LastError.of(stage, error), received=self._received.count())
            self._note(noted, None if stage is Stage.OPENING else self.applier)
            raise

    def _note(self, error: LastError, applier: Applier[Any] | None) -> None:
        """Keeps an error in the target, or until the next one is opened."""
        self._left = error
        if applier is None:
            return
        try:
            applier.note(error)
        except Exception as failure:  # Whatever it is, `error` is what ends this run.
            log.warning("last_error_not_kept", replica=self.name, text=str(failure))
        else:
            self._left = None

    def _say_recovery(self, checkpoint: Checkpoint) -> None:
        executed, missing = checkpoint.gtid_executed, checkpoint.missing
        self.recovery = (
            f"{executed.count()} transactions were executed before"
            f", {missing} older ones are missing and come first"
            f", {len(checkpoint.parts)} are executed in part"
        )
        log.info(
            "replica_started",
            replica=self.name,
            executed=str(executed),
            missing=missing,
            in_part=len(checkpoint.parts),
            workers=self._workers,
        )

    def _feed(self, applier: Applier[Any]) -> None:
        """Passes entries to the applier until the end, or until it fails."""
        if self._is_over():
            return
        self.activity = "connecting to its source"
        for news in self._sources.follow(self._received, lambda: self._position + 1):
            self.source_version = max(self.source_version, news.source_version)
            self.activity = f"{'waiting for' if news.source else 'connecting to'} its source"
            for chunk in self._due(news):
                self._hand_on(applier, chunk)
            if self._is_over():
                return

    def _due(self, news: SourceNews) -> Iterator[Sequence[RelayEntry]]:
        """Yields the entries that the replica is to execute, in chunks, each when it is due."""
        chunk: list[RelayEntry] = []
        size = 0
        for entry in news.entries:
            if self._until and not self._until.admits(entry):
                break
            if not (entry.header.committed_us and self._first_committed_us):
                self._first_committed_us = entry.header.committed_us  # A rotation's is 0.
            due_us = entry.header.committed_us + self._delay_us
            if self._delay_us and due_us > now_us():
                # What is due goes before the wait.
                yield chunk
                chunk, size = [], 0
                self._wait_until(due_us)
            if self._stopping.is_set():
                return
            if entry.gtid and entry.gtid in self._skipped:
                # It counts as executed, without its changes: the operator has seen to them.
                log.warning("transaction_skipped", replica=self.name, gtid=str(entry.gtid))
                self._skipped_met.add(entry.gtid)
                self.skipped = self._skipped_met.count()
                entry = entry._replace(payload=skipped(entry.payload))
            if has_statements(entry.payload):
                # Without workers a chunk is a job, and no statement shares one.
                yield chunk
                yield [entry]
                chunk, size = [], 0
                continue
            chunk.append(entry)
            size += len(entry.payload)
            if len(chunk) >= CHUNK_TRANSACTIONS or size >= CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
        yield chunk

    def _wait_until(self, due_us: int) -> None:
        self.activity = f"delaying by {self._delay_us // 1_000_000} s"
        while (wait_us := due_us - now_us()) > 0 and not self._is_over():
            self._stopping.wait(min(wait_us / 1e6, WAKE_SECONDS))

    def _hand_on(self, applier: Applier[Any], chunk: Sequence[RelayEntry]) -> None:
        """Passes a chunk to the applier once there is room for it."""
        if not chunk:
            return
        # A chunk that is larger than the limit goes when nothing else is pending.
        bytes_left = max(1, self._bytes_max - sum([len(entry.payload) for entry in chunk]))
        while not applier.wait_for_room(self._queue_max, bytes_left, WAKE_SECONDS):
            self.activity = "waiting for room in its queue"
            if self._stopping.is_set() or self._failed.is_set():
                return
        # Only what the applier gets counts as received: after a stop the rest is asked for again.
        for entry in chunk:
            if entry.gtid:
                self._received.add(entry.gtid)
        self._position = chunk[-1].position
        self._appending.append(chunk)

    def _is_over(self) -> bool:
        is_met = self._until is not None and self._until.is_met
        return is_met or self._failed.is_set() or self._stopping.is_set()

    def _end(self, applier: Applier[Any]) -> ReplicaEnd:
        """Finishes entries passed on: all of them after a condition, assigned ones at a stop."""
        self.activity = "stopping"
        if not self._stopping.is_set():
            while not applier.drain(WAKE_SECONDS):
                if self._stopping.is_set() or self._failed.is_set():
                    break
        finished = applier.stop(STOP_SECONDS)
        status = applier.status()
        if status.state is ApplierState.FAILED:
            self._note_failure(applier, status)
            if isinstance(self._error, TransientFailure):
                raise self._error
            raise _apply_failed(self._error, status) from self._error
        if not finished:
            log.warning(
                "replica_stopped_with_gaps",
                replica=self.name,
                unfinished=status.assigned,
                next_step="start it again: it fills the gaps first",
            )
        end = ReplicaEnd.STOPPED if self._stopping.is_set() else ReplicaEnd.UNTIL
        log.info(
            "replica_ended",
            replica=self.name,
            end=end.value,
            committed=status.committed_total,
            skipped=self.skipped,
            executed=str(status.checkpoint.gtid_executed),
        )
        return end

    def _note_failure(self, applier: Applier[Any], status: ApplierStatus) -> None:
        """Keeps the error of a worker; one that is lost with its server until there is one."""
        kind = self._error.kind if isinstance(self._error, TransientFailure) else ""
        if status.failure and kind != TABLE_CHANGED:
            self._note(status.failure, None if kind == "connection_lost" else applier)

    def _note_error(self, error: Exception) -> None:
        """Notes an error, on the thread that failed."""
        self._error = error
        self._failed.set()


class _Appending:
    """Appends chunks to an applier on a thread of its own: one without workers executes them there,
    and while its target does, the next ones are translated. A block; its end waits for what it was
    given, and raises what the thread did.
    """

    def __init__(self, applier: Applier[Any]) -> None:
        self._applier = applier
        # One chunk is executed, one waits, one is translated: more would only be more to hold.
        self._chunks: Queue[Sequence[RelayEntry] | None] = Queue(maxsize=1)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="appending", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._chunks.put(None)
        self._thread.join()
        if self._error:
            raise self._error

    def append(self, chunk: Sequence[RelayEntry]) -> None:
        """Takes the next chunk once the one before the last is appended."""
        if self._error:
            raise self._error
        self._applier.translate(chunk)
        self._chunks.put(chunk)

    def _run(self) -> None:
        # After an error, too, it takes what comes: nobody is to wait for it.
        while chunk := self._chunks.get():
            try:
                if not self._error:
                    self._applier.append(chunk)
            except Exception as error:
                self._error = error


def _check_scheme(checkpoint: Checkpoint, scheme: str) -> None:
    """Raises InvalidSetting if the target has gaps left by another scheme: only that scheme knows
    which transactions may fill them.
    """
    missing = checkpoint.missing
    if scheme != checkpoint.scheme and (missing or checkpoint.parts):
        raise InvalidSetting(
            name="scheme",
            value=scheme,
            expected=(
                f"{checkpoint.scheme}, which left {missing} transactions missing and "
                f"{len(checkpoint.parts)} executed in part: run it with the same workers and "
                "--until-after-gaps first"
            ),
        )


def _apply_failed(error: Exception | None, status: ApplierStatus) -> ApplyFailed:
    """Returns the error that ends a replica when a worker could not go on."""
    return ApplyFailed(
        worker=status.failure.worker if status.failure else 0,
        gtid=status.failure.gtid if status.failure else "",
        cause=f"{type(error).__name__}: {error}",
        gaps=str(status.checkpoint.gtid_executed) if status.has_gaps else "",
    )


def now_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1_000
