"""The dependency graph against the rule written down naively: a job is ready if and only if no
earlier uncommitted one writes an item that it writes or refers to, or refers to one that it writes.
"""

from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.schemes.conflict_graph import DependencyGraph
from tests.applier.scheme_driver import entry

items = st.sets(st.integers(0, 6), max_size=3)
transactions = st.tuples(items, items).filter(any)
"""What each writes, and what it refers to."""
jobs = st.lists(st.lists(transactions, min_size=1, max_size=2), min_size=1, max_size=30)


@given(jobs, st.data())
def test_jobs_are_ready_if_none_in_conflict_is_uncommitted_and_start_oldest_first(
    drawn: list[list[tuple[set[int], set[int]]]], data: st.DataObject
) -> None:
    graph = DependencyGraph()
    written: dict[int, set[int]] = {}
    parents: dict[int, set[int]] = {}
    """Of each job that is not committed, by its position."""
    running: set[int] = set()
    added = 0

    def waits(position: int) -> bool:
        mine, referred = written[position], parents[position]
        return any(
            written[other] & (mine | referred) or parents[other] & mine
            for other in written
            if other < position
        )

    while added < len(drawn) or written:
        if added < len(drawn) and (not running or data.draw(st.booleans())):
            position = 2 * added
            graph.add(
                [
                    entry(position + n, items=tuple(own), parent_items=tuple(referred - own))
                    for n, (own, referred) in enumerate(drawn[added])
                ]
            )
            written[position] = {item for own, _ in drawn[added] for item in own}
            parents[position] = {item for _, referred in drawn[added] for item in referred}
            added += 1
        elif running:
            position = data.draw(st.sampled_from(sorted(running)))
            graph.committed(position)
            running.remove(position)
            del written[position], parents[position]
        graph.check_invariants()
        left = sorted(written.keys() - running)
        ready = [position for position in left if not waits(position)]
        blocked = next((position for position in left if waits(position)), None)
        assert blocked == (graph.oldest_blocked and graph.oldest_blocked.position)
        workers = data.draw(st.integers(1, 3))
        started = [entries[0].position for _ in range(workers) if (entries := graph.start())]
        assert started == ready[:workers]
        running.update(started)
        assert graph.waiting == len(written) - len(running)
        graph.check_invariants()
