"""The rows scheme: one transaction at a time, divided over the workers by the hash of its rows.

A transaction starts when the one before it is committed; its parts are executed in parallel and
committed as one bundle. It is divided over all workers, but over no more than it has rows, and
starts on all of them at once: they are occupied until the bundle's commit, which would wait for
ever for a part that found no worker.

Its consistency is the one of a target without nested transactions: between the commits of two parts
a reader sees a state that the source was never in. A target that makes a group visible as one (the
embedded store) gives any-time consistency.

Source: WL#4648, P3; its two phases are parts that are ready, and the commit of their group.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from ..queue.job import Job
from ..queue.relay_group import RelayEntry
from ..queue.row_parts import Part
from . import Cause, Consistency, Hold, Ordering


class ByRows:
    """A `Scheme` for transactions that are large."""

    consistency = Consistency.MOST_OF_THE_TIME
    ordering = Ordering.SOURCE

    def __init__(self) -> None:
        self.hold: Hold | None = None
        self._executing: list[Job[Any]] = []

    def take(self, pending: deque[RelayEntry], idle: Sequence[int], room: int) -> list[Job[Any]]:
        """Implements `Scheme.take`: while nothing executes, all workers are idle."""
        self.hold = self._hold(idle, room) if pending else None
        if not pending or self.hold:
            return []
        entry = pending.popleft()
        slots = _slots(entry, len(idle))
        self._executing = [
            Job(
                [entry],
                worker=worker,
                part=Part(slot=slot, slots=slots) if slots > 1 else None,
                parts=slots,
            )
            for slot, worker in enumerate(idle[:slots])
        ]
        self.hold = self._hold(idle, room) if pending else None
        return self._executing.copy()

    def committed(self, job: Job[Any]) -> None:
        """Implements `Scheme.committed`."""
        self._executing.remove(job)

    def _hold(self, idle: Sequence[int], room: int) -> Hold | None:
        if self._executing:
            executing = self._executing[0].entries[0]
            return Hold(Cause.TRANSACTION, str(executing.gtid or f"position {executing.position}"))
        if not idle:
            return Hold(Cause.WORKER)
        return None if room else Hold(Cause.QUEUE)

    def check_invariants(self) -> None:
        """Asserts that the jobs are parts of one transaction, each with another worker."""
        assert len({job.worker for job in self._executing}) == len(self._executing)
        assert len({job.entries[0].position for job in self._executing}) < 2


def _slots(entry: RelayEntry, workers: int) -> int:
    """Returns the number of workers that share a transaction: at most one for each item (a row)."""
    # Its items are not always known; its rows may be many then.
    return min(workers, len(entry.header.items) or workers) if entry.gtid else 1
