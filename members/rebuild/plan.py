"""Chooses what a rebuilt log goes on from: the longest history that no member contradicts.

The log goes on from one member's state, at the message after the last one in it, and begins with
what other members' rows have beyond that, its tail. The members whose state is as of there read on;
those behind it copy one of them, as after any trim of a log.

A member stores its state some times a second, its rows with each commit. Where all members were
killed, rows can be ahead of every state: their clients have had an answer, and only the binary log
of one member still has them. So the tail has these transactions again, at the positions that they
had, with the GTIDs that they had: the member that has their rows skips them, all others execute
them. What was refused at a position in between is refused again.
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
from ..errors.rebuild import MembersDiffer, MembersMissing
from ..large_transactions.fragment_store import fragment_key
from ..total_order.port import Continuation
from ..wire.log_batches import encode_batch
from .contradictions import Contradiction, compare
from .holding import Holding


class Tail(NamedTuple):
    """Messages that follow a state, as bytes, and the GTIDs of their transactions; those of which
    nobody has what a message needs are `lost`.
    """

    messages: list[bytes]
    rebuilt: GtidSet
    lost: GtidSet


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPart:
    """One member in a plan. `compared`: transactions that it and the longest one both have whole;
    None: it is the longest one.
    """

    holding: Holding
    compared: int | None
    reads_on: bool
    extra: GtidSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of a rebuilding; none may be taken where there are contradictions."""

    base: Holding
    tail: Tail
    members: tuple[MemberPart, ...]
    contradictions: tuple[Contradiction, ...]
    without: tuple[str, ...]
    longest: Holding
    """The member that the others were compared with."""

    @property
    def continues(self) -> Continuation:
        """Where the new log goes on."""
        at = self.base.log_sequence
        return Continuation(
            log=self.base.log,
            member=self.base.name,
            log_sequence=at,
            digest=self.base.state.certifier.digest().hex(),
            last_sequence=at + len(self.tail.messages),
        )

    @property
    def executed(self) -> GtidSet:
        """The GTIDs of all that the group goes on with."""
        return self.base.state.certifier.executed() | self.tail.rebuilt

    @property
    def reach(self) -> int:
        """The last message of the earlier log of which some member holds anything."""
        return max(part.holding.reach for part in self.members)


def plan_of(holdings: Sequence[Holding], without: Sequence[str], group: str | None = None) -> Plan:
    """Returns the plan of a new log: the state that it goes on from, and the messages after that.

    Args:
        without: Names of members that are given up.
        group: The group's name, if it was said.

    Raises:
        MembersDiffer: They are of several groups, logs or of one member twice.
        MembersMissing: A member of the last view is neither among them nor given up.
    """
    _check_one_group(holdings, group)
    # A state in doubt may be one that no other member has: it is taken where there is no better
    # one.
    sure = [holding for holding in holdings if not holding.is_in_doubt] or holdings
    # The newest state and the newest rows may be those of two members: rows are stored at each
    # commit, states some times a second.
    base = max(sure, key=lambda holding: (holding.log_sequence, holding.rows.version))
    farthest = max(sure, key=lambda holding: (holding.last_version, holding.log_sequence))
    _check_all_there(base, holdings, without)
    compared, contradictions = {}, []
    for holding in holdings:
        if holding is not farthest:
            compared[holding.name], contradiction = compare(farthest, holding)
            contradictions += [contradiction] if contradiction else []
    tail = Tail([], GtidSet(), GtidSet()) if contradictions else tail_after(base, farthest)
    executed = base.state.certifier.executed() | tail.rebuilt
    parts = (
        MemberPart(
            holding=holding,
            compared=compared.get(holding.name),
            reads_on=holding.log_sequence == base.log_sequence,
            extra=holding.executed - executed,
        )
        for holding in holdings
    )
    return Plan(
        base=base,
        tail=tail,
        members=tuple(parts),
        contradictions=tuple(contradictions),
        without=tuple(without),
        longest=farthest,
    )


def _check_one_group(holdings: Sequence[Holding], group: str | None) -> None:
    first = holdings[0]
    if group not in (None, first.group):
        raise MembersDiffer(
            first="--group", first_has=f"group {group}", **_second(first, f"group {first.group}")
        )
    for number, holding in enumerate(holdings):
        for mine, theirs in (
            (f"group {first.group}", f"group {holding.group}"),
            (f"log {first.log}", f"log {holding.log}"),
        ):
            if mine != theirs:
                raise MembersDiffer(
                    first=str(first.folder), first_has=mine, **_second(holding, theirs)
                )
        for other in holdings[:number]:
            if other.name == holding.name:
                name = f"member {holding.name}"
                raise MembersDiffer(
                    first=str(other.folder), first_has=name, **_second(holding, f"{name}, too")
                )


def _second(holding: Holding, has: str) -> dict[str, str]:
    return {"second": str(holding.folder), "second_has": has}


def _check_all_there(base: Holding, holdings: Sequence[Holding], without: Sequence[str]) -> None:
    given = {holding.name for holding in holdings} | {*without}
    missing = [member for member in base.state.view.members if member.name not in given]
    if missing:
        raise MembersMissing(
            missing=", ".join(f"{member.name} ({member.address})" for member in missing),
            without=" ".join(f"--without {member.name}" for member in missing),
        )


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
    large = [FragmentSet.of(entry.payload) for entry in entries if is_reference(entry.payload)]
    if not large:
        return True
    sender = state.view.member(large[0].incarnation)
    fragments = []
    for fragment_set in large:
        for index in state.fragment_sets.lacking(fragment_set):
            key = fragment_key(fragment_set.incarnation, fragment_set.number, index)
            data = farthest.store.get(Family.FRAGMENTS, key)
            if data is None:
                return False
            fragments.append(Fragment(fragment_set.number, index, data))
    free = [
        message for message in messages if message.sender in (None, sender) and not message.fragment
    ]
    if sender is None or len(free) < len(fragments):
        return False
    messages[-1].sender = sender
    for message, fragment in zip(free, fragments, strict=False):
        message.sender, message.fragment = sender, fragment
    return True


def _encoded(messages: Sequence[_Message], state: Member, sender: ViewMember) -> list[bytes]:
    """Returns messages as bytes, numbered behind the last ones of their runs."""
    numbers = {
        member.incarnation: state.numbers.last(member.incarnation) for member in state.view.members
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
