"""Conflict controls: what lets the next job of the list start, for the scheme `jobs`.

The rule they keep: a control hands out transactions that have rows and a GTID; one that must run
alone stops it, and the scheme starts that one when nothing is left before it.

Source: WL#4648, P1, "several control techniques can be deployed".
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from applier.relay_queue import RelayEntry
from applier.schemes import Cause, Hold


class JobList(NamedTuple):
    """The list of jobs as the scheme shows it to its control.

    `pending`: what was not taken yet, oldest first. `room`: how many of those may be taken.
    `workers`: idle and occupied ones together.
    """

    pending: deque[RelayEntry]
    room: int
    workers: int


class ConflictControl(Protocol):
    """One of C0 to C4."""

    @property
    def kept(self) -> int:
        """Jobs that were made of what was taken, and have not started."""
        ...

    def alone(self, entry: RelayEntry) -> Cause | None:
        """Why a transaction runs alone; None if it need not."""
        ...

    def next(self, jobs: JobList) -> Sequence[RelayEntry]:
        """Returns the entries of a job that starts now, none if no job may; a worker is idle."""
        ...

    def hold(self) -> Hold | None:
        """After `next` found none: what the oldest that did not start waits for; None if there was
        no room to take it.
        """
        ...

    def committed(self, entries: Sequence[RelayEntry]) -> None:
        """A job that `next` returned is visible."""
        ...

    def check_invariants(self) -> None:
        """Asserts what holds between any two calls."""
        ...


def alone_without_rows(entry: RelayEntry) -> Cause | None:
    """Why a transaction runs alone where conflicts are looked for."""
    if entry.gtid is None:
        return Cause.ALONE
    return None if entry.header.items else Cause.NO_WRITE_SET


class NoControl:
    """C0 and C1: the next of the list starts, whatever it writes."""

    kept = 0

    def alone(self, entry: RelayEntry) -> Cause | None:
        """A view change or a rotation does."""
        return Cause.ALONE if entry.gtid is None else None

    def next(self, jobs: JobList) -> Sequence[RelayEntry]:
        """Returns the head."""
        pending, room, _ = jobs
        return (pending.popleft(),) if pending and room and pending[0].gtid else ()

    def hold(self) -> Hold | None:
        """Nothing is ever held back."""
        return None

    def committed(self, entries: Sequence[RelayEntry]) -> None:
        """Nobody waited for it."""

    def check_invariants(self) -> None:
        """There is nothing to check."""
