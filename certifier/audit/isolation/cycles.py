"""Cycles of the dependency graph among a few transactions, and the name of each kind.

An edge states why one transaction comes before another in any serial order: it wrote a row that the
other overwrote (ww), wrote a row that the other read (wr), or read a row that the other then
overwrote (rw).

Source: Adya, Liskov, O'Neil, Generalized Isolation Level Definitions, direct serialization graph.
"""

import itertools
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import NamedTuple

from ..answers.findings import Code
from ..answers.result import JsonObject
from ..rows.checks import hexadecimal
from ..rows.foreign import has, intervals

_version = attrgetter("version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """The reads and writes of a certified transaction. It is taken to have read what it wrote, as
    an update does. Without a snapshot it is not known what it saw.
    """

    version: int
    snapshot: int | None
    snapshot_set: str | None = None
    source: str | None = None
    number: int | None = None
    origin: str | None = None
    writes: frozenset[int]
    reads: frozenset[int]
    keys: Mapping[int, str] = field(default_factory=dict)

    @property
    def gtid(self) -> str | None:
        """Its GTID; None if it has none."""
        return f"{self.source}:{self.number}" if self.source else None

    @property
    def name(self) -> str:
        """Name for people: the GTID or version, and the member."""
        name = self.gtid or f"version {self.version}"
        return f"{name} of {self.origin}" if self.origin else name

    def names(self, writer: "Operation") -> bool:
        """Returns whether its snapshot, if a GTID set, contains the GTID of `writer`."""
        if self.snapshot_set is None or writer.source is None or writer.number is None:
            return False
        return has(intervals(self.snapshot_set), writer.source, writer.number, writer.number)


class Dependency(Enum):
    """The reason for which one transaction comes before another."""

    WRITE = "ww"
    READ = "wr"
    ANTI = "rw"


class Edge(NamedTuple):
    """An edge: one transaction comes before another, because of an item."""

    before: Operation
    after: Operation
    dependency: Dependency
    item: int


class Cycle(NamedTuple):
    """Edges, each of which ends where the next one begins."""

    code: Code
    edges: Sequence[Edge]

    def in_words(self) -> str:
        """Returns the cycle in sentences that a person can check."""
        return "; ".join(map(_sentence, self.edges))

    def drawn(self) -> JsonObject:
        """Returns the cycle as a graph: each edge leads from the transaction of its own place in
        the list to the next one, the last edge to the first.
        """
        return {
            "transactions": [
                {
                    "gtid": edge.before.gtid,
                    "version": edge.before.version,
                    "member": edge.before.origin,
                }
                for edge in self.edges
            ],
            "edges": [
                {"dependency": edge.dependency.value, "row": _row(edge)} for edge in self.edges
            ],
        }


def cycles_through(
    operations: Sequence[Operation], versions: Iterable[int], reach: int
) -> dict[int, Cycle]:
    """Returns, by version, the shortest cycle through it and earlier transactions, if any.

    Args:
        operations: consecutive transactions, in the order of their versions.
        versions: the transactions whose cycles are searched.
        reach: a cycle spans fewer versions than this.

    Cost: O(items log operations), of snapshots that are GTID sets also the writers that they lack;
        and the edges within reach for each version.
    """
    edges = _edges(operations)
    found = ((version, _shortest(edges, version, reach)) for version in versions)
    return {version: cycle for version, cycle in found if cycle is not None}


def _shortest(edges: Mapping[int, Sequence[Edge]], version: int, reach: int) -> Cycle | None:
    reached: dict[int, Edge] = {}
    queue = deque([version])
    while queue:
        for edge in edges.get(queue.popleft(), ()):
            after = edge.after.version
            # Not through later ones: a cycle is found at the newest of its transactions.
            if after not in reached and version - reach < after <= version:
                reached[after] = edge
                if after == version:
                    return _named(_back(reached, version))
                queue.append(after)
    return None


def _edges(operations: Sequence[Operation]) -> dict[int, list[Edge]]:
    """Returns the edges by the version at which they begin. A reader reads an item's newest writer
    that it sees, and the next writer overwrites that.
    """
    writers: dict[int, list[Operation]] = {}
    for operation in operations:
        for item in operation.writes:
            writers.setdefault(item, []).append(operation)
    edges: dict[int, list[Edge]] = {}

    def add(before: Operation, after: Operation, dependency: Dependency, item: int) -> None:
        if before.version != after.version:
            edges.setdefault(before.version, []).append(Edge(before, after, dependency, item))

    for item, known in writers.items():
        for before, after in itertools.pairwise(known):
            add(before, after, Dependency.WRITE, item)
    for reader in operations:
        knows = reader.snapshot is not None or reader.snapshot_set is not None
        for item in sorted(reader.reads & writers.keys()) if knows else ():
            known = writers[item]
            seen = _seen(reader, known)
            if seen:
                add(known[seen - 1], reader, Dependency.READ, item)
            if seen < len(known):
                add(reader, known[seen], Dependency.ANTI, item)
    return edges


def _seen(reader: Operation, writers: Sequence[Operation]) -> int:
    """Returns the number of an item's writers up to the newest one that a reader sees."""
    if reader.snapshot_set is None:
        return bisect_right(writers, reader.snapshot or 0, key=_version)
    seen = bisect_left(writers, reader.version, key=_version)
    # From the newest one back: a set may have a later writer, and lack an earlier one.
    while seen and not reader.names(writers[seen - 1]):
        seen -= 1
    return seen


def _back(reached: Mapping[int, Edge], version: int) -> list[Edge]:
    """Returns the path of a search from its begin back to it."""
    edges = [reached[version]]
    while edges[-1].before.version != version:
        edges.append(reached[edges[-1].before.version])
    return edges[::-1]


def _named(edges: Sequence[Edge]) -> Cycle:
    anti = [edge for edge in edges if edge.dependency is Dependency.ANTI]
    if not anti:
        return Cycle(Code.INFORMATION_CYCLE, edges)
    if len(anti) == 1:
        is_lost = len({edge.item for edge in edges}) == 1
        return Cycle(Code.LOST_UPDATE if is_lost else Code.READ_SKEW, edges)
    if len(edges) == 2:
        return Cycle(Code.WRITE_SKEW, edges)
    return Cycle(Code.SERIALIZATION_CYCLE, edges)


def _row(edge: Edge) -> str:
    known = {**edge.before.keys, **edge.after.keys}
    return known.get(edge.item, f"item {hexadecimal(edge.item)}")


def _sentence(edge: Edge) -> str:
    row = _row(edge)
    before, after = edge.before.name, edge.after.name
    match edge.dependency:
        case Dependency.WRITE:
            return f"{before} wrote {row}, which {after} overwrote"
        case Dependency.READ:
            return f"{before} wrote {row} as {after} read it"
        case Dependency.ANTI:
            return f"{before} read {row} as it was before {after} wrote it"
