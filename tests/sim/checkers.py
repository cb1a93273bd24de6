"""What must hold in every run, whatever the faults: checked at each step, and once all is healed.

The rule it keeps: the checks know the log's messages and what clients were told, and nothing of how
members decide. The first member to read a message says what it decided; everybody else must agree,
and what follows from it must be a serial execution. What clients read is checked by the laboratory.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from groupcert.certifier.records import Outcome, Verdict
from groupcert.certifier.storage.store import Family
from groupcert.members.core.log_records import LogBatch, LoggedTransaction, Message, ViewProposal
from groupcert.members.core.member import Member
from groupcert.members.core.views import View, ViewMember
from groupcert.members.wire.row_changes import decode_changes
from tests.sim.member import SimulatedMember

Decision = tuple[Verdict, int, str] | None
"""Verdict, version and GTID; None where the group keeps none."""


class Violation(Exception):
    """A promise was broken."""


class Place(NamedTuple):
    """What a member knows after one message of the log."""

    decisions: tuple[Decision, ...]
    digest: bytes
    view: View
    newest_version: int
    stable_version: int
    single_primary: bool
    told: tuple[object, ...]
    """What statuses say of the log: who has departed, and what its transactions came to."""
    skipped: tuple[int, int, str, str]


class Certified(NamedTuple):
    """One version of the group's history."""

    transaction_id: bytes
    gtid: str


