"""One run of a member in a process: reads the log, waits, and has threads for its driver.

The rule it keeps: the driver runs on one event loop; the applier's workers, the flusher, the
comparison and the writer of the certification log have threads of their own, and what they tell
comes back to the loop. A run is the time from opening the store to closing it; a process has one
after another.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from ...certifier.errors import CorruptLog, Fenced, GroupcertError, LogGap
from ...certifier.gtid_set import GtidSet
from ..core.admission import why_not
from ..core.log_records import LoggedTransaction, RowDigests
from ..core.member import Member
from ..core.publisher import Submission
from ..core.recovery_plan import why_gap
from ..core.recovery_progress import RecoveryProgress
from ..core.views import MemberState
from ..host.turns import Turns
from ..large_transactions.uploads import Uploads
from ..settings.member import MemberConfig
from ..total_order.linger import Linger
from ..total_order.port import Delivery, LogState, TotalOrder
from ..wire.log_batches import is_urgent
from ..wire.requests import RequestLimits
from .answers import KnownOutcomes
from .driver import Driver
from .join import Applied, check_copy, start_joining
from .log_start import check_log, open_log, record_bytes_max
from .opening import OpenParts, decisions_of, member_options
from .row_store import RowsServer
from .sender import Sender
from .skips import deliver_readable

TICK_SECONDS = 0.05
DELIVERY_LINGER_MS = 5
"""Milliseconds that a small message of another member waits for the next ones: the longest waits of
clients are a third shorter where members share processors. What others commit is visible so much
later, unless a read asks for its version."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class RunStart(NamedTuple):
    """Requests for the next run, of an operator or of the run that ended."""

    discards_state: bool = False
    """Begins with an empty store; the present one is set aside."""
    trusts_log: bool = False
    """Joins without asking other members how far they have read."""
    reads_long_log: bool = False
    """Reads the log however long it is, in spite of `recovery_log_messages_max`."""

    def merged(self, other: "RunStart") -> "RunStart":
        """Returns a start that does all that either of two asks for."""
        return RunStart(*(mine or theirs for mine, theirs in zip(self, other, strict=True)))


NORMAL_START = RunStart()


class RunEnd(NamedTuple):
    """The error that ended a run, or None where an operator had the member begin again."""

    error: BaseException | None = None


