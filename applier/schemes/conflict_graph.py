"""C3 and C4: a job of one transaction (C4: of several small ones) starts when the jobs that it
depends on are committed; others may start before it.

A job is made of consecutive transactions of the list, and starts when every earlier job that shares
an item with it is committed, the oldest ready job first. So the oldest job that is not committed
always runs or is the next to start, as each commit before it frees a worker.

Transactions are taken from the list only while a worker would stay idle, and while fewer than
`jobs_per_worker_max` jobs a worker are kept: |J| <= k * n. With commits in order more would not
help: a worker is occupied until its turn, so that those behind a slow job are all occupied.

Transactions that wait in the list are merged; no job waits to be filled. A job gets its worker's
share of them, so that some are left for the other workers. The next one joins if it waits for the
same jobs, or if it shares an item with the job, whose order then resolves the conflict; but never
if a ready job would have to wait.

Source: WL#4648, P1, C3 and C4. Differs: rows are not sorted within a job, which C3 needs against
deadlocks of jobs that conflict; here those do not run at once.
"""

from collections.abc import Sequence
from typing import Final

from ..queue.relay_group import RelayEntry
from . import Cause, Hold
from .conflict_control import JobList, alone_without_rows
from .dependency_graph import DependencyGraph


class ConflictGraph:
    """Keeps jobs in a `DependencyGraph`, made of transactions taken from the list as needed."""

    def __init__(
        self, *, jobs_per_worker_max: int, merge_transactions_max: int, merge_bytes_max: int
    ) -> None:
        """Limits a merged job to `merge_transactions_max` (1: nothing is merged) and to
        `merge_bytes_max` of payload; a larger transaction is a job of its own.
        """
        self._jobs_per_worker_max: Final = jobs_per_worker_max
        self._merge_transactions_max: Final = merge_transactions_max
        self._merge_bytes_max: Final = merge_bytes_max
        self._graph = DependencyGraph()

    @property
    def kept(self) -> int:
        """Jobs that wait for others or for a worker."""
        return self._graph.waiting

    alone = staticmethod(alone_without_rows)

    def next(self, jobs: JobList) -> Sequence[RelayEntry]:
        """Returns the oldest job that may start.

        Cost: O(items) for each transaction, once.
        """
        graph = self._graph
        room = jobs.room
        waiting_max = jobs.workers * self._jobs_per_worker_max
        while not (entries := graph.start()) and graph.waiting < waiting_max:
            merged = self._merge(jobs, room)
            if not merged:
                break
            room -= len(merged)
            graph.add(merged)
        return entries

    def _merge(self, jobs: JobList, room: int) -> list[RelayEntry]:
        """Takes the transactions of the next job from the head of the list."""
        pending, _, workers = jobs
        # The share of one worker, rounded up: one that took all of the list would leave the others
        # idle.
        share = -(-len(pending) // workers)
        count_max = min(room, share, self._merge_transactions_max)
        if not count_max or self.alone(pending[0]):
            return []
        merged = [pending.popleft()]
        if count_max == 1:
            return merged
        bytes_left = self._merge_bytes_max - len(merged[0].payload)
        items = set(merged[0].header.items)
        waits_for = self._graph.would_wait_for(items)
        while len(merged) < count_max:
            entry = pending[0]
            bytes_left -= len(entry.payload)
            if bytes_left < 0 or self.alone(entry):
                break
            own = set(entry.header.items)
            waits_too = self._graph.would_wait_for(own)
            # It has a row in common with the job, whose order settles that. But a job that is ready
            # must not begin to wait because of it.
            resolves = not own.isdisjoint(items) and (waits_for or not waits_too)
            if waits_too != waits_for and not resolves:
                break
            merged.append(pending.popleft())
            waits_for |= waits_too
            items |= own
        return merged

    def hold(self) -> Hold | None:
        """Returns the writer for which the oldest blocked job waits; others start meanwhile."""
        node = self._graph.oldest_blocked
        if node is None:
            return None
        waits_for = f"position {node.position} for {min(node.waits_for)}"
        return Hold(Cause.TRANSACTION, waits_for)

    def committed(self, entries: Sequence[RelayEntry]) -> None:
        """Makes the jobs ready that waited for the committed one alone."""
        self._graph.committed(entries[0].position)

    def check_invariants(self) -> None:
        """Asserts the invariants of the graph."""
        self._graph.check_invariants()
