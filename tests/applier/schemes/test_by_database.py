"""The database scheme keeps what WL#5569 promises, whatever comes in and commits when.

The stories are in tests/testdata/schemes/database*.txt; here are the properties, on random streams,
and what coordinator and scheme show together.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.engine.coordinator import Coordinator, CoordinatorOptions
from groupcert.applier.queue.job import Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.schemes import Cause
from groupcert.applier.schemes.assigned_partitions import Record
from groupcert.applier.schemes.by_database import ByDatabase
from tests.applier.partitioned_streams import busy_streams
from tests.applier.scheme_driver import SchemeDriver, entry, run_randomly, streams


def databases_of(one: RelayEntry, databases_max: int) -> frozenset[str] | None:
    """The databases of a transaction that the scheme tells apart; None stands for all."""
    databases = one.header.databases
    if one.gtid is None or databases is None or len(databases) > databases_max:
        return None
    return frozenset(databases)


def in_database(*databases: str) -> list[RelayEntry]:
    """A transaction for each of the databases."""
    return [entry(number, databases=(name,)) for number, name in enumerate(databases, 1)]


def commit_next(coordinator: Coordinator[None], *jobs: Job[Any]) -> None:
    """Executes jobs, and commits what may commit."""
    for job in jobs:
        coordinator.executed(job, None)
    while group := coordinator.take_committable():
        coordinator.committed(group)
    coordinator.check_invariants()


@given(
    stream=streams | busy_streams,
    workers=st.integers(1, 4),
    databases_max=st.integers(1, 3),
    worker_queue_max=st.integers(1, 4),
    room=st.integers(1, 30),
    preserve=st.booleans(),
    chance=st.randoms(use_true_random=True),
)
@pytest.mark.slow
def test_nothing_starts_before_what_shares_a_database_with_it_and_all_commits(
    stream: Sequence[RelayEntry],
    workers: int,
    databases_max: int,
    worker_queue_max: int,
    room: int,
    preserve: bool,
    chance: random.Random,
) -> None:
    def rule(job: Job[Any], others: Sequence[Job[Any]], before: Sequence[RelayEntry]) -> bool:
        [one] = job.entries
        mine = databases_of(one, databases_max)
        theirs = [databases_of(other, databases_max) for other in before]
        running = [databases_of(each.entries[0], databases_max) for each in others]
        if mine is None:
            return not theirs and not running
        return all(their is not None and mine.isdisjoint(their) for their in theirs + running)

    scheme = ByDatabase(
        databases_max=databases_max,
        worker_queue_max=worker_queue_max,
        preserve_commit_order=preserve,
    )
    driver = SchemeDriver(scheme, workers, room=room, rule=rule)
    run_randomly(driver, stream, chance)
    assert scheme.records == {}
    assert not preserve or driver.committed == stream


def test_the_hash_counts_what_is_assigned_and_forgets_what_is_committed() -> None:
    scheme = ByDatabase()
    driver = SchemeDriver(scheme, 2)
    driver.append(
        [
            entry(1, databases=("db1",)),
            entry(2, databases=("db1", "db2")),
            entry(3, databases=("db3",)),
        ]
    )
    first, third = driver.take()
    assert scheme.records == {
        "db1": Record(1, 2),
        "db2": Record(1, 1),
        "db3": Record(2, 1),
    }
    driver.commit([third])
    assert scheme.records == {"db1": Record(1, 2), "db2": Record(1, 1)}
    driver.commit([first])
    assert scheme.records == {"db1": Record(1, 1), "db2": Record(1, 1)}


def test_what_updates_no_database_goes_to_the_shortest_queue_and_locks_nothing() -> None:
    scheme = ByDatabase()
    driver = SchemeDriver(scheme, 2)
    driver.append([entry(1, databases=("db1",)), entry(2, databases=())])
    assert [job.worker for job in driver.take()] == [1, 2]
    assert list(scheme.records) == ["db1"]


def test_the_low_water_mark_moves_as_in_the_example_of_the_assignment_queue() -> None:
    """WL#5569: groups 0 to 4 on W#2, W#1, W#1, W#2, W#3, here positions 1 to 5."""
    coordinator: Coordinator[None] = Coordinator(ByDatabase(), CoordinatorOptions())
    coordinator.append(in_database("db2", "db1", "db1", "db2", "db3"))
    jobs = {job.entries[0].position: job for job in coordinator.next_jobs([2, 1, 3])}
    assert {position: job.worker for position, job in jobs.items()} == {1: 2, 2: 1, 5: 3}
    assert coordinator.waiting == {2: 1, 1: 1, 3: 0}

    commit_next(coordinator, jobs[2], jobs[5])
    assert coordinator.low_water_mark is None
    [third] = coordinator.next_jobs([1, 3])
    commit_next(coordinator, jobs[1])
    assert coordinator.low_water_mark and coordinator.low_water_mark.position == 2
    [fourth] = coordinator.next_jobs([2, 3])
    commit_next(coordinator, third)
    assert coordinator.low_water_mark.position == 3
    commit_next(coordinator, fourth)
    assert coordinator.low_water_mark.position == 5


def test_a_locked_hash_is_counted_once_and_parallel_execution_goes_on_after_it() -> None:
    coordinator: Coordinator[None] = Coordinator(ByDatabase(), CoordinatorOptions())
    coordinator.append([*in_database("db1", "db2"), entry(3)])
    coordinator.append([entry(4, databases=("db1",)), entry(5, databases=("db2",))])
    first, second = coordinator.next_jobs([0, 1, 2])
    assert coordinator.is_sequential
    commit_next(coordinator, first)
    assert coordinator.next_jobs([0, 2]) == []
    commit_next(coordinator, second)
    [alone] = coordinator.next_jobs([0, 1, 2])
    commit_next(coordinator, alone)
    assert len(coordinator.next_jobs([0, 1, 2])) == 2
    assert not coordinator.is_sequential
    assert coordinator.fallbacks == {Cause.ALL_PARTITIONS: 1}
    assert coordinator.holds == {Cause.ALL_PARTITIONS: 1, Cause.TRANSACTION: 1}
