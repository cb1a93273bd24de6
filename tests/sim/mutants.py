"""Wrong implementations on purpose: the simulation's checks must find each of them.

Each mutant breaks one rule at one place, in all members alike: a promise of the group is lost,
while no member has reason to doubt another.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from unittest.mock import patch

from applier.commit_order import CommitOrder
from applier.job import Job
from applier.targets.rocksdb import RowChanges
from certifier.core import Certifier
from certifier.logical_clock import LogicalClock
from certifier.outcomes import OutcomeTable
from certifier.records import Collected, GarbageCollection, Outcome, Record, Transaction, Verdict
from members.log_records import LoggedTransaction
from members.outcome_log import OutcomeLog
from members.publisher import Submission
from members.views import View, ViewMember
from tests.sim.member import Answer, SimulatedMember

Delivered = Outcome | Collected | tuple[int, int] | None

_certify = Certifier.certify
_deliver = Certifier.deliver
_stamp = LogicalClock.stamp
_submit = SimulatedMember.submit


def ignore_last_item(self: Certifier, transaction: Transaction) -> Outcome:
    """A certifier that does not look at the last item of a write set."""
    return _certify(self, transaction._replace(write_set=transaction.write_set[:-1]))


def ignore_read_set(self: Certifier, transaction: Transaction) -> Outcome:
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
    newest_version = self.mind.certifier.window.newest_version
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


def follow_any_view(
    self: View, previous_view_id: int, members: Iterable[ViewMember]
) -> View | None:
    """A member that takes a proposal though it was made for an older view."""
    del previous_view_id
    return View(view_id=self.view_id + 1, members=tuple(members))


def _mutant(place: type, name: str, wrong: object) -> Callable[[], AbstractContextManager[object]]:
    return lambda: patch.object(place, name, wrong)


MUTANTS = {
    "ignore-last-item": _mutant(Certifier, "certify", ignore_last_item),
    "ignore-read-set": _mutant(Certifier, "certify", ignore_read_set),
    "collect-one-too-early": _mutant(Certifier, "deliver", collect_one_too_early),
    "stamp-one-too-early": _mutant(LogicalClock, "stamp", stamp_one_too_early),
    "acknowledge-before-the-log": _mutant(SimulatedMember, "submit", acknowledge_before_the_log),
    "skip-commit-order": _mutant(CommitOrder, "take", commit_what_is_ready),
    "forget-outcomes": _mutant(OutcomeLog, "load", forget_outcomes),
    "follow-any-view": _mutant(View, "follow", follow_any_view),
}


def installed(name: str | None) -> AbstractContextManager[object]:
    """The mutant of that name in place of the real thing, until the context ends; None: nothing."""
    return MUTANTS[name]() if name else nullcontext()
