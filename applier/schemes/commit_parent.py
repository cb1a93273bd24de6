"""The commit parent scheme: transactions run in parallel if the source prepared them between the
same two commits.

All executing transactions have the same commit parent; one with another commit parent waits until
they are committed. A transaction without GTID or commit parent (0) runs alone.

Source: WL#6314, as WL#7165 describes it ("the old scheme").
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from ..queue.job import Job
from ..queue.relay_group import RelayEntry
from . import Cause, Hold, kept_or_not


class CommitParent:
    """Keeps the commit parent of the executing transactions, and their number."""

    def __init__(self, *, preserve_commit_order: bool = True) -> None:
        self.consistency, self.ordering = kept_or_not(preserve_commit_order)
        self.hold: Hold | None = None
        self._executing = 0
        self._parent = 0

    def take(self, pending: deque[RelayEntry], idle: Sequence[int], room: int) -> list[Job[Any]]:
        """Starts one transaction on each idle worker, while the commit parent is the same."""
        jobs: list[Job[Any]] = []
        self.hold = None
        while pending:
            self.hold = self._held(pending[0])
            if not self.hold and len(jobs) == len(idle):
                self.hold = Hold(Cause.WORKER)
            if not self.hold and len(jobs) >= room:
                self.hold = Hold(Cause.QUEUE)
            if self.hold:
                break
            entry = pending.popleft()
            self._parent = _parent(entry)
            self._executing += 1
            jobs.append(Job([entry], idle[len(jobs)]))
        return jobs

    def committed(self, job: Job[Any]) -> None:
        """Counts one executing transaction fewer."""
        self._executing -= 1

    def _held(self, entry: RelayEntry) -> Hold | None:
        """Returns the reason for which an entry waits, other than a worker; else None."""
        parent = _parent(entry)
        if not self._executing or (parent and parent == self._parent):
            return None
        if not parent:
            return Hold(Cause.ALONE)
        if not self._parent:
            return Hold(Cause.TRANSACTION)
        return Hold(Cause.COMMIT_PARENT, str(self._parent))

    def check_invariants(self) -> None:
        """Asserts that a transaction without commit parent executes alone."""
        assert self._executing >= 0
        assert self._parent or self._executing <= 1


def _parent(entry: RelayEntry) -> int:
    """Returns the commit parent of an entry; 0 if it runs alone."""
    return entry.header.commit_parent if entry.gtid else 0
