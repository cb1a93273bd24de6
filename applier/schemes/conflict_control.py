"""Conflict controls: decide when the next job of the list may start, for the scheme `jobs`.

A control hands out transactions that have rows and a GTID. A transaction that must run alone stops
it; the scheme starts that one when nothing is left before it.

Source: WL#4648, P1, "several control techniques can be deployed".
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..queue.relay_group import RelayEntry
from . import Cause, Hold


class JobList(NamedTuple):
    """The list of jobs as the scheme passes it to its control.

    `pending`: what was not taken yet, oldest first. `room`: how many of those may be taken.
    `workers`: idle and occupied ones together.
    """

    pending: deque[RelayEntry]
    room: int
    workers: int


class ConflictControl(Protocol):
    """A control: one of C0 to C4."""

    @property
    def kept(self) -> int:
        """Jobs that were made of taken transactions, and have not started."""
        ...

    def alone(self, entry: RelayEntry) -> Cause | None:
        """Returns the cause for which a transaction runs alone; None if it need not."""
        ...

    def next(self, jobs: JobList) -> Sequence[RelayEntry]:
        """Returns the entries of a job that starts now, none if no job may; a worker is idle."""
        ...

    def hold(self) -> Hold | None:
        """Returns, after `next` returned no job, the reason for which the oldest job that did not
        start waits; None if there was no room to take it.
        """
        ...

    def committed(self, entries: Sequence[RelayEntry]) -> None:
        """Releases a job that `next` returned, as it is visible."""
        ...

    def check_invariants(self) -> None:
        """Asserts the control's invariants between two calls."""
        ...


def alone_without_rows(entry: RelayEntry) -> Cause | None:
    """Returns the cause for which a transaction runs alone under a control that compares rows."""
    if entry.gtid is None:
        return Cause.ALONE
    return None if entry.header.items else Cause.NO_WRITE_SET


class NoControl:
    """C0 and C1: starts the next transaction of the list, whatever it writes."""

    kept = 0

    def alone(self, entry: RelayEntry) -> Cause | None:
        """Returns the cause if a transaction is a view change or a rotation; else None."""
        return Cause.ALONE if entry.gtid is None else None

    def next(self, jobs: JobList) -> Sequence[RelayEntry]:
        """Returns the head of the list."""
        pending, room, _ = jobs
        return (pending.popleft(),) if pending and room and pending[0].gtid else ()

    def hold(self) -> Hold | None:
        """Returns None: no transaction is ever held back."""
        return None

    def committed(self, entries: Sequence[RelayEntry]) -> None:
        """Does nothing: no transaction waits for another."""

    def check_invariants(self) -> None:
        """Does nothing: there is no state to check."""
