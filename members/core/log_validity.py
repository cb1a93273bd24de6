"""Decides whether a message of the log is valid; all members skip the same invalid ones.

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
   guess. Each control record is of a kind that the message's format has
   (`record_kinds.py`).
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
"""

from ...certifier.errors import UnsupportedFormat, quoted
from .log_records import GroupSettings, LogBatch, Message, Unreadable
from .members import NUMBERS_AHEAD_MAX
from .record_kinds import KIND_OF, GroupBefore
from .views import FORMAT_FIRST, FORMAT_VERSION


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
    whys = (KIND_OF[type(each)].why_not(each, message, before) for each in message.controls)
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
