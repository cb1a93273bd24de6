"""Which transaction depends on which, and the cycles of it that no serial order can have.

Three kinds of edges, each from the transaction that must come first: `ww`, the other one wrote the
next version; `wr`, the other one read what it wrote; `rw`, the other one wrote over what it read.

Source: Adya, "Weak Consistency", 1999; Cerone and Gotsman, "Analysing Snapshot Isolation", 2018: a
history is of snapshot isolation if no cycle is without two `rw` edges in a row.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tests.laboratory.append_orders import ListOrders, last_element
from tests.laboratory.cycles import components, short_cycle
from tests.laboratory.findings import Finding
from tests.laboratory.history import Operation


class Edge(NamedTuple):
    """Why one transaction comes before another: `before`, `after` are elements of the list."""

    kind: str
    key: bytes
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The transactions that took effect, by number, and the edges of each to later ones.

    `anti_edges` are those of kind `rw`. Of several edges between the same two, the first one stays.
    """

    operations: Sequence[Operation]
    edges: Sequence[dict[int, Edge]]
    anti_edges: Sequence[dict[int, Edge]]


def dependencies_of(orders: ListOrders) -> Dependencies:
    """Who depends on whom, by the order of the lists.

    Cost: O(elements + reads).
    """
    operations = [each for each in orders.operations if orders.took_effect(each)]
    numbers = {each.name: number for number, each in enumerate(operations)}
    dependencies = Dependencies(operations, [{} for _ in operations], [{} for _ in operations])
    writers = {
        key: [
            (element, numbers[append.operation.name])
            for element in elements
            if (append := orders.appended(key, element)) and append.operation.name in numbers
        ]
        for key, elements in orders.elements.items()
    }
    for key, written in writers.items():
        for (before_element, before), (element, after) in pairwise(written):
            if before != after:
                edge = Edge("ww", key, before_element, element)
                dependencies.edges[before].setdefault(after, edge)
    places = {
        key: {element: place for place, (element, _) in enumerate(written)}
        for key, written in writers.items()
    }
    for operation, reads in zip(orders.operations, orders.reads, strict=True):
        reader = numbers.get(operation.name)
        if reader is not None:
            for key, value in reads.items():
                place = places.get(key, {}).get(last_element(value))
                _add_read(dependencies, reader, Read(key, value, place), writers.get(key, []))
    return dependencies


class Read(NamedTuple):
    """What a transaction read of a list; `place`: of the last element among those of the order."""

    key: bytes
    value: bytes | None
    place: int | None


def _add_read(
    dependencies: Dependencies, reader: int, read: Read, written: Sequence[tuple[bytes, int]]
) -> None:
    """Adds the edges from the writer of what was read, and to the writer of what came after it."""
    if read.place is None and read.value:
        return  # it does not fit the order of the list, which is a finding of its own
    newest = b""
    if read.place is not None:
        newest, writer = written[read.place]
        if writer != reader:
            edge = Edge("wr", read.key, newest, newest)
            dependencies.edges[writer].setdefault(reader, edge)
    following = 0 if read.place is None else read.place + 1
    if following < len(written):
        element, writer = written[following]
        if writer != reader:
            edge = Edge("rw", read.key, newest, element)
            dependencies.anti_edges[reader].setdefault(writer, edge)


Step = tuple[int, int, Edge]
"""One edge of a cycle: from a transaction to another one, and why."""


