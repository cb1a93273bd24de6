"""C2: parallel execution stops at the first conflict, and resumes after enough jobs without one.

Two jobs that run at once have no item in common. From a transaction that shares an item with an
uncommitted one, the list is serial until `conflict_free_min` jobs in a row, the last one still
waiting, have no item in common.

With the minimum of two, only the conflicting job runs alone if the next one has no conflict with
it. Jobs are counted as they reach the head, so that the list also returns to parallel execution if
never more than one is pending.

Source: WL#4648, P1, C2, "Extension towards P1+C2".
"""

from collections.abc import Sequence

from ..queue.relay_group import RelayEntry
from . import Cause, Hold
from .conflict_control import JobList, alone_without_rows


class ConflictBarrier:
    """Keeps the break in the list, if there is one, and which job writes which item."""

    kept = 0

    def __init__(self, conflict_free_min: int) -> None:
        """Resumes parallel execution after `conflict_free_min` jobs in a row, 2 or more."""
        self._conflict_free_min = conflict_free_min
        self._in_a_row = conflict_free_min
        self._row: dict[int, int] = {}
        self._writing: dict[int, int] = {}
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
            self._row.clear()
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
        self._writing.update(dict.fromkeys(entry.header.items, entry.position))
        return (pending.popleft(),)

    def _judge(self, entry: RelayEntry) -> str:
        """Counts the head into the row, or begins another row with it; returns the reason for which
        it waits while the list is serial.
        """
        items = entry.header.items
        # In a serial stretch one job runs at a time, and the question is whether the next ones
        # could have run beside each other.
        writers = self._row if self.is_serial else self._writing
        conflict = next((item for item in items if item in writers), None)
        if conflict is not None:
            waits_for = f"item {conflict:016x} of position {writers[conflict]}"
            self._in_a_row = 0
            self._row.clear()
        elif not self.is_serial:
            return ""
        else:
            waits_for = f"{self._in_a_row + 1} of {self._conflict_free_min} jobs in a row"
        self._in_a_row += 1
        self._row.update(dict.fromkeys(items, entry.position))
        return waits_for

    def hold(self) -> Hold | None:
        """Returns the conflict that broke the list, or how far it is from parallel execution."""
        return self._hold

    def committed(self, entries: Sequence[RelayEntry]) -> None:
        """Frees the items of a committed job."""
        self._running -= 1
        for entry in entries:
            for item in entry.header.items:
                self._writing.pop(item, None)

    def check_invariants(self) -> None:
        """Asserts that each executing job writes an item."""
        assert len(set(self._writing.values())) == self._running
