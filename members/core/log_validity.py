"""Decides whether a message of the log is valid; all members skip the same invalid ones.

Any client of the log with the right to write can put anything into it. If members believed it, it
would end all of them at the same position, and again at each start; so each message is checked
against the rules below before it has any effect, and is taken whole or skipped whole. The rules use
the log alone: the group as it is before the message, and constants, never a member's own settings.
Pure.

Of the bytes (`wire/log_batches.py` decodes them):

1. They are a LogBatch in a format that the group writes in this view or wrote before, with at most
   `FIELDS_MAX` fields, `TRANSACTIONS_MAX` transactions and `CONTROL_BYTES_MAX` of control records.
   Where that format is not known, as a member of an earlier release has announced none, one that
   this release does not know is skipped unless its run is in the view: that may be a newer release,
   and this one must not guess.
2. GTIDs and GTID sets are valid, and the sets no longer than `GTID_SETS_BYTES_MAX` together;
   transaction ids and numbers of large transactions are within their limits; row changes are a
   Changes message with a value for each key that is put. A snapshot that is too new, and the
   group's limits at this position, are left to certification: earlier releases have let such
   transactions into the log.

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
"""

from typing import NamedTuple

from groupcert.certifier.errors import ForeignLog, UnsupportedFormat, quoted
from groupcert.members.core.batch_numbers import NUMBERS_AHEAD_MAX, BatchNumbers
from groupcert.members.core.group_settings import is_name, member_problem, settings_problem
from groupcert.members.core.log_records import (
    Appointment,
    Control,
    GroupSettings,
    LogBatch,
    Message,
    Skip,
    StableReport,
    Unreadable,
    ViewProposal,
    is_change,
)
from groupcert.members.core.releases import FORMAT_VERSION
from groupcert.members.core.views import View

DIGEST_BYTES_MAX = 64
"""Most bytes of the digests in a report."""


class GroupBefore(NamedTuple):
    """The group before a message, which is message `log_sequence` of the log."""

    log_sequence: int
    view: View
    settings: GroupSettings
    newest_version: int
    numbers: BatchNumbers


def why_skipped(message: Message, before: GroupBefore) -> str:
    """Returns why a message is skipped; empty if it is valid, or repeats a valid one.

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
                supported=f"1 to {FORMAT_VERSION}",
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
    whys = (_why_no_control(each, message, before) for each in message.controls)
    return next(filter(None, whys), "")


def _why_no_joiner(batch: LogBatch, before: GroupBefore) -> str:
    """Returns what is wrong with a batch of a run that is not in the view."""
    settings = before.settings
    has_left = before.numbers.has_left(batch.incarnation)
    is_joining = not batch.transactions and not batch.fragments
    for control in batch.controls:
        if isinstance(control, ViewProposal):
            why = _why_no_view(control, before.view) or (
                _why_no_entry(control, batch, before.view, settings)
                if control.previous_view_id == before.view.view_id
                else ""
            )
        elif isinstance(control, GroupSettings):
            why = _why_no_settings(control, settings)
            is_joining = is_joining and control.settings_version == 1
            settings = settings._replace(settings_version=max(1, settings.settings_version))
        else:
            why = ""
            is_joining = is_joining and isinstance(control, Skip)
        if why:
            return why
    if not is_joining and not has_left:
        return f"its run {batch.incarnation:016x} is not in the view"
    return ""


def _why_no_entry(
    proposal: ViewProposal, batch: LogBatch, view: View, settings: GroupSettings
) -> str:
    """Returns why a proposal does not let a run join that is not in the view."""
    me = next((each for each in proposal.members if each.incarnation == batch.incarnation), None)
    if me is None or me.name != batch.member or proposal.members != view.with_member(me):
        return "it proposes a view that is not the present one with its sender"
    if not settings.settings_version:
        return "it proposes a view of a group that has no settings"
    if me.newest_format < view.format_version:
        return f"it reads formats to {me.newest_format}, the group writes {view.format_version}"
    if not 0 < batch.batch_number <= NUMBERS_AHEAD_MAX:
        return f"its run joins with batch {batch.batch_number}: expected 1 to {NUMBERS_AHEAD_MAX}"
    return member_problem(me)


def _why_no_control(control: Control, batch: LogBatch, before: GroupBefore) -> str:
    """Returns what is wrong with a control record of a member of the view."""
    if isinstance(control, StableReport):
        return _why_no_report(control, before)
    if isinstance(control, ViewProposal):
        return _why_no_view(control, before.view) or (
            _why_no_part(control, batch, before.view)
            if control.previous_view_id == before.view.view_id
            else ""
        )
    if isinstance(control, GroupSettings):
        return _why_no_settings(control, before.settings)
    if isinstance(control, Appointment) and not is_name(control.primary):
        return f"it appoints {quoted(control.primary)}, which is no name of a member"
    return ""


def _why_no_view(proposal: ViewProposal, view: View) -> str:
    """Returns what is wrong with a proposal of any sender."""
    if proposal.previous_view_id > view.view_id:
        previous = proposal.previous_view_id
        return f"it proposes what follows view {previous}: present is view {view.view_id}"
    return ""


def _why_no_part(proposal: ViewProposal, batch: LogBatch, view: View) -> str:
    """Returns why a member of the view cannot remove others, or itself, by this proposal."""
    kept = tuple(each for each in view.members if each in proposal.members)
    if kept != proposal.members:
        return "it proposes a view that has others than members of the present one, each once"
    others = tuple(each for each in view.members if each.incarnation != batch.incarnation)
    if all(each.incarnation != batch.incarnation for each in kept) and kept != others:
        return "it proposes a view without its sender, and without others"
    return ""


def _why_no_settings(settings: GroupSettings, present: GroupSettings) -> str:
    """Returns what is wrong with settings of any sender."""
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


def _why_no_report(report: StableReport, before: GroupBefore) -> str:
    """Returns why a member of the view cannot have made this report."""
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
