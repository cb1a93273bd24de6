"""What a script draws of a member: its facts before and after, what follows from a message."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from groupcert.applier.queue.fragment_references import FragmentSet, is_reference
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.source.header import SourceHeader
from groupcert.certifier.history.schema import Row
from groupcert.certifier.outcomes import Doubtful
from groupcert.certifier.position import log_sequence_of
from groupcert.certifier.records import Outcome, Verdict
from groupcert.members.core.effects import Delivered
from groupcert.members.core.log_records import GroupSettings
from groupcert.members.core.member import Member
from groupcert.members.core.member_checkpoint import checkpoint_of
from groupcert.members.core.noted_decisions import decode, place_key, rows_in
from groupcert.members.core.publisher import Submission
from groupcert.members.core.views import MemberState, View
from tests.members.core.message_text import key_of, run_text, settings_text, short

ROW_FIELDS = (
    "origin",
    "session",
    "is_local",
    "verdict",
    "is_large",
    "transaction_id",
    "settings",
    "reported_place",
    "reported_chain",
    "sequence_number",
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a message may change at a member beside what it hands out."""

    state: MemberState
    reason: str
    view: View
    settings: GroupSettings
    verdicts: tuple[int, ...]
    repeated: int
    stable_version: int
    everywhere_version: int
    departed: str
    skipped: int
    stored: str
    log_sequence: int

    def changes(self, member: Member) -> Iterator[str]:
        """Yields a line for each fact that is another one now."""
        now = facts_of(member)
        if now.skipped > self.skipped:
            last = member.skipped.last
            assert (now.stored, last.log_sequence) == (self.stored, member.log_sequence)
            assert now.skipped == self.skipped + 1
            of = f" (of {last.claimed_member})" if last.claimed_member else ""
            yield f"skipped{of}: {last.why}"
        if now.settings != self.settings:
            yield f"settings {settings_text(now.settings)}"
        if now.view != self.view:
            yield view_text(now.view)
        if now.departed != self.departed:
            yield f"departed: {now.departed or 'nobody'}"
        for verdict in Verdict:
            count = now.verdicts[verdict] - self.verdicts[verdict]
            if count and verdict is not Verdict.CERTIFIED:
                yield f"{verdict.name} {count}"
        if now.repeated != self.repeated:
            yield f"repeated {now.repeated - self.repeated}"
        if now.stable_version != self.stable_version:
            yield f"collected up to {now.stable_version}"
        if now.everywhere_version != self.everywhere_version:
            yield f"applied everywhere: {now.everywhere_version}"
        if (now.state, now.reason) != (self.state, self.reason):
            yield f"{now.state.name}{': ' if now.reason else ''}{now.reason}"


def facts_of(member: Member) -> Facts:
    """Returns the facts of a member as it is now."""
    departed = (f"{each.name} {each.cause.name}" for each in member.departures.named())
    return Facts(
        member.state,
        member.reason,
        member.view,
        member.settings,
        tuple(member.counters.verdicts),
        member.counters.repeated,
        member.certifier.stable_version,
        member.applied_everywhere_version,
        ", ".join(departed),
        member.skipped.total,
        stored_of(member),
        member.log_sequence,
    )


def stored_of(member: Member) -> str:
    """Returns what members agree on after a message, but for its place and what was skipped."""
    stored = {**checkpoint_of(member), "log_sequence": 0, "skipped": ()}
    outcomes = [(key.hex(), _verdict_text(known)) for key, known in member.outcomes]
    return json.dumps([stored, outcomes, member.certifier.digest().hex()])


def view_text(view: View) -> str:
    """Returns a view as scripts draw it."""
    members = " ".join(map(run_text, view.members)) or "nobody"
    words = [f"view {view.view_id}: {members}"]
    words += [f"primary {view.primary}"] if view.primary else []
    words += [f"format {view.format_version}"] if view.format_version else []
    return ", ".join(words)


def effects(
    member: Member, into: Delivered, names_of: Callable[[Iterable[Submission]], str]
) -> Iterator[str]:
    """Yields a line for each thing that a member hands out after a message."""
    for run, fragment in into.fragments:
        yield f"keeps fragment {_set_text(run, fragment.number)}/{fragment.place}"
    for name in into.dropped:
        yield f"drops fragments {_set_text(*name)}"
    for entry in into.entries:
        yield _entry_text(entry, member)
    for ended in into.ended:
        verdicts = " ".join(map(_verdict_text, filter(None, ended.outcomes))) or "mark"
        assert len(ended.outcomes) == sum(each is not None for each in ended.outcomes)
        place = f"{ended.log_sequence}, batch {ended.batch_number}"
        yield f"ends {names_of([ended])} at {place}: {verdicts}, version {ended.version}"
    if into.turned_away:
        assert all(not any(each.outcomes) for each in into.turned_away)
        yield f"turns away {names_of(into.turned_away)}"
    if into.doubted:
        yield f"doubted: {into.doubted}"
    if len(into.noted):
        block = member.decisions.encode(into.noted)
        rows: list[Row] = list(decode(block, "m1", "7f", "there"))
        assert rows_in(block) == len(rows) == len(into.noted)
        assert place_key(into.noted) == rows[0]["place"]
        yield from map(_row_text, rows)


