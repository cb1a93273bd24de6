"""Values that pass from the end of a member's run to the beginning of the next.

A run is the time from opening the store to closing it; a process has one after another.
"""

from typing import NamedTuple


class RunStart(NamedTuple):
    """Requests for the next run, of an operator or of the run that ended."""

    discards_state: bool = False
    """Begins with an empty store; the present one is set aside."""
    trusts_log: bool = False
    """Joins without asking other members how far they have read."""
    reads_long_log: bool = False
    """Reads the log however long it is, in spite of `recovery_log_messages_max`."""

    def merged(self, other: "RunStart") -> "RunStart":
        """Returns a start that does all that either of two asks for."""
        return RunStart(*(mine or theirs for mine, theirs in zip(self, other, strict=True)))


NORMAL_START = RunStart()


class RunEnd(NamedTuple):
    """The error that ended a run, or None where an operator had the member begin again."""

    error: BaseException | None = None
