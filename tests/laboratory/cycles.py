"""Cycles in directed graphs: where there are any, and a short one to look at.

A graph is the list of each node's successors, by number.
"""

from collections import deque
from collections.abc import Sequence

STARTS_MAX = 64
"""Nodes of a component that shortest cycles are looked for from: a large one has a limit."""

Graph = Sequence[Sequence[int]]


def components(graph: Graph) -> list[list[int]]:
    """The strongly connected components of two nodes or more; each holds a cycle.

    Source: Tarjan, "Depth-first search and linear graph algorithms", with a stack of its own
    in place of recursion.

    Cost: O(nodes + edges).
    """
    unseen, done = -1, len(graph)
    low = [unseen] * len(graph)
    found: list[list[int]] = []
    path: list[int] = []
    seen = 0
    for root in range(len(graph)):
        if low[root] != unseen:
            continue
        low[root] = seen
        calls = [(root, seen, iter(graph[root]))]
        seen += 1
        path.append(root)
        while calls:
            node, number, successors = calls[-1]
            for successor in successors:
                if low[successor] == unseen:
                    low[successor] = seen
                    calls.append((successor, seen, iter(graph[successor])))
                    seen += 1
                    path.append(successor)
                    break
                if low[successor] < low[node]:
                    low[node] = low[successor]
            else:
                calls.pop()
                if calls and low[node] < low[calls[-1][0]]:
                    low[calls[-1][0]] = low[node]
                if low[node] == number:
                    members: list[int] = []
                    while not members or members[-1] != node:
                        members.append(path.pop())
                        low[members[-1]] = done
                    if len(members) > 1:
                        found.append(members)
    return found


def short_cycle(graph: Graph, component: Sequence[int]) -> list[int]:
    """A cycle of a component as its nodes in order; the shortest one in a component that is small.

    Cost: O(edges of the component), times `STARTS_MAX` at most.
    """
    inside = frozenset(component)
    shortest: list[int] = []
    for start in sorted(component)[:STARTS_MAX]:
        found = _cycle_through(graph, inside, start, len(shortest) or len(component) + 1)
        if found:
            shortest = found
        if len(shortest) == 2:
            break
    assert shortest, "a strongly connected component without a cycle"
    return shortest


def _cycle_through(graph: Graph, inside: frozenset[int], start: int, length_max: int) -> list[int]:
    """The shortest cycle through a node, of fewer nodes than a limit; empty: there is none."""
    before = {start: start}
    front = deque([(start, 1)])
    while front:
        node, length = front.popleft()
        if length >= length_max:
            return []
        for successor in graph[node]:
            if successor == start:
                cycle = [node]
                while cycle[-1] != start:
                    cycle.append(before[cycle[-1]])
                return cycle[::-1]
            if successor in inside and successor not in before:
                before[successor] = node
                front.append((successor, length + 1))
    return []
