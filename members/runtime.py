"""The driver of a member: reads the log, writes the store, answers those who wait.

The rule it keeps: a message of the log is certified and handed to the applier before the
next one is looked at; a client is answered when its transaction is read back and committed here.
All of it runs on one event loop; the applier's workers and the flusher have threads of their own.
"""

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain
from pathlib import Path

import structlog

from applier.applier import Applier, ApplierOptions
from applier.checkpoint import Checkpoint, DurabilityFlusher
from applier.relay_queue import RelayQueue
from applier.schemes.logical_clock import LogicalClock
from applier.targets.rocksdb import RocksDbTarget, is_large
from certifier.errors import CorruptLog, Fenced, GroupcertError, LogGap
from certifier.history import Cursor
from certifier.store import Store, StoreIdentity
from members.admission import check_admitted, why_not
from members.appender import Appender
from members.binary_log import BinaryLog
from members.commit_wait import CommitWait
from members.config import MemberConfig
from members.convert import decode_changes
from members.endings import LOG_STOP_SECONDS, STOP_SECONDS, rank, unless_full
from members.fragment_store import FragmentStore
from members.join import Applied, start_joining
from members.log_records import LoggedTransaction
from members.log_start import check_log
from members.member import Member
from members.member_state import Delivered, MemberState
from members.membership_errors import OutOfGroup, StillFenced
from members.mind_store import MindStore
from members.options import binary_log_options, decisions_of, member_options, writer_of
from members.publisher import Submission
from members.recovery_choice import RecoveryProgress, why_gap
from members.rows_maker import RowsMaker
from members.sender import Sender
from members.skips import deliver_in_steps, deliver_readable, tell_skipped
from members.snapshots import Snapshots
from members.stages import StageTimes
from members.state_log import StateLog
from members.total_order import Delivery, LogIdentity, LogState, TotalOrder
from members.turns import Turns
from members.uploads import Uploads
from members.waiters import Waiters

