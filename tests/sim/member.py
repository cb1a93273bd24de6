"""A whole member on one thread: the real mind, store layout, relay queue and target, step by step.

The rule it keeps: it does what `members/runtime.py` does, in that order, and nothing of its own.
What that one leaves to threads and to the event loop, the cluster's scheduler decides here.
"""

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from applier.relay_queue import RelayQueue
from applier.targets.rocksdb import RocksDbTarget, RowsSnapshot
from certifier.store import CertificationInfoStore, Family
from members.convert import decode_batch, decode_changes, encode_batch
from members.log_records import GroupSettings, LogBatch, LoggedTransaction
from members.member import Delivered, Member, MemberOptions, MemberState
from members.outcome_log import OutcomeLog
from members.publisher import BatchLimits, Submission
from members.snapshots import Snapshots
from members.total_order import Delivery
from members.views import ViewMember
from tests.sim.applier import SimulatedApplier
from tests.sim.disk import SimulatedDisk

MEMBER_KEY = b"member"
BATCHES = BatchLimits(transactions_max=4, transactions_min=2, bytes_max=1_000, window=3)
STABLE_PERIOD_MS = 200
STABLE_ITEMS = 40
SNAPSHOT_LEASE_MS = 2_000
SNAPSHOT_HOLD_VERSIONS = 20

Answer = Callable[[Submission | None], None]
"""Told how a call ended; None: its member is gone, and nobody knows."""


class Message(NamedTuple):
    """What a member wants in the log."""

    message_id: str
    payload: bytes


class Observer(Protocol):
    """Who looks on."""

    def delivered(self, member: "SimulatedMember", batch: LogBatch) -> None:
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
    ) -> None:
        self.name = me.name
        self.disk = disk
        self.mind = Member(
            MemberOptions(
                me=me,
                settings=settings,
                batches=BATCHES,
                stable_period_ms=STABLE_PERIOD_MS,
                stable_items=STABLE_ITEMS,
            )
        )
        self.outbox: list[Message] = []
        self.committed_version = 0
        self.durable_version = 0
        self.paused_until_ms = 0
        self.is_running = True
        self._observer = observer
        self._unsaved = Delivered()
        self._calls: dict[int, Answer] = {}
        self._calls_total = 0
        self._waiting_commit: list[Submission] = []
        self._waiting_everywhere: list[tuple[Submission, Callable[[], None]]] = []
        store = disk.as_store()
        self._relay_queue = RelayQueue(store)
        self._target = RocksDbTarget(store, decode_changes, self._relay_queue, record_history=True)
        self.applier = SimulatedApplier(
            self._target, self._relay_queue, workers, self._note_committed
        )
        self.snapshots = Snapshots(
            self._target.open_snapshot,
            lease_ms=SNAPSHOT_LEASE_MS,
            snapshots_max=100,
            hold_versions=SNAPSHOT_HOLD_VERSIONS,
        )
        self._info_store: CertificationInfoStore
        self._outcome_log: OutcomeLog
        self._load()

    @property
    def is_online(self) -> bool:
        """Whether clients may use it."""
        return self.is_running and self.mind.state is MemberState.ONLINE

    def read(self, deliveries: Sequence[Delivery]) -> None:
        """Certifies messages, and hands what follows to the applier and to those who wait."""
        delivered = Delivered()
        for sequence, payload in deliveries:
            batch = decode_batch(sequence, payload)
            self.mind.deliver(sequence, batch, delivered)
            self._observer.delivered(self, batch)
        self.applier.append(delivered.entries)
        self._waiting_commit += delivered.ended
        self._unsaved.absorb(delivered)
        self._answer_committed()
        self._answer_everywhere()

    def open_rows(self) -> RowsSnapshot:
        """The rows that are visible now."""
        return self._target.open_snapshot()

    def open_snapshot(self, now_ms: int) -> int:
        """Opens a snapshot for a client and returns its id."""
        snapshot_id, _ = self.snapshots.open(self.committed_version, now_ms)
        return snapshot_id

    def pump(self) -> None:
        """Hands to the log's client what is to be sent now."""
        while batch := self.mind.publisher.next_batch():
            message_id = f"{batch.incarnation:x}-{batch.batch_number}"
            self.outbox.append(Message(message_id, encode_batch(batch)))

    def tick(self, now_ms: int) -> None:
        """What the runtime does from time to time."""
        self.snapshots.expire(now_ms)
        self.save()
        self.mind.report_if_due(now_ms, self.snapshots.stable_version(self.durable_version))

    def save(self) -> None:
        """Stores the mind as it is now, with what the applier has not committed yet."""
        unsaved, self._unsaved = self._unsaved, Delivered()
        store = self.disk.as_store()
        batch = store.batch()
        applied = self.applier.position
        waiting = [entry for entry in unsaved.entries if entry.position > applied]
        self._relay_queue.append(batch, waiting)
        if self._info_store.certifier is not self.mind.certifier:
            self._info_store = CertificationInfoStore(store, self.mind.certifier)
        self._info_store.save(batch)
        self._outcome_log.save(batch, self.mind.outcomes)
        batch.put(Family.META, MEMBER_KEY, json.dumps(self.mind.checkpoint()).encode())
        store.write(batch)

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
        self._calls_total += 1
        number = self._calls_total
        self._calls[number] = answer

        def done(ended: Submission) -> None:
            if everywhere and None not in ended.outcomes:
                self._waiting_everywhere.append((ended, lambda: self._answer(number, ended)))
                self._answer_everywhere()
            else:
                self._answer(number, None if None in ended.outcomes else ended)

        self.mind.publisher.submit(Submission(transactions, done))

    def stop(self) -> None:
        """Ends the run in good order; calls that are not answered end unknown."""
        self.save()
        self.flush()
        self.is_running = False
        for number in list(self._calls):
            self._answer(number, None)

    def crash(self, batches_kept: int) -> None:
        """Ends the run at once; of what was not flushed, the disk keeps the oldest batches."""
        self.disk.crash(batches_kept)
        self.is_running = False
        for number in list(self._calls):
            self._answer(number, None)

    def _load(self) -> None:
        store = self.disk.as_store()
        saved = store.get(Family.META, MEMBER_KEY)
        if saved is not None:
            self.mind.restore(json.loads(saved))
        self._info_store = CertificationInfoStore(store, self.mind.certifier)
        self._info_store.load()
        checkpoint = self._target.checkpoint()
        if checkpoint is not None:
            self.committed_version = self.durable_version = checkpoint.version
            self.mind.committed(checkpoint.version)
        self._outcome_log = OutcomeLog(store)
        self.mind.outcomes = self._outcome_log.load(self.mind.settings.outcomes_max)
        self.applier.recover()

    def _note_committed(self, version: int) -> None:
        self.committed_version = version
        self._observer.committed(self)
        self.mind.committed(version)
        self._answer_committed()

    def _answer_committed(self) -> None:
        waiting = self._waiting_commit
        while waiting and waiting[0].version <= self.committed_version:
            ended = waiting.pop(0)
            ended.done(ended)

    def _answer_everywhere(self) -> None:
        version = self.mind.applied_everywhere_version
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
