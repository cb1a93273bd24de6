"""The driver of a member: certifies the messages of the log, and does what follows from them.

The rule it keeps: a message of the log is certified and handed to the applier before the next one
is looked at; a client is answered when its transaction is read back and committed here. It has no
event loop, no thread and no clock of its own: `MemberRuntime` drives it in a process, and the
simulation drives the same lines.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import structlog

from ...applier.queue.fragment_references import is_reference
from ...applier.queue.relay_group import RelayEntry
from ...applier.queue.relay_queue import RelayQueue
from ...certifier.errors import CorruptRecord, GroupcertError, InvalidRequest
from ...certifier.history.schema import Cursor
from ...certifier.position import position_of
from ...certifier.storage.store import Store
from ..binary_log.stored_log import BinaryLog
from ..certification_log.outbox import Outbox
from ..core.effects import Delivered
from ..core.log_records import GroupSettings, RowDigests
from ..core.member import Member
from ..core.members import Skipped
from ..core.views import MemberState
from ..errors.membership import OutOfGroup, StillFenced
from ..large_transactions.fragment_store import FragmentStore
from ..large_transactions.rows_maker import RowsMaker
from ..total_order.port import Delivery
from ..wire.log_batches import decode_batch
from .answers import Answers
from .row_store import RowStore
from .snapshots import Snapshots
from .state_store import StateStore

SAVE_MS = 200
SAVED_ENTRIES = 512
"""Milliseconds between two saves of the state, as between two flushes of the store: one that is not
flushed is not there after a crash of the machine. After so many entries the next tick saves."""
UNSAVED_MAX = 2_048
UNSAVED_BYTES_MAX = 4 << 20
"""Relay entries, and bytes of messages, that a member delivers between two saves: to store so many
takes 20 ms, and more often would cost streams a tenth."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Parts(Protocol):
    """What a driver works with, on one store; `opening.py` has that of a process."""

    store: Store
    relay_queue: RelayQueue
    fragments: FragmentStore
    rows_maker: RowsMaker | None
    """What keeps fragments of large transactions; None: nobody executes them here."""
    snapshots: Snapshots
    binary_log: BinaryLog | None
    outbox: Outbox | None

    @property
    def rows(self) -> RowStore:
        """What keeps the rows."""

    def start(self) -> None:
        """Begins to work ahead, once the state is loaded."""


