"""The driver of a member: reads the log, writes the store, answers those who wait.

The rule it keeps: a message of the log is certified and handed to the applier before the
next one is looked at; a client is answered when its transaction is read back and committed here.
All of it runs on one event loop; the applier's workers and the flusher have threads of their own.
`Submissions` follows clients' transactions from the call to the answer; `StateLog` tells the
operator of each change of state, once.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain
from pathlib import Path

import structlog

from ...certifier.errors import (
    CorruptLog,
    Fenced,
    GroupcertError,
    LogFull,
    LogGap,
    NotServing,
)
from ...certifier.gtid_set import GtidSet
from ...certifier.history.schema import Cursor
from ..binary_log.log import BinaryLog
from ..core.admission import check_admitted, why_not
from ..core.effects import Delivered
from ..core.log_records import GroupSettings, LoggedTransaction, RowDigests
from ..core.member import Member
from ..core.publisher import Submission
from ..core.recovery_plan import why_gap
from ..core.recovery_progress import RecoveryProgress
from ..core.views import MemberState
from ..errors.membership import OutOfGroup, StillFenced
from ..host.turns import Turns
from ..large_transactions.uploads import Uploads
from ..settings.member import MemberConfig
from ..total_order.linger import Linger
from ..total_order.port import Delivery, LogIdentity, LogState, TotalOrder
from ..wire.log_batches import is_urgent
from ..wire.requests import RequestLimits
from .endings import why_ended
from .join import Applied, check_copy, start_joining
from .known_outcomes import KnownOutcomes
from .log_start import check_log, open_log, record_bytes_max
from .options import decisions_of, member_options
from .parts import Events, Parts
from .run_end import NORMAL_START, RunEnd, RunStart
from .sender import Sender
from .skips import deliver_in_steps, deliver_readable, tell_skipped
from .stage_times import StageTimes
from .state_store import StateStore
from .waiters import Waiters

TICK_SECONDS = 0.05
SAVE_MS = 200
SAVED_ENTRIES = 512
"""Milliseconds between two saves of the state, as between two flushes of the store: one that is not
flushed is not there after a crash of the machine. After so many entries the next tick saves."""
UNSAVED_MAX = 2_048
UNSAVED_BYTES_MAX = 4 << 20
"""Relay entries, and bytes of messages, that a member delivers between two saves: to store so many
takes 20 ms, and more often would cost streams a tenth."""
DELIVERY_LINGER_MS = 5
"""Milliseconds that a small message of another member waits for the next ones: the longest waits of
clients are a third shorter where members share processors. What others commit is visible so much
later, unless a read asks for its version."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Submissions:
    """All submissions of one run, and the time that they spend in each stage."""

    def __init__(self, member: Member, sender: Sender, waiters: Waiters) -> None:
        self.stages = StageTimes()
        self.binary_log: BinaryLog | None = None
        self._member = member
        self._sender = sender
        self._waiters = waiters

    def submit(self, transactions: Sequence[LoggedTransaction]) -> "asyncio.Future[Submission]":
        """Submits transactions, see `MemberRuntime.submit`."""
        check_admitted(self._member, transactions)
        future: asyncio.Future[Submission] = asyncio.get_running_loop().create_future()

        def done(ended: Submission) -> None:
            if future.done():
                return
            if ended.is_withdrawn:
                future.set_exception(LogFull(cause=self._member.publisher.log_full))
            elif not ended.log_sequence or self._member.state is MemberState.FENCED:
                future.set_exception(why_not(self._member))
            else:
                future.set_result(ended)

        submission = Submission(transactions, done)
        submission.taken_seconds = time.perf_counter()
        if self.binary_log:
            submission.locked_since = self.binary_log.end_statement()
        self._member.publisher.submit(submission)
        self._sender.schedule()
        return future

    def delivered(self, delivered: Delivered) -> None:
        """Answers the submissions that messages have decided, and notes when all that was certified
        in the messages is visible here.
        """
        for submission in delivered.ended:
            self._decided(submission)
        for submission in delivered.turned_away:
            submission.end()
        versions = delivered.entries.versions
        if versions:
            applied = partial(self._applied, versions[-1], len(versions), delivered.decided_us)
            self._waiters.visible.wait(versions[-1], applied)

    def _applied(self, version: int, transactions: int, read_us: int) -> None:
        if self._waiters.visible.version >= version:  # Else the run has ended.
            spent_us = max(time.time_ns() // 1000 - read_us, 0)
            self.stages.applied.add(spent_us / 1e6, transactions)

    def _decided(self, submission: Submission) -> None:
        """Answers a decided submission once its certified transactions are visible here."""
        decided = time.perf_counter()
        sent = self._sender.sent_at(submission.batch_number) or decided
        self.stages.add("queued", max(sent - submission.taken_seconds, 0.0))
        self.stages.add("ordered", decided - sent)

        def visible() -> None:
            now = time.perf_counter()
            self.stages.add("committed", now - decided)
            self.stages.end(submission.outcomes, now - submission.taken_seconds)
            submission.end()

        self._waiters.visible.wait(submission.version, visible)

    def end_all(self) -> None:
        """Ends every wait. The outcome of an undecided submission is not known here; a decided one
        is answered before its rows are visible, unless the member is FENCED.
        """
        for submission in self._member.publisher.abandon():
            submission.end()
        self._waiters.end()


class StateLog:
    """Logs the states of one member, and passes them on."""

    def __init__(self, member: Member, on_state: Callable[[MemberState], None]) -> None:
        self._member = member
        self._on_state = on_state
        self._shown: MemberState | None = None

    def note(self) -> bool:
        """Logs the state if it has changed since the last call, and returns whether it has."""
        member = self._member
        if member.state is self._shown:
            return False
        self._shown = member.state
        log.info(
            "member_state",
            member=member.me.name,
            state=member.state.name,
            view=member.view.view_id,
            reason=member.reason,
        )
        self._on_state(member.state)
        if member.state is MemberState.ONLINE:
            self._warn_of_settings()
        return True

    def _warn_of_settings(self) -> None:
        """Logs which settings of this member differ from those of the group that it has joined."""
        mine, groups = self._member.options.settings, self._member.settings
        for name in GroupSettings._fields[1:]:
            if getattr(mine, name) != getattr(groups, name):
                log.warning(
                    "group_setting_differs",
                    member=self._member.me.name,
                    setting=name,
                    configured=getattr(mine, name),
                    used=getattr(groups, name),
                )


class MemberRuntime:
    """One member, from its data folder and its log to answers.

    `member` is the state machine that decides; the runtime waits, writes and sends for it.
    """

    def __init__(
        self,
        config: MemberConfig,
        order: TotalOrder,
        on_state: Callable[[MemberState], None],
        start: RunStart = NORMAL_START,
    ) -> None:
        self.config = config
        self.start = start
        self.order = order
        self.member = Member(member_options(config), decisions_of(config))
        self.held = self.member.held
        self.known = KnownOutcomes(self.member)
        self.closed = self.refuses_reads = self.log_opened = self.vouches_for_log = False
        self.trusts_log = start.trusts_log
        self.log_durable: bool | None = None
        self.record_bytes_max = record_bytes_max()
        self.log_identity: LogIdentity | None = None
        self.log_bytes = self.log_bytes_max = 0
        self.log_replicas = self.committed_version = self.durable_version = 0
        self.recovery: RecoveryProgress | None = None
        self.committed_position = -1
        self._state_log = StateLog(self.member, on_state)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._sender = Sender(self.member, order, self.give_up)
        why = partial(why_not, self.member, ordered="nothing")
        self.uploads = Uploads(self.member, self._sender.schedule, why, config)
        self._commit_noted = False
        self._joining: list[asyncio.Task[None]] = []
        self._room = asyncio.Event()
        self._linger = Linger(DELIVERY_LINGER_MS, self._is_urgent)
        self._waiters = Waiters(self.member, self._linger.end)
        self._submissions = Submissions(self.member, self._sender, self._waiters)
        self.stages = self._submissions.stages
        self.batch_sizes = self._sender.batch_sizes
        self.is_whole = False
        self._unsaved = Delivered()
        self._unsaved_bytes = self._saved_log_sequence = self._saved_ms = 0
        self._compared_position = 0
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self.begun_again: asyncio.Future[None] = self._loop.create_future()
        self.next_start = NORMAL_START
        with ExitStack() as opened:
            events = Events(
                committed=self._on_committed,
                durable=self._on_durable,
                written=self._on_written,
                failed=self.give_up,
                closing=self.save,
                committed_version=lambda: self.committed_version,
                digested=self._on_digested,
            )
            parts = Parts(config, opened, events, self.member)
            self.store, self.target, self.applier = parts.store, parts.target, parts.applier
            self.snapshots, self.fragments = parts.snapshots, parts.fragments
            self.comparison = parts.comparison
            self.relay_queue, self.binary_log = parts.relay_queue, parts.binary_log
            self.history_writer = parts.history_writer
            self._submissions.binary_log = parts.binary_log
            self._parts = parts
            self._load()
            self._opened = opened.pop_all()

    async def run(self) -> RunEnd:
        """Serves until cancelled, until an operator has the member begin again, or until one of
        these errors, which it returns. Reads go on after it, until the runtime is closed.

            DiskFull                the store must be opened again once there is space
            LogTrimmed, LogTooLong  a donor's state is needed
            Fenced, CorruptLog      going on could make members differ; so it is after a restart
            OutOfGroup              the group goes on without this member
            LogServerUnavailable, LogServerTooOld, InvalidSetting   the log cannot be used
        """
        ticker = asyncio.create_task(self._tick())
        reader = asyncio.create_task(self._read_log())
        ends = (self._failure, self.begun_again, reader, ticker)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            error = why_ended(ends)
            if isinstance(error, (Fenced, CorruptLog)):
                self.fence(error)
            return RunEnd(error)
        finally:
            tasks = (reader, ticker, *self._joining)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def begin_again(self, start: RunStart = NORMAL_START) -> None:
        """Ends this run, and begins another one by `start`; clears the fence. Of several calls the
        next run does what any of them asked for.
        """
        self.next_start = self.next_start.merged(start)
        if not self.begun_again.done():
            if not self.closed and not start.discards_state:  # Else the fence goes with the state.
                self._state_store.clear_fence()
            self.begun_again.set_result(None)

    @property
    def discarded_path(self) -> Path:
        """The path of the store if it is discarded."""
        return self.store.path / f"discarded-{self.member.me.incarnation:016x}"

    def trust_log(self) -> None:
        """Makes the member join without waiting for what other members say of the log."""
        self.trusts_log = True

    def refuse_reads(self) -> None:
        """Refuses reads from now on, as `exit_state_action` OFFLINE_MODE asks for."""
        self.refuses_reads = True

    def show_recovery(self, progress: RecoveryProgress | None) -> None:
        """Sets the progress of the copy of a donor's state, for the status; None: there is none."""
        self.recovery = progress

    def send(self) -> None:
        """Sends what the member wants in the log, once the log is open."""
        if self.log_opened:
            self._sender.schedule()

    def stop_serving(self, state: MemberState, reason: str) -> None:
        """Stops accepting transactions, sets the state and wakes every waiter with NotServing.
        FENCED is never overwritten; LEFT is not overwritten by ERROR.
        """
        left = self.member.state is MemberState.LEFT and state is MemberState.ERROR
        if self.member.state is not MemberState.FENCED and not left:
            self.member.fail(state, reason)
        self._state_log.note()
        self._submissions.end_all()

    def close(self) -> None:
        """Stops the applier and releases the store; what was written is on disk at return."""
        self.closed, self.log_opened = True, False
        self._parts.appender.close()
        self._waiters.tell_news()
        self._submissions.end_all()
        self._opened.close()

    def save(self) -> None:
        """Stores the member's state. One that failed within a message, or is not loaded yet, is not
        stored: the message is read again.
        """
        if not self.is_whole:
            return
        unsaved, self._unsaved, self._unsaved_bytes = self._unsaved, Delivered(), 0
        self._state_store.save(self.member, unsaved, self.applier.status().checkpoint.position)
        self._saved_log_sequence, self._saved_ms = self.member.log_sequence, self.now_ms()

    def submit(self, transactions: Sequence[LoggedTransaction]) -> "asyncio.Future[Submission]":
        """Orders transactions; the future is done when they are decided and those certified are
        committed here.

        With none, it is done when all that the log held at the time of the call is committed here.

        Raises:
            NotServing: The member is not ONLINE; from the future, it stopped being so, and the
                outcome is unknown.
            NotPrimary: Another member is the one that takes transactions; nothing was kept.
            Overloaded: Too many wait already; nothing was ordered.
            LogFull: The log has no space; nothing was ordered. From the future, likewise.
        """
        return self._submissions.submit(transactions)

    def limits(self) -> RequestLimits:
        """Returns the limits of a client's request."""
        return RequestLimits(
            self.member.settings.write_set_items_max,
            self.config.transaction_bytes_max,
            self.config.domain_sessions,
            self.member.settings.postgresql_tables,
        )

    def check_readable(self) -> None:
        """Raises NotServing while visible rows may belong to no version."""
        if self.target.is_unfinished:
            state = "executing again what it was writing when its last run ended"
            raise NotServing(member=self.config.member, state=state)

    @property
    def state(self) -> MemberState:
        """The member's state."""
        return self.member.state

    @property
    def group_source(self) -> str:
        """The source of the GTIDs that the group gives, a UUID."""
        return self.member.settings.group_uuid

    def gtid_executed(self) -> GtidSet:
        """Returns the GTIDs of what is visible here."""
        return self.applier.status().checkpoint.gtid_executed

    async def applied_everywhere(self, version: int) -> None:
        """Waits until every member of the view has reported that `version` is visible there.

        Raises NotServing if this one stops serving before.
        """
        await self._waiters.reached(self._waiters.everywhere, version)

    async def committed(self, version: int) -> None:
        """Waits until `version` is visible here. Raises NotServing if the member stops before."""
        await self._waiters.reached(self._waiters.visible, version)

    async def news(self, timeout_s: float) -> None:
        """Waits until something is committed here or the member closes, at most for the time."""
        await self._waiters.news(timeout_s)

    def now_ms(self) -> int:
        """Returns the milliseconds of a clock that never goes back."""
        return int(self._loop.time() * 1000)

    def _load(self) -> None:
        """Loads the member's state from the store; gives the applier what it had not executed."""
        writer = self.history_writer
        outbox = writer.outbox if writer else None
        self._state_store = StateStore(self.store, self.relay_queue, outbox)
        self._state_store.load(self.member)
        self.log_identity, self.vouches_for_log = (
            self._state_store.identity(),
            self.member.log_sequence > 0,
        )
        checkpoint = self.target.checkpoint()
        if checkpoint is not None:
            self.committed_version = self.durable_version = checkpoint.version
            self.committed_position = checkpoint.position
            self._waiters.visible.advance(checkpoint.version)
            self.member.committed(checkpoint.version)
        self._recovered_position = self.committed_position
        self._expect_comparison()
        self._parts.rows_maker.start()
        groups = list(self.relay_queue.load())
        self.fragments.remove_strangers(
            self.member.fragment_sets.names,
            chain.from_iterable(group.payloads for group in groups),
        )
        self.applier.recover(groups)
        self.is_whole = True
        if writer:
            writer.start()

    async def _read_log(self) -> None:
        state = self._noted(await open_log(self._state_store, self.order, self.config))
        self.log_opened = True
        state = await check_log(
            self.member,
            self._state_store,
            self.order,
            state,
            self.config,
            reads_long_log=self.start.reads_long_log,
        )
        self.log_identity = state.identity
        self._joining.append(self._start_joining(state))
        try:
            await self._follow_log()
        except LogGap as gap:
            raise why_gap(gap, await self.order.state()) from gap

    async def log_state(self) -> LogState:
        """Returns the log's state now. Raises LogServerUnavailable."""
        return self._noted(await self.order.state())

    def _noted(self, state: LogState) -> LogState:
        self.log_durable, self.log_replicas = state.durable, state.replicas
        self.log_bytes, self.log_bytes_max = state.bytes, state.bytes_max
        self.record_bytes_max = record_bytes_max(state)
        return state

    async def _follow_log(self) -> None:
        async for deliveries in self.order.read(self.member.log_sequence + 1, self._linger):
            await deliver_readable(self.order, self.member, deliveries, self._deliver)
            self._sender.schedule()
            while self._is_full:
                self._room.clear()
                await self._room.wait()

    def _is_urgent(self, payload: bytes) -> bool:
        """Returns whether a message of the log shall not wait for the ones behind it."""
        return self._waiters.waiting > 0 or is_urgent(payload, self.member.me.incarnation)

    @property
    def _is_full(self) -> bool:
        """True if reading waits for the applier; never if that has nothing left to do."""
        return self.relay_queue.is_full and self.applier.status().length > 0

    def _start_joining(self, state: LogState) -> "asyncio.Task[None]":
        return start_joining(
            self.member,
            self.order,
            self.config,
            self._applied,
            state,
            lambda: self.trusts_log,
            self._check_copy,
            on_asked=self._sender.schedule,
            on_error=self._fail,
        )

    async def _check_copy(self) -> None:
        """Returns once the rows of a copy are known to be the group's. Raises RowsDiffer."""
        if self._state_store.is_copy() and await check_copy(
            self.member, self.config, self._recovered_position, lambda: self.trusts_log
        ):
            self._state_store.note_compared()

    def _applied(self) -> Applied:
        status = self.applier.status()
        executed = status.checkpoint.gtid_executed
        return Applied(executed, self.committed_position, status.length)

    async def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Certifies messages, and hands on their effects after each turn of the event loop: answers
        do not wait for what is read behind them. Those before a message that fails count.
        """
        turns = Turns()
        left = iter(deliveries)
        delivery = next(left, None)
        while delivery is not None:
            delivered = Delivered(decided_us=time.time_ns() // 1000)
            self.is_whole = False
            try:
                while delivery is not None:
                    for _ in deliver_in_steps(self.member, delivery, delivered):
                        await turns.others()
                    self._unsaved_bytes += len(delivery.payload)
                    last, delivery = delivery, next(left, None)
                    if turns.is_over:
                        break
            finally:
                self._hand_on(delivered)
            self._state_store.delivered(last)
            self.is_whole = True
            self._report()
            if self._unsaved_bytes > UNSAVED_BYTES_MAX or len(self._unsaved.entries) > UNSAVED_MAX:
                self.save()
            await turns.others()

    def _hand_on(self, delivered: Delivered) -> None:
        """Carries out the duties of a driver of `Delivered`, by their numbers there."""
        tell_skipped(self.config.member, delivered.skipped)  # 1
        self._store_fragments(delivered)  # 2
        self._expect_comparison()
        self._parts.appender.add(delivered.entries)  # 3
        self._submissions.delivered(delivered)  # 4
        if delivered.doubted:
            self.give_up(delivered.doubted)  # 5
        self._unsaved.absorb(delivered)  # 6
        self._note_state()
        self._waiters.everywhere.advance(self.member.applied_everywhere_version)

    def _expect_comparison(self) -> None:
        """Has the rows taken where the last comparison is, unless these are older already."""
        position = self.member.comparisons.position
        if position > max(self._compared_position, self.committed_position):
            self._compared_position = position
            self.applier.end_group_after(position)
            self.comparison.expect(position)

    def _store_fragments(self, delivered: Delivered) -> None:
        """Stores the fragments of large transactions, if there are any. Entries that an earlier run
        has executed are read again after a restart: their fragments go.
        """
        entries = delivered.entries
        is_executed = bool(entries) and entries.positions[0] <= self._recovered_position
        if delivered.fragments or delivered.dropped or is_executed:
            self._parts.rows_maker.take_in(delivered, self._recovered_position)

    def _note_state(self) -> None:
        """Wakes every waiter if the group goes on without this member."""
        self.vouches_for_log |= self.member.state is MemberState.ONLINE
        if self._state_log.note() and self.member.state is MemberState.ERROR:
            self._submissions.end_all()
            self._fail(OutOfGroup(member=self.config.member, explanation=self.member.reason))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.snapshots.expire(self.now_ms())
            self.member.tick(self.now_ms(), reads=not self._is_full)
            self._note_state()
            self._compare()
            self.send()
            if self._is_save_due():
                self.save()
            self._report()

    def _compare(self) -> None:
        """Begins a comparison of rows if one is due, and lets go of the last one's."""
        if self.config.compare_period_s:
            self.member.compare_if_due(time.time_ns() // 1000, self.config.compare_period_s * 10**6)
        compared = self.member.comparisons
        self.comparison.forget(is_settled=compared.is_over and not compared.differences())

    def _is_save_due(self) -> bool:
        is_new = self._saved_log_sequence != self.member.log_sequence
        is_time = self.now_ms() - self._saved_ms >= SAVE_MS
        return is_new and (is_time or len(self._unsaved.entries) >= SAVED_ENTRIES)

    async def flush(self) -> None:
        """Saves the member's state and flushes the store: a restart reads the log from here."""
        self.save()
        log_sequence = self._saved_log_sequence
        await asyncio.to_thread(self.store.flush)
        self.member.durable_log_sequence = log_sequence

    def _report(self) -> None:
        if not self.is_whole:  # Within a message, or for good if that one failed.
            return
        if self.member.report_if_due(self.now_ms(), self.durable_version):
            self._sender.schedule()

    def _on_committed(self, version: int, position: int) -> None:
        """Takes the applier's version and position, on any of its threads."""
        self.comparison.committed(position)
        self.committed_version, self.committed_position = version, position
        if threading.get_ident() == self._thread:
            self._note_committed()
        elif not self._commit_noted:
            self._commit_noted = True
            self._loop.call_soon_threadsafe(self._note_others_commit)

    def _note_others_commit(self) -> None:
        """Notes what another thread has committed; an error, which no caller sees, ends the run."""
        self._commit_noted = False
        try:
            self._note_committed()
        except Exception as error:
            self._fail(error)

    def _note_committed(self) -> None:
        version = self.committed_version
        self.member.committed(version)
        self._parts.flusher.request(version)
        self._waiters.visible.advance(version)
        self._waiters.tell_news()
        self._room.set()
        self._report()

    def _on_durable(self, version: int) -> None:
        """Takes the durable version, on the flusher's thread."""
        self.durable_version = version

    def _on_digested(self, digests: RowDigests) -> None:
        """Takes the digests of the member's rows, on the thread that has read them."""
        self._loop.call_soon_threadsafe(self._note_digested, digests)

    def _note_digested(self, digests: RowDigests) -> None:
        self.member.rows_digested(digests)
        self.send()

    def _on_written(self, cursor: Cursor) -> None:
        """Takes the cursor of the certification log, on the thread of its writer."""
        self.member.history_cursor = cursor

    def give_up(self, error: Exception) -> None:
        """Ends the run, on any thread, with the error without frames: these hold the store open."""
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
                self._state_store.set_fence(explanation)
        self.stop_serving(MemberState.FENCED, explanation)
