"""The dependency graph: which uncommitted jobs write the items that others wait to write.

A job is ready as soon as each earlier job that shares an item with it is committed, and never
before, which allows more parallelism than any clock. A job waits for the last writer of each of its
items; that one waits for the writer before it.

Source: WL#4648, P1, C3, "Extension towards P1+C3".
"""

from collections.abc import Collection, Sequence
from heapq import heappop, heappush

from ..queue.relay_group import RelayEntry


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
