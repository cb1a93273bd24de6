"""A whole member on one thread, step by step: the real state machine, store, queue and target.

The rule it keeps: it does what `runtime/runtime.py` does, in that order, and nothing of its own.
What that one leaves to threads and to the event loop, the cluster's scheduler decides here.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from groupcert.applier.queue.relay_queue import RelayQueue
from groupcert.applier.targets.rocksdb import RocksDbTarget, RowsSnapshot
from groupcert.members.core import log_records
from groupcert.members.core.decisions import Decisions
from groupcert.members.core.effects import Delivered
from groupcert.members.core.log_records import GroupSettings, LoggedTransaction, RowDigests
from groupcert.members.core.member import Member
from groupcert.members.core.options import MemberOptions
from groupcert.members.core.publisher import BatchLimits, Submission
from groupcert.members.core.views import FORMAT_VERSION, MemberState, ViewMember
from groupcert.members.large_transactions.fragments import FragmentStore
from groupcert.members.large_transactions.rows_files import RowsMaker
from groupcert.members.runtime.row_comparison import digest_in_steps
from groupcert.members.runtime.snapshots import Snapshots
from groupcert.members.runtime.state_store import StateStore
from groupcert.members.total_order.port import Delivery
from groupcert.members.wire.log_batches import decode_batch, encode_batch
from groupcert.members.wire.row_changes import decode_changes, decode_puts
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


class SimulatedMember:
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
        self.name = me.name
        self._clock = clock
        self.disk = disk
        self.machine = Member(
            MemberOptions(
                me=replace(me, format_version=FORMAT_VERSION),
                settings=settings,
                batches=BATCHES,
                stable_period_ms=STABLE_PERIOD_MS,
                stable_items=STABLE_ITEMS,
                suspicion_ms=SUSPICION_MS,
                expel_ms=EXPEL_MS,
                unreachable_ms=unreachable_ms,
                snapshot_hold_versions=SNAPSHOT_HOLD_VERSIONS,
            ),
            Decisions(me.name, is_on=True),
        )
        self.outbox: list[Message] = []
        self.committed_version = 0
        self.durable_version = 0
        self.is_running = True
        self._observer = observer
        self._unsaved = Delivered()
        self._calls: dict[int, Answer] = {}
        self._calls_total = 0
        self._waiting_commit: list[Submission] = []
        self._waiting_everywhere: list[tuple[Submission, Callable[[], None]]] = []
        store = disk.as_store()
        disk.ingested = self._look
        self._relay_queue = RelayQueue(store)
        self.fragments = FragmentStore(store)
        self._rows_maker = RowsMaker(store, self.fragments)
        self._uploads: list[SimulatedUpload] = []
        self.target = RocksDbTarget(
            store,
            decode_changes,
            self._relay_queue,
            record_history=True,
            on_commit=self.fragments.discard,
            decode_puts=decode_puts,
            decode_large=self.fragments.rows,
            make_files=self._rows_maker.make,
            now_us=lambda: 0,
        )
        self.applier = SimulatedApplier(
            self.target, self._relay_queue, workers, self._note_committed
        )
        self.snapshots = Snapshots(
            self.target.open_snapshot,
            self.machine.held,
            lease_ms=SNAPSHOT_LEASE_MS,
            snapshots_max=100,
        )
        self._compared_position = 0
        self._digests: RowDigests | None = None
        self._load()

    @property
    def is_online(self) -> bool:
        """Whether clients may use it."""
        online = self.machine.state is MemberState.ONLINE
        return self.is_running and online and not self.target.is_unfinished

    def read(self, deliveries: Sequence[Delivery]) -> None:
        """Certifies messages, and hands what follows to the applier and to those who wait."""
        delivered = Delivered()
        for sequence, payload in deliveries:
            message = decode_batch(payload)
            self.state_store.delivered(Delivery(sequence, payload))
            self.machine.deliver(sequence, message, delivered)
            self._observer.delivered(self, message)
        self._rows_maker.take_in(delivered, self._recovered_position)
        self._expect_comparison()
        self.applier.append(delivered.entries)
        self._waiting_commit += delivered.ended
        for submission in delivered.turned_away:
            submission.end()
        self._unsaved.absorb(delivered)
        self._answer_committed()
        self._answer_everywhere()
        if delivered.doubted:
            raise delivered.doubted

    def open_rows(self) -> RowsSnapshot:
        """The rows that are visible now."""
        return self.target.open_snapshot()

    @property
    def now_ms(self) -> int:
        """Milliseconds of its clock."""
        return self._clock()

    def open_snapshot(self) -> int:
        """Opens a snapshot for a client and returns its id."""
        snapshot_id, _ = self.snapshots.open(self.committed_version, self.now_ms)
        return snapshot_id

    def pump(self) -> None:
        """Hands to the log's client what is to be sent now."""
        self._uploads = [upload for upload in self._uploads if not upload.step()]
        next_batch = self.machine.publisher.next_batch
        while batch := next_batch(
            credit=self.machine.credit(self.now_ms), is_taken=not self.outbox
        ):
            message_id = f"{batch.incarnation:x}-{batch.batch_number}"
            encoded = encode_batch(batch, self.machine.view.written_format)
            self.machine.publisher.note_encoded(batch.batch_number, encoded)
            self.outbox.append(Message(message_id, encoded))

    def tick(self) -> None:
        """What the runtime does from time to time."""
        now_ms = self.now_ms
        self.snapshots.expire(now_ms)
        self.machine.tick(now_ms)
        self.machine.compare_if_due(1_000 * now_ms, 1_000 * COMPARE_PERIOD_MS)
        digests, self._digests = self._digests, None
        if digests:
            self.machine.rows_digested(digests)
        self.save()
        self.machine.report_if_due(now_ms, self.durable_version)

    def save(self) -> None:
        """Stores the state machine as it is now, with what the applier has not committed yet."""
        unsaved, self._unsaved = self._unsaved, Delivered()
        self.state_store.save(self.machine, unsaved, self.applier.position)

    def flush(self) -> None:
        """Makes what was written durable."""
        self.disk.flush()
        self.durable_version = self.committed_version

    def submit(
        self, transactions: Sequence[LoggedTransaction], answer: Answer, *, everywhere: bool = False
    ) -> None:
        """Orders transactions, and answers when they are decided and visible here, or everywhere.

        With none, it answers when all that the log held by then is visible here.
        """
        number = self._new_call(answer)

        def done(ended: Submission) -> None:
            if everywhere and None not in ended.outcomes:
                self._waiting_everywhere.append((ended, lambda: self._answer(number, ended)))
                self._answer_everywhere()
            else:
                self._answer(number, None if None in ended.outcomes else ended)

        self.machine.publisher.submit(Submission(transactions, done))

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

    def end_waiting(self) -> None:
        """Lets nobody wait any longer. What is decided is told, though it is not visible here yet,
        unless this member is in doubt itself; what became of the rest is not known.
        """
        waiting, self._waiting_commit = self._waiting_commit, []
        if self.machine.state is not MemberState.FENCED:
            for ended in waiting:
                ended.end()
        self._give_up()

    def _give_up(self) -> None:
        self.machine.publisher.abandon()
        for number in list(self._calls):
            self._answer(number, None)

    def crash(self, batches_kept: int) -> None:
        """Ends the run at once; of what was not flushed, the disk keeps the oldest batches."""
        self.disk.crash(batches_kept)
        self.is_running = False
        self._give_up()

    def _load(self) -> None:
        self.state_store = StateStore(self.disk.as_store(), self._relay_queue)
        self.state_store.load(self.machine)
        checkpoint = self.target.checkpoint()
        if checkpoint is not None:
            self.committed_version = self.durable_version = checkpoint.version
            self.machine.committed(checkpoint.version)
        self._recovered_position = self.applier.position
        self._expect_comparison()
        groups = list(self._relay_queue.load())
        payloads = [payload for group in groups for payload in group.payloads]
        self.fragments.remove_strangers(self.machine.fragment_sets.names, payloads)
        self.applier.recover(groups)

    def _expect_comparison(self) -> None:
        """Has the rows taken where the last comparison is, unless these are older already."""
        position = self.machine.comparisons.position
        if position > max(self._compared_position, self.applier.position):
            self._compared_position = position
            self.applier.coordinator.end_group_after(position)

    def _new_call(self, answer: Answer) -> int:
        self._calls_total += 1
        self._calls[self._calls_total] = answer
        return self._calls_total

    def _look(self) -> None:
        """Others see what is visible, if anything may be seen."""
        if not self.target.is_unfinished:
            self._observer.committed(self)

    def _note_committed(self, version: int) -> None:
        if self.applier.position == self._compared_position:
            self._digests = _digested(self._compared_position, self.target.open_snapshot())
        self.committed_version = version
        self._look()
        self.machine.committed(version)
        self._answer_committed()

    def _answer_committed(self) -> None:
        waiting = self._waiting_commit
        while waiting and waiting[0].version <= self.committed_version:
            ended = waiting.pop(0)
            ended.end()

    def _answer_everywhere(self) -> None:
        version = self.machine.applied_everywhere_version
        ready = [answer for ended, answer in self._waiting_everywhere if ended.version <= version]
        self._waiting_everywhere = [
            waiting for waiting in self._waiting_everywhere if waiting[0].version > version
        ]
        for answer in ready:
            answer()

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
