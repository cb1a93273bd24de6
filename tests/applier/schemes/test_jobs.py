"""P1 of WL#4648 under its five conflict controls.

Method: examples, and every control driven at random, with one worker and with several, against its
rule written down naively. What starts where is drawn in tests/testdata/schemes/jobs*.txt.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.queue.job import Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.schemes import Cause
from groupcert.applier.schemes.jobs import Conflicts, Jobs, JobsOptions
from tests.applier.scheme_driver import ROOM, SchemeDriver, entry, run_randomly, streams

LOOKS_AT_ROWS = [Conflicts.BARRIER, Conflicts.GRAPH, Conflicts.MERGE]


def jobs_of(conflicts: Conflicts, **options: Any) -> Jobs:
    return Jobs(JobsOptions(conflicts=conflicts, **options))


def positions(jobs: Iterable[Job[Any]]) -> list[list[int]]:
    return [[one.position for one in job.entries] for job in jobs]


def writers(*items: int, start: int = 1, payload: bytes = b"") -> list[RelayEntry]:
    """Transactions that write an item each."""
    return [
        entry(position, items=(item,), payload=payload)
        for position, item in enumerate(items, start)
    ]


def share(one: RelayEntry, other: RelayEntry) -> bool:
    """Whether two transactions may not run at once."""
    written = set(one.header.items), set(other.header.items)
    parents = set(one.header.parent_items), set(other.header.parent_items)
    return (
        not all(written)
        or bool(written[0] & (written[1] | parents[1]))
        or bool(written[1] & parents[0])
    )


def no_conflict(job: Job[Any], others: Sequence[Job[Any]], before: Sequence[RelayEntry]) -> bool:
    """Nothing earlier that is not committed conflicts with it, and nothing runs beside one whose
    rows are not known.
    """
    running = [one for other in others for one in other.entries]
    return not any(share(one, other) for one in job.entries for other in (*before, *running))


def consecutive(job: Job[Any]) -> bool:
    first = job.entries[0].position
    return [one.position for one in job.entries] == list(range(first, first + len(job.entries)))


@pytest.mark.parametrize("conflicts", Conflicts)
def test_rows_have_versions_only_where_writers_of_one_may_run_at_once(conflicts: Conflicts) -> None:
    [job] = jobs_of(conflicts).take(deque(writers(1)), [7], ROOM)
    meet = conflicts in (Conflicts.IGNORE, Conflicts.ORDERED)
    assert (job.keeps_newest, job.worker) == (meet, 7)


@pytest.mark.parametrize("conflicts", Conflicts)
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_work_without_conflicts_keeps_every_worker_busy(conflicts: Conflicts, workers: int) -> None:
    """E1: the rounds in which all of it is done go down with the workers as they go up."""
    driver = SchemeDriver(jobs_of(conflicts, merge_transactions_max=1), workers)
    driver.append(writers(*range(64)))
    rounds = 0
    while not driver.is_done:
        driver.take()
        commit_all(driver)
        rounds += 1
    assert rounds == 64 // workers


def test_only_the_break_of_barrier_is_a_fallback() -> None:
    causes = []
    for conflicts in LOOKS_AT_ROWS:
        driver = SchemeDriver(jobs_of(conflicts), 4)
        driver.append(writers(1, 1))
        driver.take()
        assert driver.scheme.hold
        causes.append((conflicts, driver.scheme.hold.cause.is_sequential))
    assert causes == [(one, one is Conflicts.BARRIER) for one in LOOKS_AT_ROWS]


def test_without_room_nothing_is_taken_and_what_is_kept_still_starts() -> None:
    scheme = jobs_of(Conflicts.GRAPH)
    pending = deque(writers(1, 1, 2))
    [first] = scheme.take(pending, [1, 2], 2)
    assert (len(pending), scheme.hold and scheme.hold.cause) == (1, Cause.TRANSACTION)
    scheme.committed(first)
    assert positions(scheme.take(pending, [1, 2], 0)) == [[2]]
    assert (len(pending), scheme.hold and scheme.hold.cause) == (1, Cause.QUEUE)


def test_merged_jobs_share_what_is_pending_among_the_workers() -> None:
    driver = SchemeDriver(jobs_of(Conflicts.MERGE), 4)
    driver.append(writers(*range(400)))
    assert [len(job.entries) for job in driver.take()] == [64, 64, 64, 52]
    driver = SchemeDriver(jobs_of(Conflicts.MERGE), 4)
    driver.append(writers(*range(4)))
    assert positions(driver.take()) == [[1], [2], [3], [4]]


def test_a_merged_job_has_no_more_bytes_than_its_limit() -> None:
    driver = SchemeDriver(jobs_of(Conflicts.MERGE, merge_bytes_max=10), 1)
    driver.append(writers(1, 2, 3, payload=bytes(4)))
    driver.append(writers(4, 5, start=4, payload=bytes(11)))
    found = []
    while not driver.is_done:
        found += positions(driver.take())
        commit_all(driver)
    assert found == [[1, 2], [3], [4], [5]]


def commit_all(driver: SchemeDriver) -> None:
    """Executes and commits what runs, in the order that the scheme has."""
    for job in driver.executing.values():
        driver.execute(job)
    while groups := driver.committable():
        driver.commit(groups[0])


chances = st.integers(0, 1 << 32).map(random.Random)
workers = st.integers(1, 4)
rooms = st.sampled_from([1, 3, 8, ROOM])


@given(streams, chances, workers, rooms, st.sampled_from([Conflicts.IGNORE, Conflicts.ORDERED]))
def test_without_a_control_all_is_committed_and_no_worker_waits(
    stream: list[RelayEntry],
    chance: random.Random,
    worker_count: int,
    room: int,
    conflicts: Conflicts,
) -> None:
    class Driver(SchemeDriver):
        def take(self) -> list[Job[Any]]:
            started = super().take()
            may_start = self.pending and self.pending[0].gtid and self.idle
            alone = any(job.entries[0].gtid is None for job in self.executing.values())
            uncommitted = sum(len(job.entries) for job in self.executing.values())
            assert not may_start or alone or uncommitted == room
            return started

    run_randomly(Driver(jobs_of(conflicts), worker_count, room=room), stream, chance)


@given(streams, chances, workers, rooms, st.booleans())
def test_barrier_is_broken_by_a_conflict_and_by_nothing_else(
    stream: list[RelayEntry],
    chance: random.Random,
    worker_count: int,
    room: int,
    ordered: bool,
) -> None:
    """With the minimum of two: who met a conflict at the head waits for all before it; who did not
    does not wait.
    """
    broken: set[int] = set()

    def rule(job: Job[Any], others: Sequence[Job[Any]], before: Sequence[RelayEntry]) -> bool:
        met_conflict = job.entries[0].position in broken
        return no_conflict(job, others, before) and not (met_conflict and before)

    class Driver(SchemeDriver):
        def take(self) -> list[Job[Any]]:
            started = super().take()
            running = [one for job in self.executing.values() for one in job.entries]
            if self.pending and self.idle and len(running) < room:
                head = self.pending[0]
                if any(share(head, one) for one in running):
                    broken.add(head.position)
                assert running
                assert head.position in broken
            return started

    scheme = jobs_of(Conflicts.BARRIER, preserve_commit_order=ordered)
    run_randomly(Driver(scheme, worker_count, room=room, rule=rule), stream, chance)


@given(streams, chances, workers, st.integers(2, 5))
def test_barrier_never_runs_a_conflict_and_commits_all(
    stream: list[RelayEntry], chance: random.Random, worker_count: int, conflict_free_min: int
) -> None:
    scheme = jobs_of(Conflicts.BARRIER, conflict_free_min=conflict_free_min)
    driver = SchemeDriver(scheme, worker_count, rule=no_conflict)
    assert run_randomly(driver, stream, chance).is_done


@given(streams, chances, workers, rooms, st.booleans(), st.integers(1, 3))
def test_graph_starts_all_that_may_start_and_nothing_else(
    stream: list[RelayEntry],
    chance: random.Random,
    worker_count: int,
    room: int,
    ordered: bool,
    jobs_per_worker_max: int,
) -> None:
    class Driver(SchemeDriver):
        def take(self) -> list[Job[Any]]:
            started = super().take()
            running = [one for job in self.executing.values() for one in job.entries]
            uncommitted = [*running, *self.kept]
            assert len(self.kept) <= worker_count * jobs_per_worker_max
            if self.idle:
                for one in self.kept:
                    assert any(share(one, o) for o in uncommitted if o.position < one.position)
                if self.pending and len(self.kept) < worker_count * jobs_per_worker_max:
                    runs_alone = not self.pending[0].header.items
                    beside = any(not one.header.items for one in running)
                    assert runs_alone or beside or len(uncommitted) == room
            return started

    scheme = jobs_of(
        Conflicts.GRAPH,
        preserve_commit_order=ordered,
        jobs_per_worker_max=jobs_per_worker_max,
    )
    run_randomly(Driver(scheme, worker_count, room=room, rule=no_conflict), stream, chance)


@given(streams, chances, workers, rooms, st.booleans(), st.integers(1, 8))
def test_merged_jobs_are_consecutive_and_start_when_none_of_them_conflicts(
    stream: list[RelayEntry],
    chance: random.Random,
    worker_count: int,
    room: int,
    ordered: bool,
    merge_transactions_max: int,
) -> None:
    def rule(job: Job[Any], others: Sequence[Job[Any]], before: Sequence[RelayEntry]) -> bool:
        assert len(job.entries) <= merge_transactions_max
        return consecutive(job) and no_conflict(job, others, before)

    scheme = jobs_of(
        Conflicts.MERGE,
        preserve_commit_order=ordered,
        merge_transactions_max=merge_transactions_max,
    )
    run_randomly(SchemeDriver(scheme, worker_count, room=room, rule=rule), stream, chance)
