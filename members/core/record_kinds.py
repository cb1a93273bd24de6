"""Decides whether a message of the log is valid, and has the kinds of control records in one table.

Any client of the log with the right to write can put anything into it. If members believed it, it
would end all of them at the same position, and again at each start; so each message is checked
against the rules below before it has any effect, and is taken whole or skipped whole. The rules use
the log alone: the group as it is before the message, and constants, never a member's own settings.
Pure.

Of the bytes (`wire/log_batches.py` decodes them):

1. They are a LogBatch in a format that the group writes in this view or wrote before, with at most
   `FIELDS_MAX` fields, `TRANSACTIONS_MAX` transactions and `CONTROL_BYTES_MAX` of control records.
   Where that format is not known, as a member has announced none, one that this release does not
   know is skipped unless its run is in the view: that may be a newer release, and this one must not
   guess. Each control record is of a kind that the message's format has (`RECORD_KINDS`).
2. GTIDs and GTID sets are valid, and the sets no longer than `GTID_SETS_BYTES_MAX` together;
   transaction ids and numbers of large transactions are within their limits; row changes are a
   Changes message with a value for each key that is put. A snapshot that is too new, and the
   group's limits at this position, are left to certification.

Of every batch:

3. Settings have values that settings can have (`group_settings.py`), and the version after
   the present one or an earlier one; with the version after, what a group keeps for ever is as it
   was. (The first ones, for a group of another name, are a `ForeignLog`.)
4. Views are proposed to follow the present one or an earlier one.

Of a run in the view (what is repeated has no effect, and is not looked at):

5. It bears its member's name, and a number at most `NUMBERS_AHEAD_MAX` above the last one.
6. A view that is to follow the present one has some of its members, in their order and no others;
   without the sender, all others.
7. A report is of what was certified and read before it, and its versions are in order.
8. An appointed primary has a name that members can have.

Of any other run, as a joiner is one:

9. It has only first settings and views; a run that was in the view until lately may have had other
   records on their way, which have no effect.
10. A view that is to follow the present one is that one with the sender in it, instead of an
    earlier run of its name; name and address are valid, the group has settings, and the sender
    reads the format that it writes.

`RECORD_KINDS` says of each kind where a message has it, since which format, when it counts, and how
a member takes it. Members of two releases read one log, and have to skip the same messages: one
whose format is older than one of its records is skipped by those who know the record and by those
who do not. So who adds a kind adds a row, and raises `FORMAT_VERSION`, which is the row's
`since_format`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ...certifier.errors import ForeignLog, quoted
from ...certifier.position import log_sequence_of
from .group_settings import is_name, member_problem, settings_problem
from .log_records import (
    LARGE_NUMBER_MAX,
    RANGE_BYTES,
    RANGES,
    Abandonment,
    Appointment,
    Comparison,
    Control,
    Forgetting,
    GroupSettings,
    LogBatch,
    MemberReport,
    RowDigests,
    Skip,
    ViewProposal,
    is_change,
)
from .members import NUMBERS_AHEAD_MAX, BatchNumbers
from .views import FORMAT_FIRST, View

if TYPE_CHECKING:
    from .effects import Delivered
    from .member import Member
from ...certifier.errors import UnsupportedFormat
from .log_records import Message, Unreadable
from .views import FORMAT_VERSION

DIGEST_BYTES_MAX = 64
"""Most bytes of the digests in a report."""


class GroupBefore(NamedTuple):
    """The group before a message, which is message `log_sequence` of the log."""

    log_sequence: int
    view: View
    settings: GroupSettings
    newest_version: int
    numbers: BatchNumbers


class RecordKind(NamedTuple):
    """A kind of control records; the fields of a record and of its message are named alike."""

    record: type[Control]
    field: str
    """Its field in a ControlRecord of `log.proto`."""
    since_format: int
    """The first format of the log that has it."""
    why_not: Callable[[Any, LogBatch, GroupBefore], str]
    """Returns the problem of a record that makes its message invalid; empty if there is none."""
    take: "Callable[[Member, LogBatch, int, Any, Delivered], None]"
    """Carries out a record at its position, in a member."""
    joins: bool = False
    """A run that is not in the view may send it."""


def why_no_view(proposal: ViewProposal, batch: LogBatch, before: GroupBefore) -> str:
    """Returns the problem of the proposal of a view."""
    view = before.view
    if proposal.previous_view_id > view.view_id:
        previous = proposal.previous_view_id
        return f"it proposes what follows view {previous}: present is view {view.view_id}"
    if proposal.previous_view_id < view.view_id:
        return ""
    why = _why_no_part if view.member(batch.incarnation) else _why_no_entry
    return why(proposal, batch, before)


def why_no_settings(settings: GroupSettings, _: LogBatch, before: GroupBefore) -> str:
    """Returns the problem of settings of any sender.

    Raises ForeignLog if they make a group of another name.
    """
    present = before.settings
    if problem := settings_problem(settings):
        return f"settings: {problem}"
    if settings.settings_version > present.settings_version + 1:
        version = present.settings_version
        return f"settings have version {settings.settings_version}: present is {version}"
    if settings.settings_version <= present.settings_version:
        return ""
    if not present.settings_version:
        if settings.group != present.group:
            raise ForeignLog(expected=present.group, found=settings.group)
        return ""
    return "" if is_change(present, settings) else "settings change what a group keeps for ever"


def why_no_report(report: MemberReport, _: LogBatch, before: GroupBefore) -> str:
    """Returns the problem of a report that no member of the view can have made."""
    if not report.stable_version <= report.applied_version <= before.newest_version:
        return (
            f"it reports versions {report.applied_version} as applied and {report.stable_version} "
            f"as stable: certified are {before.newest_version}"
        )
    read = max(report.digest_log_sequence, report.durable_log_sequence)
    if read >= before.log_sequence:
        return f"it reports to have read message {read}, and is message {before.log_sequence}"
    if max(len(report.digest), len(report.history_chain)) > DIGEST_BYTES_MAX:
        return f"it reports a digest or chain of more than {DIGEST_BYTES_MAX} bytes"
    return ""


def why_no_appointment(appointment: Appointment, _: LogBatch, __: GroupBefore) -> str:
    """Returns the problem of an appointment of no member."""
    if is_name(appointment.primary):
        return ""
    return f"it appoints {quoted(appointment.primary)}, which is no name of a member"


def why_no_digests(digests: RowDigests, _: LogBatch, before: GroupBefore) -> str:
    """Returns the problem of digests that no member of the view can have."""
    if log_sequence_of(digests.position) >= before.log_sequence:
        return f"it has digests of its rows at {digests.position}, and comes before that"
    if len(digests.digests) != RANGES * RANGE_BYTES or digests.rows > LARGE_NUMBER_MAX:
        size = len(digests.digests)
        return f"it has digests of {size} bytes of {digests.rows} rows: no member has"
    return ""


def always_valid(_: Control, __: LogBatch, ___: GroupBefore) -> str:
    """Returns that nothing can be wrong with a record."""
    return ""


def _why_no_part(proposal: ViewProposal, batch: LogBatch, before: GroupBefore) -> str:
    """Returns the problem of a proposal by which a member removes others, or itself."""
    view = before.view
    kept = tuple(member for member in view.members if member in proposal.members)
    if kept != proposal.members:
        return "it proposes a view that has others than members of the present one, each once"
    others = tuple(member for member in view.members if member.incarnation != batch.incarnation)
    if all(member.incarnation != batch.incarnation for member in kept) and kept != others:
        return "it proposes a view without its sender, and without others"
    return ""


def _why_no_entry(proposal: ViewProposal, batch: LogBatch, before: GroupBefore) -> str:
    """Returns the problem of a proposal of a run that is not in the view, and would join."""
    view = before.view
    me = next(
        (member for member in proposal.members if member.incarnation == batch.incarnation), None
    )
    if me is None or me.name != batch.member or proposal.members != view.with_member(me):
        return "it proposes a view that is not the present one with its sender"
    if not before.settings.settings_version:
        return "it proposes a view of a group that has no settings"
    if me.newest_format < view.format_version:
        return f"it reads formats to {me.newest_format}, the group writes {view.format_version}"
    if not 0 < batch.batch_number <= NUMBERS_AHEAD_MAX:
        return f"its run joins with batch {batch.batch_number}: expected 1 to {NUMBERS_AHEAD_MAX}"
    return member_problem(me)


RECORD_KINDS = (
    RecordKind(
        ViewProposal,
        "view_proposal",
        FORMAT_FIRST,
        why_no_view,
        lambda member, *record: member.take_view(*record),
        joins=True,
    ),
    RecordKind(
        MemberReport,
        "report",
        FORMAT_FIRST,
        why_no_report,
        lambda member, *record: member.take_report(*record),
    ),
    RecordKind(
        GroupSettings,
        "group_settings",
        FORMAT_FIRST,
        why_no_settings,
        lambda member, *record: member.take_settings(*record),
        joins=True,
    ),
    RecordKind(
        Appointment,
        "appointment",
        FORMAT_FIRST,
        why_no_appointment,
        lambda member, *record: member.take_appointment(*record),
    ),
    RecordKind(
        Abandonment,
        "abandonment",
        FORMAT_FIRST,
        always_valid,
        lambda member, *record: member.take_abandonment(*record),
    ),
    RecordKind(
        Forgetting,
        "forgetting",
        FORMAT_FIRST,
        always_valid,
        lambda member, *record: member.take_forgetting(*record),
    ),
    # Obeyed before it is read, by members that cannot read the message that it names.
    RecordKind(Skip, "skip", FORMAT_FIRST, always_valid, lambda *_: None, joins=True),
    RecordKind(
        Comparison,
        "comparison",
        3,
        always_valid,
        lambda member, *record: member.take_comparison(*record),
    ),
    RecordKind(
        RowDigests,
        "row_digests",
        3,
        why_no_digests,
        lambda member, *record: member.take_digests(*record),
    ),
)
KIND_OF = {kind.record: kind for kind in RECORD_KINDS}
"""The kinds by the type of their record."""


def why_skipped(message: Message, before: GroupBefore) -> str:
    """Returns the reason to skip a message; empty if it is valid, or repeats a valid one.

    Raises:
        ForeignLog: It makes a group of another name.
        UnsupportedFormat: A member wrote it in a format that this release does not know.
    """
    written = before.view.format_version
    if message.format_version > written > 0:
        return f"it has format {message.format_version}, the group writes {written}"
    member = before.view.member(message.incarnation)
    if isinstance(message, Unreadable):
        if message.format_version and member:
            raise UnsupportedFormat(
                what=f"message {before.log_sequence} of the log, by {member.name},",
                found=str(message.format_version),
                supported=f"{FORMAT_FIRST} to {FORMAT_VERSION}",
            )
        return message.problem
    if before.numbers.is_repeated(message.incarnation, message.batch_number):
        return ""
    if member is None:
        return _why_no_joiner(message, before)
    if message.member != member.name:
        return f"it bears the name {quoted(message.member)}, its run is one of {member.name}"
    last = before.numbers.last(message.incarnation) or 0
    if message.batch_number > last + NUMBERS_AHEAD_MAX:
        return (
            f"batch {message.batch_number} is more than {NUMBERS_AHEAD_MAX} after {last}, "
            "the last one of its run"
        )
    whys = (
        KIND_OF[type(control)].why_not(control, message, before) for control in message.controls
    )
    return next(filter(None, whys), "")


def _why_no_joiner(batch: LogBatch, before: GroupBefore) -> str:
    """Returns the problem of a batch of a run that is not in the view."""
    has_left = before.numbers.has_left(batch.incarnation)
    is_joining = not batch.transactions and not batch.fragments
    for control in batch.controls:
        kind = KIND_OF[type(control)]
        if kind.joins and (why := kind.why_not(control, batch, before)):
            return why
        is_joining = is_joining and kind.joins
        if isinstance(control, GroupSettings):
            is_joining = is_joining and control.settings_version == 1
            made = before.settings._replace(
                settings_version=max(1, before.settings.settings_version)
            )
            before = before._replace(settings=made)
    if not is_joining and not has_left:
        return f"its run {batch.incarnation:016x} is not in the view"
    return ""
