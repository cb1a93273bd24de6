"""Encodes the part of a member's state that is stored beside its certifier and its outcomes.

The rule it keeps: all of it follows from the log, so a checkpoint of any age is valid: what came
after it is read again. Pure.
"""

from typing import NotRequired, TypedDict

from .log_records import GroupSettings
from .member import Member
from .views import View, ViewMember, check_release


class MemberCheckpoint(TypedDict):
    """A member's state as JSON values."""

    log_sequence: int
    view_id: int
    view: list[tuple[str, int, str, int]]
    primary: str
    format_version: int
    announced: list[tuple[int, int, str]]
    without_rows: NotRequired[list[int]]
    settings: list[object]
    batch_numbers: list[tuple[int, int]]
    reports: list[tuple[int, int, int]]
    fragment_sets: list[tuple[int, int, str, int]]
    runs_gone: list[int]
    skipped: tuple[int, int, str, str]
    departed: list[tuple[str, str, int, int, int]]
    comparison: list[object]
    verdicts: list[int]


def checkpoint_of(member: Member) -> MemberCheckpoint:
    """Returns the state to store beside the certifier, to go on from here."""
    return MemberCheckpoint(
        log_sequence=member.log_sequence,
        view_id=member.view.view_id,
        view=[each.dump() for each in member.view.members],
        primary=member.view.primary,
        format_version=member.view.format_version,
        announced=[(m.incarnation, m.format_version, m.release) for m in member.view.members],
        without_rows=[m.incarnation for m in member.view.members if m.without_rows],
        settings=list(member.settings),
        batch_numbers=member.numbers.dump(),
        reports=member.reports.dump(),
        fragment_sets=member.fragment_sets.dump(),
        runs_gone=member.numbers.dump_gone(),
        skipped=member.skipped.dump(),
        departed=member.departures.dump(),
        comparison=member.comparisons.dump(),
        verdicts=member.counters.log_verdicts,
    )


def restore(member: Member, checkpoint: MemberCheckpoint) -> None:
    """Sets a new member to a checkpoint; the caller restores the certifier and the outcomes.

    Raises ReleaseTooOld if the group writes a format of the log that the member does not read.
    """
    announced = {run: (newest, release) for run, newest, release in checkpoint["announced"]}
    without_rows = {*checkpoint.get("without_rows", ())}
    view = View(
        view_id=checkpoint["view_id"],
        members=tuple(
            ViewMember.restored(*each, *announced[each[1]], without_rows=each[1] in without_rows)
            for each in checkpoint["view"]
        ),
        primary=checkpoint["primary"],
        format_version=checkpoint["format_version"],
    )
    check_release(member.me, view)
    member.view, member.log_sequence = view, checkpoint["log_sequence"]
    for each in member.view.members:  # Those that are gone for good were silent all the time.
        member.suspicions.heard(each.incarnation)
    member.numbers.restore(checkpoint["batch_numbers"], checkpoint["runs_gone"])
    member.reports.restore(checkpoint["reports"])
    member.fragment_sets.restore(checkpoint["fragment_sets"])
    member.skipped.restore(checkpoint["skipped"])
    member.departures.restore(checkpoint["departed"])
    member.comparisons.restore(checkpoint["comparison"])
    member.counters.earlier = checkpoint["verdicts"]
    settings = GroupSettings(*checkpoint["settings"])  # type: ignore[arg-type]
    if settings.settings_version:
        member.found(
            settings._replace(
                members_allowed=tuple(settings.members_allowed),
                postgresql_tables=tuple(settings.postgresql_tables),
            )
        )
