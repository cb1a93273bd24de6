"""The state machine of a member: takes the log's messages, returns effects for its driver.

The rule it keeps: everything here follows from the messages delivered so far and from what the
driver reports, so that members agree and a simulation can replay them. Pure: no I/O, no clock, no
threads; `members/runtime/runtime.py` drives it.
"""

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from functools import partial
from itertools import compress
from operator import attrgetter

from ...applier.queue.fragment_references import FragmentSet, is_reference
from ...applier.queue.relay_group import RelayEntry, RelayGroup
from ...certifier.core import Certifier
from ...certifier.history.schema import Cursor
from ...certifier.outcomes import OutcomeTable
from ...certifier.plain_runs import PlainTransactions, certify_plain
from ...certifier.position import position_of
from ...certifier.records import GarbageCollection, Outcome, Transaction, ViewChange
from ..errors.membership import NameTaken, NotComparable
from .comparisons import Comparisons
from .conflict_record import Counters
from .effects import Delivered
from .flow_control import FlowControl
from .fragment_sets import PART, FragmentSets
from .group_settings import check_allowed, refused_names
from .held_versions import HeldVersions
from .log_records import (
    Abandonment,
    Appointment,
    Comparison,
    Forgetting,
    GroupSettings,
    LogBatch,
    LoggedTransaction,
    MemberReport,
    Message,
    PlainColumns,
    RowDigests,
    Unreadable,
    ViewProposal,
)
from .member_options import MemberOptions, certifier_options
from .members import (
    BatchNumbers,
    Cause,
    Departures,
    DigestVote,
    ProgressReports,
    ReportSchedule,
    SkippedMessages,
    Suspicions,
)
from .noted_decisions import Decisions, Sending, session_of
from .publisher import Publisher, end_parts, locked_since
from .record_kinds import KIND_OF, GroupBefore, why_skipped
from .repetitions import remembered
from .views import MemberState, View, ViewMember, check_release

REPORTS_A_LAG = 8
"""Reports that a member makes while it applies as many transactions as flow control lets it lag
behind: others go on without a pause while it catches up."""
TICK_MS_MAX = 500
"""Milliseconds; a longer time between two ticks counts as this long: a process that stood still
learns nothing about the log from it."""
_new_transaction = partial(tuple.__new__, Transaction)
_version_of = attrgetter("version")


def new_columns(
    transactions: Sequence[LoggedTransaction], table: OutcomeTable
) -> PlainColumns | None:
    """Returns the transactions of a message that can be certified together: in columns, and none
    decided before, or twice in the message. Else None.
    """
    if not isinstance(transactions, PlainColumns):
        return None
    named = [each for each in transactions.ids if each]
    is_new = len(set(named)) == len(named) and not table.knows_any(named)
    return transactions if is_new else None


def remember(
    certifier: Certifier, table: OutcomeTable, columns: PlainColumns, outcomes: list[Outcome]
) -> list[Outcome]:
    """Adds to the table the outcomes of the transactions that have an id; returns all of them as
    their clients may take them.
    """
    is_known = min(columns.snapshots, default=0) >= table.forgotten_version
    is_certified = all(map(_version_of, outcomes)) and all(columns.write_sets)
    if is_certified or (is_known and len(columns) <= table.room):
        named = zip(columns.ids, outcomes, strict=True)
        table.remember_all({each: outcome for each, outcome in named if each})
        return outcomes
    return [
        remembered(certifier, table, logged, outcome) if logged.transaction_id else outcome
        for logged, outcome in zip(columns, outcomes, strict=True)
    ]