def cycle_findings(dependencies: Dependencies, *, serializable: bool) -> Iterator[Finding]:
    """One finding for each component of the graph with a forbidden cycle, by its shortest one.

    The worst come first: G0, then G1c, then those against snapshot isolation, then, for
    serializable transactions, all others.
    """
    edges, anti_edges = dependencies.edges, dependencies.anti_edges
    count = len(dependencies.operations)
    writes_only = [[after for after, edge in each.items() if edge.kind == "ww"] for each in edges]
    yield from _of_code(dependencies, writes_only, {"G0"})
    yield from _of_code(dependencies, [list(each) for each in edges], {"G1c"})
    # A node for each transaction, and one more for it as reached by an `rw` edge, from where no
    # other `rw` edge leads on: what is a cycle here has no two of them in a row.
    layered = [
        [*each, *(count + after for after in anti)]
        for each, anti in zip(edges, anti_edges, strict=True)
    ] + [list(each) for each in edges]
    yield from _of_code(dependencies, layered, {"G-single", "G-nonadjacent"})
    if serializable:
        everything = [
            [*each, *(after for after in anti if after not in each)]
            for each, anti in zip(edges, anti_edges, strict=True)
        ]
        yield from _of_code(dependencies, everything, {"G2"})


def _of_code(
    dependencies: Dependencies, graph: Sequence[Sequence[int]], codes: Iterable[str]
) -> Iterator[Finding]:
    """The cycles of a graph that have one of these codes; others were found before."""
    count = len(dependencies.operations)
    for component in components(graph):
        nodes = short_cycle(graph, component)
        pairs = zip(nodes, [*nodes[1:], nodes[0]], strict=True)
        steps = [
            (before % count, after % count, _edge(dependencies, before, after))
            for before, after in pairs
        ]
        code = _code(steps)
        if code in codes:
            yield _finding(code, dependencies.operations, steps)


def _edge(dependencies: Dependencies, before: int, after: int) -> Edge:
    """Why one node comes before another one; nodes of the second layer are reached by `rw` only."""
    count = len(dependencies.operations)
    if after < count and after in dependencies.edges[before % count]:
        return dependencies.edges[before % count][after]
    return dependencies.anti_edges[before % count][after % count]


def _code(steps: Sequence[Step]) -> str:
    """What Adya, and those after him, call such a cycle.

    Two `rw` edges are adjacent at the cycle's ends, too.
    """
    kinds = [edge.kind for _, _, edge in steps]
    if "rw" not in kinds:
        return "G1c" if "wr" in kinds else "G0"
    if kinds.count("rw") == 1:
        return "G-single"
    following = [*kinds[1:], kinds[0]]
    is_adjacent = ("rw", "rw") in zip(kinds, following, strict=True)
    return "G2" if is_adjacent else "G-nonadjacent"


_NAMES = {
    "G0": "writes come in a circle",
    "G1c": "information flows in a circle",
    "G-single": "a transaction reads parts of two states",
    "G-nonadjacent": "two transactions see others in opposite orders",
    "G2": "no serial order has these reads",
}


def _finding(code: str, operations: Sequence[Operation], steps: Sequence[Step]) -> Finding:
    names = [operations[before].name for before, _, _ in steps]
    witness = [_shown(operations[before]) for before, _, _ in steps]
    witness += [_why(operations, step) for step in steps]
    return Finding(
        code=code, summary=f"{_NAMES[code]}: {' < '.join([*names, names[0]])}", witness=witness
    )


def _shown(operation: Operation) -> str:
    """A transaction and what it read and wrote, each list by its last element."""
    steps = []
    for is_write, key, value in operation.steps:
        element = last_element(value).decode(errors="replace")
        row = key.decode(errors="replace")
        if is_write:
            steps.append(f"appends {element} to {row}")
        else:
            steps.append(f"reads {row} up to {element}" if element else f"reads {row} empty")
    return f"{operation}: {', '.join(steps)}"


def _why(operations: Sequence[Operation], step: Step) -> str:
    before, after = operations[step[0]].name, operations[step[1]].name
    kind, key, element, following = step[2]
    row, one, two = (each.decode(errors="replace") for each in (key, element, following))
    if kind == "ww":
        return f"{before} < {after} [ww]: {after} appended {two} to {row} after {before}'s {one}"
    if kind == "wr":
        return f"{before} < {after} [wr]: {after} read {row} up to {before}'s {one}"
    shown = f"up to {one}" if one else "empty"
    return f"{before} < {after} [rw]: {before} read {row} {shown}, before {after} appended {two}"
