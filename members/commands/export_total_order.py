"""`groupcert export --log-server`: writes the certification log of a group's log.

The rule it keeps: the log is read as members read it, and nothing is ever written to it. Nothing is
decided here either: a member's state machine decides, and notes its decisions as it does in a
member. A history follows from the log's beginning. It has no times, because no clock was there.

Without a name, the observer sees all transactions as remote. With one, it takes the role of the
member of that name: in each of its runs its clock begins again where it joins, and from there on
its transactions are local. What a run had not read when it ended, its next one reads as others'
transactions; the log does not say where that was, so that here all of a run's own are local.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ...certifier.errors import CorruptRecord, ForeignLog, InvalidSetting, UnsupportedFormat
from ...certifier.history.schema import Row, Source
from ...certifier.position import position_of
from ..certification_log.export_folder import check_absent
from ..core.effects import Delivered
from ..core.group_settings import settings_problem
from ..core.log_records import GroupSettings, LogBatch, Message, ViewProposal
from ..core.member import Member
from ..core.member_options import MemberOptions
from ..core.noted_decisions import Decisions, decode
from ..core.views import FORMAT_VERSION, ViewMember
from ..runtime.skips import is_skip_ordered
from ..total_order.log_options import LogOptions, make_order
from ..total_order.port import Delivery, LogState, TotalOrder
from ..wire.log_batches import decode_batch
from ..wire.row_changes import changed_keys
from .export import ExportOptions, absent_observer, tell, write_history

OBSERVER: Final = "total-order"
"""Observer of the history if none is named."""
HISTORY: Final = "1"
_NO_RUN = -1
"""Incarnation of an observer without a run."""


class TotalOrderHistory:
    """Certifies a group's log from its beginning, and yields the decisions as rows."""

    def __init__(
        self,
        observer: str | None = None,
        first_sequence: int = 1,
        *,
        keys: bool = False,
        is_skip_ordered: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Begins without messages.

        Args:
            first_sequence: The message with which the history begins; those before it are
                certified, without rows.
            keys: Write readable keys of rows, too.
            is_skip_ordered: Returns whether a later record of the log says to skip a message that
                no member could read.
        """
        self.observer = observer or OBSERVER
        self._name = observer
        self._first_sequence = first_sequence
        self._is_skip_ordered = is_skip_ordered
        keys_of = changed_keys if keys else None
        self._decisions = Decisions(self.observer, source=Source.TOTAL_ORDER, keys_of=keys_of)
        self._member: Member | None = None

    def rows(self, deliveries: Iterable[Delivery]) -> Iterator[Row]:
        """Yields the rows of the log's messages, from the first one on.

        Raises:
            CorruptRecord: no message makes a group.
            DigestMismatch: most of the group has certified something else.
            ForeignLog: A message makes a group of another name.
            UnsupportedFormat: A member's message is of a release that this one does not know, and
                operators did not have it skipped.
        """
        sequence = 0
        for sequence, payload in deliveries:
            message = decode_batch(payload)
            member = self._member = self._member or self._member_before(sequence, message)
            if member is None:
                continue
            into = Delivered()
            if sequence >= self._first_sequence and not self._decisions.is_on:
                self._decisions.is_on = True
                self._decisions.follow(member.certifier)
                into.noted.absorb(self._decisions.start(position_of(sequence, 0), 0))
            before, member.me = member.me, self._next_run(member, message)
            self._deliver(member, sequence, message, into)
            if member.me != before and not member.view.member(member.me.incarnation):
                member.me = before
            if len(into.noted):
                yield from self._made(into)
        if self._member is None:
            problem = f"none of the messages to {sequence} has a group's settings"
            raise CorruptRecord(position=position_of(sequence, 0), problem=problem)

    def _deliver(self, member: Member, sequence: int, message: Message, into: Delivered) -> None:
        """Delivers a message as in a member, and skips it if operators had it skipped."""
        try:
            member.deliver(sequence, message, into)
        except (ForeignLog, UnsupportedFormat):
            if not self._is_skip_ordered(sequence):
                raise
            member.skip_sequence = sequence
            member.deliver(sequence, message, into)

    def _made(self, into: Delivered) -> Iterator[Row]:
        """Yields the rows of what was noted, decoded as members store it."""
        block = self._decisions.encode(into.noted)
        for row in decode(block, self.observer, HISTORY, "the log"):
            del row["decided_us"]
            yield row

    def _member_before(self, sequence: int, message: Message) -> Member | None:
        """Returns a member that has read the messages before the one that makes the group, of which
        none counts; None if that message is still to come.
        """
        for control in message.controls if isinstance(message, LogBatch) else ():
            if isinstance(control, GroupSettings) and not settings_problem(control):
                me = ViewMember(
                    name=self.observer,
                    incarnation=_NO_RUN,
                    address="",
                    format_version=FORMAT_VERSION,
                )
                options = MemberOptions(me=me, settings=control, looks_on=True)
                member = Member(options, self._decisions)
                member.log_sequence = sequence - 1
                return member
        return None

    def _next_run(self, member: Member, batch: Message) -> ViewMember:
        """Returns the observer after the message: its next run, if the message proposes that."""
        is_others = batch.incarnation != member.me.incarnation
        if isinstance(batch, LogBatch) and batch.member == self._name and is_others:
            for control in batch.controls:
                if isinstance(control, ViewProposal):
                    for each in control.members:
                        if (each.name, each.incarnation) == (batch.member, batch.incarnation):
                            return each
        return member.me


def export_total_order(
    log: LogOptions,
    observer: str | None,
    options: ExportOptions,
    *,
    first_sequence: int = 1,
    last_sequence: int | None = None,
) -> None:
    """Writes the history of a group's log, as `observer` sees it.

    Args:
        first_sequence: The message with which the history begins.
        last_sequence: The one with which it ends; None: the last one there is now.

    Raises:
        CorruptRecord, DigestMismatch, ForeignLog, LogGap, UnsupportedFormat: The log cannot be
            certified.
        GroupMissing, LogServerUnavailable, LogServerTooOld: It cannot be read.
        InvalidSetting: It does not have these messages, or not those before them any more; or the
            observer has a log in the folder.
        OSError: The files cannot be written.
    """
    order = make_order(log)
    with asyncio.Runner() as runner:
        history = TotalOrderHistory(
            observer,
            first_sequence,
            keys=options.keys,
            is_skip_ordered=lambda sequence: runner.run(is_skip_ordered(order, sequence)),
        )
        check_absent(options.out, history.observer)
        try:
            state = runner.run(order.open(create=False))
            last = last_sequence or state.last_sequence
            check_reached(state, first_sequence, last)
            rows = history.rows(_deliveries(runner, order, last))
            exported = write_history(rows, history.observer, options)
        finally:
            runner.run(order.close())
    tell(exported, options, "total_order", absent_observer(exported, observer))


def check_reached(state: LogState, first_sequence: int, last_sequence: int) -> None:
    """Raises InvalidSetting unless the log has all messages up to `last_sequence`."""
    if state.first_sequence > 1:
        raise InvalidSetting(
            name="log_server",
            value=f"a log that begins with message {state.first_sequence}",
            expected="one that was not trimmed, because decisions follow from all before them: "
            "take the certification logs that the members wrote",
        )
    for name, value in (("first", first_sequence), ("last", last_sequence)):
        if not first_sequence <= value <= state.last_sequence:
            expected = f"a message of the log, which ends with {state.last_sequence}"
            if name == "last":
                expected += f", and {first_sequence} or later"
            raise InvalidSetting(name=name, value=value, expected=expected)


def _deliveries(
    runner: asyncio.Runner, order: TotalOrder, last_sequence: int
) -> Iterator[Delivery]:
    """Yields the log's messages up to the last one; serves the connection while it waits."""
    batches = order.read(1)

    async def following() -> list[Delivery]:
        return await anext(batches)

    try:
        sequence = 0
        while sequence < last_sequence:
            for delivery in runner.run(following()):
                sequence = delivery.sequence
                if sequence <= last_sequence:
                    yield delivery
    finally:
        runner.run(batches.aclose())