def entries_of(
    plain: PlainTransactions,
    columns: PlainColumns,
    outcomes: Sequence[Outcome],
    locked: Iterable[int],
    applied_version: int,
) -> RelayGroup:
    """Returns the entries of those transactions that were certified.

    Args:
        locked: Of each the version that was visible when its commit was asked for here; 0:
            elsewhere.
        applied_version: Version that is visible here now.
    """
    group = RelayGroup()
    certified = [outcome for outcome in outcomes if outcome.version]
    if not certified:
        return group
    positions: Iterable[int] = range(plain.position, plain.position + len(outcomes))
    since: Iterable[int] = map(max, locked, plain.snapshots)
    write_sets: Iterable[Sequence[int]] = plain.write_sets
    payloads: Iterable[bytes] = columns.payloads
    if len(certified) < len(outcomes):
        kept = [outcome.version > 0 for outcome in outcomes]
        positions, since = compress(positions, kept), compress(since, kept)
        payloads, write_sets = compress(payloads, kept), compress(write_sets, kept)
    _, gtids, versions, committed, numbers, _, _ = zip(*certified, strict=True)
    count = len(certified)
    group.positions, group.versions = list(positions), list(versions)
    group.sources, group.numbers = map(list, zip(*gtids, strict=True))
    group.last_committed = [0] * count if plain.local else list(committed)
    group.sequence_numbers = [0] * count if plain.local else list(numbers)
    group.local, group.payloads = [plain.local] * count, list(payloads)
    group.parents, group.domains = [applied_version] * count, [0] * count
    group.views, group.locked, group.items = [0] * count, list(since), list(write_sets)
    return group


