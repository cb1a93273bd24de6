"""Members that were in the group and are not: listed until they return or an operator forgets them.

A view lists who is there. Without this list a member that died is gone from every status as soon as
it is expelled, and a group of three that has become a group of two looks as healthy as before. All
of it follows from the log, so that members agree on it. Pure.
"""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from .log_records import ViewProposal
from .views import View

DEPARTED_MAX = 100
"""Names that are kept; beyond that, those that have been away for longest are forgotten."""

SINCE_US_MAX = 1 << 53
"""A time in the year 2255, later than any clock says."""


class Cause(Enum):
    """Why a member is not in the view; numbers as on the wire and in the log."""

    UNKNOWN = 0
    LEFT = 1
    SILENT = 2
    EXPELLED = 3


CAUSES = {each.value: each for each in Cause}


class Departure(NamedTuple):
    """One member that has gone."""

    name: str
    address: str
    cause: Cause
    view_id: int
    """Id of the first view without it."""
    since_us: int
    """By the clock of the member that proposed that view, since 1970; 0: unknown."""


class Departures:
    """The departed members, the longest away first."""

    def __init__(self) -> None:
        self._by_name: dict[str, Departure] = {}

    def followed(self, before: View, view: View, incarnation: int, proposal: ViewProposal) -> None:
        """Notes the members of `before` that are not in `view`, and those that have come back.

        Args:
            incarnation: The run that proposed it. One that proposed a view without itself has left,
                whatever the cause says.
        """
        cause = CAUSES.get(proposal.cause, Cause.UNKNOWN)
        since_us = proposal.proposed_us if proposal.proposed_us < SINCE_US_MAX else 0
        for member in before.members:
            if view.named(member.name) is None:
                why = Cause.LEFT if member.incarnation == incarnation else cause
                self._by_name.pop(member.name, None)  # So that it comes last.
                self._by_name[member.name] = Departure(
                    member.name, member.address, why, view.view_id, since_us
                )
        for member in view.members:
            self._by_name.pop(member.name, None)
        for name in list(self._by_name)[:-DEPARTED_MAX]:
            del self._by_name[name]

    def forget(self, name: str) -> None:
        """Removes the named member from the list, if it is there."""
        self._by_name.pop(name, None)

    def named(self) -> list[Departure]:
        """Returns all departures, sorted by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def dump(self) -> list[tuple[str, str, int, int, int]]:
        """Returns JSON values; see `restore`."""
        return [
            (name, address, cause.value, view_id, since_us)
            for name, address, cause, view_id, since_us in self._by_name.values()
        ]

    def restore(self, dumped: Iterable[tuple[str, str, int, int, int]]) -> None:
        """Replaces the list by what `dump` returned."""
        self._by_name = {
            name: Departure(name, address, CAUSES[cause], view_id, since_us)
            for name, address, cause, view_id, since_us in dumped
        }
