"""Finds what snapshot isolation forbids in a history of lists.

Each anomaly is reported with the transactions and why each comes before the next. Nothing is
assumed of clocks: what is wrong follows from what clients read and were told.

    lost append         an acknowledged value is in no list at the end
    G1a, G1b            a value of a transaction that failed, or that changed it again, was read
    G0, G1c             transactions that come before each other, by writes, or by writes and reads
    lost update         two transactions replaced one state of a list
    G-single            a cycle with one anti-dependency: one has seen a part of another
    long fork           two transactions saw two others in opposite orders

Not reported is write skew, which snapshot isolation allows: a cycle in which two anti-dependencies
follow each other. `Found.has_write_skew` says whether there was one.

Source: Adya (1999) for G0 to G-single; Fekete et al., "Making Snapshot Isolation Serializable"
(2005): under snapshot isolation every cycle has two anti-dependencies in a row.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple, TypeVar

from tests.postgresql.history import Append, Operation, Read
from tests.postgresql.told import Told

Values = tuple[int, ...]
Node = TypeVar("Node", bound=Hashable)
WRITES, READS, OVERWRITES = "ww", "wr", "rw"
"""Why one transaction is before another: that writes behind it, reads it, or replaces its read."""


class Edge(NamedTuple):
    """Why a transaction comes before another: what that did to the same list."""

    kind: str
    key: int
    value: int | None

    def __str__(self) -> str:
        value = "the empty list" if self.value is None else self.value
        what = {
            WRITES: "which appended behind",
            READS: "which read",
            OVERWRITES: "which replaced its read of",
        }
        return f"{what[self.kind]} {value} of list {self.key}"


Graph = dict[Operation, dict[Operation, Edge]]


@dataclass(slots=True)
class Found:
    """What was found in a history."""

    problems: list[str] = field(default_factory=list)
    has_write_skew: bool = False


def check(operations: Sequence[Operation], final: Mapping[int, Values]) -> Found:
    """Returns what is wrong with a history; `final` are the lists at its end."""
    history = _History(operations, final)
    found = Found([*history.find_unreadable()])
    if not found.problems:
        found.problems += [*history.find_wrong_reads()]
        graph = history.graph()
        found.problems += [*_find_cycles(graph)]
        found.has_write_skew = _cycle(graph, lambda _edge: True) is not None
    return found


class _History:
    """The operations, and who appended what."""

    def __init__(self, operations: Sequence[Operation], final: Mapping[int, Values]) -> None:
        self._operations = operations
        self._order = dict(final)
        self._writer: dict[tuple[int, int], Operation] = {}
        self._appended: dict[Operation, dict[int, list[int]]] = {}
        for operation in operations:
            mine: dict[int, list[int]] = defaultdict(list)
            for step in operation.steps:
                if isinstance(step, Append):
                    self._writer[step] = operation
                    mine[step.key].append(step.value)
            self._appended[operation] = mine
        present = {
            self._writer[key, value]
            for key, values in final.items()
            for value in values
            if (key, value) in self._writer
        }
        self._committed = [
            each
            for each in operations
            if each.told is Told.COMMITTED or (each.told is Told.UNKNOWN and each in present)
        ]

    def find_unreadable(self) -> Iterator[str]:
        """Yields what makes the order of a list unknown."""
        for key, values in self._order.items():
            if len(set(values)) < len(values):
                yield f"doubled append: list {key} has a value twice: {values}"
            for value in values:
                if (key, value) not in self._writer:
                    yield f"list {key} has {value}, which nobody appended"
        for operation in self._committed:
            yield from self._find_lost(operation)
            for step in operation.steps:
                if isinstance(step, Read):
                    own = self._appended[operation].get(step.key, ())
                    yield from self._find_other_order(operation, step, set(own))

    def _find_lost(self, operation: Operation) -> Iterator[str]:
        for key, mine in self._appended[operation].items():
            missing = set(mine).difference(self._order.get(key, ()))
            if missing:
                yield f"lost append: {operation} committed, list {key} lacks {sorted(missing)}"

    def _find_other_order(self, operation: Operation, read: Read, own: Set[int]) -> Iterator[str]:
        seen = tuple(value for value in read.values if value not in own)
        order = self._order.get(read.key, ())
        if seen == order[: len(seen)]:
            return
        failed = [value for value in seen if self._has_failed(read.key, value)]
        if failed:
            yield f"G1a: {operation} read {failed} of list {read.key}, of transactions that failed"
        else:
            yield f"two orders: {operation} read list {read.key}, which at the end is {order}"

    def _has_failed(self, key: int, value: int) -> bool:
        writer = self._writer.get((key, value))
        return writer is not None and writer.told is Told.REFUSED

    def find_wrong_reads(self) -> Iterator[str]:
        """Yields reads of what failed or was in between, and of what no one snapshot shows."""
        for key, values in self._order.items():
            for value in values:
                if self._has_failed(key, value):
                    writer = self._writer[key, value]
                    yield f"G1a: {writer} was refused, and list {key} has {value}"
        for operation in self._committed:
            first: dict[int, Values] = {}
            own: dict[int, list[int]] = defaultdict(list)
            for step in operation.steps:
                if isinstance(step, Append):
                    own[step.key].append(step.value)
                    continue
                mine = tuple(own[step.key])
                seen = step.values[: len(step.values) - len(mine)]
                if step.values[len(seen) :] != mine or first.setdefault(step.key, seen) != seen:
                    yield f"not one snapshot: {operation} read list {step.key} otherwise before"
                elif seen and self._is_between(step.key, seen[-1]):
                    yield f"G1b: {operation} read {seen[-1]} of list {step.key}, a part of what" + (
                        f" {self._writer[step.key, seen[-1]]} appended"
                    )

    def _is_between(self, key: int, value: int) -> bool:
        return self._appended[self._writer[key, value]][key][-1] != value

    def graph(self) -> Graph:
        """Returns which committed transaction comes before which, and why."""
        graph: Graph = {operation: {} for operation in self._committed}

        def add(one: Operation, other: Operation, edge: Edge) -> None:
            if one is not other and one in graph and other in graph:
                known = graph[one].get(other)
                if known is None or known.kind == OVERWRITES:
                    graph[one][other] = edge

        for key, values in self._order.items():
            for before, after in pairwise(values):
                edge = Edge(WRITES, key, before)
                add(self._writer[key, before], self._writer[key, after], edge)
        for operation in self._committed:
            for key, seen in self._seen(operation).items():
                newest = seen[-1] if seen else None
                if newest is not None:
                    add(self._writer[key, newest], operation, Edge(READS, key, newest))
                order = self._order.get(key, ())
                if len(seen) < len(order):
                    replaced = self._writer[key, order[len(seen)]]
                    add(operation, replaced, Edge(OVERWRITES, key, newest))
        return graph

    def _seen(self, operation: Operation) -> Mapping[int, Values]:
        """Returns the lists that a transaction read, without what it appended itself."""
        reads = (step for step in operation.steps if isinstance(step, Read))
        mine = self._appended[operation]
        return {
            read.key: tuple(v for v in read.values if v not in mine.get(read.key, ()))
            for read in reads
        }


def _find_cycles(graph: Graph) -> Iterator[str]:
    """Yields one cycle that snapshot isolation forbids, the simplest kind first."""
    if cycle := _cycle(graph, lambda edge: edge.kind == WRITES):
        yield f"G0: {_told(cycle, graph)}"
    elif cycle := _cycle(graph, lambda edge: edge.kind != OVERWRITES):
        yield f"G1c: {_told(cycle, graph)}"
    elif cycle := _cycle_without_neighbours(graph):
        edges = [graph[one][other] for one, other in pairwise(cycle)]
        if sum(edge.kind == OVERWRITES for edge in edges) > 1:
            name = "long fork"
        elif len({edge.key for edge in edges}) == 1 and READS not in {each.kind for each in edges}:
            name = "lost update"
        else:
            name = "G-single"
        yield f"{name}: {_told(cycle, graph)}"


def _cycle(graph: Graph, follows: Callable[[Edge], bool]) -> list[Operation] | None:
    """Returns a cycle of edges that are followed; its first operation is its last one, too."""
    return _shortest(
        {
            one: [other for other, edge in others.items() if follows(edge)]
            for one, others in graph.items()
        }
    )


def _cycle_without_neighbours(graph: Graph) -> list[Operation] | None:
    """Returns a cycle in which no two anti-dependencies follow each other: each operation is there
    twice, as one that an anti-dependency has led to, which none may leave, and as another.
    """
    doubled: dict[tuple[Operation, bool], list[tuple[Operation, bool]]] = {}
    for one, others in graph.items():
        plain = [(other, False) for other, edge in others.items() if edge.kind != OVERWRITES]
        anti = [(other, True) for other, edge in others.items() if edge.kind == OVERWRITES]
        doubled[one, False], doubled[one, True] = plain + anti, plain
    cycle = _shortest(doubled)
    return [operation for operation, _ in cycle] if cycle else None


def _shortest(graph: Mapping[Node, Iterable[Node]]) -> list[Node] | None:
    """Returns a cycle, the shortest one through a node of some cycle; None if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        start = error.args[1][0]
    else:
        return None
    before: dict[Node, Node] = {}
    queue = deque([start])
    while start not in before:
        node = queue.popleft()
        for following in graph[node]:
            if following not in before:
                before[following] = node
                queue.append(following)
    path = [start]
    while len(path) == 1 or path[-1] != start:
        path.append(before[path[-1]])
    return path[::-1]


def _told(cycle: Sequence[Operation], graph: Graph) -> str:
    words = [str(cycle[0])]
    words += (f"{graph[one][other]}: {other}" for one, other in pairwise(cycle))
    return "; ".join(words)