class Member:
    """One member, in one run."""

    def __init__(self, options: MemberOptions, decisions: Decisions | None = None) -> None:
        """Begins in RECOVERING; `decisions` notes rows for the certification log."""
        self.options = options
        self.me = options.me
        self.decisions = decisions or Decisions()
        self.state = MemberState.RECOVERING
        self.reason = "reading the log"
        self.view = View()
        self.settings = options.settings._replace(settings_version=0)
        self.certifier = Certifier(certifier_options(options.settings))
        self.decisions.follow(self.certifier)
        self.outcomes = OutcomeTable(options.settings.outcomes_max)
        self.held = HeldVersions(options.snapshot_hold_versions)
        self.publisher = Publisher(self.me.name, self.me.incarnation, options.batches, self.held)
        self.counters = Counters()
        self.log_sequence = self.applied_version = self.durable_log_sequence = 0
        self.history_cursor = Cursor()
        self.applied_everywhere_version = 0
        self.flow = FlowControl()
        self.suspicions = Suspicions(2 * options.stable_period_ms)
        self.fragment_sets = FragmentSets()
        self.departures = Departures()
        self.skipped = SkippedMessages()
        self.skip_sequence = 0
        """Sequence of a message that no member can read, and that is skipped where the log says so;
        0: none."""
        self.numbers = BatchNumbers()
        self.reports = ProgressReports()
        self._schedule = ReportSchedule(options.stable_period_ms, options.stable_items)
        self.digests = DigestVote()
        self.comparisons = Comparisons(self.me)
        self._proposed_view_id: int | None = None
        self._is_leaving = False
        self._now_ms = self._read_us = self._unreachable_ms = 0

    def deliver(self, log_sequence: int, message: Message, into: Delivered) -> None:
        """Takes the next message of the log. Raises as `deliver_in_steps` does."""
        deque(self.deliver_in_steps(log_sequence, message, into), maxlen=0)

    def deliver_in_steps(
        self, log_sequence: int, message: Message, into: Delivered
    ) -> Generator[None]:
        """Takes the next message of the log, or skips it whole, in steps of a few milliseconds:
        between two of them the driver may do anything but deliver, store or hand out what this
        member has decided.

        Raises:
            DigestMismatch: Most of the group certified something else.
            ForeignLog, UnsupportedFormat: This member cannot read it; it had no effect, and is read
                again unless `skip_sequence` names it.
            ReleaseTooOld: From this message on the group writes what this release cannot read.
        """
        assert log_sequence == self.log_sequence + 1, f"{log_sequence} after {self.log_sequence}"
        why = self._why_skipped(log_sequence, message)
        self.log_sequence, self._read_us = log_sequence, into.decided_us
        is_own = message.incarnation == self.me.incarnation and (
            self.options.looks_on or self.publisher.wrote(message)
        )
        if why or isinstance(message, Unreadable):
            into.skipped.append(self.skipped.note(log_sequence, why, message.member))
            if is_own and not self.numbers.is_repeated(message.incarnation, message.batch_number):
                self._fall_out(f"the group has skipped message {log_sequence} of it ({why})")
        else:
            yield from self._deliver_valid(message, is_own, into)
        self.digests.note(log_sequence, self.certifier.digest())

    def caught_up(self) -> None:
        """Asks to be in the view: all that the log held when this run began is delivered."""
        if self.state is MemberState.RECOVERING:
            self.state = MemberState.JOINING
            self.reason = "waiting for its view"
            self._propose_joining()

    def leave(self) -> None:
        """Asks to leave the view, and asks again if another view comes first; while a request to
        join is undecided, it waits for that.
        """
        self._is_leaving = True
        if self.view.member(self.me.incarnation):
            self._propose(self.view.without_member(self.me.name), Cause.LEFT)
        elif (self.state, self._proposed_view_id) != (MemberState.JOINING, self.view.view_id):
            self.fail(MemberState.LEFT, "stopped by its operator")

    def fail(self, state: MemberState, reason: str) -> None:
        """Stops serving, with a reason for the status."""
        assert state in (MemberState.ERROR, MemberState.FENCED, MemberState.LEFT)
        self.state, self.reason = state, reason

    def committed(self, version: int) -> None:
        """Notes that transactions up to `version` are visible here."""
        self.applied_version = max(self.applied_version, version)

    def tick(self, now_ms: int, *, reads: bool = True) -> None:
        """Takes the time of a clock of this process that never goes back; gives up if the log was
        out of reach for too long while this member `reads` it.
        """
        passed_ms, self._now_ms = min(now_ms - self._now_ms, TICK_MS_MAX), now_ms
        self._unreachable_ms += passed_ms if reads else 0
        limit_ms = self.options.unreachable_ms
        if limit_ms and self._unreachable_ms >= limit_ms and self.state is MemberState.ONLINE:
            text = f"the log took nothing for {limit_ms} ms; what waited is not known to be decided"
            self.fail(MemberState.LEFT if self._is_leaving else MemberState.ERROR, text)

    def report_if_due(self, now_ms: int, durable_version: int) -> bool:
        """Queues a report for the group if one is due, and returns whether it did; versions up to
        `durable_version` are on this member's disk.
        """
        if self.state is not MemberState.ONLINE:
            return False
        stable_version = self.held.advance(min(durable_version, self.applied_version))
        news = (self.applied_version, stable_version)
        versions_max = self.settings.flow_control_lag_max // REPORTS_A_LAG
        if not self._schedule.take_due(now_ms, *news, versions_max):
            return False
        self._report(stable_version)
        return True

    def report_last(self, durable_version: int) -> None:
        """Queues a report for the group before this member leaves, whether or not one is due: it
        vouches for what is in the files of its certification log.
        """
        self._report(self.held.advance(min(durable_version, self.applied_version)))

    def _report(self, stable_version: int) -> None:
        at, (_, place, chain) = self.log_sequence, self.history_cursor
        digest, durable = self.digests.at(at), self.durable_log_sequence
        news = (self.applied_version, stable_version)
        self.publisher.control(MemberReport(*news, at, digest, durable, place, chain))

    def report_of(self, incarnation: int) -> tuple[int, int]:
        """Returns the (applied, stable) versions that a run in the view reported last."""
        return self.reports.of(incarnation)

    def durable_log_sequences(self) -> list[int]:
        """Returns for each member of the view the last message that it needs no more, or 0; 0 for
        all while none of them keeps rows, and one that has departed may: it has the log alone.
        """
        if self.departures.named() and all(each.without_rows for each in self.view.members):
            return [0 for _ in self.view.members]
        return [self.reports.durable(each.incarnation) for each in self.view.members]

    def is_suspected(self, incarnation: int) -> bool:
        """Returns whether a member of the view has been silent for longer than `suspicion_ms`."""
        return self.suspicions.silent_ms(incarnation) >= self.options.suspicion_ms

    def expel(self, name: str) -> None:
        """Proposes a view without the named member."""
        self._propose(self.view.without_member(name), Cause.EXPELLED)

    def forget(self, name: str) -> None:
        """Asks the group to remove the named member from the list of the departed."""
        self.publisher.control(Forgetting(name))

    def change_settings(self, settings: GroupSettings) -> None:
        """Asks for other settings of the group; they count if no other change comes first."""
        version = self.settings.settings_version + 1
        self.publisher.control(settings._replace(settings_version=version))

    def appoint(self, primary: str) -> None:
        """Asks for another primary in single-primary mode."""
        self.publisher.control(Appointment(primary))

    def compare(self, now_us: int) -> None:
        """Asks all members for digests of their rows, `now_us` after 1970.

        Raises:
            NotComparable: Some of the view do not know how.
        """
        since, written = KIND_OF[Comparison].since_format, self.view.written_format
        if written < since:
            known = f"the group writes format {written} of the log, comparisons need {since}"
            raise NotComparable(problem=f"{known}: let all members run this release")
        self.comparisons.asking(now_us)
        self.publisher.control(Comparison(now_us))

    def compare_if_due(self, now_us: int, period_us: int) -> bool:
        """Asks as `compare` if the last comparison is `period_us` ago, and returns whether it did;
        of the view the first member does.
        """
        may_ask = (
            self.state is MemberState.ONLINE
            and self.view.members[0] == self.me
            and self.view.written_format >= KIND_OF[Comparison].since_format
        )
        if not may_ask or not self.comparisons.is_due(now_us, period_us):
            return False
        self.compare(now_us)
        return True

    def rows_digested(self, digests: RowDigests) -> None:
        """Takes the digests of this member's rows: for the group, or if it is out of the view, to
        compare them with those of members.
        """
        self.comparisons.own = digests
        if self.view.member(self.me.incarnation):
            self.publisher.control(digests)

    def credit(self, now_ms: int) -> int:
        """Returns the number of transactions that flow control lets this member send now."""
        lag_max, members = self.settings.flow_control_lag_max, self.view.members
        applied = {each.name: self.report_of(each.incarnation)[0] for each in members}
        if self.me in members:
            applied[self.me.name] = self.applied_version
        self.flow.measure(self.certifier.window.newest_version, applied.items())
        credit = self.flow.credit(lag_max, len(members), self.publisher.in_flight)
        self.flow.note(self.publisher.waiting > 0 and not credit, now_ms)
        return credit

    @property
    def may_write(self) -> bool:
        """True if the group takes transactions from this member."""
        return not self.settings.single_primary or self.view.primary == self.me.name

    def _why_skipped(self, log_sequence: int, message: Message) -> str:
        """Returns the reason to skip a message; empty if it may count. Raises as `deliver` does."""
        if log_sequence == self.skip_sequence:
            return "nobody could read it, and operators had it skipped"
        newest = self.certifier.window.newest_version
        before = GroupBefore(log_sequence, self.view, self.settings, newest, self.numbers)
        return why_skipped(message, before)

    def _deliver_valid(self, batch: LogBatch, is_own: bool, into: Delivered) -> Generator[None]:
        """Takes a batch of a member or a joiner, unless it repeats one."""
        incarnation = batch.incarnation
        if not self.numbers.is_repeated(incarnation, batch.batch_number):
            self.numbers.take(incarnation, batch.batch_number)
            yield from self._deliver_new(batch, is_own, into)
            if incarnation == self.me.incarnation and not is_own:
                text = f"message {self.log_sequence} bears the mark of its run, and is not its own"
                self._fall_out(f"{text}: somebody else writes to the log")
        if self.view.member(incarnation):
            self.suspicions.heard(incarnation)
        if is_own:
            self._unreachable_ms = 0
            self.suspicions.heard_own(self._now_ms)
            self._expel_silent()

    def _fall_out(self, why: str) -> None:
        """Ends this run because others cannot tell it from what is written in its name; another run
        follows. What clients wait for may be decided or not: they ask again.
        """
        if self.state in (MemberState.ONLINE, MemberState.JOINING):
            self.fail(MemberState.LEFT if self._is_leaving else MemberState.ERROR, why)

    def _deliver_new(self, batch: LogBatch, local: bool, into: Delivered) -> Generator[None]:
        origin = self.view.member(batch.incarnation)
        parts = self.publisher.read_back(batch.batch_number) if local else []
        outcomes: list[Outcome] = []
        if self._takes(origin):
            for fragment in batch.fragments:
                if self.fragment_sets.take(batch.incarnation, fragment):
                    into.fragments.append((batch.incarnation, fragment))
            locked = locked_since(parts, len(batch.transactions))
            columns = new_columns(batch.transactions, self.outcomes)
            if columns is not None and not self.decisions.is_on:
                plain = columns.at(position_of(self.log_sequence, 0), batch.member, local=local)
                outcomes = yield from certify_plain(self.certifier, plain)
                outcomes = remember(self.certifier, self.outcomes, columns, outcomes)
                self.counters.add(outcomes, local=local)
                entries = entries_of(plain, columns, outcomes, locked, self.applied_version)
                self._schedule.recorded(sum(map(len, entries.items)))
                into.entries += entries
            else:
                outcomes = yield from self._certify_all(batch, local, locked, into)
            self.counters.note_conflicts(batch, outcomes, self.log_sequence, into.decided_us)
        else:
            into.turned_away += [submission for submission, index in parts if index >= 0]
            parts = [(submission, index) for submission, index in parts if index < 0]
            payloads = (logged.payload for logged in batch.transactions)
            into.dropped += self.fragment_sets.drop_referred(batch.incarnation, payloads)
            if local:
                self.publisher.refuse_uploads()
        for index, control in enumerate(batch.controls, start=len(batch.transactions)):
            position = position_of(self.log_sequence, index)
            KIND_OF[type(control)].take(self, batch, position, control, into)
        place = (self.log_sequence, batch.batch_number)
        into.ended += end_parts(parts, outcomes, self.certifier.window.newest_version, place)

    def _certify_all(
        self, batch: LogBatch, local: bool, locked: Iterable[int], into: Delivered
    ) -> Generator[None, None, list[Outcome]]:
        """Certifies a batch; a transaction whose id is known gets the outcome that it had.

        `locked`: the version that was visible when each transaction's commit was asked for here; 0
        for those of other members, who held their rows in effect since their snapshots.
        """
        counters, table, certifier = self.counters, self.outcomes, self.certifier
        position = position_of(self.log_sequence, 0)
        decisions = self.decisions if self.decisions.is_on else None
        sending = Sending(batch.member, session_of(batch.incarnation), local, into.decided_us)
        outcomes = []
        for logged, locked_version in zip(batch.transactions, locked, strict=True):
            transaction_id, snapshot, write_set, read_set, gtid, payload, report_applied, _ = logged
            outcome = table.get(transaction_id) if transaction_id else None
            is_large = is_reference(payload)
            is_whole = not is_large or self._close_fragments(payload, outcome, into)
            if outcome is None:
                record = (position, batch.member, snapshot, write_set, read_set, gtid, local)
                deciding = certifier.certify_in_steps(_new_transaction(record))
                outcome = (yield from deciding) if is_whole else certifier.refuse(PART)
                verdict, gtid, version, last_committed, sequence_number, _, _ = outcome
                counters.verdicts[verdict] += 1
                if transaction_id:
                    outcome = remembered(certifier, table, logged, outcome, is_whole=is_whole)
                if version:
                    counters.local += local
                    self._schedule.recorded(len(write_set))
                    stamps = (last_committed or 0, sequence_number or 0)
                    since = max(locked_version, snapshot) if isinstance(snapshot, int) else None
                    # A large one takes long wherever it comes from: a worker executes it.
                    into.entries.add(
                        position,
                        version,
                        gtid,
                        stamps,
                        local and not is_large,
                        payload,
                        self.applied_version,
                        logged.domain_id,
                        since,
                        write_set,
                    )
                    if report_applied:
                        self._schedule.ask(version)
                elif is_large:
                    into.dropped.append(FragmentSet.of(payload)[:2])
                if decisions:
                    decisions.decided(into.noted, sending, position, logged, outcome, is_large)
            else:
                counters.repeated += 1
                if decisions:
                    decisions.repeated(into.noted, sending, position, logged)
            outcomes.append(outcome)
            position += 1
        return outcomes

    def _close_fragments(self, payload: bytes, known: Outcome | None, into: Delivered) -> bool:
        """Closes the set that a large transaction refers to, and returns whether it was complete. A
        repeated transaction does not need its fragments.
        """
        fragments = FragmentSet.of(payload)
        is_whole = self.fragment_sets.close(fragments)
        if known is not None:
            into.dropped.append(fragments[:2])
        return is_whole

    def _takes(self, origin: ViewMember | None) -> bool:
        """Returns whether the group takes transactions from `origin` at this position."""
        may_all = not self.settings.single_primary
        return origin is not None and (may_all or origin.name == self.view.primary)

    def take_report(
        self, batch: LogBatch, position: int, report: MemberReport, into: Delivered
    ) -> None:
        """Compares digests, and notes how far the reporting member is."""
        if self.view.member(batch.incarnation) is None:
            return
        self.digests.compare(batch, report, len(self.view.members))
        self.reports.take(batch.incarnation, report)
        self.decisions.reported(into.noted, into.decided_us, position, batch, report)
        self._follow_reports(position, into)

    def take_appointment(
        self, batch: LogBatch, _: int, appointment: Appointment, __: Delivered
    ) -> None:
        """Makes a member of the view the primary, in single-primary mode."""
        if self.settings.single_primary and self.view.member(batch.incarnation):
            named = self.view.named(appointment.primary)
            self.view = self.view.with_primary(appointment.primary) if named else self.view

    def take_forgetting(
        self, batch: LogBatch, _: int, forgetting: Forgetting, __: Delivered
    ) -> None:
        """Removes a member from the list of the departed."""
        if self.view.member(batch.incarnation):
            self.departures.forget(forgetting.member)

    def take_abandonment(
        self, batch: LogBatch, _: int, abandonment: Abandonment, into: Delivered
    ) -> None:
        """Drops the fragments of a transaction that will not come."""
        if self.fragment_sets.drop(name := (batch.incarnation, abandonment.number)):
            into.dropped.append(name)

    def take_comparison(
        self, batch: LogBatch, position: int, comparison: Comparison, into: Delivered
    ) -> None:
        """Begins a comparison of all members' rows as they are here."""
        if self.view.member(batch.incarnation) is None:
            return
        version, view = self.certifier.window.newest_version, self.view
        with_rows = [each for each in view.members if not each.without_rows]
        self.comparisons.begin(position, version, comparison.requested_us, with_rows)
        # Alone, as a view change: it waits for all before it, and all after it waits for it.
        into.entries.append(RelayEntry.view_change(position, version, view.view_id))

    def take_digests(self, batch: LogBatch, _: int, digests: RowDigests, into: Delivered) -> None:
        """Compares the rows of another member with this one's."""
        if self.view.member(batch.incarnation):
            self.comparisons.take(batch.incarnation, digests)
            into.doubted = into.doubted or self.comparisons.why_doubted()

    def _follow_reports(self, position: int, into: Delivered) -> None:
        """Collects up to what every member of the view has executed."""
        runs = (each.incarnation for each in self.view.members)
        self.applied_everywhere_version, stable = self.reports.smallest(runs)
        stable = min(stable, self.certifier.window.newest_version)
        if stable > self.certifier.stable_version:
            self.certifier.deliver(record := GarbageCollection(position, stable))
            self.decisions.collecting(into.noted, into.decided_us, record)

    def take_view(
        self, batch: LogBatch, position: int, proposal: ViewProposal, into: Delivered
    ) -> None:
        """Changes the view, if the proposal is for the one after the present one."""
        before = self.view
        view = before.follow(proposal.previous_view_id, proposal.members)
        joining = [each.name for each in proposal.members if not before.named(each.name)]
        if view is None or refused_names(self.settings.members_allowed, joining):
            is_mine = batch.incarnation == self.me.incarnation
            if view and is_mine and self.state is MemberState.JOINING:
                self._proposed_view_id = None
                (self.leave if self._is_leaving else self._propose_joining)()
            return
        check_release(self.me, view)
        self.view = view.in_mode(single_primary=self.settings.single_primary)
        self.departures.followed(before, view, batch.incarnation, proposal)
        here = {each.incarnation for each in view.members}
        joined = here - {each.incarnation for each in before.members}
        self.numbers.change_view((each.incarnation for each in view.members), batch.batch_number)
        for kept in (self.reports, self.digests, self.suspicions, self.comparisons):
            kept.keep_only(here)
        into.doubted = into.doubted or self.comparisons.why_doubted()
        into.dropped += self.fragment_sets.keep_only(here)
        for incarnation in joined:
            self.suspicions.heard(incarnation)
        resets_clock = self.me.incarnation in joined
        self.certifier.deliver(ViewChange(position, resets_clock))
        self.decisions.view_changed(into.noted, into.decided_us, position, view, resets_clock)
        version = self.certifier.window.newest_version
        into.entries.append(RelayEntry.view_change(position, version, view.view_id))
        self._follow_reports(position, into)
        self._notice_own_place(resets_clock)

    def _notice_own_place(self, joined: bool) -> None:
        """Sets this member's state by a new view.

        Raises:
            NameTaken: Another run has its name, and it is not one that this one took over from.
        """
        here = self.view.named(self.me.name)
        if self._is_leaving:
            self.leave()
        elif joined and self.state is MemberState.JOINING:
            self.state, self.reason = MemberState.ONLINE, ""
        elif self.state is MemberState.ONLINE and here is None:
            self.fail(
                MemberState.ERROR,
                f"view {self.view.view_id} is without this member: it was silent for too long, "
                "or its operator expelled it; it rejoins",
            )
        elif self.state is MemberState.ONLINE and here != self.me:
            assert here is not None
            raise NameTaken(member=self.me.name, address=here.address)
        elif self.state is MemberState.JOINING:
            self._propose_joining()

    def _expel_silent(self) -> None:
        """Proposes a view without members that were silent for too long, once for each view."""
        limit_ms = self.options.suspicion_ms + self.options.expel_ms
        members = self.suspicions.heard_of(self.view.members, self.me, limit_ms)
        if (
            len(members) < len(self.view.members)
            and self.state is MemberState.ONLINE
            and self._proposed_view_id != self.view.view_id
        ):
            self._proposed_view_id = self.view.view_id
            self._propose(tuple(members), Cause.SILENT)

    def _propose_joining(self) -> None:
        """Proposes the view with this member in it.

        Raises:
            MemberNotAllowed: The group has a list of names, and this one is not on it.
        """
        check_allowed(self.settings.members_allowed, [self.me.name])
        self._proposed_view_id = self.view.view_id
        if not self.settings.settings_version:
            self.publisher.control(self.options.settings._replace(settings_version=1))
        self._propose(self.view.with_member(self.me), Cause.UNKNOWN)

    def _propose(self, members: tuple[ViewMember, ...], cause: Cause) -> None:
        """Proposes a view; `cause` says why some members are not in it any more."""
        self.publisher.control(ViewProposal(self.view.view_id, members, cause.value, self._read_us))

    def take_settings(
        self, batch: LogBatch, position: int, settings: GroupSettings, into: Delivered
    ) -> None:
        """Takes the group's settings, at this position on every member; the first make it."""
        present = self.settings.settings_version
        is_asked = not present or self.view.member(batch.incarnation)
        if not is_asked or settings.settings_version != present + 1:
            return
        if not present:
            self.found(settings)
        else:
            self.settings = settings
            self.certifier.change_options(certifier_options(settings))
            self.view = self.view.in_mode(single_primary=settings.single_primary)
        self.decisions.settings_changed(into.noted, into.decided_us, position)

    def found(self, settings: GroupSettings) -> None:
        """Takes the group's first settings, before there is any transaction."""
        self.settings = settings
        self.certifier = Certifier(certifier_options(settings))
        self.decisions.follow(self.certifier)
        self.outcomes = OutcomeTable(settings.outcomes_max)
