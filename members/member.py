"""A member's mind: the log's messages in, what has to be done about them out.

The rule it keeps: everything here follows from the messages delivered so far and from what the
driver reports, so that members agree and a simulation can replay them. Pure: no I/O, no clock, no
threads; `members/runtime.py` drives it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import repeat
from typing import TypedDict

from applier.relay_queue import RelayEntry
from applier.source_header import SourceHeader
from certifier.core import Certifier, CertifierOptions
from certifier.errors import DigestMismatch, ForeignLog
from certifier.outcomes import OutcomeTable
from certifier.records import (
    GarbageCollection,
    Outcome,
    Transaction,
    Verdict,
    ViewChange,
    position_of,
)
from members.log_records import (
    Control,
    GroupSettings,
    LogBatch,
    LoggedTransaction,
    StableReport,
    ViewProposal,
)
from members.publisher import BatchLimits, Part, Publisher, Submission
from members.views import View, ViewMember

DIGESTS_KEPT = 4096
"""Log messages whose digest is remembered, to be compared with what other members report."""


class MemberState(Enum):
    """What a member is up to (design, section 5); numbers as on the wire."""

    OFFLINE = 1
    JOINING = 2
    RECOVERING = 3
    ONLINE = 4
    ERROR = 5
    FENCED = 6
    LEFT = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """What one member decides for itself.

    `stable_period_ms`: how often it reports how far it is; `stable_items`: how many write-set items
    recorded since the last report make it report at once.
    """

    me: ViewMember
    settings: GroupSettings
    batches: BatchLimits = field(default_factory=BatchLimits)
    stable_period_ms: int = 1_000
    stable_items: int = 100_000


@dataclass(slots=True)
class Delivered:
    """What follows from the messages delivered since it was made, in order."""

    entries: list[RelayEntry] = field(default_factory=list)
    """For the relay queue."""
    ended: list[Submission] = field(default_factory=list)
    """Own submissions that are decided."""
    certified: list[tuple[Outcome, LoggedTransaction]] = field(default_factory=list)
    """Only with `record_history`: what was certified."""

    def absorb(self, later: "Delivered") -> None:
        """Adds what followed from later messages and has to be stored."""
        self.entries += later.entries
        self.certified += later.certified


class MemberCheckpoint(TypedDict):
    """What JSON can carry of a member's mind beside the certifier."""

    log_sequence: int
    view_id: int
    view: list[tuple[str, int, str]]
    settings: list[object]
    batch_numbers: list[tuple[int, int]]
    reports: list[tuple[int, int, int]]


@dataclass(slots=True)
class Counters:
    """Transactions since the start, by what became of them."""

    verdicts: list[int] = field(default_factory=lambda: [0] * (1 + max(Verdict)))
    """By the verdict's number."""
    local: int = 0
    repeated: int = 0


