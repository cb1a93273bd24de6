"""The commit parent: transactions that were prepared between the same two commits of the source run
in parallel.

The rule it keeps: all that execute have the same commit parent; a transaction that has another one
waits until they are committed. What has no GTID or no commit parent (0) runs alone.

Source: WL#6314, as WL#7165 tells it ("the old scheme").
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from applier.job import Job
from applier.relay_queue import RelayEntry
from applier.schemes import Cause, Consistency, Hold, Ordering


class CommitParent:
    """The commit parent of those that execute, and their number."""

    consistency: Consistency
    ordering: Ordering

    def __init__(self, *, preserve_commit_order: bool = True) -> None:
        self.consistency = Consistency.ANY_TIME
        self.ordering = Ordering.SOURCE
        if not preserve_commit_order:
            self.consistency = Consistency.MOST_OF_THE_TIME
            self.ordering = Ordering.NONE
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
        """One fewer executes."""
        self._executing -= 1

    def _held(self, entry: RelayEntry) -> Hold | None:
        """What an entry waits for, beside a worker."""
        parent = _parent(entry)
        if not self._executing or (parent and parent == self._parent):
            return None
        if not parent:
            return Hold(Cause.ALONE)
        if not self._parent:
            return Hold(Cause.TRANSACTION)
        return Hold(Cause.COMMIT_PARENT, str(self._parent))

    def check_invariants(self) -> None:
        """One that has no commit parent executes alone."""
        assert self._executing >= 0
        assert self._parent or self._executing <= 1


def _parent(entry: RelayEntry) -> int:
    """The commit parent of an entry; 0 if it runs alone."""
    return entry.header.commit_parent if entry.gtid else 0