class Checks:
    """The group's history as members decided it, and what clients may rely on."""

    def __init__(self) -> None:
        self.history: list[Certified] = []
        self.acknowledged: dict[bytes, int] = {}
        self.aborted: set[bytes] = set()
        self.expelled = 0
        self.is_tail_lost = False
        self.strange_messages = 0
        """Messages in the log that no member has sent."""
        self.may_be_expelled: Callable[[ViewMember], bool] = lambda member: True
        self._places: list[Place] = []
        self._states: list[dict[bytes, bytes]] = [{}]
        self._reads: dict[bytes, Mapping[bytes, bytes | None]] = {}
        self._changes: dict[bytes, bytes] = {}

    def started(
        self, transaction_id: bytes, reads: Mapping[bytes, bytes | None], changes: bytes
    ) -> None:
        """A client hands in a transaction that depends on these rows, written or checked."""
        self._reads[transaction_id] = reads
        self._changes[transaction_id] = changes

    def delivered(self, member: SimulatedMember, message: Message) -> None:
        """Agreement: all members decide alike at each place of the order."""
        machine = member.machine
        is_skipped = machine.skipped.last.log_sequence == machine.log_sequence
        text = f"{member.name} skips {machine.skipped.last}, which a member has sent"
        _check(machine.skipped.total <= self.strange_messages or self.is_tail_lost, text)
        batch = LogBatch("", 0, 0) if is_skipped else message
        assert isinstance(batch, LogBatch)
        outcomes = [machine.outcomes.get(each.transaction_id) for each in batch.transactions]
        place = Place(
            tuple(map(_decision, outcomes)),
            machine.certifier.digest(),
            machine.view,
            machine.certifier.window.newest_version,
            machine.certifier.stable_version,
            machine.settings.single_primary,
            _told(machine),
            machine.skipped.dump(),
        )
        shown, newest = member.committed_version, machine.certifier.window.newest_version
        _check(
            not member.is_online or shown <= newest,
            f"{member.name} serves with rows of {shown}, and has certified {newest}",
        )
        index = machine.log_sequence - 1
        if index < len(self._places):
            first = self._places[index]
            _check(place == first, f"{member.name} has {place} at {index + 1}, others {first}")
            return
        self._check_view(place.view, batch)
        self._check_primary(place)
        before = self._places[-1] if self._places else place
        self._places.append(place)
        for logged, outcome in zip(batch.transactions, outcomes, strict=True):
            if outcome is not None and outcome.version == len(self._states):
                is_writer = not before.single_primary or batch.member == before.view.primary
                _check(is_writer, f"{batch.member} wrote, and {before.view.primary} is the primary")
                self._certified(logged, outcome)
        _check(place.newest_version == len(self.history), f"{place} after {len(self.history)}")

    def loaded(self, member: SimulatedMember) -> None:
        """Recovery: what a run begins with, of its own or of a donor's, is as of one place."""
        machine = member.machine
        name, sequence = member.name, machine.log_sequence
        if not member.target.is_unfinished:
            self.committed(member)
        if self.is_tail_lost:  # What it has may be what the log has lost: it will see.
            return
        if not 0 < sequence <= len(self._places):
            _check(not sequence, f"{name} begins after {sequence}")
            return
        place = self._places[sequence - 1]
        newest_version = machine.certifier.window.newest_version
        found = (machine.certifier.digest(), newest_version, machine.view, _told(machine))
        expected = (place.digest, place.newest_version, place.view, place.told)
        _check(found == expected, f"{name} begins after {sequence} with {found}, not {expected}")
        waiting = member.applier.coordinator.length
        missing = place.newest_version - member.committed_version
        _check(waiting >= missing, f"{name} lacks {missing} transactions, {waiting} are to apply")

    def lost_tail(self, last_sequence: int) -> None:
        """The log ends there: what came after it never was. From now on the only promise is that
        no two members that serve show something else.
        """
        self.is_tail_lost = True
        del self._places[last_sequence:]
        newest_version = self._places[-1].newest_version if self._places else 0
        del self.history[newest_version:], self._states[newest_version + 1 :]

    def committed(self, member: SimulatedMember) -> None:
        """Order: whatever is visible anywhere is a prefix of the total order."""
        _check(
            member.committed_version < len(self._states) or self.is_tail_lost,
            f"{member.name} shows version {member.committed_version} of {len(self.history)}",
        )
        if not member.has_rows or (self.is_tail_lost and not member.is_online):
            return
        rows = rows_of(member)
        expected = self._states[member.committed_version]
        text = f"{member.name} shows {rows} at version {member.committed_version}, not {expected}"
        _check(rows == expected, text)

    def acknowledge(
        self, transaction_id: bytes, outcome: Outcome, everywhere: Iterable[SimulatedMember]
    ) -> None:
        """A client was told that its transaction is committed, and by some calls, on whom."""
        known = [
            version for version, each in enumerate(self.history, 1) if each[0] == transaction_id
        ]
        name = transaction_id.hex()
        _check(known == [outcome.version], f"{name} acknowledged as {outcome}, in it at {known}")
        self.acknowledged[transaction_id] = outcome.version
        for member in everywhere:
            shown = member.committed_version
            text = f"{name} waited for everybody, and {member.name} is at {shown}: {outcome}"
            _check(shown >= outcome.version, text)

    def abort(self, transaction_id: bytes) -> None:
        """A client was told that nothing of its transaction was kept."""
        self.aborted.add(transaction_id)

    def settled(self, members: Sequence[SimulatedMember]) -> None:
        """Convergence, durability and exactly-once: the promises that are due after the heal."""
        for member in members:
            name, machine = member.name, member.machine
            newest = machine.certifier.window.newest_version
            _check(newest == len(self.history), f"{name} has certified {newest} of the history")
            _check(member.committed_version == newest, f"{name} shows {member.committed_version}")
            _check(machine.certifier.stable_version == newest, f"{name} collects no more")
            self.committed(member)
            left = [*machine.fragment_sets.names, *member.disk.as_store().scan(Family.FRAGMENTS)]
            _check(not left, f"{name} has kept fragments that nobody needs: {left}")
            machine.certifier.check_invariants()
            member.applier.coordinator.check_invariants()
        for one, other in pairwise(members):
            same = [(key, _decision(outcome)) for key, outcome in one.machine.outcomes]
            also = [(key, _decision(outcome)) for key, outcome in other.machine.outcomes]
            _check(same == also, f"{one.name} and {other.name} remember other outcomes")
        ids = [each.transaction_id for each in self.history]
        _check(len(set(ids)) == len(ids), "a transaction was certified twice")
        _check(self.acknowledged.keys() <= set(ids), "an acknowledged transaction is lost")
        _check(self.aborted.isdisjoint(ids), "an aborted transaction was committed")
        gtids = {each.gtid for each in self.history}
        _check(len(gtids) == len(ids), "a GTID was given twice")

    def _check_view(self, view: View, batch: LogBatch) -> None:
        """Views change one by one, each by a proposal that had seen the one before."""
        before = following = self._places[-1].view if self._places else View()
        for control in batch.controls:
            if isinstance(control, ViewProposal) and control.previous_view_id == following.view_id:
                following = View(view_id=following.view_id + 1, members=control.members)
        proposed = [(each.view_id, each.members) for each in (before, following)]
        found = (view.view_id, view.members)
        _check(found in proposed, f"{view} follows {before}, proposed was {following}")
        for each in before.members:
            if view.named(each.name) is None:
                self.expelled += 1
                text = (
                    f"{each.name} is put out by view {view.view_id}, and nothing was wrong with it"
                )
                _check(self.may_be_expelled(each), text)

    def _check_primary(self, place: Place) -> None:
        """In single-primary mode a view with members has one primary, else none."""
        view = place.view
        expected = place.single_primary and bool(view.members)
        _check((view.named(view.primary) is not None) == expected, f"the primary of {view}")

    def _certified(self, logged: LoggedTransaction, outcome: Outcome) -> None:
        """Serial execution: what a transaction depends on was as it had read it."""
        rows = dict(self._states[-1])
        name = logged.transaction_id.hex()
        for key, value in self._reads[logged.transaction_id].items():
            found = rows.get(key)
            # A client may have read at a member what the log has lost since.
            text = f"{name} read {value!r} at {key!r}, there was {found!r}"
            _check(found == value or self.is_tail_lost, text)
        put_keys, put_values, delete_keys = decode_changes(self._changes[logged.transaction_id])
        rows.update(zip(put_keys, put_values, strict=True))
        for key in delete_keys:
            rows.pop(key, None)
        self._states.append(rows)
        self.history.append(Certified(logged.transaction_id, str(outcome.gtid)))


class ClientsAlone(Checks):
    """Finds nothing by itself: what is wrong is left to what clients have seen."""

    def loaded(self, member: SimulatedMember) -> None:
        """Believes it."""

    def lost_tail(self, last_sequence: int) -> None:
        """Believes it."""

    def delivered(self, member: SimulatedMember, message: Message) -> None:
        """Believes it."""

    def committed(self, member: SimulatedMember) -> None:
        """Believes it."""

    def acknowledge(
        self, transaction_id: bytes, outcome: Outcome, everywhere: Iterable[SimulatedMember]
    ) -> None:
        """Believes it."""
        self.acknowledged[transaction_id] = outcome.version

    def settled(self, members: Sequence[SimulatedMember]) -> None:
        """Believes it."""


def rows_of(member: SimulatedMember) -> dict[bytes, bytes]:
    """All rows that a member shows."""
    return dict(member.open_rows().scan())


def _told(machine: Member) -> tuple[object, ...]:
    return (*machine.departures.dump(), *machine.counters.log_verdicts)


def _decision(outcome: Outcome | None) -> Decision:
    return outcome and (outcome.verdict, outcome.version, str(outcome.gtid))


def _check(holds: bool, text: str) -> None:
    if not holds:
        raise Violation(text)
