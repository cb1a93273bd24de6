"""A whole member on one thread, step by step: the real driver, state machine, store and target.

The rule it keeps: what `runtime/runtime.py` leaves to threads and to the event loop, the cluster's
scheduler decides here; everything else is `runtime/driver.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from groupcert.applier.targets.rocksdb import RocksDbTarget, RowsSnapshot
from groupcert.members.certification_log.outbox import Outbox
from groupcert.members.core import log_records
from groupcert.members.core.log_records import GroupSettings, LoggedTransaction, RowDigests
from groupcert.members.core.member import Member
from groupcert.members.core.member_options import MemberOptions
from groupcert.members.core.noted_decisions import Decisions
from groupcert.members.core.publisher import BatchLimits, Submission
from groupcert.members.core.views import FORMAT_VERSION, MemberState, ViewMember
from groupcert.members.runtime.driver import Driver
from groupcert.members.runtime.no_rows import NoRows
from groupcert.members.runtime.opening import StoreParts
from groupcert.members.runtime.row_comparison import digest_in_steps
from groupcert.members.runtime.row_store import RowStore, StoredRows
from groupcert.members.runtime.snapshots import Snapshots
from groupcert.members.runtime.state_store import StateStore
from groupcert.members.settings.member import MemberConfig
from groupcert.members.total_order.port import Delivery
from groupcert.members.wire.log_batches import decode_batch, encode_batch
from groupcert.members.wire.row_changes import decode_changes
from tests.sim.applier import SimulatedApplier
from tests.sim.disk import SimulatedDisk
from tests.sim.upload import SimulatedUpload

BATCHES = BatchLimits(transactions_max=4, transactions_min=2, bytes_max=1_000, window=3)
STABLE_PERIOD_MS = 200
STABLE_ITEMS = 40
SUSPICION_MS = 800
EXPEL_MS = 400
SNAPSHOT_LEASE_MS = 2_000
SNAPSHOT_HOLD_VERSIONS = 20
COMPARE_PERIOD_MS = 500

CONFIG = MemberConfig(
    group="simulated",
    member="simulated",
    log_server="embedded",
    snapshot_lease_ms=SNAPSHOT_LEASE_MS,
    snapshots_max=100,
    binary_log=False,
)

Answer = Callable[[Submission | None], None]
"""Told how a call ended; None: its member is gone, and nobody knows."""


class Message(NamedTuple):
    """What a member wants in the log."""

    message_id: str
    payload: bytes


class Observer(Protocol):
    """Who looks on."""

    def delivered(self, member: "SimulatedMember", message: log_records.Message) -> None:
        """A member has taken the next message of the log."""

    def committed(self, member: "SimulatedMember") -> None:
        """A member has made transactions visible."""


class SimulatedComparison:
    """Digests rows at once where they are compared; `digests` waits for the next tick."""

    def __init__(self, open_rows: Callable[[], RowsSnapshot]) -> None:
        self.digests: RowDigests | None = None
        self._open_rows = open_rows
        self._expected = -1

    def expect(self, position: int) -> None:
        """See `RowComparison`."""
        self._expected = position

    def committed(self, position: int) -> None:
        """See `RowComparison`."""
        if position == self._expected:
            self.digests = _digested(position, self._open_rows())

    def forget(self, *, is_settled: bool) -> None:
        """Nothing is kept."""


class NoFlusher:
    """The cluster flushes when it wants to."""

    def request(self, version: int) -> None:
        """See `DurabilityFlusher`."""


class SimulatedParts(StoreParts):
    """The parts on a simulated disk, without threads; target and applier of a member without rows
    have nothing to do.
    """

    def __init__(self, disk: SimulatedDisk, member: "SimulatedMember", workers: int) -> None:
        store, has_rows = disk.as_store(), member.has_rows
        config = CONFIG if has_rows else CONFIG.model_copy(update={"rows": "none"})
        super().__init__(store, config, member.machine)
        self.outbox: Outbox | None = None
        target = self.target(now_us=lambda: 0) if has_rows else RocksDbTarget(store, decode_changes)
        self.target_of_rows = target
        self.applier = SimulatedApplier(target, self.relay_queue, workers, member.on_committed)
        self.comparison = SimulatedComparison(target.open_snapshot)
        self.rows: RowStore = (
            StoredRows(target, self.applier, self.comparison)
            if has_rows
            else NoRows(member.machine, member, NoFlusher())
        )
        self.snapshots = Snapshots(
            self.rows.open_snapshot,
            member.held,
            lease_ms=CONFIG.snapshot_lease_ms,
            snapshots_max=CONFIG.snapshots_max,
        )

    def start(self) -> None:
        """Nothing works ahead."""


class SimulatedMember(Driver):
    """One run of one member."""

    def __init__(
        self,
        me: ViewMember,
        settings: GroupSettings,
        disk: SimulatedDisk,
        observer: Observer,
        *,
        workers: int,
        unreachable_ms: int,
        clock: Callable[[], int],
    ) -> None:
        """`clock`: its own one, which may go otherwise than those of others."""
        options = MemberOptions(
            me=replace(me, format_version=FORMAT_VERSION),
            settings=settings,
            batches=BATCHES,
            stable_period_ms=STABLE_PERIOD_MS,
            stable_items=STABLE_ITEMS,
            suspicion_ms=SUSPICION_MS,
            expel_ms=EXPEL_MS,
            unreachable_ms=unreachable_ms,
            snapshot_hold_versions=SNAPSHOT_HOLD_VERSIONS,
        )
        super().__init__(Member(options, Decisions(me.name, is_on=True)), 1_000 * COMPARE_PERIOD_MS)
        self.name = me.name
        self.has_rows = not me.without_rows
        self.machine = self.member
        self.disk = disk
        self.outbox: list[Message] = []
        self.is_running = True
        self.failure: BaseException | None = None
        self._clock = clock
        self._observer = observer
        self._calls: dict[int, Answer] = {}
        self._calls_total = 0
        self._uploads: list[SimulatedUpload] = []
        disk.ingested = self._look
        parts = SimulatedParts(disk, self, workers)
        self.rows, self.fragments = parts.rows, parts.fragments
        self.target, self.applier = parts.target_of_rows, parts.applier
        self.snapshots, self._comparison = parts.snapshots, parts.comparison
        self.load(parts)

    @property
    def is_online(self) -> bool:
        """Whether clients may use it."""
        online = self.machine.state is MemberState.ONLINE
        return self.is_running and online and not self.target.is_unfinished

    @property
    def state_store(self) -> StateStore:
        """What it has stored of itself."""
        return self._state_store

    def now_ms(self) -> int:
        """Milliseconds of its clock."""
        return self._clock()

    def now_us(self) -> int:
        """Microseconds of its clock, which begins in 1970."""
        return 1_000 * self._clock()

    def send(self) -> None:
        """The cluster pumps when it wants to."""

    def sent_at(self, batch_number: int) -> float | None:
        """Nobody measures."""

    def begins_to_wait(self) -> None:
        """The cluster reads when it wants to."""

    def on_state(self, state: MemberState) -> None:
        """The process looks at the state after each step."""

    def fail(self, error: BaseException) -> None:
        """Keeps the first error, for the process."""
        self.failure = self.failure or error

    def read(self, deliveries: Sequence[Delivery]) -> None:
        """Certifies messages, and hands what follows to the applier and to those who wait."""
        for _ in self.deliver_in_steps(self._watched(deliveries), lambda: False):
            pass

    def _watched(self, deliveries: Sequence[Delivery]) -> Iterator[Delivery]:
        """Yields messages; tells the observer of each once the next one is asked for."""
        for delivery in deliveries:
            yield delivery
            self._observer.delivered(self, decode_batch(delivery.payload))

    def open_rows(self) -> RowsSnapshot:
        """The rows that are visible now."""
        return self.target.open_snapshot()

    def open_snapshot(self) -> int:
        """Opens a snapshot for a client and returns its id."""
        snapshot_id, _ = self.snapshots.open(self.committed_version, self.now_ms())
        return snapshot_id

    def pump(self) -> None:
        """Hands to the log's client what is to be sent now."""
        self._uploads = [upload for upload in self._uploads if not upload.step()]
        next_batch = self.machine.publisher.next_batch
        while batch := next_batch(
            credit=self.machine.credit(self.now_ms()), is_taken=not self.outbox
        ):
            message_id = f"{batch.incarnation:x}-{batch.batch_number}"
            encoded = encode_batch(batch, self.machine.view.written_format)
            self.machine.publisher.note_encoded(batch.batch_number, encoded)
            self.outbox.append(Message(message_id, encoded))

    def tick(self, *, is_full: bool = False) -> None:
        """What the runtime does from time to time."""
        digests, self._comparison.digests = self._comparison.digests, None
        if digests:
            self.note_digests(digests)
        super().tick(is_full=is_full)

    def flush(self) -> None:
        """Makes what was written durable."""
        self.disk.flush()
        self.on_durable(self.committed_version)

    def submit(
        self, transactions: Sequence[LoggedTransaction], answer: Answer, *, everywhere: bool = False
    ) -> None:
        """Orders transactions, and answers when they are decided and visible here, or everywhere.

        With none, it answers when all that the log held by then is visible here.
        """
        number = self._new_call(answer)

        def done(ended: Submission) -> None:
            if not ended.log_sequence or self.machine.state is MemberState.FENCED:
                self._answer(number, None)
            elif everywhere:
                self.answers.everywhere.wait(ended.version, lambda: reached(ended))
            else:
                self._answer(number, ended)

        def reached(ended: Submission) -> None:
            is_there = self.answers.everywhere.version >= ended.version
            self._answer(number, ended if is_there else None)

        self.answers.hand_in(Submission(transactions, done))

    def submit_large(
        self, logged: LoggedTransaction, answer: Answer, *, everywhere: bool, patient: bool
    ) -> Callable[[], None]:
        """Orders a transaction whose changes go before it in fragments; returns what a client does
        that hangs up. One who is not patient does not wait until they are read back.
        """
        number = self._new_call(answer)

        def submit(whole: LoggedTransaction, done: Answer) -> None:
            def ended(submission: Submission | None) -> None:
                done(submission)
                self._answer(number, submission)

            self.submit((whole,), ended, everywhere=everywhere)

        def refused() -> None:
            self._answer(number, None)

        upload = SimulatedUpload(self.machine, logged, submit, refused, patient=patient)
        self._uploads.append(upload)

        def hang_up() -> None:
            self._calls.pop(number, None)
            upload.hang_up()

        return hang_up

    def stop(self) -> None:
        """Ends the run in good order; calls that are not answered end unknown."""
        self.save()
        self.flush()
        self.is_running = False
        self.end_waiting()

    def crash(self, batches_kept: int) -> None:
        """Ends the run at once; of what was not flushed, the disk keeps the oldest batches."""
        self.disk.crash(batches_kept)
        self.is_running = False
        self._give_up()
        self.answers.end_all()

    def end_waiting(self) -> None:
        """Lets nobody wait any longer; what became of a large transaction on its way here is not
        known.
        """
        self.answers.end_all()
        self._give_up()

    def on_committed(self, version: int, position: int) -> None:
        """See `MemberRuntime.on_committed`; whoever looks on sees it at once."""
        self.advance(version, position)
        self._look()
        self.note_committed()

    def _give_up(self) -> None:
        for number in list(self._calls):
            self._answer(number, None)

    def _new_call(self, answer: Answer) -> int:
        self._calls_total += 1
        self._calls[self._calls_total] = answer
        return self._calls_total

    def _look(self) -> None:
        """Others see what is visible, if anything may be seen."""
        if not self.target.is_unfinished:
            self._observer.committed(self)

    def _answer(self, number: int, ended: Submission | None) -> None:
        answer = self._calls.pop(number, None)
        if answer is not None:
            answer(ended)


def _digested(position: int, rows: RowsSnapshot) -> RowDigests:
    """Returns the digests of rows."""
    steps = digest_in_steps(position, rows)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            digests: RowDigests = end.value
            return digests
