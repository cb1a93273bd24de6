"""The coordinator under any interleaving of its driver: hands over, takes back, commits.

Histories are stamped by a naive WL#8440; a driver finishes jobs in random order on a random number
of workers. The proof that nothing ran at once that must not is by the coordinator's own ticks.
"""

import random
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from applier.coordinator import Coordinator, CoordinatorOptions
from applier.job import FIRST_TICK, CommitGroup, Job
from applier.relay_queue import RelayEntry
from applier.schemes.logical_clock import LogicalClock
from certifier.errors import InvalidSetting
from tests.applier.histories import (
    VIEW_CHANGE,
    Stamped,
    Step,
    entries_of,
    histories,
    must_not_overlap,
    remote,
    stamped,
)


class Interval(NamedTuple):
    """When a record ran, in ticks."""

    started: int
    committed: int

    def overlaps(self, other: "Interval") -> bool:
        return self.started < other.committed and other.started < self.committed


class Driver:
    """Does one random thing at a time until all is committed."""

    def __init__(
        self, entries: list[RelayEntry], workers: int, options: CoordinatorOptions
    ) -> None:
        self.coordinator: Coordinator[None] = Coordinator(LogicalClock(), options)
        self.workers = workers
        self.left = list(entries)
        self.at_work: list[Job[None]] = []
        self.group: CommitGroup[None] | None = None
        self.committed: list[RelayEntry] = []
        self.intervals: dict[int, Interval] = {}

    def step(self, chance: random.Random) -> None:
        actions: list[Callable[[random.Random], None]] = [self.hand_over, self.take]
        actions += [self.append] if self.left else []
        actions += [self.execute] if self.at_work else []
        actions += [self.commit] if self.group else []
        chance.choice(actions)(chance)
        self.coordinator.check_invariants()

    def append(self, chance: random.Random) -> None:
        count = chance.randint(1, len(self.left))
        self.coordinator.append(self.left[:count])
        del self.left[:count]

    def hand_over(self, _: random.Random) -> None:
        idle = self.workers - len(self.at_work)
        jobs = self.coordinator.next_jobs(idle)
        assert len(jobs) <= idle
        self.at_work += jobs

    def execute(self, chance: random.Random) -> None:
        job = self.at_work.pop(chance.randrange(len(self.at_work)))
        self.coordinator.executed(job, [None] * len(job.entries))

    def take(self, _: random.Random) -> None:
        group = self.coordinator.take_committable()
        assert not (group and self.group), "two groups were committing"
        self.group = group or self.group

    def commit(self, _: random.Random) -> None:
        assert self.group
        self.coordinator.committed(self.group)
        for job in self.group.jobs:
            self.committed += job.entries
            for entry in job.entries:
                self.intervals[entry.position] = Interval(job.started, self.group.tick)
        self.group = None


def run_through(
    history: list[Stamped], workers: int, options: CoordinatorOptions, chance: random.Random
) -> Driver:
    driver = Driver([one.entry for one in history], workers, options)
    for _ in range(200 * (len(history) + 1)):
        driver.step(chance)
        if len(driver.committed) == len(history):
            break
    return driver


options = st.builds(
    lambda least, more, assigned, group: CoordinatorOptions(
        job_transactions_min=least,
        job_transactions_max=least + more,
        assigned_transactions_max=assigned,
        group_transactions_max=group,
    ),
    *(st.integers(1, 4), st.integers(0, 8), st.integers(1, 40), st.integers(1, 40)),
)


@given(histories, st.integers(1, 5), options, st.integers(0, 2**32))
def test_everything_commits_once_in_the_total_order_and_nothing_overlaps_that_must_not(
    steps: list[Step], workers: int, options: CoordinatorOptions, seed: int
) -> None:
    history = stamped(steps)
    driver = run_through(history, workers, options, random.Random(seed))
    assert driver.committed == [one.entry for one in history]
    assert driver.coordinator.length == 0
    assert driver.coordinator.committed_entries == len(history)
    assert driver.coordinator.take_committable() is None
    for (i, earlier), (j, later) in combinations(enumerate(history), 2):
        if must_not_overlap(earlier, later, history[i + 1 : j]):
            ran = driver.intervals[earlier.entry.position]
            assert not ran.overlaps(driver.intervals[later.entry.position]), (earlier, later)


def test_a_scheme_that_ignores_stamps_is_caught_by_the_ticks() -> None:
    class Reckless(LogicalClock):
        def _startable(self, entries: object) -> int:
            return 1

    history = stamped([remote(1), remote(1)])
    coordinator: Coordinator[None] = Coordinator(Reckless(), CoordinatorOptions())
    coordinator.append([one.entry for one in history])
    jobs = coordinator.next_jobs(2)
    for job in jobs:
        coordinator.executed(job, [None])
    group = coordinator.take_committable()
    assert group
    first, second = (Interval(job.started, group.tick) for job in jobs)
    assert must_not_overlap(history[0], history[1], [])
    assert first.overlaps(second)