TICK_SECONDS = 0.05
JOB_TRANSACTIONS_MAX = 64
"""Waking a worker costs as much as a few executions on the embedded store."""
FLUSH_PERIOD_MS = 200
"""Between two flushes of the store. No client waits for them, as the log has its commit on disk;
only collections follow them, and more of them slow down the log server's own."""
UNSAVED_MAX = 2_048
UNSAVED_BYTES_MAX = 4 << 20
"""Relay entries, and bytes of messages, that a member has delivered and not stored: to store so
many takes 20 ms, and more often would cost streams a tenth."""
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
        self.member = Member(member_options(config), decisions_of(config))
        self.closed = self.refuses_reads = self.log_opened = False
        self.trusts_log = self.next_trusts_log = self.vouches_for_log = False
        self.log_durable: bool | None = None
        self.log_identity: LogIdentity | None = None
        self.log_replicas = self.committed_version = self.durable_version = 0
        self.recovery: RecoveryProgress | None = None
        self.committed_position = -1
        self._state_log = StateLog(self.member, on_state)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.stages = StageTimes()
        self._sender = Sender(self.member, order, self.give_up, linger_ms=config.batch_linger_ms)
        why = partial(why_not, self.member, ordered="nothing")
        self.uploads = Uploads(self.member, self._sender.schedule, why, config)
        self._commit_noted = False
        self._joining: list[asyncio.Task[None]] = []
        self._room = asyncio.Event()
        self._waiters = Waiters(self.member)
        self.is_whole = False
        self._unsaved = Delivered()
        self._unsaved_bytes = self._saved_log_sequence = 0
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self.begun_again: asyncio.Future[None] = self._loop.create_future()
        self.discards_state = False
        with ExitStack() as opened:
            self._open_store(opened)
            self._load()
            self._opened = opened.pop_all()

    async def run(self) -> None:
        """Serves until cancelled, or until an operator has the member begin anew. Reads go on after
        it, until the runtime is closed.

        Raises:
            DiskFull: The store must be opened again once there is space.
            Fenced, CorruptLog: Going on could make members differ; so it is after a restart.
            OutOfGroup: The group goes on without this member.
            LogServerUnavailable, LogServerTooOld, InvalidSetting: The log cannot be used.
        """
        ticker = asyncio.create_task(self._tick())
        reader = asyncio.create_task(self._read_log())
        ends = (self._failure, self.begun_again, reader, ticker)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for ended in sorted((each for each in ends if each.done()), key=rank):
                ended.result()
        except (Fenced, CorruptLog) as error:
            self.fence(error)
            raise
        finally:
            tasks = (reader, ticker, *self._joining)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def begin_again(self, *, discard_state: bool = False, trust_log: bool = False) -> None:
        """Has this life end and another one begin, once; what fenced the member counts as mended.

        Args:
            discard_state: The next life shall begin with an empty store.
            trust_log: It shall join without asking others how far they have read.
        """
        self.discards_state = self.discards_state or discard_state
        self.next_trusts_log = self.next_trusts_log or trust_log
        if not self.begun_again.done():
            if not self.closed and not discard_state:  # Else it goes with the state.
                self._minds.clear_fence()
            self.begun_again.set_result(None)

    @property
    def discarded_path(self) -> Path:
        """Where the store goes if it is discarded."""
        return self.store.path / f"discarded-{self.member.me.incarnation:016x}"

    def send(self) -> None:
        """Has what the member wants in the log sent, once that is open."""
        if self.log_opened:
            self._sender.schedule()

    def stop_serving(self, state: MemberState, reason: str) -> None:
        """Takes no more transactions, and lets nobody wait any longer. A fence stays, and who has
        left is not in error.
        """
        left = self.member.state is MemberState.LEFT and state is MemberState.ERROR
        if self.member.state is not MemberState.FENCED and not left:
            self.member.fail(state, reason)
        self._state_log.note()
        self._end_waiting()

    def close(self) -> None:
        """Stops the applier and releases the store; what was written is on disk at return."""
        self.closed, self.log_opened = True, False
        self._appender.close()
        self._waiters.tell_news()
        self._end_waiting()
        self._opened.close()

    def save(self) -> None:
        """Stores the mind as it is now. One that failed in the midst of a message, or is not loaded
        yet, is not stored: the message is read again.
        """
        if not self.is_whole:
            return
        unsaved, self._unsaved, self._unsaved_bytes = self._unsaved, Delivered(), 0
        self._minds.save(self.member, unsaved, self.applier.status().checkpoint.position)
        self._saved_log_sequence = self.member.log_sequence

    def submit(self, transactions: Sequence[LoggedTransaction]) -> "asyncio.Future[Submission]":
        """Orders transactions; done when they are decided and what passed is committed here.

        With none, it is done when all that the log held at the time of the call is committed here.

        Raises:
            NotServing: The member is not ONLINE; from the future, it stopped being so, and the
                outcome is unknown.
            NotPrimary: Another member is the one that takes transactions; nothing was kept.
            Overloaded: Too many wait already; nothing was ordered.
        """
        check_admitted(self.member, transactions)
        future: asyncio.Future[Submission] = self._loop.create_future()

        def done(ended: Submission) -> None:
            if future.done():
                return
            if not ended.log_sequence or self.member.state is MemberState.FENCED:
                future.set_exception(why_not(self.member))
            else:
                future.set_result(ended)

        submission = Submission(transactions, done)
        submission.taken_seconds = time.perf_counter()
        if self.binary_log:
            submission.locked_since = self.binary_log.end_statement()
        self.member.publisher.submit(submission)
        self._sender.schedule()
        return future

    async def applied_everywhere(self, version: int) -> None:
        """Returns when every member of the view has reported that `version` is visible there.

        Raises NotServing if this one stops serving before.
        """
        await self._waiters.reached(self._waiters.everywhere, version)

    async def committed(self, version: int) -> None:
        """Returns when `version` is visible here; NotServing if the member stops before."""
        await self._waiters.reached(self._waiters.visible, version)

    async def news(self, timeout_s: float) -> None:
        """Returns when something is committed here, when the member closes, or after the time."""
        await self._waiters.news(timeout_s)

    def now_ms(self) -> int:
        """Milliseconds of a clock that never goes back."""
        return int(self._loop.time() * 1000)

    def _open_store(self, opened: ExitStack) -> None:
        """Makes what works on the store; `opened` releases it, whoever fails."""
        config = self.config
        self.store = Store(
            config.data_folder, StoreIdentity(group=config.group, member=config.member)
        )
        opened.callback(unless_full, self.store.close)
        self.history_writer = writer_of(
            config, self.store, lambda: self.committed_version, self._on_written, self.give_up
        )
        if self.history_writer:
            opened.callback(self.history_writer.stop, LOG_STOP_SECONDS)
        self.relay_queue = RelayQueue(self.store, bytes_max=config.relay_queue_bytes_max)
        self.binary_log: BinaryLog | None = None
        if config.binary_log:
            rows = RocksDbTarget(self.store, decode_changes).checkpoint() or Checkpoint()
            self.binary_log = BinaryLog(self.store, rows, binary_log_options(config))
        self.fragments = fragments = FragmentStore(self.store)
        self.rows_maker = RowsMaker(self.store, fragments)
        self.target = RocksDbTarget(
            self.store,
            decode_changes,
            self.relay_queue,
            record_history=self.member.decisions.is_on,
            on_commit=self.binary_log.append if self.binary_log else fragments.discard,
            decode_large=fragments.rows,
            make_files=self.rows_maker.make,
        )
        opened.callback(self.target.close)
        opened.callback(self.rows_maker.stop)
        self.snapshots = Snapshots(
            self.target.open_snapshot,
            lease_ms=config.snapshot_lease_ms,
            snapshots_max=config.snapshots_max,
            hold_versions=config.snapshot_hold_versions,
            first_id=secrets.randbits(62),
        )
        opened.callback(self.snapshots.close_all)
        self.flusher = DurabilityFlusher(
            self.store, self._on_durable, self.give_up, period_ms=FLUSH_PERIOD_MS
        )
        opened.callback(self.flusher.stop, STOP_SECONDS)
        opened.callback(unless_full, self.save)
        self.applier = Applier(
            self.target,
            LogicalClock(job_transactions_max=JOB_TRANSACTIONS_MAX),
            config.applier_workers,
            on_committed=self._on_committed,
            on_error=self.give_up,
            options=ApplierOptions(workers_hold_jobs=False, is_slow=is_large),
        )
        opened.callback(self.applier.stop, STOP_SECONDS)
        wait = CommitWait(config.binlog_commit_wait_count, config.binlog_commit_wait_usec)
        self._appender = Appender(wait, self.applier.append, self.give_up)

    def _load(self) -> None:
        """Brings the mind to where the store is, and the applier to what it had not done."""
        writer = self.history_writer
        outbox = writer.outbox if writer else None
        self._minds = MindStore(self.store, self.relay_queue, outbox)
        self._minds.load(self.member)
        self.log_identity, self.vouches_for_log = (
            self._minds.identity(),
            self.member.log_sequence > 0,
        )
        checkpoint = self.target.checkpoint()
        if checkpoint is not None:
            self.committed_version = self.durable_version = checkpoint.version
            self.committed_position = checkpoint.position
            self._waiters.visible.advance(checkpoint.version)
            self.member.committed(checkpoint.version)
        self._recovered_position = self.committed_position
        self.rows_maker.start()
        groups = list(self.relay_queue.load())
        self.fragments.remove_strangers(
            self.member.fragment_sets.names, chain.from_iterable(groups)
        )
        self.applier.recover(groups)
        self.is_whole = True
        if writer:
            writer.start()

    async def _read_log(self) -> None:
        fence = self._minds.fence()
        if fence:
            raise StillFenced(member=self.config.member, explanation=fence)
        state = await self.order.open(create=self.config.create_log)
        self.log_opened = True
        self.log_durable, self.log_replicas = state.durable, state.replicas
        state = await check_log(self.member, self._minds, self.order, state, self.config)
        self.log_identity = state.identity
        self._joining.append(self._start_joining(state))
        try:
            await self._follow_log()
        except LogGap as gap:
            raise why_gap(gap, await self.order.state()) from gap

    async def _follow_log(self) -> None:
        async for deliveries in self.order.read(self.member.log_sequence + 1):
            await deliver_readable(self.order, self.member, deliveries, self._deliver)
            self._sender.schedule()
            while self._is_full:
                self._room.clear()
                await self._room.wait()

    @property
    def _is_full(self) -> bool:
        """Whether reading waits for the applier; never for one that has nothing left to do."""
        return self.relay_queue.is_full and self.applier.status().length > 0

    def _start_joining(self, state: LogState) -> "asyncio.Task[None]":
        return start_joining(
            *(self.member, self.order, self.config, self._applied, state),
            lambda: self.trusts_log,
            on_asked=self._sender.schedule,
            on_error=self._fail,
        )

    def _applied(self) -> Applied:
        status = self.applier.status()
        executed = status.checkpoint.gtid_executed
        return Applied(executed, self.committed_position, status.length)

    async def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Certifies messages; what follows from them is handed on, though one of them may fail."""
        delivered = Delivered(decided_us=time.time_ns() // 1000)
        turns = Turns()
        self.is_whole = False
        try:
            for delivery in deliveries:
                for _ in deliver_in_steps(self.member, delivery, delivered):
                    await turns.others()
                self._unsaved_bytes += len(delivery.payload)
                await turns.others()
        finally:
            self._hand_on(delivered)
        self._minds.delivered(deliveries[-1])
        self.is_whole = True
        self._report()
        if self._unsaved_bytes > UNSAVED_BYTES_MAX or len(self._unsaved.entries) > UNSAVED_MAX:
            self.save()

    def _hand_on(self, delivered: Delivered) -> None:
        """Gives what follows from messages to the applier and to those who wait."""
        tell_skipped(self.config.member, delivered.skipped)
        self.rows_maker.take_in(delivered, self._recovered_position)
        self._appender.add(delivered.entries)
        for submission in delivered.ended:
            self._end(submission)
        for submission in delivered.turned_away:
            submission.end()
        self._unsaved.absorb(delivered)
        self._note_state()
        self._waiters.everywhere.advance(self.member.applied_everywhere_version)

    def _note_state(self) -> None:
        """A member whose group goes on without it lets nobody wait any longer."""
        self.vouches_for_log |= self.member.state is MemberState.ONLINE
        if self._state_log.note() and self.member.state is MemberState.ERROR:
            self._end_waiting()
            self._fail(OutOfGroup(member=self.config.member, explanation=self.member.reason))

    def _end(self, submission: Submission) -> None:
        """Answers a decided submission once what passed of it is visible here."""
        decided = time.perf_counter()
        sent = self._sender.sent_at(submission.batch_number) or decided
        self.stages.add("queued", max(sent - submission.taken_seconds, 0.0))
        self.stages.add("ordered", decided - sent)

        def visible() -> None:
            self.stages.add("committed", time.perf_counter() - decided)
            submission.end()

        self._waiters.visible.wait(submission.version, visible)

    def _end_waiting(self) -> None:
        """Ends every wait. What became of a submission that is not decided is not known here; one
        that is decided is told so before its rows are visible, but by a member that is in doubt.
        """
        for submission in self.member.publisher.abandon():
            submission.end()
        self._waiters.end()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.snapshots.expire(self.now_ms())
            self.member.tick(self.now_ms(), reads=not self._is_full)
            self._note_state()
            self.send()
            if self._saved_log_sequence != self.member.log_sequence:
                self.save()
            self._report()

    async def flush(self) -> None:
        """Has what the mind is now on disk: a member that is started anew reads on from here."""
        self.save()
        log_sequence = self._saved_log_sequence
        await asyncio.to_thread(self.store.flush)
        self.member.durable_log_sequence = log_sequence

    def _report(self) -> None:
        if not self.is_whole:  # In the midst of a message, or for ever if that one failed.
            return
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
            self._loop.call_soon_threadsafe(self._note_others_commit)

    def _note_others_commit(self) -> None:
        """What another thread has committed. Nobody else would hear of an error."""
        self._commit_noted = False
        try:
            self._note_committed()
        except Exception as error:
            self._fail(error)

    def _note_committed(self) -> None:
        version = self.committed_version
        self.member.committed(version)
        self.flusher.request(version)
        self._waiters.visible.advance(version)
        self._waiters.tell_news()
        self._room.set()
        self._report()

    def _on_durable(self, version: int) -> None:
        """From the flusher's thread."""
        self.durable_version = version

    def _on_written(self, cursor: Cursor) -> None:
        """From the thread that writes the certification log."""
        self.member.history_cursor = cursor

    def give_up(self, error: Exception) -> None:
        """From any thread: `run` raises the error without its frames: they hold the store open."""
        self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error.with_traceback(None))

    def fence(self, error: GroupcertError) -> None:
        """Stops serving until the operator acts, in later runs as well."""
        log.error("member_fenced", member=self.config.member, reason=error.reason, text=str(error))
        explanation = f"{error.reason}: {error}"
        if not isinstance(error, StillFenced):
            with suppress(GroupcertError):
                self._minds.set_fence(explanation)
        self.stop_serving(MemberState.FENCED, explanation)
