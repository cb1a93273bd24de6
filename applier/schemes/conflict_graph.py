"""C3 and C4: a job of one transaction (C4: of several small ones) starts when the jobs that it
depends on are committed; others may start before it.

A job is made of consecutive transactions of the list, and starts when every earlier job that it
conflicts with is committed, the oldest ready job first. So the oldest job that is not committed
always runs or is the next to start, as each commit before it frees a worker. Two jobs conflict if
one writes a row that the other writes, or refers to by a foreign key: children of one parent run
together, none of them beside a change of the parent.

Transactions are taken from the list only while a worker would stay idle, and while fewer than
`jobs_per_worker_max` jobs a worker are kept: |J| <= k * n. With commits in order more would not
help: a worker is occupied until its turn, so that those behind a slow job are all occupied.

Transactions that wait in the list are merged; no job waits to be filled. A job gets its worker's
share of them, so that some are left for the other workers. The next one joins if it waits for the
same jobs, or if it conflicts with the job, whose order then resolves that; but never if a ready job
would have to wait.

`DependencyGraph` has, of each item, the uncommitted job that wrote it last, and those that refer to
it since. A job is ready as soon as each earlier job that it conflicts with is committed, and never
before, which allows more parallelism than any clock. A job waits for the last writer of each of its
items, and for those that refer to what it writes; that writer and these wait for the writer before.

Source: WL#4648, P1, C3, "Extension towards P1+C3", and C4. Differs: rows are not sorted within a
job, which C3 needs against deadlocks of jobs that conflict; here those do not run at once.
"""

from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from typing import Final

from ..queue.relay_group import RelayEntry
from ..source.header import SourceHeader
from . import Cause, Hold
from .conflict_control import JobList, alone_without_rows


class Node:
    """A job of the graph; `waits_for` are the positions of the jobs before it, a job's position
    being that of its first entry. `parents`: items that it refers to and does not write.
    """

    __slots__ = ("entries", "followers", "items", "parents", "waits_for")

    def __init__(
        self,
        entries: Sequence[RelayEntry],
        items: Collection[int],
        parents: Collection[int],
        waits_for: set[int],
    ) -> None:
        self.entries = entries
        self.items = items
        self.parents = parents
        self.waits_for = waits_for
        self.followers: list[Node] = []

    @property
    def position(self) -> int:
        """Position of the job in the source's order."""
        return self.entries[0].position


class DependencyGraph:
    """Keeps the jobs that are not committed, and what each of them waits for."""

    __slots__ = ("_blocked", "_children", "_last_writer", "_ready", "_running")

    def __init__(self) -> None:
        self._blocked: dict[int, Node] = {}
        self._ready: list[tuple[int, Node]] = []
        self._running: dict[int, Node] = {}
        self._last_writer: dict[int, Node] = {}
        self._children: dict[int, dict[int, Node]] = {}
        """Of each item, the jobs by position that refer to it since it was written last."""

    def add(self, entries: Sequence[RelayEntry]) -> None:
        """Adds the job that follows all others in the source's order.

        Cost: O(items + jobs that refer to what it writes).
        """
        items = {item for entry in entries for item in entry.header.items}
        parents = {item for entry in entries for item in entry.header.parent_items} - items
        earlier = self._conflicting(items, parents)
        node = Node(entries, items, parents, set(earlier))
        for other in earlier.values():
            other.followers.append(node)
        self._last_writer.update(dict.fromkeys(items, node))
        if self._children:
            for item in items:
                self._children.pop(item, None)
        for item in parents:
            self._children.setdefault(item, {})[node.position] = node
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
        for item in node.parents:
            children = self._children.get(item, {})
            children.pop(position, None)
            if not children:
                self._children.pop(item, None)
        for follower in node.followers:
            follower.waits_for.remove(position)
            if not follower.waits_for:
                heappush(self._ready, (follower.position, self._blocked.pop(follower.position)))

    def would_wait_for(self, header: SourceHeader) -> set[int]:
        """Returns the positions of the jobs that a job of this transaction would wait for.

        Cost: as of `add`.
        """
        return set(self._conflicting(header.items, header.parent_items))

    def _conflicting(self, items: Collection[int], parents: Collection[int]) -> dict[int, Node]:
        """Returns the jobs by position that one waits for that writes these items and refers to
        those of its parents.
        """
        last_writer = self._last_writer
        found = [last_writer[item] for item in items if item in last_writer]
        if parents:
            found += [last_writer[item] for item in parents if item in last_writer]
        if self._children:
            for item in items:
                found += self._children.get(item, {}).values()
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
        """Asserts that jobs wait for older ones in the graph, that an item's last writer is the
        youngest of its writers, and that its children are all that refer to it after that.
        """
        ready = dict(self._ready)
        everything = {**self._running, **ready, **self._blocked}
        assert len(everything) == len(self._running) + len(ready) + len(self._blocked)
        assert not any(node.waits_for for node in (*self._running.values(), *ready.values()))
        for position, node in self._blocked.items():
            assert node.waits_for
            assert all(before < position for before in node.waits_for)
            assert all(node in everything[before].followers for before in node.waits_for)
        last_writer: dict[int, Node] = {}
        children: dict[int, dict[int, Node]] = {}
        for position in sorted(everything):
            node = everything[position]
            for item in node.items:
                last_writer[item] = node
                children.pop(item, None)
            for item in node.parents:
                assert last_writer.get(item) is not node
                children.setdefault(item, {})[position] = node
        assert last_writer == self._last_writer
        assert children == self._children


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
        header = merged[0].header
        items, parents = set(header.items), set(header.parent_items)
        waits_for = self._graph.would_wait_for(header)
        while len(merged) < count_max:
            entry = pending[0]
            bytes_left -= len(entry.payload)
            if bytes_left < 0 or self.alone(entry):
                break
            header = entry.header
            waits_too = self._graph.would_wait_for(header)
            if waits_too != waits_for:
                is_apart = (
                    items.isdisjoint(header.items)
                    and items.isdisjoint(header.parent_items)
                    and parents.isdisjoint(header.items)
                )
                # A conflict is settled by the job's own order. But a job that is ready must not
                # begin to wait because of it.
                if is_apart or (waits_too and not waits_for):
                    break
            merged.append(pending.popleft())
            waits_for |= waits_too
            items.update(header.items)
            parents.update(header.parent_items)
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
