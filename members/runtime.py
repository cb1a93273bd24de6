"""The driver of a member: reads the log, writes the store, answers those who wait.

The rule it keeps: a message of the log is certified and handed to the applier before the
next one is looked at; a client is answered when its transaction is read back and committed here.
All of it runs on one event loop; the applier's workers and the flusher have threads of their own.
"""

import asyncio
import json
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from applier.applier import Applier, ApplierOptions
from applier.checkpoint import Checkpoint, DurabilityFlusher
from applier.relay_queue import RelayEntry, RelayQueue
from applier.schemes.logical_clock import LogicalClock
from applier.targets.rocksdb import RocksDbTarget
from certifier.errors import (
    CorruptLog,
    DiskFull,
    Fenced,
    GroupcertError,
    NotServing,
    Overloaded,
)
from certifier.store import CertificationInfoStore, Family, Store, StoreIdentity
from members.binary_log import BinaryLog
from members.commit_clock import CommitClock
from members.commit_wait import CommitWait
from members.config import MemberConfig
from members.convert import decode_batch, decode_changes
from members.history import save_decisions
from members.log_records import GroupSettings, LoggedTransaction
from members.member import Delivered, Member, MemberState
from members.options import binary_log_options, member_options
from members.outcome_log import OutcomeLog
from members.publisher import Submission
from members.sender import Sender
from members.snapshots import Snapshots
from members.stages import StageTimes
from members.total_order import (
    Delivery,
    LogIdentity,
    TotalOrder,
    check_reaches,
    check_same_log,
)

