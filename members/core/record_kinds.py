"""The kinds of control records, in one table: where a message has each, since which format, when it
counts, and how a member takes it.

Members of two releases read one log, and have to skip the same messages. A message whose format is
older than one of its records is skipped by those who know the record and by those who do not. So
who adds a kind adds a row, and raises `FORMAT_VERSION`, which is the row's `since_format`. Pure.
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
    kept = tuple(each for each in view.members if each in proposal.members)
    if kept != proposal.members:
        return "it proposes a view that has others than members of the present one, each once"
    others = tuple(each for each in view.members if each.incarnation != batch.incarnation)
    if all(each.incarnation != batch.incarnation for each in kept) and kept != others:
        return "it proposes a view without its sender, and without others"
    return ""


def _why_no_entry(proposal: ViewProposal, batch: LogBatch, before: GroupBefore) -> str:
    """Returns the problem of a proposal of a run that is not in the view, and would join."""
    view = before.view
    me = next((each for each in proposal.members if each.incarnation == batch.incarnation), None)
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