class Driver(ABC):
    """One run of a member, from the state in its store to answers.

    `member` is the state machine that decides; the driver writes and answers for it. A subclass
    reads the log, knows the time and waits.
    """

    def __init__(self, member: Member, compare_period_us: int) -> None:
        """Begins without parts; `load` follows.

        Args:
            compare_period_us: Microseconds between two comparisons of rows; 0: there are none.
        """
        self.member = member
        self.held = member.held
        self.is_whole = self.vouches_for_log = False
        self.committed_version = self.durable_version = 0
        self.committed_position = self._recovered_position = -1
        self._compare_period_us = compare_period_us
        self._compared_position = 0
        self._unsaved = Delivered()
        self._unsaved_bytes = self._saved_log_sequence = self._saved_ms = 0
        self._shown: MemberState | None = None
        self.answers: Answers
        self._parts: Parts
        self._state_store: StateStore

    def deliver_in_steps(
        self, deliveries: Iterable[Delivery], is_over: Callable[[], bool]
    ) -> Generator[None]:
        """Certifies messages, and hands on their effects whenever `is_over` says that its turn is:
        answers do not wait for what is read behind them. Yields where others may have their turn.
        The messages before one that raises count.
        """
        waiting = iter(deliveries)
        delivery = next(waiting, None)
        while delivery is not None:
            delivered = Delivered(decided_us=self.now_us())
            self.is_whole = False
            try:
                while delivery is not None:
                    yield from self._certify(delivery, delivered)
                    last, delivery = delivery, next(waiting, None)
                    if is_over():
                        break
            finally:
                self._hand_on(delivered)
            self._state_store.delivered(last)
            self.is_whole = True
            self.report()
            if self._unsaved_bytes > UNSAVED_BYTES_MAX or len(self._unsaved.entries) > UNSAVED_MAX:
                self.save()
            yield

    def _certify(self, delivery: Delivery, into: Delivered) -> Generator[None]:
        """Delivers the next message to the state machine.

        Raises:
            CorruptRecord: What no rule of `members/core/record_kinds.py` has foreseen is wrong
                with it.
        """
        message = decode_batch(delivery.payload)
        try:
            yield from self.member.deliver_in_steps(delivery.sequence, message, into)
        except InvalidRequest as error:  # For the caller of a request to change; here is none.
            position = position_of(delivery.sequence, 0)
            raise CorruptRecord(position=position, problem=str(error)) from error
        self._unsaved_bytes += len(delivery.payload)

    def _hand_on(self, delivered: Delivered) -> None:
        """Carries out the duties of a driver of `Delivered`, by their numbers there."""
        self._log_skipped(delivered.skipped)  # 1
        self._store_fragments(delivered)  # 2
        self._expect_comparison()
        self._parts.rows.append(delivered.entries)  # 3
        self.answers.delivered(delivered)  # 4
        if delivered.doubted:
            self.fail(delivered.doubted)  # 5
        self._unsaved.absorb(delivered)  # 6
        self.note_state()
        self.answers.everywhere.advance(self.member.applied_everywhere_version)

    def tick(self, *, is_full: bool = False) -> None:
        """Does what is due as time passes; for every 50 ms.

        Args:
            is_full: The log is not read now, because the applier has too much to do.
        """
        now_ms = self.now_ms()
        self._parts.snapshots.expire(now_ms)
        self.member.tick(now_ms, reads=not is_full)
        self.note_state()
        self._compare()
        self.send()
        if self._is_save_due():
            self.save()
        self.report()

    def save(self) -> None:
        """Stores the member's state. One that failed within a message, or is not loaded yet, is not
        stored: the message is read again.
        """
        if not self.is_whole:
            return
        unsaved, self._unsaved, self._unsaved_bytes = self._unsaved, Delivered(), 0
        self._state_store.save(
            self.member, unsaved, self._parts.rows.lasting(self.committed_position)
        )
        self._saved_log_sequence, self._saved_ms = self.member.log_sequence, self.now_ms()

    def report(self) -> None:
        """Tells the group how far this member is, if that is due; never within a message, nor for
        good if that one failed.
        """
        if self.is_whole and self.member.report_if_due(self.now_ms(), self.durable_version):
            self.send()

    def advance(self, version: int, position: int) -> None:
        """Takes the applier's version and position, on any thread, while nothing later is visible;
        `note_committed` follows where the driver runs.
        """
        self._parts.rows.comparison.committed(position)
        self.committed_version, self.committed_position = version, position

    def note_committed(self) -> None:
        """Answers those who wait for what is visible now."""
        version = self.committed_version
        self.member.committed(version)
        self._parts.rows.flush_up_to(version)
        self.answers.visible.advance(version)
        self.report()

    def on_durable(self, version: int) -> None:
        """Takes the version up to which everything is on disk, on any thread."""
        self.durable_version = version

    def on_written(self, cursor: Cursor) -> None:
        """Takes how far the certification log has files, on any thread."""
        self.member.history_cursor = cursor

    def note_digests(self, digests: RowDigests) -> None:
        """Takes the digests of the member's rows for the comparison that runs."""
        self.member.rows_digested(digests)
        self.send()

    def fence(self, error: GroupcertError) -> None:
        """Stops serving until the operator acts, in later runs as well."""
        name = self.member.me.name
        log.error("member_fenced", member=name, reason=error.reason, text=str(error))
        explanation = f"{error.reason}: {error}"
        if not isinstance(error, StillFenced):
            with suppress(GroupcertError):
                self._state_store.set_fence(explanation)
        self.stop_serving(MemberState.FENCED, explanation)

    def stop_serving(self, state: MemberState, reason: str) -> None:
        """Stops accepting transactions, sets the state and wakes every waiter with NotServing.
        FENCED is never overwritten; LEFT is not overwritten by ERROR.
        """
        left = self.member.state is MemberState.LEFT and state is MemberState.ERROR
        if self.member.state is not MemberState.FENCED and not left:
            self.member.fail(state, reason)
        self._log_state()
        self.answers.end_all()

    def note_state(self) -> None:
        """Wakes every waiter if the group goes on without this member."""
        self.vouches_for_log |= self.member.state is MemberState.ONLINE
        if self._log_state() and self.member.state is MemberState.ERROR:
            self.answers.end_all()
            self.fail(OutOfGroup(member=self.member.me.name, explanation=self.member.reason))

    @abstractmethod
    def now_ms(self) -> int:
        """Returns the milliseconds of a clock that never goes back."""

    @abstractmethod
    def now_us(self) -> int:
        """Returns the microseconds since 1970."""

    @abstractmethod
    def send(self) -> None:
        """Sends what the member wants in the log, once the log is open."""

    @abstractmethod
    def sent_at(self, batch_number: int) -> float | None:
        """Returns the time, by `time.perf_counter`, at which one of the last batches was sent."""

    @abstractmethod
    def begins_to_wait(self) -> None:
        """Has the next message read at once: a call waits for a version."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Ends the run with an error; the first one counts."""

    @abstractmethod
    def on_state(self, state: MemberState) -> None:
        """Takes the member's new state."""

    def load(self, parts: Parts) -> None:
        """Loads the member's state from the store; gives the applier what it had not executed."""
        self._parts = parts
        self.answers = Answers(self.member, self, parts.binary_log)
        self._state_store = StateStore(parts.store, parts.relay_queue, parts.outbox)
        self._state_store.load(self.member)
        self.vouches_for_log = self.member.log_sequence > 0
        checkpoint = parts.rows.checkpoint()
        if checkpoint is not None:
            self.committed_version = self.durable_version = checkpoint.version
            self.committed_position = checkpoint.position
            self.answers.visible.advance(checkpoint.version)
            self.member.committed(checkpoint.version)
        self._recovered_position = self.committed_position
        self._expect_comparison()
        parts.start()
        references: list[bytes] = []

        def groups() -> Iterator[Sequence[RelayEntry]]:
            for group in parts.relay_queue.load(self.committed_position):
                references.extend(filter(is_reference, group.payloads))
                yield group

        # One after the other: a queue of what servers have executed has some GiB.
        parts.rows.recover(groups())
        parts.fragments.remove_strangers(self.member.fragment_sets.names, references)
        self.is_whole = True

    def _log_skipped(self, messages: Iterable[Skipped]) -> None:
        """Logs a line for each message that had no effect."""
        for log_sequence, why, claimed_member in messages:
            fields = {"member": self.member.me.name, "log_sequence": log_sequence, "why": why}
            log.warning("log_message_skipped", **fields, claimed_member=claimed_member)

    def _store_fragments(self, delivered: Delivered) -> None:
        """Stores the fragments of large transactions, if there are any. Entries that an earlier run
        has executed are read again after a restart: their fragments go.
        """
        rows_maker, entries = self._parts.rows_maker, delivered.entries
        if rows_maker is None:
            return
        executed = self._parts.rows.lasting(self._recovered_position)
        is_executed = bool(entries) and entries.positions[0] <= executed
        if delivered.fragments or delivered.dropped or is_executed:
            rows_maker.take_in(delivered, executed)

    def _expect_comparison(self) -> None:
        """Has the rows taken where the last comparison is, unless these are older already."""
        position = self.member.comparisons.position
        if position > max(self._compared_position, self.committed_position):
            self._compared_position = position
            self._parts.rows.expect_comparison(position)

    def _compare(self) -> None:
        """Begins a comparison of rows if one is due, and lets go of the last one's."""
        if self._compare_period_us:
            self.member.compare_if_due(self.now_us(), self._compare_period_us)
        compared = self.member.comparisons
        is_settled = compared.is_over and not compared.differences()
        self._parts.rows.comparison.forget(is_settled=is_settled)

    def _is_save_due(self) -> bool:
        is_new = self._saved_log_sequence != self.member.log_sequence
        is_time = self.now_ms() - self._saved_ms >= SAVE_MS
        return is_new and (is_time or len(self._unsaved.entries) >= SAVED_ENTRIES)

    def _log_state(self) -> bool:
        """Logs the state if it has changed since the last call, and returns whether it has."""
        member = self.member
        if member.state is self._shown:
            return False
        self._shown = member.state
        fields = {"member": member.me.name, "state": member.state.name, "reason": member.reason}
        log.info("member_state", **fields, view=member.view.view_id)
        self.on_state(member.state)
        if member.state is MemberState.ONLINE:
            self._warn_of_settings()
        return True

    def _warn_of_settings(self) -> None:
        """Logs which settings of this member differ from those of the group that it has joined."""
        mine, groups = self.member.options.settings, self.member.settings
        for name in GroupSettings._fields[1:]:
            if getattr(mine, name) != getattr(groups, name):
                fields = {"configured": getattr(mine, name), "used": getattr(groups, name)}
                me = self.member.me.name
                log.warning("group_setting_differs", member=me, setting=name, **fields)