class MemberRuntime(Driver):
    """One member, from its data folder and its log to answers."""

    def __init__(
        self,
        config: MemberConfig,
        order: TotalOrder,
        on_state: Callable[[MemberState], None],
        start: RunStart = NORMAL_START,
        server: RowsServer | None = None,
    ) -> None:
        """Opens what it works with. `server`: keeps the rows; None: the store does, or nobody."""
        member = Member(member_options(config), decisions_of(config))
        super().__init__(member, config.compare_period_s * 1_000_000)
        self.config = config
        self.start = start
        self.order = order
        self.known = KnownOutcomes(member)
        self.closed = self.refuses_reads = self.log_opened = False
        self.trusts_log = start.trusts_log
        self.log_durable: bool | None = None
        self.record_bytes_max = record_bytes_max()
        self.log_bytes = self.log_bytes_max = self.log_replicas = 0
        self.recovery: RecoveryProgress | None = None
        self._on_state = on_state
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._sender = Sender(member, order, self.give_up)
        self.batch_sizes = self._sender.batch_sizes
        why = partial(why_not, member, ordered="nothing")
        self.uploads = Uploads(member, self.send, why, config)
        self._commit_noted = False
        self._joining: list[asyncio.Task[None]] = []
        self._room = asyncio.Event()
        self._linger = Linger(DELIVERY_LINGER_MS, self._is_urgent)
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self.begun_again: asyncio.Future[None] = self._loop.create_future()
        self.next_start = NORMAL_START
        with ExitStack() as opened:
            parts = OpenParts(config, opened, self, member, server)
            self.store, self.rows, self.relay_queue = parts.store, parts.rows, parts.relay_queue
            self.snapshots, self.fragments = parts.snapshots, parts.fragments
            self.binary_log, self.history_writer = parts.binary_log, parts.history_writer
            self.flusher = parts.flusher
            self.load(parts)
            self.log_identity = self._state_store.identity()
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

    def close(self) -> None:
        """Stops the applier and releases the store; what was written is on disk at return."""
        self.closed, self.log_opened = True, False
        self.answers.tell_news()
        self.answers.end_all()
        self._opened.close()

    def submit(
        self,
        transactions: Sequence[LoggedTransaction],
        decided: Callable[[Submission], None] | None = None,
    ) -> "asyncio.Future[Submission]":
        """Orders transactions; the future is done when they are decided and those certified are
        committed here.

        With none, it is done when all that the log held at the time of the call is committed here.

        Args:
            decided: Is called before, when the applier has those that are certified.

        Raises:
            NotServing: The member is not ONLINE; from the future, it stopped being so, and the
                outcome is unknown.
            NotPrimary: Another member is the one that takes transactions; nothing was kept.
            Overloaded: Too many wait already; nothing was ordered.
            LogFull: The log has no space; nothing was ordered. From the future, likewise.
        """
        return self.answers.submit(transactions, decided)

    def limits(self) -> RequestLimits:
        """Returns the limits of a client's request."""
        return RequestLimits(
            self.member.settings.write_set_items_max,
            self.config.transaction_bytes_max,
            self.config.domain_sessions,
            self.member.settings.postgresql_tables,
        )

    def check_readable(self) -> None:
        """Raises NotServing while visible rows may belong to no version; RowsAtServer, RowsNotKept
        if there are none here.
        """
        self.rows.check_readable(self.config.member)

    def open_snapshot(self, caller: str, session_id: int) -> tuple[int, int]:
        """Opens a snapshot of all that is visible, see `Snapshots.open`; raises as
        `check_readable`.
        """
        self.check_readable()
        return self.snapshots.open(
            self.committed_version, self.now_ms(), caller=caller, session_id=session_id
        )

    @property
    def state(self) -> MemberState:
        """The member's state."""
        return self.member.state

    @property
    def group_source(self) -> str:
        """The source of the GTIDs that the group gives, a UUID."""
        return self.member.settings.group_uuid

    def name_row(self, item: int, key: bytes) -> None:
        """Notes the key of a row that a client has lost over, for consoles."""
        self.member.counters.conflicts.name(item, key)

    def gtid_executed(self) -> GtidSet:
        """Returns the GTIDs of what is visible here."""
        return self.rows.status().checkpoint.gtid_executed

    async def applied_everywhere(self, version: int) -> None:
        """Waits until every member of the view has reported that `version` is visible there.

        Raises NotServing if this one stops serving before.
        """
        await self.answers.reached(self.answers.everywhere, version)

    async def committed(self, version: int) -> None:
        """Waits until `version` is visible here. Raises NotServing if the member stops before."""
        await self.answers.reached(self.answers.visible, version)

    async def news(self, timeout_s: float) -> None:
        """Waits until something is committed here or the member closes, at most for the time."""
        await self.answers.news(timeout_s)

    async def flush(self) -> None:
        """Saves the member's state and flushes the store: a restart reads the log from here."""
        self.save()
        log_sequence = self._saved_log_sequence
        await asyncio.to_thread(self.store.flush)
        self.member.durable_log_sequence = log_sequence

    def now_ms(self) -> int:
        """Returns the milliseconds of a clock that never goes back."""
        return int(self._loop.time() * 1000)

    def now_us(self) -> int:
        """Returns the microseconds since 1970."""
        return time.time_ns() // 1000

    def send(self) -> None:
        """Sends what the member wants in the log, once the log is open."""
        if self.log_opened:
            self._sender.schedule()

    def sent_at(self, batch_number: int) -> float | None:
        """Returns the time, by `time.perf_counter`, at which one of the last batches was sent."""
        return self._sender.sent_at(batch_number)

    def begins_to_wait(self) -> None:
        """Has the next message read at once."""
        self._linger.end()

    def on_state(self, state: MemberState) -> None:
        """Passes the member's new state on."""
        self._on_state(state)

    def on_committed(self, version: int, position: int) -> None:
        """Takes the applier's version and position, on any of its threads."""
        self.advance(version, position)
        if threading.get_ident() == self._thread:
            self.note_committed()
        elif not self._commit_noted:
            self._commit_noted = True
            self._loop.call_soon_threadsafe(self._note_others_commit)

    def note_committed(self) -> None:
        """Answers those who wait for what is visible now, and reads on."""
        super().note_committed()
        self.answers.tell_news()
        self._room.set()

    def on_digested(self, digests: RowDigests) -> None:
        """Takes the digests of the member's rows, on the thread that has read them."""
        self._loop.call_soon_threadsafe(self.note_digests, digests)

    def give_up(self, error: Exception) -> None:
        """Ends the run, on any thread, with the error without frames: these hold the store open."""
        self._loop.call_soon_threadsafe(self.fail, error)

    def fail(self, error: BaseException) -> None:
        """Ends the run with an error; the first one counts."""
        if not self._failure.done():
            self._failure.set_exception(error.with_traceback(None))

    def _note_others_commit(self) -> None:
        """Notes what another thread has committed; an error, which no caller sees, ends the run."""
        self._commit_noted = False
        try:
            self.note_committed()
        except Exception as error:
            self.fail(error)

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
            self.send()
            while self._is_full:
                self._room.clear()
                await self._room.wait()

    def _is_urgent(self, payload: bytes) -> bool:
        """Returns whether a message of the log shall not wait for the ones behind it."""
        return self.answers.waiting > 0 or is_urgent(payload, self.member.me.incarnation)

    @property
    def _is_full(self) -> bool:
        """True if reading waits for the applier; never if that has nothing left to do."""
        return self.relay_queue.is_full and self.rows.status().length > 0

    def _start_joining(self, state: LogState) -> "asyncio.Task[None]":
        return start_joining(
            self.member,
            self.order,
            self.config,
            self._applied,
            state,
            lambda: self.trusts_log,
            self._check_copy,
            on_asked=self.send,
            on_error=self.fail,
        )

    async def _check_copy(self) -> None:
        """Returns once the rows of a copy are known to be the group's. Raises RowsDiffer."""
        has_rows = self.config.postgresql is None and self.config.rows == "kept"
        if self._state_store.is_copy() and (
            not has_rows  # They are no part of the copy.
            or await check_copy(
                self.member, self.config, self._recovered_position, lambda: self.trusts_log
            )
        ):
            self._state_store.note_compared()

    def _applied(self) -> Applied:
        status = self.rows.status()
        executed = status.checkpoint.gtid_executed
        return Applied(executed, self.committed_position, status.length)

    async def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Certifies messages; lets the event loop do what else there is after each turn."""
        turns = Turns()
        with closing(self.deliver_in_steps(deliveries, lambda: turns.is_over)) as steps:
            for _ in steps:
                await turns.others()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tick(is_full=self._is_full)


def why_ended(ends: Iterable["asyncio.Future[None]"]) -> BaseException | None:
    """Returns, of the errors of tasks that are done, the one that best explains why a run ends:
    others may be consequences of it. Returns None if no task has failed.
    """
    errors = [error for ended in ends if ended.done() and (error := ended.exception())]
    return min(errors, key=_rank, default=None)


def _rank(error: BaseException) -> int:
    if isinstance(error, (Fenced, CorruptLog)):
        return 0
    return 2 if isinstance(error, GroupcertError) else 1
