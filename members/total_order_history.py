"""A group's log as a certification log: what an observer of the total order has to tell.

The rule it keeps: nothing here decides; a member's mind does, and notes what it decides as it does
in a member. A history follows from the log's beginning. It has no times: nobody was there.

An observer that is nobody sees all transactions as remote. One that is named is taken for the
member of that name: in each of its runs its clock begins again where it joins, and from there on
its transactions are local. What a run had not read when it ended, its next one reads as others'
transactions; where that was the log does not say, so that here all of a run's own are local.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from certifier.errors import CorruptRecord, ForeignLog, UnsupportedFormat
from certifier.history import Row, Source
from certifier.records import position_of
from members.convert import changed_keys, decode_batch
from members.decisions import Decisions, decode
from members.group_settings import settings_problem
from members.log_records import GroupSettings, LogBatch, Message, ViewProposal
from members.member import Member
from members.member_state import Delivered, MemberOptions
from members.total_order import Delivery
from members.views import ViewMember

OBSERVER: Final = "total-order"
"""Whose history it is if nobody is named."""
HISTORY: Final = "1"
_NO_RUN = -1
"""The incarnation of nobody."""


class TotalOrderHistory:
    """Certifies a group's log from its beginning, and tells what became of it in rows."""

    def __init__(
        self,
        observer: str | None = None,
        first_sequence: int = 1,
        *,
        keys: bool = False,
        is_skip_ordered: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Begins with nothing.

        Args:
            first_sequence: The message with which the history begins; those before it are
                certified and not told.
            keys: Readable keys of rows go along.
            is_skip_ordered: Whether the log says behind a message, which nobody could read, that
                it is to be skipped.
        """
        self.observer = observer or OBSERVER
        self._name = observer
        self._first_sequence = first_sequence
        self._is_skip_ordered = is_skip_ordered
        keys_of = changed_keys if keys else None
        self._decisions = Decisions(self.observer, source=Source.TOTAL_ORDER, keys_of=keys_of)
        self._mind: Member | None = None

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
            mind = self._mind = self._mind or self._mind_before(sequence, message)
            if mind is None:
                continue
            into = Delivered()
            if sequence >= self._first_sequence and not self._decisions.is_on:
                self._decisions.is_on = True
                self._decisions.follow(mind.certifier)
                into.noted.absorb(self._decisions.start(position_of(sequence, 0), 0))
            before, mind.me = mind.me, self._next_run(mind, message)
            self._deliver(mind, sequence, message, into)
            if mind.me != before and not mind.view.member(mind.me.incarnation):
                mind.me = before
            if len(into.noted):
                yield from self._made(into)
        if self._mind is None:
            problem = f"none of the messages to {sequence} has a group's settings"
            raise CorruptRecord(position=position_of(sequence, 0), problem=problem)

    def _deliver(self, mind: Member, sequence: int, message: Message, into: Delivered) -> None:
        """Takes a message as a member does, which skips what operators had skipped."""
        try:
            mind.deliver(sequence, message, into)
        except (ForeignLog, UnsupportedFormat):
            if not self._is_skip_ordered(sequence):
                raise
            mind.skip_sequence = sequence
            mind.deliver(sequence, message, into)

    def _made(self, into: Delivered) -> Iterator[Row]:
        """Rows of what was noted, through what members store of it."""
        block = self._decisions.encode(into.noted)
        for row in decode(block, self.observer, HISTORY, "the log"):
            del row["decided_us"]
            yield row

    def _mind_before(self, sequence: int, message: Message) -> Member | None:
        """The mind of somebody who has read what is before the message that makes the group, and so
        nothing that counts; None: that message is still to come.
        """
        for control in message.controls if isinstance(message, LogBatch) else ():
            if isinstance(control, GroupSettings) and not settings_problem(control):
                me = ViewMember(name=self.observer, incarnation=_NO_RUN, address="")
                options = MemberOptions(me=me, settings=control, looks_on=True)
                mind = Member(options, self._decisions)
                mind.log_sequence = sequence - 1
                return mind
        return None

    def _next_run(self, mind: Member, batch: Message) -> ViewMember:
        """Who the observer is if the message is taken: its next run, if it proposes itself."""
        is_others = batch.incarnation != mind.me.incarnation
        if isinstance(batch, LogBatch) and batch.member == self._name and is_others:
            for control in batch.controls:
                if isinstance(control, ViewProposal):
                    for each in control.members:
                        if (each.name, each.incarnation) == (batch.member, batch.incarnation):
                            return each
        return mind.me
