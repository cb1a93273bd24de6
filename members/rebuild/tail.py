"""The messages between the last stored state and the last committed rows, made anew.

A member stores its state some times a second, its rows with each commit. Where all members were
killed, rows can be ahead of every state: their clients have had an answer, and only the binary log
of one member still has them. So these transactions go into the rebuilt log, at the positions that
they had, with the GTIDs that they had: the member that has their rows skips them, all others
execute them. What was refused at a position in between is refused again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from ...applier.queue.fragment_references import FragmentSet, is_reference
from ...applier.queue.relay_group import RelayEntry
from ...certifier.gtid_set import GtidSet
from ...certifier.position import log_index_of, log_sequence_of
from ...certifier.storage.store import Family
from ..core.log_records import Fragment, LogBatch, LoggedTransaction
from ..core.member import Member
from ..core.views import ViewMember
from ..large_transactions.fragments import fragment_key
from ..wire.log_batches import encode_batch
from .holding import Holding


class Tail(NamedTuple):
    """Messages that follow a state, as bytes, and the GTIDs of their transactions; those of which
    nobody has what a message needs are `lost`.
    """

    messages: list[bytes]
    rebuilt: GtidSet
    lost: GtidSet


@dataclass(slots=True)
class _Message:
    """A message that is made; `sender`: the run that it has to be of, None: any."""

    sender: ViewMember | None = None
    transactions: list[LoggedTransaction] = field(default_factory=list)
    fragment: Fragment | None = None


def tail_after(base: Holding, farthest: Holding) -> Tail:
    """Returns the messages that follow the state of `base`, made from the rows of `farthest`."""
    lost = farthest.executed - base.state.certifier.executed()
    sender = _sender(base.state)
    if sender is None or not lost:
        return Tail([], GtidSet(), lost)
    messages: list[_Message] = []
    rebuilt, version = GtidSet(), base.version
    entries = farthest.entries(version + 1)
    for log_sequence, group in groupby(entries, lambda entry: log_sequence_of(entry.position)):
        sent = list(group)
        is_next = [entry.version for entry in sent] == [*range(version + 1, sent[-1].version + 1)]
        before = len(messages)
        # Nothing was certified in the messages between: empty ones keep the positions of the
        # others.
        messages += [_Message() for _ in range(log_sequence - base.log_sequence - before)]
        # What follows a hole was certified behind what is in it, and is lost with that.
        if not is_next or not _add_fragments(messages, base.state, farthest, sent):
            del messages[before:]
            break
        messages[-1].transactions = list(_again(sent, version))
        rebuilt |= GtidSet.of(*(entry.gtid for entry in sent if entry.gtid))
        version = sent[-1].version
    return Tail(_encoded(messages, base.state, sender), rebuilt, lost - rebuilt)


def _sender(state: Member) -> ViewMember | None:
    """Returns a run of the view from which the group takes transactions; None: there is none."""
    view = state.view
    return view.named(view.primary) or next(iter(view.members), None)


def _add_fragments(
    messages: Sequence[_Message], state: Member, farthest: Holding, entries: Sequence[RelayEntry]
) -> bool:
    """Adds the fragments of large transactions of the last message, where the state lacks them;
    returns False, and adds none, if they cannot be added.

    A fragment goes into a message that has none, of the run that its transaction is of: there are
    as many, as each had a message of its own.
    """
    large = [FragmentSet.of(each.payload) for each in entries if is_reference(each.payload)]
    if not large:
        return True
    sender = state.view.member(large[0].incarnation)
    fragments = []
    for each in large:
        for index in state.fragment_sets.lacking(each):
            key = fragment_key(each.incarnation, each.number, index)
            data = farthest.store.get(Family.FRAGMENTS, key)
            if data is None:
                return False
            fragments.append(Fragment(each.number, index, data))
    free = [each for each in messages if each.sender in (None, sender) and not each.fragment]
    if sender is None or len(free) < len(fragments):
        return False
    messages[-1].sender = sender
    for message, fragment in zip(free, fragments, strict=False):
        message.sender, message.fragment = sender, fragment
    return True


def _encoded(messages: Sequence[_Message], state: Member, sender: ViewMember) -> list[bytes]:
    """Returns messages as bytes, numbered behind the last ones of their runs."""
    numbers = {
        each.incarnation: state.numbers.last(each.incarnation) for each in state.view.members
    }
    encoded = []
    for message in messages:
        name, run = (message.sender or sender).name, (message.sender or sender).incarnation
        number = numbers[run] = (numbers[run] or 0) + 1
        fragments = [message.fragment] if message.fragment else []
        batch = LogBatch(name, run, number, message.transactions, (), fragments)
        encoded.append(encode_batch(batch, state.view.written_format))
    return encoded


def _again(entries: Sequence[RelayEntry], snapshot: int) -> Iterator[LoggedTransaction]:
    """Yields the transactions of a message, each at its index: they were certified on snapshots
    before the message, which version `snapshot` is.
    """
    index = 0
    for entry in entries:
        at = log_index_of(entry.position)
        yield from [_refused(entry.version)] * (at - index)
        index = at + 1
        yield LoggedTransaction(
            transaction_id=b"",
            snapshot=snapshot,
            write_set=entry.header.items,
            gtid=entry.gtid,
            payload=entry.payload,
            domain_id=entry.header.domain_id,
        )


def _refused(version: int) -> LoggedTransaction:
    """Returns a transaction that every member refuses: it has seen a version before it is there."""
    return LoggedTransaction(transaction_id=b"", snapshot=version, write_set=())
