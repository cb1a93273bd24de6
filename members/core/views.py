"""Views: who is in the group, who of them may write, and the compare-and-set by which that changes.

The rule it keeps: a proposal names the view that it wants to follow, and counts only if that is the
group's view at the proposal's position in the total order. So of two proposals one wins, on every
member the same. Pure.

Members of two releases can be in one view. Each announces, when it joins, the newest format of the
log that it reads, and the group writes the newest one that all of the view read. That format rises
with a view and never falls: messages in it stay in the log, and who joins has to read them. A
member of an earlier release stops where the group goes over to another format, before it reads any
message in that format: its state is then the one that the later release goes on from
(`check_release`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Self

from ..errors.membership import ReleaseTooOld

WEIGHT = 50
"""A member's weight in elections where none is set: Group Replication's default."""
FORMAT_FIRST = 2
"""First format of the log: what is written before there is a view, and the newest one that a run is
known to read which has announced none."""
FORMAT_VERSION = 3
"""Newest format of a log message that this release reads; it writes what all of the view read
(`View.written_format`). The first one, `FORMAT_FIRST`, has no comparisons of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMember:
    """One run of a member; a restarted member has the same name and another incarnation."""

    name: str
    incarnation: int
    address: str
    weight: int = WEIGHT
    """In single-primary mode the member with the largest weight is elected."""
    format_version: int = field(default=0, compare=False)
    """Newest format of the log that it reads; 0: not known. Views without it have the same members.
    """
    release: str = field(default="", compare=False)
    """The release that it runs; empty: not known."""
    without_rows: bool = field(default=False, compare=False)
    """It keeps no rows."""

    @property
    def newest_format(self) -> int:
        """The newest format of the log that it is known to read."""
        return self.format_version or FORMAT_FIRST

    def dump(self) -> tuple[str, int, str, int]:
        """Returns JSON values; see `restored`."""
        return self.name, self.incarnation, self.address, self.weight

    @classmethod
    def restored(
        cls,
        name: str,
        incarnation: int,
        address: str,
        weight: int,
        format_version: int = 0,
        release: str = "",
        *,
        without_rows: bool = False,
    ) -> Self:
        """Returns the member that `dump` was called on, with what it has announced."""
        return cls(
            name=name,
            incarnation=incarnation,
            address=address,
            weight=weight,
            format_version=format_version,
            release=release,
            without_rows=without_rows,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One view, numbered from 1; view 0 is "no group yet"."""

    view_id: int = 0
    members: tuple[ViewMember, ...] = ()
    primary: str = ""
    """Name of the member that may write in single-primary mode; else empty."""
    format_version: int = 0
    """Newest format of the log that the group writes; 0: not known, as a member that is or was in
    the view has announced none, and no view since had members that all did."""

    @property
    def written_format(self) -> int:
        """The format of the messages that members of this view write."""
        return self.format_version or FORMAT_FIRST

    def member(self, incarnation: int) -> ViewMember | None:
        """Returns the member with that run, if it is in the view."""
        for member in self.members:  # Asked three times a message: a generator takes four times.
            if member.incarnation == incarnation:
                return member
        return None

    def named(self, name: str) -> ViewMember | None:
        """Returns the member of that name, if it is in the view."""
        return next((member for member in self.members if member.name == name), None)

    def follow(self, previous_view_id: int, members: Iterable[ViewMember]) -> "View | None":
        """Returns the next view, or None if the proposal was made for another view."""
        if previous_view_id != self.view_id:
            return None
        there = {each.incarnation: each for each in self.members}
        after = tuple(there.get(each.incarnation, each) for each in members)
        formats = [self.format_version, min((each.format_version for each in after), default=0)]
        return replace(self, view_id=self.view_id + 1, members=after, format_version=max(formats))

    def with_primary(self, name: str) -> "View":
        """Returns this view with the named member as its primary; without a name, the elected one.

        Elected is the member with the largest weight, of several the first by name. While some keep
        rows it is one of these: clients could write nothing at another.
        Source: MySQL 8.4 Reference Manual, 20.1.3.1, Single-Primary Mode.
        """
        able = [each for each in self.members if not each.without_rows] or self.members
        if all(each.name != name for each in able):
            chosen = min(able, key=lambda each: (-each.weight, each.name), default=None)
            name = chosen.name if chosen else ""
        return replace(self, primary=name)

    def in_mode(self, *, single_primary: bool) -> "View":
        """Returns this view in single-primary mode, with a primary, or in multi-primary mode."""
        return self.with_primary(self.primary) if single_primary else replace(self, primary="")

    def with_member(self, member: ViewMember) -> tuple[ViewMember, ...]:
        """Returns the members once `member` has joined; it replaces an earlier run of its name."""
        others = [other for other in self.members if other.name != member.name]
        return tuple(sorted([*others, member], key=lambda each: each.name))

    def without_member(self, name: str) -> tuple[ViewMember, ...]:
        """Returns the members once `name` has left."""
        return tuple(member for member in self.members if member.name != name)


def check_release(me: ViewMember, view: View) -> None:
    """Raises ReleaseTooOld if the members of a view write a format that `me` does not read."""
    if view.format_version <= me.newest_format:
        return
    raise ReleaseTooOld(
        member=me.name,
        release=me.release,
        newest=me.newest_format,
        written=view.format_version,
        view_id=view.view_id,
        others=", ".join(f"{each.name} runs {each.release}" for each in view.members),
    )


class MemberState(Enum):
    """What a member does now; numbers as on the wire."""

    OFFLINE = 1
    JOINING = 2
    RECOVERING = 3
    ONLINE = 4
    ERROR = 5
    FENCED = 6
    LEFT = 7
