"""The dependency graph against the rule written down naively: a job is ready if and only if no
earlier uncommitted one shares an item with it.
"""

from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.schemes.conflict_graph import DependencyGraph
from tests.applier.scheme_driver import entry

transactions = st.lists(st.integers(0, 6), min_size=1, max_size=3)
jobs = st.lists(st.lists(transactions, min_size=1, max_size=2), min_size=1, max_size=30)


@given(jobs, st.data())
def test_jobs_are_ready_if_no_earlier_writer_is_uncommitted_and_start_oldest_first(
    written: list[list[list[int]]], data: st.DataObject
) -> None:
    graph = DependencyGraph()
    items: dict[int, set[int]] = {}
    """Of each job that is not committed, by its position."""
    running: set[int] = set()
    added = 0

    def waits(position: int) -> bool:
        earlier = (other for other in items if other < position)
        return any(items[other] & items[position] for other in earlier)

    while added < len(written) or items:
        if added < len(written) and (not running or data.draw(st.booleans())):
            position = 2 * added
            graph.add([entry(position + n, items=each) for n, each in enumerate(written[added])])
            items[position] = {item for each in written[added] for item in each}
            added += 1
        elif running:
            position = data.draw(st.sampled_from(sorted(running)))
            graph.committed(position)
            running.remove(position)
            del items[position]
        graph.check_invariants()
        left = sorted(items.keys() - running)
        ready = [position for position in left if not waits(position)]
        blocked = next((position for position in left if waits(position)), None)
        assert blocked == (graph.oldest_blocked and graph.oldest_blocked.position)
        workers = data.draw(st.integers(1, 3))
        started = [entries[0].position for _ in range(workers) if (entries := graph.start())]
        assert started == ready[:workers]
        running.update(started)
        assert graph.waiting == len(items) - len(running)
        graph.check_invariants()