def test_a_run_is_split_fairly_over_idle_workers() -> None:
    coordinator: Coordinator[None] = Coordinator(LogicalClock(), CoordinatorOptions())
    coordinator.append(entries_of(remote(item) for item in range(11)))
    jobs = coordinator.next_jobs(4)
    assert [len(job.entries) for job in jobs] == [3, 3, 3, 2]
    assert coordinator.parallelism_mean == 4


def test_no_worker_is_woken_for_less_than_it_is_worth() -> None:
    options = CoordinatorOptions(job_transactions_min=4, job_transactions_max=6)
    coordinator: Coordinator[None] = Coordinator(LogicalClock(), options)
    coordinator.append(entries_of(remote(item) for item in range(11)))
    assert [len(job.entries) for job in coordinator.next_jobs(4)] == [6, 5]
    assert coordinator.next_jobs(2) == []


def test_dependent_transactions_start_after_the_commit_of_what_they_depend_on() -> None:
    coordinator: Coordinator[None] = Coordinator(LogicalClock(), CoordinatorOptions())
    coordinator.append(entries_of([remote(1), remote(1)]))
    (job,) = coordinator.next_jobs(2)
    coordinator.executed(job, [None])
    assert coordinator.next_jobs(2) == []
    group = coordinator.take_committable()
    assert group
    assert coordinator.next_jobs(2) == []
    coordinator.committed(group)
    (later,) = coordinator.next_jobs(2)
    assert (later.started, group.tick) == (FIRST_TICK + 1, FIRST_TICK + 1)


def test_a_view_change_is_alone_among_remote_transactions() -> None:
    coordinator: Coordinator[None] = Coordinator(LogicalClock(), CoordinatorOptions())
    coordinator.append(entries_of([remote(1), VIEW_CHANGE, remote(2)]))
    waves = []
    while jobs := coordinator.next_jobs(4):
        waves.append([entry.version for job in jobs for entry in job.entries])
        for job in jobs:
            coordinator.executed(job, [None] * len(job.entries))
        group = coordinator.take_committable()
        assert group
        coordinator.committed(group)
    assert waves == [[1], [1], [2]]


def test_local_transactions_need_no_worker_but_wait_for_their_turn() -> None:
    coordinator: Coordinator[None] = Coordinator(LogicalClock(), CoordinatorOptions())
    local = Step(frozenset({5}), local=True)
    coordinator.append(entries_of([local, local, remote(1), local]))
    assert coordinator.next_jobs(0) == []
    group = coordinator.take_committable()
    assert group
    assert [job.at_commit for job in group.jobs] == [True]
    (job,) = coordinator.next_jobs(1)
    assert coordinator.take_committable() is None
    coordinator.committed(group)
    assert coordinator.take_committable() is None
    coordinator.executed(job, [None] * len(job.entries))
    last = coordinator.take_committable()
    assert last
    assert [entry.version for job in last.jobs for entry in job.entries] == [3, 4]


def test_what_waits_for_the_head_of_the_commit_order_is_bounded() -> None:
    options = CoordinatorOptions(job_transactions_max=1, assigned_transactions_max=3)
    coordinator: Coordinator[None] = Coordinator(LogicalClock(), options)
    coordinator.append(entries_of(remote(item) for item in range(9)))
    head, *others = coordinator.next_jobs(2)
    others += coordinator.next_jobs(1)
    assert coordinator.next_jobs(1) == []
    for job in others:
        coordinator.executed(job, [None])
    assert coordinator.next_jobs(2) == []
    assert coordinator.take_committable() is None
    coordinator.executed(head, [None])
    group = coordinator.take_committable()
    assert group
    coordinator.committed(group)
    assert len(coordinator.next_jobs(2)) == 2


def test_ticks_go_on_after_a_restart() -> None:
    coordinator: Coordinator[None] = Coordinator(LogicalClock(), CoordinatorOptions(), tick=41)
    assert coordinator.parallelism_mean == 0
    coordinator.append(entries_of([remote(1)]))
    (job,) = coordinator.next_jobs(1)
    coordinator.executed(job, [None])
    group = coordinator.take_committable()
    assert group
    assert (job.started, group.tick) == (41, 42)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"group_transactions_max": 0}, "group_transactions_max is '0': expected 1 or more"),
        ({"job_transactions_min": 65}, "job_transactions_min is '65': expected .*64.* or less"),
    ],
)
def test_an_impossible_option_is_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        CoordinatorOptions(**wrong)
