"""C2: parallel execution stops at the first conflict, and resumes after enough jobs without one.

Two jobs that run at once do not conflict: neither writes an item that the other writes or, by a
foreign key, refers to. From a transaction that conflicts with an uncommitted one, the list is
serial until `conflict_free_min` jobs in a row, the last one still waiting, do not conflict.

With the minimum of two, only the conflicting job runs alone if the next one has no conflict with
it. Jobs are counted as they reach the head, so that the list also returns to parallel execution if
never more than one is pending.

Source: WL#4648, P1, C2, "Extension towards P1+C2".
"""

from collections.abc import Sequence

from ..queue.relay_group import RelayEntry
from ..source.header import SourceHeader
from . import Cause, Hold
from .conflict_control import JobList, alone_without_rows


class _Rows:
    """The items of jobs that do not conflict: the position of an item's writer, or of those that
    refer to it.
    """

    def __init__(self) -> None:
        self.writers: dict[int, int] = {}
        self.children: dict[int, list[int]] = {}

    def conflict(self, header: SourceHeader) -> str:
        """Returns an item and a position with which a job conflicts; empty if it does not.

        Cost: O(items).
        """
        writers, children = self.writers, self.children
        for item in header.items:
            if item in writers:
                return _conflict(item, writers[item])
            if item in children:
                return _conflict(item, children[item][0])
        for item in header.parent_items:
            if item in writers:
                return _conflict(item, writers[item])
        return ""

    def add(self, header: SourceHeader, position: int) -> None:
        """Adds the items of a job."""
        self.writers.update(dict.fromkeys(header.items, position))
        for item in header.parent_items:
            self.children.setdefault(item, []).append(position)

    def remove(self, header: SourceHeader, position: int) -> None:
        """Removes the items of a job."""
        for item in header.items:
            self.writers.pop(item, None)
        for item in header.parent_items:
            self.children[item].remove(position)
            if not self.children[item]:
                del self.children[item]


def _conflict(item: int, position: int) -> str:
    return f"item {item:016x} of position {position}"


class ConflictBarrier:
    """Keeps the break in the list, if there is one, and the rows of the jobs that run."""

    kept = 0

    def __init__(self, conflict_free_min: int) -> None:
        """Resumes parallel execution after `conflict_free_min` jobs in a row, 2 or more."""
        self._conflict_free_min = conflict_free_min
        self._in_a_row = conflict_free_min
        self._row = _Rows()
        self._executing = _Rows()
        self._running = 0
        self._judged = -1
        self._waits_for = ""
        self._hold: Hold | None = None

    alone = staticmethod(alone_without_rows)

    @property
    def is_serial(self) -> bool:
        """True if one job at a time is executed."""
        return self._in_a_row < self._conflict_free_min

    def next(self, jobs: JobList) -> Sequence[RelayEntry]:
        """Returns the head of the list if it may start; else nothing.

        Cost: O(items) for each transaction, once.
        """
        pending, room, _ = jobs
        self._hold = None
        if not pending or not room:
            return ()
        entry = pending[0]
        if self.alone(entry):
            self._in_a_row = 0
            self._row = _Rows()
            return ()
        if entry.position != self._judged:
            # Once for each head: judged again, it would be in the row already, and conflict with
            # itself.
            self._judged = entry.position
            self._waits_for = self._judge(entry)
        if self.is_serial and self._running:
            self._hold = Hold(Cause.CONFLICT, self._waits_for)
            return ()
        self._running += 1
        self._executing.add(entry.header, entry.position)
        return (pending.popleft(),)

    def _judge(self, entry: RelayEntry) -> str:
        """Counts the head into the row, or begins another row with it; returns the reason for which
        it waits while the list is serial.
        """
        # In a serial stretch one job runs at a time, and the question is whether the next ones
        # could have run beside each other.
        rows = self._row if self.is_serial else self._executing
        waits_for = rows.conflict(entry.header)
        if waits_for:
            self._in_a_row = 0
            self._row = _Rows()
        elif not self.is_serial:
            return ""
        else:
            waits_for = f"{self._in_a_row + 1} of {self._conflict_free_min} jobs in a row"
        self._in_a_row += 1
        self._row.add(entry.header, entry.position)
        return waits_for

    def hold(self) -> Hold | None:
        """Returns the conflict that broke the list, or how far it is from parallel execution."""
        return self._hold

    def committed(self, entries: Sequence[RelayEntry]) -> None:
        """Frees the items of a committed job."""
        self._running -= 1
        for entry in entries:
            self._executing.remove(entry.header, entry.position)

    def check_invariants(self) -> None:
        """Asserts that each executing job writes an item, and that none refers to one of these."""
        writers, children = self._executing.writers, self._executing.children
        assert len(set(writers.values())) == self._running
        assert writers.keys().isdisjoint(children)
