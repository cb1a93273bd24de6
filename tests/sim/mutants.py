"""Wrong implementations on purpose: the simulation's checks must find each of them.

Each mutant breaks one rule at one place, in all members alike: a promise of the group is lost,
while no member has reason to doubt another.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

from groupcert.applier.engine.commit_order import CommitOrder
from groupcert.applier.queue.fragment_references import FragmentSet
from groupcert.applier.queue.job import Job
from groupcert.applier.targets.rocksdb import RocksDbTarget, RowChanges, RowsSnapshot
from groupcert.certifier.core import Certifier, Deciding
from groupcert.certifier.logical_clock import LogicalClock
from groupcert.certifier.outcomes import OutcomeTable
from groupcert.certifier.records import (
    Collected,
    GarbageCollection,
    Outcome,
    Record,
    Transaction,
    Verdict,
)
from groupcert.certifier.storage.store import Family
from groupcert.members.core import member, repetitions
from groupcert.members.core.catch_up import CatchUp
from groupcert.members.core.fragment_sets import FragmentSets
from groupcert.members.core.log_records import LoggedTransaction, Message
from groupcert.members.core.member import Member
from groupcert.members.core.members import Suspicions
from groupcert.members.core.publisher import Publisher, Submission
from groupcert.members.core.record_kinds import GroupBefore
from groupcert.members.core.views import View, ViewMember
from groupcert.members.core.witnesses import Judgement, Step, Witnesses
from groupcert.members.process import log_trimmer
from groupcert.members.process.log_trimmer import Retention
from groupcert.members.recovery.joiner import Joiner
from groupcert.members.recovery.manifest import CopyManifest
from groupcert.members.runtime.state_store import OutcomeLog, StateStore
from groupcert.members.total_order.port import Delivery, LogState
from tests.laboratory.mutants import mutant
from tests.sim.disk import DiskCopy, SimulatedDisk
from tests.sim.member import Answer, SimulatedMember
from tests.sim.process import SimulatedProcess

Delivered = Outcome | Collected | tuple[int, int] | None

_certify = Certifier.certify_in_steps
_deliver = Certifier.deliver
_checkpoint = SimulatedDisk.checkpoint
_heard_own = Suspicions.heard_own
_open = SimulatedProcess._open
_stamp = LogicalClock.stamp
_submit = SimulatedMember.submit
_close = FragmentSets.close


def ignore_last_item(self: Certifier, transaction: Transaction) -> Deciding:
    """A certifier that does not look at the last item of a write set."""
    return _certify(self, transaction._replace(write_set=transaction.write_set[:-1]))


def ignore_read_set(self: Certifier, transaction: Transaction) -> Deciding:
    """A certifier that lets a serializable transaction pass though what it read has changed."""
    return _certify(self, transaction._replace(read_set=()))


def collect_one_too_early(self: Certifier, record: Record) -> Delivered:
    """A certifier that forgets one version more than is stable, and trusts who has not seen it."""
    if not isinstance(record, GarbageCollection) or not isinstance(record.stable, int):
        return _deliver(self, record)
    if record.stable + 1 >= self.window.newest_version:
        return _deliver(self, record)
    collected = _deliver(self, record._replace(stable=record.stable + 1))
    self.oldest_snapshot_version = record.stable
    return collected


def stamp_one_too_early(self: LogicalClock, dependency: int) -> tuple[int, int]:
    """A certifier whose stamps let a transaction start beside the one that it depends on."""
    return _stamp(self, max(dependency - 1, 0))


def acknowledge_before_the_log(
    self: SimulatedMember,
    transactions: Sequence[LoggedTransaction],
    answer: Answer,
    *,
    everywhere: bool = False,
) -> None:
    """A member that believes its own transactions to pass, and answers before they are ordered."""
    _submit(self, transactions, lambda _: None, everywhere=everywhere)
    hoped = Submission(transactions, lambda _: None)
    newest_version = self.machine.certifier.window.newest_version
    for index in range(len(transactions)):
        hoped.decide(index, Outcome(Verdict.CERTIFIED, version=newest_version + 1 + index))
    answer(hoped)


def commit_what_is_ready(
    self: CommitOrder[RowChanges], transactions_max: int
) -> list[Job[RowChanges]]:
    """An applier that commits whatever was executed, in whatever order."""
    del transactions_max
    jobs = list(self.ready_jobs)
    taken = {entry.position for job in jobs for entry in job.entries}
    for lane in self._lanes.values():
        lane.ready.clear()
        lane.waiting = deque(position for position in lane.waiting if position not in taken)
    return jobs


def forget_outcomes(self: OutcomeLog, outcomes_max: int) -> OutcomeTable:
    """A member that does not know after a restart what it has decided before."""
    del self
    return OutcomeTable(outcomes_max)


def forget_the_doubt(certifier: Certifier, table: OutcomeTable, logged: LoggedTransaction) -> bool:
    """A member that takes each transaction for a new one whose outcome it does not know."""
    del certifier, table, logged
    return False


def follow_any_view(
    self: View, previous_view_id: int, members: Iterable[ViewMember]
) -> View | None:
    """A member that takes a proposal though it was made for an older view."""
    del previous_view_id
    return View(view_id=self.view_id + 1, members=tuple(members))


def suspect_by_the_clock(self: Suspicions, now_ms: int) -> None:
    """A member that holds it against the others that the log was away."""
    self._gap_ms_max = 1 << 40
    _heard_own(self, now_ms)


def take_from_everybody(self: Member, origin: ViewMember | None) -> bool:
    """A group whose secondaries may write."""
    del self
    return origin is not None


def take_a_part_for_the_whole(self: FragmentSets, fragments: FragmentSet) -> bool:
    """A member that certifies a large transaction though some of its fragments are not there."""
    _close(self, fragments)
    return True


def show_a_part(self: RocksDbTarget) -> RowsSnapshot:
    """A member that shows the rows of a large transaction while it writes them."""
    return RowsSnapshot(self._store.snapshot(Family.DATA))


def skip_the_gap(self: SimulatedProcess, state: LogState) -> None:
    """A joiner that goes on where the log begins, whatever it lacks."""
    machine = self.member.machine
    machine.log_sequence = max(machine.log_sequence, state.first_sequence - 1)
    _open(self, state)


def join_at_once(
    self: CatchUp,
    log_sequence: int,
    last_sequence: int,
    pending_transactions: int,
    rows_sequence: int,
) -> bool:
    """A joiner that does not look how far it is."""
    del self, log_sequence, last_sequence, pending_transactions, rows_sequence
    return True


def trim_what_is_needed(
    log_state: LogState,
    durable: Iterable[int],
    reading: Iterable[int],
    retention: Retention,
    *,
    messages_min: int,
) -> int | None:
    """A trimmer that asks nobody what he still has to read."""
    del durable, reading
    target = log_state.last_sequence + 1 - retention.messages
    return target if target - log_state.first_sequence >= messages_min else None


def forget_the_copies(durable: int, reading: Iterable[int]) -> int:
    """A donor that tells nobody which of the log those need who copy its state."""
    del reading
    return durable


def tear_the_copy(self: SimulatedDisk) -> DiskCopy:
    """A donor whose copy has rows that are older than its certification info."""
    copy = _checkpoint(self)
    for family in (Family.DATA, Family.RELAY):
        copy[family] = self._durable[family].copy()
    return copy


def forget_the_fence(self: StateStore) -> str:
    """A member that serves again after a restart, whatever has fenced it."""
    del self
    return ""


def believe_the_log(self: StateStore, found: Delivery | None) -> None:
    """A member that reads on whatever the log has where it stopped."""
    del self, found


def ask_nobody(self: Witnesses, view: View, **state: object) -> Judgement:
    """A joiner that takes what the log has for all there ever was."""
    del self, view, state
    return Judgement(Step.JOIN)


def take_any_copy(self: Joiner, manifest: CopyManifest) -> None:
    """A joiner that does not care what it has and the group has not."""
    del self, manifest


def believe_everybody(message: Message, before: GroupBefore) -> str:
    """A member that takes whatever has the form of a batch."""
    del message, before
    return ""


def own_what_bears_its_mark(self: Publisher, batch: Message) -> bool:
    """A member that takes for its own what somebody else has written in its name."""
    del self, batch
    return True


MUTANTS = {
    "ignore-last-item": mutant(Certifier, "certify_in_steps", ignore_last_item),
    "ignore-read-set": mutant(Certifier, "certify_in_steps", ignore_read_set),
    "collect-one-too-early": mutant(Certifier, "deliver", collect_one_too_early),
    "stamp-one-too-early": mutant(LogicalClock, "stamp", stamp_one_too_early),
    "acknowledge-before-the-log": mutant(SimulatedMember, "submit", acknowledge_before_the_log),
    "skip-commit-order": mutant(CommitOrder, "take", commit_what_is_ready),
    "forget-outcomes": mutant(OutcomeLog, "load", forget_outcomes),
    "forget-the-doubt": mutant(repetitions, "_may_be_forgotten", forget_the_doubt),
    "follow-any-view": mutant(View, "follow", follow_any_view),
    "suspect-by-the-clock": mutant(Suspicions, "heard_own", suspect_by_the_clock),
    "take-from-everybody": mutant(Member, "_takes", take_from_everybody),
    "take-a-part-for-the-whole": mutant(FragmentSets, "close", take_a_part_for_the_whole),
    "show-a-part": mutant(RocksDbTarget, "open_snapshot", show_a_part),
    "skip-the-gap": mutant(SimulatedProcess, "_open", skip_the_gap),
    "join-at-once": mutant(CatchUp, "is_near", join_at_once),
    "trim-what-is-needed": mutant(log_trimmer, "trim_target", trim_what_is_needed),
    "forget-the-copies": mutant(log_trimmer, "reported_sequence", forget_the_copies),
    "tear-the-copy": mutant(SimulatedDisk, "checkpoint", tear_the_copy),
    "believe-the-log": mutant(StateStore, "check_last", believe_the_log),
    "forget-the-fence": mutant(StateStore, "fence", forget_the_fence),
    "believe-everybody": mutant(member, "why_skipped", believe_everybody),
    "own-what-bears-its-mark": mutant(Publisher, "wrote", own_what_bears_its_mark),
    "ask-nobody": mutant(Witnesses, "judge", ask_nobody),
    "take-any-copy": mutant(Joiner, "check", take_any_copy),
}


def installed(name: str | None) -> AbstractContextManager[object]:
    """The mutant of that name in place of the real thing, until the context ends; None: nothing."""
    return MUTANTS[name].install() if name else nullcontext()
