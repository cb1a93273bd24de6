"""Views: who is in the group, who of them may write, and the compare-and-set by which that changes.

The rule it keeps: a proposal names the view that it wants to follow, and counts only if that is the
group's view at the proposal's position in the total order. So of two proposals one wins, on every
member the same. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

WEIGHT = 50
"""A member's weight in elections where none is set: Group Replication's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMember:
    """One run of a member; a restarted member has the same name and another incarnation."""

    name: str
    incarnation: int
    address: str
    weight: int = WEIGHT
    """In single-primary mode the member with the largest weight is elected."""

    def dump(self) -> tuple[str, int, str, int]:
        """Returns JSON values; see `restored`."""
        return self.name, self.incarnation, self.address, self.weight

    @classmethod
    def restored(cls, name: str, incarnation: int, address: str, weight: int) -> Self:
        """Returns the member that `dump` was called on."""
        return cls(name=name, incarnation=incarnation, address=address, weight=weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One view, numbered from 1; view 0 is "no group yet"."""

    view_id: int = 0
    members: tuple[ViewMember, ...] = ()
    primary: str = ""
    """Name of the member that may write in single-primary mode; else empty."""

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
        return replace(self, view_id=self.view_id + 1, members=tuple(members))

    def with_primary(self, name: str) -> "View":
        """Returns this view with the named member as its primary; without a name, the elected one.

        Elected is the member with the largest weight, of several the first by name.
        Source: MySQL 8.4 Reference Manual, 20.1.3.1, Single-Primary Mode.
        """
        if self.named(name) is None:
            chosen = min(self.members, key=lambda each: (-each.weight, each.name), default=None)
            name = chosen.name if chosen else ""
        return replace(self, primary=name)

    def without_primary(self) -> "View":
        """Returns the same view in multi-primary mode."""
        return replace(self, primary="")

    def with_member(self, member: ViewMember) -> tuple[ViewMember, ...]:
        """Returns the members once `member` has joined; it replaces an earlier run of its name."""
        others = [other for other in self.members if other.name != member.name]
        return tuple(sorted([*others, member], key=lambda each: each.name))

    def without_member(self, name: str) -> tuple[ViewMember, ...]:
        """Returns the members once `name` has left."""
        return tuple(member for member in self.members if member.name != name)