class Member:
    """One member, in one run."""

    def __init__(self, options: MemberOptions, *, record_history: bool = False) -> None:
        self.options = options
        self.me = options.me
        self.record_history = record_history
        self.state = MemberState.RECOVERING
        self.reason = "reading the log"
        self.view = View()
        self.settings = options.settings._replace(settings_version=0)
        self.certifier = Certifier(_certifier_options(options.settings))
        self.outcomes = OutcomeTable(options.settings.outcomes_max)
        self.publisher = Publisher(self.me.name, self.me.incarnation, options.batches)
        self.log_sequence = 0
        self.counters = Counters()
        self.applied_version = 0
        self.stable_version = 0
        self.applied_everywhere_version = 0
        self._batch_numbers: dict[int, int] = {}
        self._reports: dict[int, tuple[int, int]] = {}
        self._digests: dict[int, bytes] = {}
        self._disagreeing: dict[int, bytes] = {}
        self._reported = (0, 0)
        self._reported_ms = 0
        self._items_since_report = 0
        self._asked_first = 0
        self._asked_last = 0
        self._proposed_view_id: int | None = None
        self._is_leaving = False

    def deliver(self, log_sequence: int, batch: LogBatch, into: Delivered) -> None:
        """Takes the next message of the log.

        Raises:
            DigestMismatch: Most of the group certified something else.
            ForeignLog: The log is another group's.
        """
        assert log_sequence == self.log_sequence + 1, f"{log_sequence} after {self.log_sequence}"
        self.log_sequence = log_sequence
        last_number = self._batch_numbers.get(batch.incarnation)
        if last_number is None or batch.batch_number > last_number:
            if last_number is not None:
                self._batch_numbers[batch.incarnation] = batch.batch_number
            self._deliver_new(batch, into)
        self._digests[log_sequence] = self.certifier.digest()
        self._digests.pop(log_sequence - DIGESTS_KEPT, None)

    def caught_up(self) -> None:
        """All that the log held when this run began is delivered: asks to be in the view."""
        if self.state is MemberState.RECOVERING:
            self.state = MemberState.JOINING
            self.reason = "waiting for its view"
            self._propose_joining()

    def leave(self) -> None:
        """Asks to be in the view no more, and asks again where another view comes first."""
        self._is_leaving = True
        if self.view.member(self.me.incarnation):
            members = self.view.without_member(self.me.name)
            self.publisher.control(ViewProposal(self.view.view_id, members))

    def fail(self, state: MemberState, reason: str) -> None:
        """Stops serving, for a reason that the status will give."""
        assert state in (MemberState.ERROR, MemberState.FENCED, MemberState.LEFT)
        self.state, self.reason = state, reason

    def committed(self, version: int) -> None:
        """Transactions up to `version` are visible here."""
        self.applied_version = max(self.applied_version, version)

    def report_if_due(self, now_ms: int, stable_version: int) -> bool:
        """Queues a report for the group if it is time, and says whether it did.

        Args:
            stable_version: On this member's disk, and not newer than its oldest open snapshot.
        """
        if self.state is not MemberState.ONLINE:
            return False
        self.stable_version = max(self.stable_version, min(stable_version, self.applied_version))
        news = (self.applied_version, self.stable_version)
        asked = self._reported[0] < self._asked_first <= self.applied_version
        full = self._items_since_report >= self.options.stable_items
        late = now_ms - self._reported_ms >= self.options.stable_period_ms
        if news == self._reported or not (asked or full or late):
            return False
        self._reported, self._reported_ms, self._items_since_report = news, now_ms, 0
        self._asked_first = min(self._asked_last, self.applied_version + 1)
        self.publisher.control(
            StableReport(*news, self.log_sequence, self._digests[self.log_sequence])
        )
        return True

    def report_of(self, incarnation: int) -> tuple[int, int]:
        """(applied, stable) versions that a member of the view reported last."""
        return self._reports.get(incarnation, (0, 0))

    def checkpoint(self) -> MemberCheckpoint:
        """What has to be stored beside the certifier to go on from here."""
        return MemberCheckpoint(
            log_sequence=self.log_sequence,
            view_id=self.view.view_id,
            view=[(each.name, each.incarnation, each.address) for each in self.view.members],
            settings=list(self.settings),
            batch_numbers=list(self._batch_numbers.items()),
            reports=[(who, *report) for who, report in self._reports.items()],
        )

    def restore(self, checkpoint: MemberCheckpoint) -> None:
        """Goes on from a checkpoint; the certifier and the outcomes are restored by the caller."""
        self.log_sequence = checkpoint["log_sequence"]
        self.view = View(
            view_id=checkpoint["view_id"],
            members=tuple(
                ViewMember(name=name, incarnation=incarnation, address=address)
                for name, incarnation, address in checkpoint["view"]
            ),
        )
        self._batch_numbers = dict(checkpoint["batch_numbers"])
        self._reports = {who: (applied, stable) for who, applied, stable in checkpoint["reports"]}
        self._adopt(GroupSettings(*checkpoint["settings"]))  # type: ignore[arg-type]

    def _deliver_new(self, batch: LogBatch, into: Delivered) -> None:
        origin = self.view.member(batch.incarnation)
        local = batch.incarnation == self.me.incarnation
        parts = self.publisher.read_back(batch.batch_number) if local else []
        if origin is not None:
            outcomes = self._certify_all(batch, local, _locked_since(parts, batch), into)
        else:
            outcomes = self._refuse_all(batch)
        for index, control in enumerate(batch.controls, start=len(batch.transactions)):
            self._control(batch, position_of(self.log_sequence, index), control, into)
        self._end_submissions(batch.batch_number, parts, outcomes, into)

    def _certify_all(
        self, batch: LogBatch, local: bool, locked: Iterable[int], into: Delivered
    ) -> list[Outcome]:
        """Certifies a batch; a transaction whose id is known gets the outcome that it had.

        `locked`: the version that was visible when each transaction's commit was asked for here; 0
        for those of other members, who held their rows in effect since their snapshots.
        """
        counters, table, certify = self.counters, self.outcomes, self.certifier.certify
        position = position_of(self.log_sequence, 0)
        outcomes = []
        for logged, locked_since in zip(batch.transactions, locked, strict=True):
            transaction_id, snapshot, write_set, read_set, gtid, payload, report_applied, _ = logged
            outcome = table.get(transaction_id) if transaction_id else None
            if outcome is None:
                outcome = certify(
                    Transaction(position, batch.member, snapshot, write_set, read_set, gtid, local)
                )
                verdict, gtid, version, last_committed, sequence_number, _, _ = outcome
                counters.verdicts[verdict] += 1
                if transaction_id:
                    table.remember(transaction_id, outcome)
                if version:
                    counters.local += local
                    self._items_since_report += len(write_set)
                    stamps = (last_committed or 0, sequence_number or 0)
                    header = self._header(logged, locked_since)
                    into.entries.append(
                        RelayEntry(position, version, gtid, *stamps, local, payload, header)
                    )
                    if report_applied:
                        self._ask_for_report(version)
                    if self.record_history:
                        into.certified.append((outcome, logged))
            else:
                counters.repeated += 1
            outcomes.append(outcome)
            position += 1
        return outcomes

    def _header(self, logged: LoggedTransaction, locked_since: int) -> SourceHeader:
        """What the binary log will have to know of a transaction: it is about to prepare."""
        snapshot = logged.snapshot
        return SourceHeader(
            self.applied_version,
            0,
            logged.domain_id,
            None,
            None,
            logged.write_set,
            0,
            0,
            0,
            max(locked_since, snapshot) if isinstance(snapshot, int) else None,
        )

    def _refuse_all(self, batch: LogBatch) -> list[Outcome]:
        """What becomes of a batch from outside the view; nothing of it reaches the certifier."""
        reason = f"{batch.member} is not in the group's view {self.view.view_id}; it must rejoin"
        refused = Outcome(Verdict.REFUSED, reason=reason)
        ids = (logged.transaction_id for logged in batch.transactions)
        return [(each and self.outcomes.get(each)) or refused for each in ids]

    def _ask_for_report(self, version: int) -> None:
        """Has this member report as soon as `version` is visible here."""
        if self._asked_first <= self._reported[0]:
            self._asked_first = version
        self._asked_last = version

    def _end_submissions(
        self, batch_number: int, parts: Sequence[Part], outcomes: list[Outcome], into: Delivered
    ) -> None:
        """Hands outcomes to those who wait for them; a mark ends with the version it stands at."""
        decided = iter(outcomes)
        for submission, index in parts:
            if index < 0:
                submission.version = self.certifier.window.newest_version
            elif not submission.decide(index, next(decided)):
                continue
            submission.log_sequence = self.log_sequence
            submission.batch_number = batch_number
            into.ended.append(submission)

    def _control(self, batch: LogBatch, position: int, control: Control, into: Delivered) -> None:
        if isinstance(control, StableReport):
            self._take_report(batch, position, control)
        elif isinstance(control, ViewProposal):
            self._change_view(batch, position, control, into)
        elif not self.settings.settings_version:
            self._adopt(control)

    def _take_report(self, batch: LogBatch, position: int, report: StableReport) -> None:
        """Compares digests, and notes how far the member is; a report that was overtaken changes
        nothing.
        """
        if self.view.member(batch.incarnation) is None:
            return
        self._compare_digest(batch, position, report)
        applied, stable = self.report_of(batch.incarnation)
        self._reports[batch.incarnation] = (
            max(applied, report.applied_version),
            max(stable, report.stable_version),
        )
        self._follow_reports(position)

    def _follow_reports(self, position: int) -> None:
        """What every member of the view has executed is collected."""
        reports = [self.report_of(each.incarnation) for each in self.view.members]
        self.applied_everywhere_version = min((applied for applied, _ in reports), default=0)
        stable = min((stable for _, stable in reports), default=0)
        stable = min(stable, self.certifier.window.newest_version)
        if stable > self.certifier.stable_version:
            self.certifier.deliver(GarbageCollection(position, stable))

    def _compare_digest(self, batch: LogBatch, position: int, report: StableReport) -> None:
        """Fences this member once half of the view or more certified something else than it did."""
        mine = self._digests.get(report.digest_log_sequence)
        if mine is None or mine == report.digest:
            self._disagreeing.pop(batch.incarnation, None)
            return
        self._disagreeing[batch.incarnation] = report.digest
        if 2 * len(self._disagreeing) >= len(self.view.members):
            raise DigestMismatch(
                position=report.digest_log_sequence,
                member=batch.member,
                mine=mine.hex(),
                theirs=report.digest.hex(),
            )

    def _change_view(
        self, batch: LogBatch, position: int, proposal: ViewProposal, into: Delivered
    ) -> None:
        before = self.view
        view = before.follow(proposal.previous_view_id, proposal.members)
        if view is None:
            if batch.incarnation == self.me.incarnation and self.state is MemberState.JOINING:
                self._propose_joining()
            return
        self.view = view
        here = {each.incarnation for each in view.members}
        joined = here - {each.incarnation for each in before.members}
        for kept in (self._batch_numbers, self._reports, self._disagreeing):
            for gone in kept.keys() - here:
                del kept[gone]
        for incarnation in joined:
            self._batch_numbers[incarnation] = (
                batch.batch_number if incarnation == batch.incarnation else 0
            )
        self.certifier.deliver(ViewChange(position, self.me.incarnation in joined))
        version = self.certifier.window.newest_version
        header = SourceHeader(view_id=view.view_id)
        into.entries.append(RelayEntry(position, version, None, 0, 0, False, b"", header))
        self._follow_reports(position)
        self._notice_own_place(self.me.incarnation in joined)

    def _notice_own_place(self, joined: bool) -> None:
        in_view = self.view.member(self.me.incarnation) is not None
        if joined and self.state is MemberState.JOINING:
            self.state, self.reason = MemberState.ONLINE, ""
        elif self._is_leaving and not in_view:
            self.fail(MemberState.LEFT, "stopped by its operator")
        elif self.state is MemberState.ONLINE and not in_view:
            self.fail(
                MemberState.ERROR,
                f"view {self.view.view_id} is without this member; start it again to rejoin",
            )
        elif self.state is MemberState.JOINING:
            self._propose_joining()
        elif self._is_leaving:
            self.leave()

    def _propose_joining(self) -> None:
        """Proposes the view with this member in it, once for each view that it could follow."""
        if self._proposed_view_id == self.view.view_id:
            return
        self._proposed_view_id = self.view.view_id
        if not self.settings.settings_version:
            self.publisher.control(self.options.settings._replace(settings_version=1))
        self.publisher.control(ViewProposal(self.view.view_id, self.view.with_member(self.me)))

    def _adopt(self, settings: GroupSettings) -> None:
        """Takes the group's settings for its own; the first ones come before any transaction."""
        if not settings.settings_version:
            return
        if settings.group != self.options.settings.group:
            raise ForeignLog(expected=self.options.settings.group, found=settings.group)
        self.settings = settings
        self.certifier = Certifier(_certifier_options(settings))
        self.outcomes = OutcomeTable(settings.outcomes_max)


def _locked_since(parts: Sequence[Part], batch: LogBatch) -> Iterable[int]:
    """For each transaction of a batch the version that was visible here when its commit was asked
    for; 0 where nobody here has asked, or waits any longer.
    """
    locked = [submission.locked_since for submission, index in parts if index >= 0]
    return locked or repeat(0, len(batch.transactions))


def _certifier_options(settings: GroupSettings) -> CertifierOptions:
    return CertifierOptions(
        group_source=settings.group_uuid,
        gtid_assignment_block_size=settings.gtid_assignment_block_size,
        gc_window=settings.gc_window,
    )
