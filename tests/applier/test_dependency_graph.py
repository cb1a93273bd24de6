"""The dependency graph against the rule written down naively: a job is ready if and only if no
earlier uncommitted one shares an item with it.
"""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from applier.relay_queue import RelayEntry
from applier.schemes.dependency_graph import DependencyGraph
from tests.applier.scheme_driver import entry


def job(position: int, *items: int) -> list[RelayEntry]:
    return [entry(position, items=items)]


def start_all(graph: DependencyGraph) -> list[int]:
    """Starts what is ready; the positions, in the order of starting."""
    started = []
    while entries := graph.start():
        started.append(entries[0].position)
    return started


def test_a_job_waits_for_the_last_writer_of_each_of_its_items() -> None:
    graph = DependencyGraph()
    for one in (job(1, 10), job(2, 20), job(3, 10, 20), job(4, 10, 30), job(5, 40)):
        graph.add(one)
    assert start_all(graph) == [1, 2, 5]
    blocked = graph.oldest_blocked
    assert blocked
    assert (blocked.position, blocked.waits_for, graph.waiting) == (3, {1, 2}, 2)
    graph.committed(2)
    assert start_all(graph) == []
    graph.committed(1)
    assert start_all(graph) == [3]
    graph.committed(3)
    assert start_all(graph) == [4]
    assert graph.oldest_blocked is None


def test_an_item_named_twice_is_waited_for_once() -> None:
    graph = DependencyGraph()
    for one in (job(1, 10, 10), job(2, 10, 10)):
        graph.add(one)
    assert start_all(graph) == [1]
    graph.committed(1)
    assert start_all(graph) == [2]
    graph.committed(2)
    graph.check_invariants()
    assert graph.waiting == 0


def test_items_that_many_wrote_are_forgotten_when_the_last_writer_is_committed() -> None:
    graph = DependencyGraph()
    for position in range(1, 4):
        graph.add(job(position, 10))
    for position in range(1, 4):
        assert start_all(graph) == [position]
        graph.committed(position)
    graph.add(job(4, 10))
    assert start_all(graph) == [4]


def test_several_transactions_of_one_job_wait_and_are_waited_for_together() -> None:
    graph = DependencyGraph()
    graph.add(job(1, 10))
    graph.add([*job(2, 20), *job(3, 10), *job(4, 20)])
    graph.add(job(5, 20))
    assert start_all(graph) == [1]
    graph.committed(1)
    assert start_all(graph) == [2]
    graph.committed(2)
    assert start_all(graph) == [5]


def test_a_job_that_becomes_ready_starts_before_younger_ones_that_were() -> None:
    graph = DependencyGraph()
    for one in (job(1, 10), job(2, 10), job(3, 30), job(4, 40)):
        graph.add(one)
    assert graph.start()[0].position == 1
    graph.committed(1)
    assert start_all(graph) == [2, 3, 4]


jobs = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=3), min_size=1, max_size=30)


def may_start(items: Sequence[Sequence[int]], uncommitted: set[int], position: int) -> bool:
    """Whether no earlier uncommitted job shares an item with a job."""
    return not any(
        set(items[other]) & set(items[position]) for other in uncommitted if other < position
    )


@given(jobs, st.data())
def test_jobs_are_ready_if_no_earlier_writer_is_uncommitted_and_start_oldest_first(
    items: list[list[int]], data: st.DataObject
) -> None:
    graph = DependencyGraph()
    uncommitted: set[int] = set()
    running: set[int] = set()
    added = 0
    while added < len(items) or uncommitted:
        if added < len(items) and (not running or data.draw(st.booleans())):
            graph.add(job(added, *items[added]))
            uncommitted.add(added)
            added += 1
        elif running:
            position = data.draw(st.sampled_from(sorted(running)))
            graph.committed(position)
            running.remove(position)
            uncommitted.remove(position)
        graph.check_invariants()
        ready = [one for one in sorted(uncommitted - running) if may_start(items, uncommitted, one)]
        workers = data.draw(st.integers(1, 3))
        started = [entries[0].position for _ in range(workers) if (entries := graph.start())]
        assert started == ready[:workers]
        running.update(started)
        assert graph.waiting == len(uncommitted) - len(running)
        graph.check_invariants()
