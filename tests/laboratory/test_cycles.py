"""The search for cycles, held against one that tries every path of a small graph."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.laboratory.cycles import components, short_cycle
from tests.laboratory.dependencies import Dependencies, Edge, cycle_findings
from tests.laboratory.history import Workload
from tests.laboratory.written_histories import written_history

NODES = 6
LONG = 50_000

edges = st.tuples(
    st.integers(0, NODES - 1), st.integers(0, NODES - 1), st.sampled_from(("ww", "wr", "rw"))
).filter(lambda edge: edge[0] != edge[1])


def dependencies_of(edges: Sequence[tuple[int, int, str]]) -> Dependencies:
    """Transactions that depend on one another in this way."""
    lines = [f"T{number}.0 committed: write x {number}" for number in range(NODES)]
    operations = written_history(Workload("append"), lines).operations
    graph = Dependencies(operations, [{} for _ in range(NODES)], [{} for _ in range(NODES)])
    # As where the order of lists is known: a dependency of writes stays if there are others.
    for before, after, kind in sorted(edges, key=lambda edge: edge[2] != "ww"):
        side = graph.anti_edges if kind == "rw" else graph.edges
        side[before].setdefault(after, Edge(kind, b"x", b"1", b"2"))
    return graph


def cycles_of(edges: Sequence[tuple[int, int, str]]) -> Iterator[tuple[str, ...]]:
    """The kinds of edges of each cycle that visits no transaction twice."""

    def walk(
        start: int, node: int, kinds: tuple[str, ...], seen: frozenset[int]
    ) -> Iterator[tuple[str, ...]]:
        for before, after, kind in edges:
            if before == node and after == start:
                yield (*kinds, kind)
            elif before == node and after > start and after not in seen:
                yield from walk(start, after, (*kinds, kind), seen | {after})

    for start in range(NODES):
        yield from walk(start, start, (), frozenset())


def is_forbidden(kinds: Sequence[str]) -> bool:
    """Whether snapshot isolation forbids a cycle: no two `rw` edges in a row."""
    return ("rw", "rw") not in pairwise([*kinds, kinds[0]])


@given(st.lists(edges, max_size=14))
def test_a_forbidden_cycle_is_found_if_there_is_one(
    given_edges: list[tuple[int, int, str]],
) -> None:
    cycles = list(cycles_of(given_edges))
    found = {each.code for each in cycle_findings(dependencies_of(given_edges), serializable=False)}
    assert bool(found) == any(map(is_forbidden, cycles))
    assert ("G0" in found) == any(set(kinds) == {"ww"} for kinds in cycles)
    assert "G2" not in found


@given(st.lists(edges, max_size=14))
def test_any_cycle_is_found_among_serializable_transactions(
    given_edges: list[tuple[int, int, str]],
) -> None:
    cycles = list(cycles_of(given_edges))
    found = {each.code for each in cycle_findings(dependencies_of(given_edges), serializable=True)}
    assert bool(found) == bool(cycles)
    if not any(map(is_forbidden, cycles)):
        assert found <= {"G2"}


def test_a_long_cycle_needs_no_recursion() -> None:
    graph = [[(node + 1) % LONG] for node in range(LONG)]
    (component,) = components(graph)
    assert sorted(component) == list(range(LONG))


def test_the_shortest_cycle_is_shown() -> None:
    graph = [[1], [2], [3, 1], [0], []]
    (component,) = components(graph)
    assert short_cycle(graph, component) == [1, 2]
