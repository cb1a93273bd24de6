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

`DependencyGraph` has the uncommitted jobs that write the items that others wait to write. A job is
ready as soon as each earlier job that shares an item with it is committed, and never before, which
allows more parallelism than any clock. A job waits for the last writer of each of its items; that
one waits for the writer before it.

Source: WL#4648, P1, C3, "Extension towards P1+C3", and C4. Differs: rows are not sorted within a
job, which C3 needs against deadlocks of jobs that conflict; here those do not run at once.
"""

from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from typing import Final

from ..queue.relay_group import RelayEntry
from . import Cause, Hold
from .conflict_control import JobList, alone_without_rows


class Node:
    """A job of the graph; `waits_for` are the positions of the jobs before it, a job's position
    being that of its first entry.
    """

    __slots__ = ("entries", "followers", "items", "waits_for")

    def __init__(
        self, entries: Sequence[RelayEntry], items: Collection[int], waits_for: set[int]
    ) -> None:
        self.entries = entries
        self.items = items
        self.waits_for = waits_for
        self.followers: list[Node] = []

    @property
    def position(self) -> int:
        """Position of the job in the source's order."""
        return self.entries[0].position


class DependencyGraph:
    """Keeps the jobs that are not committed, and what each of them waits for."""

    __slots__ = ("_blocked", "_last_writer", "_ready", "_running")

    def __init__(self) -> None:
        self._blocked: dict[int, Node] = {}
        self._ready: list[tuple[int, Node]] = []
        self._running: dict[int, Node] = {}
        self._last_writer: dict[int, Node] = {}

    def add(self, entries: Sequence[RelayEntry]) -> None:
        """Adds the job that follows all others in the source's order.

        Cost: O(items).
        """
        items = {item for entry in entries for item in entry.header.items}
        writers = self._writers(items)
        node = Node(entries, items, set(writers))
        for writer in writers.values():
            writer.followers.append(node)
        self._last_writer.update(dict.fromkeys(items, node))
        if node.waits_for:
            self._blocked[node.position] = node
        else:
            heappush(self._ready, (node.position, node))

    def start(self) -> Sequence[RelayEntry]:
        """Returns the entries of the oldest ready job, which runs from now on; none if no job is
        ready.

        Cost: O(log ready).
        """
        if not self._ready:
            return ()
        position, node = heappop(self._ready)
        self._running[position] = node
        return node.entries

    def committed(self, position: int) -> None:
        """Removes a running job that is visible, and makes the jobs ready that waited for it alone.

        Cost: O(items + followers).
        """
        node = self._running.pop(position)
        for item in node.items:
            # A younger job may have written the item since, and others wait for that one.
            if self._last_writer[item] is node:
                del self._last_writer[item]
        for follower in node.followers:
            follower.waits_for.remove(position)
            if not follower.waits_for:
                heappush(self._ready, (follower.position, self._blocked.pop(follower.position)))

    def would_wait_for(self, items: Collection[int]) -> set[int]:
        """Returns the positions of the jobs that a job with these items would wait for.

        Cost: O(items).
        """
        return set(self._writers(items))

    def _writers(self, items: Collection[int]) -> dict[int, Node]:
        found = [self._last_writer[item] for item in items if item in self._last_writer]
        return {node.position: node for node in found}

    @property
    def waiting(self) -> int:
        """Jobs that have not started."""
        return len(self._blocked) + len(self._ready)

    @property
    def oldest_blocked(self) -> Node | None:
        """First job that is not ready."""
        return next(iter(self._blocked.values()), None)

    def check_invariants(self) -> None:
        """Asserts that jobs wait for older ones in the graph, and that an item's last writer is the
        youngest of its writers.
        """
        ready = dict(self._ready)
        everything = {**self._running, **ready, **self._blocked}
        assert len(everything) == len(self._running) + len(ready) + len(self._blocked)
        assert not any(node.waits_for for node in (*self._running.values(), *ready.values()))
        for position, node in self._blocked.items():
            assert node.waits_for
            assert all(before < position for before in node.waits_for)
            assert all(node in everything[before].followers for before in node.waits_for)
        last_writer = {
            item: everything[position]
            for position in sorted(everything)
            for item in everything[position].items
        }
        assert last_writer == self._last_writer


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