def _verdict_text(outcome: Outcome) -> str:
    return f"{outcome.verdict.name}{'?' if isinstance(outcome, Doubtful) else ''}"


def _entry_text(entry: RelayEntry, member: Member) -> str:
    header, (last_committed, sequence_number) = entry.header, entry[3:5]
    if entry.gtid is None:
        view_change = SourceHeader(view_id=member.view.view_id)
        newest = member.certifier.window.newest_version
        expected = RelayEntry(entry.position, newest, None, 0, 0, False, b"", view_change)
        assert entry == expected
        return f"relays view {header.view_id}"
    assert entry.gtid.number == entry.version or member.settings.gtid_assignment_block_size > 1
    assert log_sequence_of(entry.position) == member.log_sequence
    words = [f"relays {entry.version}", " ".join(map(key_of, header.items))]
    words += ["local" if entry.local else f"stamps {last_committed} {sequence_number}"]
    words += [f"locked since {header.locked_since}"] if header.locked_since else []
    words += [f"parent {header.commit_parent}"] if header.commit_parent else []
    words += [f"domain {header.domain_id}"] if header.domain_id else []
    words += [short(str(entry.gtid))] if entry.gtid.number != entry.version else []
    is_large = is_reference(entry.payload)
    words += [entry.payload.decode()] if entry.payload and not is_large else []
    words += [f"large={_large_text(entry.payload)}"] if is_large else []
    return ", ".join(words)


def _large_text(payload: bytes) -> str:
    found = FragmentSet.of(payload)
    return f"{_set_text(found.incarnation, found.number)} of {found.pieces}"


def _row_text(row: Row) -> str:
    shown = (f"{name}={row[name]!r}" for name in ("kind", *ROW_FIELDS) if name in row)
    return short(f"notes {' '.join(shown)}".replace("'", ""))


def _set_text(incarnation: int, number: int) -> str:
    run, member = divmod(incarnation, 10)
    return f"m{member}" + (f".{run}" if run else "") + f"/{number}"


def status_of(member: Member) -> Iterator[str]:
    """Yields the lines of a member's status; what is as in the beginning is left out."""
    name, view = member.me.name, member.view
    yield f"{name}: {member.state.name}{': ' if member.reason else ''}{member.reason}"
    yield f"  {view_text(view)}; log {member.log_sequence}; {settings_text(member.settings)}"
    yield f"  certified {member.certifier.window.newest_version}, " + ", ".join(
        f"{each.name} reports {'/'.join(map(str, member.report_of(each.incarnation)))}"
        f"{_silence(member, each.incarnation)}"
        for each in view.members
    )
    publisher = member.publisher
    more = {
        "may not write": not member.may_write,
        f"departed: {_departed(member)}": bool(member.departures.named()),
        f"open sets: {' '.join(_set_text(*each) for each in member.fragment_sets.names)}": bool(
            member.fragment_sets.names
        ),
        f"compares version {member.comparisons.version}: {_compared(member)}": bool(
            member.comparisons.position
        ),
        f"skipped {member.skipped.total}, last {member.skipped.last.log_sequence}": bool(
            member.skipped.total
        ),
        f"waiting {publisher.waiting} ({publisher.waiting_bytes} bytes), "
        f"in flight {publisher.in_flight}{', lingers' if publisher.lingers else ''}": bool(
            publisher.undecided
        ),
    }
    yield from (f"  {text}" for text, is_shown in more.items() if is_shown)


def _compared(member: Member) -> str:
    compared = member.comparisons
    if compared.waiting:
        return f"waits for {', '.join(compared.waiting)}"
    found = [f"{each.member} differs in {each.ranges}" for each in compared.differences()]
    return "; ".join(found) or f"{len(compared.answers)} members equal"


def _silence(member: Member, incarnation: int) -> str:
    silent_ms = member.suspicions.overdue_ms(incarnation)
    suspected = ", suspected" if member.is_suspected(incarnation) else ""
    return f" (silent for {silent_ms} ms{suspected})" if silent_ms else ""


def _departed(member: Member) -> str:
    return ", ".join(
        f"{each.name} {each.cause.name} since view {each.view_id}, {each.since_us} us"
        for each in member.departures.named()
    )
