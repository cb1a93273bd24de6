"""Members' state machines and batches by hand, for tests of what follows from a log."""

import json
from collections.abc import Sequence
from dataclasses import replace

from groupcert.certifier import certifier_state
from groupcert.members.core.effects import Delivered
from groupcert.members.core.log_records import (
    Control,
    GroupSettings,
    LogBatch,
    LoggedTransaction,
    MemberReport,
    ViewProposal,
)
from groupcert.members.core.member import Member
from groupcert.members.core.member_checkpoint import checkpoint_of, restore
from groupcert.members.core.member_options import MemberOptions
from groupcert.members.core.noted_decisions import Decisions
from groupcert.members.core.views import ViewMember

SETTINGS = GroupSettings(
    settings_version=1,
    group="test",
    group_uuid="aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa",
    gtid_assignment_block_size=1,
    gc_window="close",
    write_set_items_max=100,
    outcomes_max=100,
)


def run_of(number: int, run: int = 0) -> ViewMember:
    """A run of member `m<number>`; the first one has the number as its incarnation."""
    return ViewMember(name=f"m{number}", incarnation=10 * run + number, address=f"m{number}:1")


def new_member(
    number: int = 1,
    run: int = 0,
    settings: GroupSettings = SETTINGS,
    *,
    record_history: bool = False,
) -> Member:
    """A member that has read nothing; it takes messages for its own that tests write by hand."""
    me = run_of(number, run)
    options = MemberOptions(me=me, settings=settings, stable_items=100, looks_on=True)
    return Member(options, Decisions(options.me.name, is_on=record_history))


def online(
    *others: int, settings: GroupSettings = SETTINGS, record_history: bool = False
) -> Member:
    """Member m1 in a view with other members."""
    member = new_member(settings=settings, record_history=record_history)
    member.caught_up()
    send(member)
    for number in others:
        deliver(member, joining(member, number))
    return member


def joining(member: Member, number: int, run: int = 0) -> LogBatch:
    """The first batch of a run that joins the view that `member` knows."""
    me = run_of(number, run)
    proposal = ViewProposal(member.view.view_id, member.view.with_member(me))
    return batch_of(number, 1, controls=[proposal], run=run)


def batch_of(
    number: int,
    batch_number: int,
    transactions: Sequence[LoggedTransaction] = (),
    controls: Sequence[Control] = (),
    run: int = 0,
) -> LogBatch:
    """A message of member `m<number>`."""
    me = run_of(number, run)
    return LogBatch(me.name, me.incarnation, batch_number, transactions, controls)


def report_of(
    member: Member, number: int, batch_number: int, applied: int, stable: int, digest: bytes = b""
) -> LogBatch:
    """A report of member `m<number>` on the place where `member` is, by default an honest one."""
    digest = digest or member.certifier.digest()
    report = MemberReport(applied, stable, member.log_sequence, digest)
    return batch_of(number, batch_number, controls=[report])


def deliver(member: Member, *batches: LogBatch) -> Delivered:
    """Delivers messages as the next ones of the log, and ends what submissions they decide."""
    delivered = Delivered()
    for batch in batches:
        member.deliver(member.log_sequence + 1, batch, delivered)
    for submission in delivered.ended:
        submission.end()
    return delivered


def send(member: Member, *others: Member) -> LogBatch:
    """Delivers a member's next batch to itself and to others, and returns it."""
    batch = member.publisher.next_batch()
    assert batch is not None
    for each in (member, *others):
        deliver(each, batch)
    return batch


def write(snapshot: int, *items: int, transaction_id: bytes = b"") -> LoggedTransaction:
    """A transaction that read a version and wrote some items."""
    return LoggedTransaction(transaction_id, snapshot, items)


def versions(delivered: Delivered) -> list[int]:
    """The versions that went to the relay queue, without view changes."""
    return [entry.version for entry in delivered.entries if entry.gtid]


def restored_from(member: Member, me: ViewMember) -> Member:
    """Another run, from what a member would have stored, with the same options; its stamps are not
    the same.
    """
    restored = Member(replace(member.options, me=me))
    restore(restored, json.loads(json.dumps(checkpoint_of(member))))
    window = member.certifier.window
    no_sets: dict[str, dict[str, str]] = {}
    pieces = [(first, piece, no_sets) for first, piece in window.dump(window.first_version)]
    dumped = certifier_state.dump(member.certifier)
    certifier_state.restore(restored.certifier, json.loads(json.dumps(dumped)), pieces)
    for transaction_id, outcome in member.outcomes:
        restored.outcomes.remember(transaction_id, outcome)
    return restored