MEMBER_KEY = b"member"
LOG_IDENTITY_KEY = b"log"
TICK_SECONDS = 0.05
JOB_TRANSACTIONS_MAX = 64
"""Waking a worker costs as much as a few executions on the embedded store."""
STOP_SECONDS = 10.0
FLUSH_PERIOD_MS = 200
"""Between two flushes of the store. No client waits for them, as the log has its commit on disk;
only collections follow them, and more of them slow down the log server's own."""
UNSAVED_MAX = 4_096
UNSAVED_BYTES_MAX = 4 << 20
"""Relay entries, and bytes of messages, that a member has delivered and not stored."""
WAITING_MAX = 65_536
"""Transactions that may wait for the log at a member before it refuses more."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class MemberRuntime:
    """One member, from its data folder and its log to answers.

    `member` is the mind that decides; everything here waits, writes and sends for it.
    """

    def __init__(
        self, config: MemberConfig, order: TotalOrder, on_state: Callable[[MemberState], None]
    ) -> None:
        self.config = config
        self.order = order
        self.member = Member(member_options(config), record_history=config.record_history)
        self.closed = self.log_opened = False
        self.log_durable: bool | None = None
        self.log_replicas = 0
        self.committed_version = 0
        self.committed_position = -1
        self.durable_version = 0
        self._on_state = on_state
        self._shown_state: MemberState | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.stages = StageTimes()
        self._sender = Sender(self.member.publisher, order, linger_ms=config.batch_linger_ms)
        self._commit_noted = False
        self._commit_wait = CommitWait(
            config.binlog_commit_wait_count, config.binlog_commit_wait_usec
        )
        self._commit_timer: asyncio.TimerHandle | None = None
        self._news: asyncio.Future[None] | None = None
        self._room = asyncio.Event()
        self._visible = CommitClock()
        self._everywhere = CommitClock()
        self._is_whole = True
        self._unsaved = Delivered()
        self._unsaved_bytes = 0
        self._saved_log_sequence = 0
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._open_store()

    async def run(self) -> None:
        """Serves until cancelled; a member that fences itself goes on answering reads.

        Raises:
            DiskFull: The store must be opened again once there is space.
            LogServerUnavailable, LogServerTooOld, InvalidSetting: The log cannot be used.
        """
        ticker = asyncio.create_task(self._tick())
        reader = asyncio.create_task(self._read_log())
        try:
            await asyncio.wait((reader, ticker, self._failure), return_when=asyncio.FIRST_COMPLETED)
            for ended in (self._failure, reader, ticker):
                if ended.done():
                    ended.result()
        except (Fenced, CorruptLog) as error:
            self._fence(error)
            await asyncio.Event().wait()
        finally:
            for task in (reader, ticker):
                task.cancel()
                with suppress(asyncio.CancelledError, GroupcertError):
                    await task

    async def leave(self, timeout_s: float) -> None:
        """Leaves the view, if the log takes that within the time, and stops serving."""
        if self.member.state is MemberState.ONLINE:
            self.member.leave()
            self._sender.schedule()
            deadline = time.monotonic() + timeout_s
            while self.member.view.member(self.member.me.incarnation):
                if time.monotonic() > deadline or self.member.state is not MemberState.ONLINE:
                    break
                await asyncio.sleep(0.01)
        self.stop_serving(MemberState.LEFT, "stopped by its operator")

    def stop_serving(self, state: MemberState, reason: str) -> None:
        """Takes no more transactions, and lets nobody wait any longer."""
        self.member.fail(state, reason)
        self._show_state()
        self._end_waiting()

    def close(self) -> None:
        """Stops the applier and releases the store; what was written is on disk at return."""
        self.closed, self.log_opened = True, False
        self._tell_news()
        self.applier.stop(STOP_SECONDS)
        with suppress(DiskFull):
            self.save()
        self.flusher.stop(STOP_SECONDS)
        self.snapshots.close_all()
        with suppress(DiskFull):
            self.store.close()

    def save(self) -> None:
        """Stores the mind as it is now, with what the applier has not committed yet, in one write.

        The log has all of it, so it need not happen at once. What is committed before it is saved
        is skipped when a restarted member reads it again; what is saved first waits in the relay
        queue. A mind that failed in the midst of a message is not stored: it is read again.
        """
        if not self._is_whole:
            return
        unsaved, self._unsaved, self._unsaved_bytes = self._unsaved, Delivered(), 0
        self._saved_log_sequence = self.member.log_sequence
        batch = self.store.batch()
        applied = self.applier.status().checkpoint.position
        waiting = [entry for entry in unsaved.entries if entry.position > applied]
        self.relay_queue.append(batch, waiting)
        self._info_store_of_now().save(batch)
        self._outcome_log.save(batch, self.member.outcomes)
        if unsaved.certified:
            save_decisions(batch, unsaved.certified)
        batch.put(Family.META, MEMBER_KEY, json.dumps(self.member.checkpoint()).encode())
        self.store.write(batch)

    def submit(self, transactions: Sequence[LoggedTransaction]) -> "asyncio.Future[Submission]":
        """Orders transactions; done when they are decided and what passed is committed here.

        With none, it is done when all that the log held at the time of the call is committed here.

        Raises:
            NotServing: The member is not ONLINE; from the future, it stopped being so, and the
                outcome is unknown.
            Overloaded: Too many wait already; nothing was ordered.
        """
        if self.member.state is not MemberState.ONLINE:
            raise self._not_serving()
        publisher = self.member.publisher
        if publisher.waiting + len(transactions) > WAITING_MAX:
            raise Overloaded(waiting=publisher.waiting, waiting_max=WAITING_MAX)
        future: asyncio.Future[Submission] = self._loop.create_future()

        def done(ended: Submission) -> None:
            if future.done():
                return
            if not ended.log_sequence:
                future.set_exception(self._not_serving())
            else:
                future.set_result(ended)

        submission = Submission(transactions, done)
        submission.taken_seconds = time.perf_counter()
        if self.binary_log:
            submission.locked_since = self.binary_log.end_statement()
        publisher.submit(submission)
        self._sender.schedule()
        return future

    async def applied_everywhere(self, version: int) -> None:
        """Returns when every member of the view has reported that `version` is visible there.

        Raises NotServing if this one stops serving before.
        """
        await self._reached(self._everywhere, version)

    async def committed(self, version: int) -> None:
        """Returns when `version` is visible here; NotServing if the member stops before."""
        await self._reached(self._visible, version)

    async def news(self, timeout_s: float) -> None:
        """Returns when something is committed here, when the member closes, or after the time."""
        self._news = self._news or self._loop.create_future()
        await asyncio.wait((self._news,), timeout=timeout_s)

    def _tell_news(self) -> None:
        if self._news is not None:
            self._news.set_result(None)
            self._news = None

    def now_ms(self) -> int:
        """Milliseconds of a clock that never goes back."""
        return int(self._loop.time() * 1000)

    async def _reached(self, clock: CommitClock, version: int) -> None:
        if clock.version < version:
            future: asyncio.Future[None] = self._loop.create_future()
            clock.wait(version, lambda: _wake(future))
            await future
            if clock.version < version:
                raise self._not_serving()

    def _not_serving(self) -> NotServing:
        return NotServing(member=self.member.me.name, state=self.member.state.name)

    def _open_store(self) -> None:
        config = self.config
        self.store = Store(
            config.data_folder, StoreIdentity(group=config.group, member=config.member)
        )
        self.relay_queue = RelayQueue(self.store, bytes_max=config.relay_queue_bytes_max)
        self.binary_log: BinaryLog | None = None
        if config.binary_log:
            rows = RocksDbTarget(self.store, decode_changes).checkpoint() or Checkpoint()
            self.binary_log = BinaryLog(self.store, rows, binary_log_options(config))
        self.target = RocksDbTarget(
            self.store,
            decode_changes,
            self.relay_queue,
            record_history=config.record_history,
            on_commit=self.binary_log.append if self.binary_log else None,
        )
        self.flusher = DurabilityFlusher(
            self.store, self._on_durable, self._on_error, period_ms=FLUSH_PERIOD_MS
        )
        self.applier = Applier(
            self.target,
            LogicalClock(job_transactions_max=JOB_TRANSACTIONS_MAX),
            config.applier_workers,
            on_committed=self._on_committed,
            on_error=self._on_error,
            options=ApplierOptions(workers_hold_jobs=False),
        )
        self.snapshots = Snapshots(
            self.target.open_snapshot,
            lease_ms=config.snapshot_lease_ms,
            snapshots_max=config.snapshots_max,
            hold_versions=config.snapshot_hold_versions,
            first_id=secrets.randbits(62),
        )
        self._load()

    def _load(self) -> None:
        """Brings the mind to where the store is, and the applier to what it had not done."""
        saved = self.store.get(Family.META, MEMBER_KEY)
        if saved is not None:
            self.member.restore(json.loads(saved))
        self._info_store = CertificationInfoStore(self.store, self.member.certifier)
        self._info_store.load()
        checkpoint = self.target.checkpoint()
        if checkpoint is not None:
            self.committed_version = self.durable_version = checkpoint.version
            self.committed_position = checkpoint.position
            self._visible.advance(checkpoint.version)
            self.member.committed(checkpoint.version)
        self._outcome_log = OutcomeLog(self.store)
        self.member.outcomes = self._outcome_log.load(self.member.settings.outcomes_max)
        self.applier.recover(self.relay_queue.load())

    async def _read_log(self) -> None:
        state = await self.order.open(create=self.config.create_log)
        self.log_opened = True
        self.log_durable, self.log_replicas = state.durable, state.replicas
        self._check_identity(state.identity)
        check_reaches(state, self.member.log_sequence + 1)
        if self.log_durable is not True:
            log.warning("log_not_known_durable", member=self.config.member, durable=state.durable)
        target = state.last_sequence
        if self.member.log_sequence >= target:
            self.member.caught_up()
            self._sender.schedule()
        async for deliveries in self.order.read(self.member.log_sequence + 1):
            self._deliver(deliveries)
            if target and self.member.log_sequence >= target:
                target = 0
                self.member.caught_up()
            self._sender.schedule()
            while self.relay_queue.is_full:
                self._room.clear()
                await self._room.wait()

    def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Certifies messages; what follows from them is handed on, though one of them may fail."""
        delivered = Delivered()
        self._is_whole = False
        try:
            for sequence, payload in deliveries:
                self.member.deliver(sequence, decode_batch(sequence, payload), delivered)
                self._unsaved_bytes += len(payload)
            self._is_whole = True
        finally:
            self._hand_on(delivered)

    def _hand_on(self, delivered: Delivered) -> None:
        """Gives what follows from messages to the applier and to those who wait."""
        self._append(self._commit_wait.add(delivered.entries, self._now_us()))
        for submission in delivered.ended:
            self._end(submission)
        self._unsaved.absorb(delivered)
        if self._unsaved_bytes > UNSAVED_BYTES_MAX or len(self._unsaved.entries) > UNSAVED_MAX:
            self.save()
        if self.member.state is not self._shown_state:
            self._show_state()
            if self.member.state is MemberState.ERROR:
                self._end_waiting()
        self._everywhere.advance(self.member.applied_everywhere_version)

    def _append(self, entries: Sequence[RelayEntry]) -> None:
        """Hands entries to the applier, and has those that wait for company go in time."""
        if entries:
            self.applier.append(entries)
        deadline_us = self._commit_wait.deadline_us
        if deadline_us is not None and self._commit_timer is None:
            delay_seconds = (deadline_us - self._now_us()) / 1e6
            self._commit_timer = self._loop.call_later(delay_seconds, self._end_commit_wait)

    def _end_commit_wait(self) -> None:
        """The time is up of what waited when the timer was set; what waits now may have more."""
        self._commit_timer = None
        if self.closed:
            return
        deadline_us = self._commit_wait.deadline_us
        due = deadline_us is not None and deadline_us <= self._now_us()
        self._append(self._commit_wait.release() if due else ())

    def _now_us(self) -> int:
        return int(self._loop.time() * 1e6)

    def _end(self, submission: Submission) -> None:
        """Answers a decided submission once what passed of it is visible here."""
        decided = time.perf_counter()
        sent = self._sender.sent_at(submission.batch_number) or decided
        self.stages.add("queued", max(sent - submission.taken_seconds, 0.0))
        self.stages.add("ordered", decided - sent)

        def visible() -> None:
            self.stages.add("committed", time.perf_counter() - decided)
            submission.done(submission)

        self._visible.wait(submission.version, visible)

    def _end_waiting(self) -> None:
        """Ends every wait. What became of a submission that is not decided is not known here; one
        that is decided is told so, though its rows are not visible here yet.
        """
        for submission in self.member.publisher.abandon():
            submission.done(submission)
        self._visible.end()
        self._everywhere.end()

    def _info_store_of_now(self) -> CertificationInfoStore:
        """The certifier's place in the store; the group's first settings make a new certifier."""
        if self._info_store.certifier is not self.member.certifier:
            self._info_store = CertificationInfoStore(self.store, self.member.certifier)
        return self._info_store

    def _check_identity(self, identity: LogIdentity) -> None:
        """Reads on only in the log that this store was made from."""
        saved = self.store.get(Family.META, LOG_IDENTITY_KEY)
        if saved is not None:
            check_same_log(LogIdentity(**json.loads(saved)), identity)
            return
        batch = self.store.batch()
        mine = {"name": identity.name, "created": identity.created}
        batch.put(Family.META, LOG_IDENTITY_KEY, json.dumps(mine).encode())
        self.store.write(batch)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.snapshots.expire(self.now_ms())
            if self._saved_log_sequence != self.member.log_sequence:
                self.save()
            self._report()

    def _report(self) -> None:
        stable = self.snapshots.stable_version(self.durable_version)
        if self.member.report_if_due(self.now_ms(), stable):
            self._sender.schedule()

    def _on_committed(self, version: int, position: int) -> None:
        """From the applier, on any of its threads."""
        self.committed_version, self.committed_position = version, position
        if threading.get_ident() == self._thread:
            self._note_committed()
        elif not self._commit_noted:
            self._commit_noted = True
            self._loop.call_soon_threadsafe(self._note_committed)

    def _note_committed(self) -> None:
        self._commit_noted = False
        version = self.committed_version
        self.member.committed(version)
        self.flusher.request(version)
        self._visible.advance(version)
        self._tell_news()
        self._room.set()
        self._report()

    def _on_durable(self, version: int) -> None:
        """From the flusher's thread."""
        self.durable_version = version

    def _on_error(self, error: Exception) -> None:
        """From any thread: the applier or the flusher can not go on."""
        self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def _fence(self, error: GroupcertError) -> None:
        log.error("member_fenced", member=self.config.member, reason=error.reason, text=str(error))
        self.stop_serving(MemberState.FENCED, f"{error.reason}: {error}")

    def _show_state(self) -> None:
        if self.member.state is not self._shown_state:
            self._shown_state = self.member.state
            log.info(
                "member_state",
                member=self.config.member,
                state=self.member.state.name,
                view=self.member.view.view_id,
                reason=self.member.reason,
            )
            self._on_state(self.member.state)
            if self.member.state is MemberState.ONLINE:
                self._warn_of_settings()

    def _warn_of_settings(self) -> None:
        """Says where this member was configured otherwise than the group that it has joined."""
        mine, groups = self.member.options.settings, self.member.settings
        for name in GroupSettings._fields:
            if getattr(mine, name) != getattr(groups, name):
                log.warning(
                    "group_setting_differs",
                    member=self.config.member,
                    setting=name,
                    configured=getattr(mine, name),
                    used=getattr(groups, name),
                )


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
