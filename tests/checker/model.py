"""The model: the group's log read anew, by rules written down a second time.

It takes the messages of the log as bytes, and says of each transaction whether it was certified,
under which GTID and version, who won against it, and how one member has stamped it. Everything here
follows from the rule in `members/how-a-group-works.md` and from the comments of `proto/`; no code
of the group is used, and what is slow and plain is preferred. Only messages of members are
expected: nobody forges any.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from groupcert.internal.v1.log_pb2 import (
    GroupSettings,
    LogBatch,
    LoggedTransaction,
    MemberReport,
    ViewProposal,
)
from tests.checker.decision import Decision
from tests.checker.gtid_numbers import GtidNumbers
from tests.checker.log_transactions import transactions_of

COLLECTION_PERIOD, COLLECTION_STEP = 64, 256
"""After how many certified transactions a collection goes on, and how many it then looks at."""


@dataclass
class Model:
    """Reads one message after the other; `observer` names the member whose stamps are asked for."""

    observer: str
    view_id: int = 0
    runs: dict[int, str] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    reports: dict[int, int] = field(default_factory=dict)
    settings: GroupSettings = field(default_factory=GroupSettings)
    certified: list[Decision] = field(default_factory=list)
    """Version 1 first."""
    by_id: dict[bytes, Decision] = field(default_factory=dict)
    writers: dict[int, int] = field(default_factory=dict)
    """The version that wrote an item last, never collected: the stable version says the same."""
    stable: int = 0
    collected: int = 0
    resident: dict[int, int] = field(default_factory=dict)
    """The same, collected as members do: of what is gone the stamps do not know any more."""
    unstamped: int = 0
    edge: int = 1
    next_sequence_number: int = 2
    edge_is_raised: bool = True
    gtids: GtidNumbers = field(default_factory=GtidNumbers)

    def read(self, sequence: int, payload: bytes) -> Iterator[Decision]:
        """Takes a message; yields what it decides, repetitions of a transaction left out."""
        batch = LogBatch.FromString(payload)
        if batch.batch_number <= self.numbers.get(batch.incarnation, -1):
            return
        if batch.incarnation in self.runs:
            self.numbers[batch.incarnation] = batch.batch_number
            for index, transaction in enumerate(transactions_of(batch)):
                known = transaction.transaction_id and transaction.transaction_id in self.by_id
                if not known:
                    yield self._decide(batch, (sequence, index), transaction)
        for control in batch.controls:
            if control.HasField("view_proposal"):
                self._change_view(batch, control.view_proposal)
            elif control.HasField("report") and batch.incarnation in self.runs:
                self._report(batch.incarnation, control.report)
            elif control.HasField("group_settings"):
                if control.group_settings.settings_version == self.settings.settings_version + 1:
                    self.settings = control.group_settings

    def _decide(
        self, batch: LogBatch, place: tuple[int, int], transaction: LoggedTransaction
    ) -> Decision:
        origin = self.runs[batch.incarnation]
        snapshot, newest = transaction.snapshot_version, len(self.certified)
        items = [*transaction.write_set, *transaction.read_set]
        newer = next((each for each in items if self.writers.get(each, 0) > snapshot), None)
        verdict, gtid, version, item, winner, stamps = "CERTIFIED", "", 0, 0, 0, (0, 0)
        if snapshot > newest:
            verdict = "REFUSED"
        elif snapshot < self.stable and items:
            verdict = "TOO_OLD"
        elif newer is not None:
            verdict, item, winner = "CONFLICT", newer, self.writers[newer]
        else:
            version = newest + 1
            number = self.gtids.next_number(origin, self.settings.gtid_assignment_block_size)
            gtid = f"{self.settings.group_uuid}:{number}"
            if origin != self.observer:
                stamps = self._stamp(transaction)
        decision = Decision(
            transaction=transaction, place=place, origin=origin, verdict=verdict, gtid=gtid,
            version=version, item=item, winner=winner, stamps=stamps,
        )  # fmt: skip
        if transaction.transaction_id:
            self.by_id[transaction.transaction_id] = decision
        if version:
            self.certified.append(decision)
            for each in transaction.write_set:
                self.writers[each] = self.resident[each] = version
            if version % COLLECTION_PERIOD == 0 and self.collected < self.stable:
                self._collect()
        return decision

    def _stamp(self, transaction: LoggedTransaction) -> tuple[int, int]:
        sequence_number = self.next_sequence_number
        self.next_sequence_number += 1
        if not transaction.write_set:
            self.edge = sequence_number
            return sequence_number - 1, sequence_number
        writers = (self.resident.get(each, 0) for each in transaction.write_set)
        known = [self.certified[each - 1].stamps[1] for each in writers if each > self.unstamped]
        return max([self.edge, *known]), sequence_number

    def _collect(self) -> None:
        first, last = self.collected + 1, min(self.stable, self.collected + COLLECTION_STEP)
        purged = [
            item
            for decision in self.certified[first - 1 : last]
            for item in decision.transaction.write_set
            if self.resident.get(item, last + 1) <= last and self.resident.pop(item)
        ]
        self.collected = last
        if purged and not self.edge_is_raised:
            self.edge, self.edge_is_raised = self.next_sequence_number - 1, True

    def _report(self, run: int, report: MemberReport) -> None:
        self.reports[run] = max(self.reports.get(run, 0), report.stable_version)
        self._follow_reports()

    def _follow_reports(self) -> None:
        stable = min((self.reports.get(run, 0) for run in self.runs), default=0)
        if min(stable, len(self.certified)) > self.stable:
            self.stable, self.edge_is_raised = min(stable, len(self.certified)), False

    def _change_view(self, batch: LogBatch, change: ViewProposal) -> None:
        if change.previous_view_id != self.view_id:
            return
        self.view_id += 1
        before, self.runs = self.runs, {each.incarnation: each.name for each in change.members}
        self.numbers = {run: self.numbers.get(run, batch.batch_number) for run in self.runs}
        self.reports = {run: self.reports[run] for run in self.runs if run in self.reports}
        self.gtids.release()
        if any(name == self.observer for run, name in self.runs.items() if run not in before):
            self.edge, self.next_sequence_number = 1, 2
            self.unstamped = len(self.certified)
        self._follow_reports()
