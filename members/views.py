"""Views: who is in the group, and the compare-and-set by which that changes.

The rule it keeps: a proposal names the view that it wants to follow, and counts only if that is the
group's view at the proposal's place in the total order. So of two proposals one wins, on every
member the same. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMember:
    """A member in one of its runs; a restarted member has the same name and another incarnation."""

    name: str
    incarnation: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Numbered from 1 on; view 0 is "no group yet"."""

    view_id: int = 0
    members: tuple[ViewMember, ...] = ()

    def member(self, incarnation: int) -> ViewMember | None:
        """The member in that run, if it is in the view."""
        return next((member for member in self.members if member.incarnation == incarnation), None)

    def named(self, name: str) -> ViewMember | None:
        """The member of that name, if it is in the view."""
        return next((member for member in self.members if member.name == name), None)

    def follow(self, previous_view_id: int, members: Iterable[ViewMember]) -> "View | None":
        """The next view, or None if the proposal was made for another view than this one."""
        if previous_view_id != self.view_id:
            return None
        return View(view_id=self.view_id + 1, members=tuple(members))

    def with_member(self, member: ViewMember) -> tuple[ViewMember, ...]:
        """The members once `member` has joined; an earlier run of it is replaced."""
        others = [other for other in self.members if other.name != member.name]
        return tuple(sorted([*others, member], key=lambda each: each.name))

    def without_member(self, name: str) -> tuple[ViewMember, ...]:
        """The members once `name` has left."""
        return tuple(member for member in self.members if member.name != name)
