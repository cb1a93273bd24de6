"""Counts messages of the log that were skipped, because they are no valid messages of a member.

The count follows from the log, as a member's whole state does: every member that has read as far
has the same, after a restart and in a copy, too. Pure.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ...certifier.errors import quoted
from .group_settings import is_name


class Skipped(NamedTuple):
    """A message that was skipped."""

    log_sequence: int
    why: str
    claimed_member: str
    """The member that it claims to be of, which may be a lie; quoted if it is no valid name, empty
    if there is none."""


class SkippedMessages:
    """How many messages were skipped since the group was made, and the last one."""

    def __init__(self) -> None:
        self.total = 0
        self.last = Skipped(0, "", "")

    def note(self, log_sequence: int, why: str, claimed_member: str) -> Skipped:
        """Adds the next one, and returns it."""
        self.total += 1
        if claimed_member and not is_name(claimed_member):
            claimed_member = quoted(claimed_member)
        self.last = Skipped(log_sequence, why, claimed_member)
        return self.last

    def dump(self) -> tuple[int, int, str, str]:
        """Returns JSON values; see `restore`."""
        return self.total, *self.last

    def restore(self, dumped: Sequence[int | str]) -> None:
        """Replaces the count by what was dumped."""
        total, log_sequence, why, claimed_member = dumped
        self.total = int(total)
        self.last = Skipped(int(log_sequence), str(why), str(claimed_member))
