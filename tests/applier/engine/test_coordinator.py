"""The coordinator under any interleaving of its driver: hands over, takes back, commits.

Histories are stamped by a naive WL#8440; a driver finishes jobs in random order on a random number
of workers. The proof that nothing ran at once that must not is by the coordinator's own ticks.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.engine.coordinator import Coordinator, CoordinatorOptions
from groupcert.applier.queue.job import CommitGroup, Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.schemes import Cause, Hold, Scheme
from groupcert.applier.schemes.by_database import ByDatabase
from groupcert.applier.schemes.by_rows import ByRows
from groupcert.applier.schemes.by_table import ByTable
from groupcert.applier.schemes.group_commit import GroupCommit
from groupcert.applier.schemes.logical_clock import LogicalClock, Policy
from groupcert.certifier.errors import InvalidSetting
from tests.applier.histories import (
    VIEW_CHANGE,
    Step,
    entries_of,
    histories,
    must_not_overlap,
    remote,
    stamped,
)
from tests.applier.scheme_driver import entry, streams


class Interval(NamedTuple):
    """When a record ran, in ticks."""

    started: int
    committed: int

    def overlaps(self, other: "Interval") -> bool:
        return self.started < other.committed and other.started < self.committed


class Driver:
    """Does one random thing at a time until all is committed."""

    def __init__(
        self, entries: list[RelayEntry], workers: int, scheme: Scheme, options: CoordinatorOptions
    ) -> None:
        self.coordinator: Coordinator[None] = Coordinator(scheme, options)
        self.idle = list(range(workers))
        self.left = list(entries)
        self.at_work: list[Job[None]] = []
        self.groups: list[CommitGroup[None]] = []
        self.committed: list[RelayEntry] = []
        self.parts: Counter[int] = Counter()
        self.intervals: dict[int, Interval] = {}

    def step(self, chance: random.Random) -> None:
        actions: list[Callable[[random.Random], None]] = [self.hand_over, self.take]
        actions += [self.append] if self.left else []
        actions += [self.execute] if self.at_work else []
        actions += [self.commit] if self.groups else []
        chance.choice(actions)(chance)
        self.coordinator.check_invariants()

    def append(self, chance: random.Random) -> None:
        count = chance.randint(1, len(self.left))
        self.coordinator.append(self.left[:count])
        del self.left[:count]

    def hand_over(self, _: random.Random) -> None:
        jobs = self.coordinator.next_jobs(self.idle)
        for job in jobs:
            self.idle.remove(job.worker)
        self.at_work += jobs

    def execute(self, chance: random.Random) -> None:
        job = self.at_work.pop(chance.randrange(len(self.at_work)))
        self.coordinator.executed(job, None)

    def take(self, _: random.Random) -> None:
        if group := self.coordinator.take_committable():
            self.groups.append(group)

    def commit(self, chance: random.Random) -> None:
        group = self.groups.pop(chance.randrange(len(self.groups)))
        length = self.coordinator.committed_entries
        self.coordinator.committed(group)
        finished = self.coordinator.committed_entries - length
        for job in group.jobs:
            self.idle += [] if job.at_commit else [job.worker]
            self.parts[job.entries[0].position] += 1
            if self.parts[job.entries[0].position] < job.parts:
                continue
            self.committed += job.entries
            finished -= len(job.entries)
            for one in job.entries:
                self.intervals[one.position] = Interval(job.started, group.tick)
        assert finished == 0, "an entry is committed when its last part is"


def coordinated(
    steps: Iterable[Step],
    scheme: Scheme | None = None,
    options: CoordinatorOptions | None = None,
) -> Coordinator[None]:
    """A coordinator that has the entries of these steps."""
    made: Coordinator[None] = Coordinator(scheme or LogicalClock(), options or CoordinatorOptions())
    made.append(entries_of(steps))
    return made


def taken(coordinator: Coordinator[None]) -> CommitGroup[None]:
    """The next group, which must be there."""
    group = coordinator.take_committable()
    assert group
    return group


def run_through(
    entries: list[RelayEntry],
    workers: int,
    scheme: Scheme,
    options: CoordinatorOptions,
    chance: random.Random,
) -> Driver:
    driver = Driver(entries, workers, scheme, options)
    for _ in range(400 * (len(entries) + 1)):
        driver.step(chance)
        if len(driver.committed) == len(entries):
            break
    return driver


options = st.builds(
    lambda assigned, group: CoordinatorOptions(
        assigned_transactions_max=assigned, group_transactions_max=group
    ),
    st.integers(1, 40),
    st.integers(1, 40),
)
clocks = st.builds(
    lambda least, more, policy: LogicalClock(
        policy, job_transactions_min=least, job_transactions_max=least + more
    ),
    st.integers(1, 4),
    st.integers(0, 8),
    st.sampled_from(Policy),
)


@given(histories, st.integers(1, 5), clocks, options, st.integers(0, 2**32))
def test_everything_commits_once_in_the_total_order_and_nothing_overlaps_that_must_not(
    steps: list[Step],
    workers: int,
    clock: LogicalClock,
    options: CoordinatorOptions,
    seed: int,
) -> None:
    history = stamped(steps)
    entries = [one.entry for one in history]
    driver = run_through(entries, workers, clock, options, random.Random(seed))
    assert driver.committed == entries
    assert (driver.coordinator.length, driver.coordinator.pending_bytes) == (0, 0)
    assert driver.coordinator.committed_entries == len(history)
    assert driver.coordinator.take_committable() is None
    for (i, earlier), (j, later) in combinations(enumerate(history), 2):
        if must_not_overlap(earlier, later, history[i + 1 : j]):
            ran = driver.intervals[earlier.entry.position]
            assert not ran.overlaps(driver.intervals[later.entry.position]), (earlier, later)


@pytest.mark.parametrize("scheme", [GroupCommit, ByDatabase, ByTable, ByRows])
@given(streams, st.integers(1, 5), options, st.integers(0, 2**32))
def test_each_entry_commits_once_in_its_lane_whatever_the_scheme_divides_and_reorders(
    scheme: Callable[[], Scheme],
    entries: list[RelayEntry],
    workers: int,
    options: CoordinatorOptions,
    seed: int,
) -> None:
    driver = run_through(entries, workers, scheme(), options, random.Random(seed))
    coordinator = driver.coordinator
    assert sorted(driver.committed) == entries
    if scheme is GroupCommit:
        for domain in {entry.header.domain_id for entry in entries}:
            lane = [one for one in entries if one.header.domain_id == domain]
            assert [one for one in driver.committed if one.header.domain_id == domain] == lane
    assert (coordinator.length, coordinator.assigned, coordinator.pending_bytes) == (0, 0, 0)
    assert coordinator.low_water_mark == (entries[-1] if entries else None)
    assert not coordinator.is_busy


def test_a_scheme_that_ignores_stamps_is_caught_by_the_ticks() -> None:
    class Reckless(LogicalClock):
        def _startable(self, *_: object) -> int:
            return len(history)

    history = stamped([remote(1), remote(1)])
    coordinator: Coordinator[None] = Coordinator(Reckless(), CoordinatorOptions())
    coordinator.append([one.entry for one in history])
    jobs = coordinator.next_jobs([0, 1])
    for job in jobs:
        coordinator.executed(job, None)
    group = taken(coordinator)
    first, second = (Interval(job.started, group.tick) for job in jobs)
    assert must_not_overlap(history[0], history[1], [])
    assert first.overlaps(second)


def test_a_run_is_split_fairly_over_idle_workers() -> None:
    clock = LogicalClock(job_transactions_max=64)
    coordinator = coordinated(map(remote, range(11)), clock)
    jobs = coordinator.next_jobs([0, 1, 2, 3])
    assert [job.worker for job in jobs] == [0, 1, 2, 3]
    assert [len(job.entries) for job in jobs] == [3, 3, 3, 2]
    assert coordinator.parallelism_mean == 4


def test_no_worker_is_woken_for_less_than_it_is_worth() -> None:
    clock = LogicalClock(job_transactions_min=4, job_transactions_max=6)
    coordinator = coordinated(map(remote, range(11)), clock)
    assert [len(job.entries) for job in coordinator.next_jobs([0, 1, 2, 3])] == [6, 5]
    assert coordinator.next_jobs([2, 3]) == []


def test_local_transactions_need_no_worker_but_wait_for_their_turn() -> None:
    coordinator: Coordinator[None] = Coordinator(LogicalClock(), CoordinatorOptions())
    local = Step(frozenset({5}), local=True)
    coordinator.append(entries_of([local, local, remote(1), local]))
    assert coordinator.next_jobs([]) == []
    group = taken(coordinator)
    assert [job.at_commit for job in group.jobs] == [True]
    (job,) = coordinator.next_jobs([0])
    assert coordinator.take_committable() is None
    coordinator.committed(group)
    assert coordinator.take_committable() is None
    coordinator.executed(job, None)
    last = taken(coordinator)
    assert [entry.version for job in last.jobs for entry in job.entries] == [3, 4]


def test_what_waits_for_the_head_of_the_commit_order_is_bounded() -> None:
    options = CoordinatorOptions(assigned_transactions_max=3)
    coordinator = coordinated(map(remote, range(9)), options=options)
    head, *others = coordinator.next_jobs([0, 1])
    others += coordinator.next_jobs([2])
    assert coordinator.next_jobs([3]) == []
    assert coordinator.hold == Hold(Cause.QUEUE)
    for job in others:
        coordinator.executed(job, None)
    assert coordinator.next_jobs([1, 2]) == []
    assert coordinator.take_committable() is None
    coordinator.executed(head, None)
    group = taken(coordinator)
    coordinator.committed(group)
    assert len(coordinator.next_jobs([0, 1])) == 2


def test_ticks_go_on_after_a_restart() -> None:
    coordinator: Coordinator[None] = Coordinator(LogicalClock(), CoordinatorOptions(), tick=41)
    assert coordinator.parallelism_mean == 0
    coordinator.append(entries_of([remote(1)]))
    (job,) = coordinator.next_jobs([0])
    coordinator.executed(job, None)
    group = taken(coordinator)
    assert (job.started, group.tick) == (41, 42)


@pytest.mark.parametrize("name", ["group_transactions_max", "assigned_transactions_max"])
def test_an_impossible_option_is_refused(name: str) -> None:
    with pytest.raises(InvalidSetting, match=f"{name} is '0': expected 1 or more"):
        CoordinatorOptions(**{name: 0})


def finish(coordinator: Coordinator[None], *jobs: Job[None]) -> None:
    """Executes jobs, and commits all that may then."""
    for job in jobs:
        coordinator.executed(job, None)
    while group := coordinator.take_committable():
        coordinator.committed(group)


def test_a_head_that_is_held_counts_once_for_each_cause() -> None:
    coordinator = coordinated([remote(1), remote(2), remote(1)])
    (first,) = coordinator.next_jobs([0])
    for idle in ([], [1], [], [2]):
        for job in coordinator.next_jobs(idle):
            finish(coordinator, job)
    assert coordinator.holds == {Cause.WORKER: 2, Cause.CLOCK: 1}
    finish(coordinator, first)
    (last,) = coordinator.next_jobs([0, 1])
    finish(coordinator, last)
    assert coordinator.next_jobs([0, 1]) == []
    assert coordinator.hold is None
    assert coordinator.holds == {Cause.WORKER: 2, Cause.CLOCK: 1}
    assert not coordinator.fallbacks


def test_a_return_to_sequential_execution_counts_once_until_two_run_at_once() -> None:
    coordinator = coordinated(
        [remote(1), VIEW_CHANGE, VIEW_CHANGE, remote(2), remote(3), VIEW_CHANGE]
    )
    fallbacks = []
    while jobs := coordinator.next_jobs([0, 1, 2]):
        fallbacks.append((coordinator.is_sequential, coordinator.fallbacks[Cause.ALONE]))
        finish(coordinator, *jobs)
    assert fallbacks == [(True, 1), (True, 1), (True, 1), (True, 2), (True, 2)]
    assert coordinator.holds == {Cause.ALONE: 3, Cause.TRANSACTION: 1}


def test_what_the_scheme_keeps_is_handed_out_and_nothing_new_is_taken() -> None:
    clock = LogicalClock(Policy.FIRST_AVAILABLE)
    coordinator = coordinated([remote(1), remote(2), remote(3)], clock)
    jobs = coordinator.next_jobs([0])
    assert coordinator.assigned == 3
    coordinator.append(entries_of([remote(number) for number in range(1, 5)])[3:])
    coordinator.append(entries_of([remote(1)] * 4 + [Step(frozenset({1}), local=True)])[4:])
    coordinator.takes = False
    while jobs:
        finish(coordinator, *jobs)
        jobs = coordinator.next_jobs([0])
    assert coordinator.take_committable() is None, "nor is the local one"
    assert (coordinator.assigned, coordinator.length) == (0, 2)
    coordinator.takes = True
    assert len(coordinator.next_jobs([0])) == 1


def test_bytes_are_pending_until_they_are_visible() -> None:
    coordinator: Coordinator[None] = Coordinator(ByTable(), CoordinatorOptions())
    coordinator.append([entry(1, payload=bytes(10), tables=("a.t", "b.t")), entry(2, payload=b"2")])
    one, two = coordinator.next_jobs([0, 1])
    finish(coordinator, one)
    assert (coordinator.pending_bytes, coordinator.length) == (11, 2)
    assert (coordinator.committed_entries, coordinator.low_water_mark) == (0, None)
    finish(coordinator, two)
    assert (coordinator.pending_bytes, coordinator.length) == (1, 1)
    assert coordinator.committed_entries == 1


def test_groups_of_independent_lanes_are_out_at_once() -> None:
    coordinator: Coordinator[None] = Coordinator(GroupCommit(), CoordinatorOptions())
    entries = [entry(1), entry(2, domain_id=1), entry(3)]
    coordinator.append(entries)
    jobs = coordinator.next_jobs([0, 1])
    for job in jobs:
        coordinator.executed(job, None)
    groups = [coordinator.take_committable(), coordinator.take_committable()]
    assert coordinator.take_committable() is None
    assert coordinator.is_busy
    assert coordinator.low_water_mark is None
    first, second = (group for group in groups if group)
    coordinator.committed(second)
    coordinator.committed(first)
    assert coordinator.low_water_mark == entries[1]
    assert (first.tick, second.tick, coordinator.tick) == (2, 3, 3)


def test_who_waits_behind_another_can_be_given_back_to_its_worker() -> None:
    coordinator = coordinated([remote(1), remote(2)])
    older, younger = coordinator.next_jobs([0, 1])
    coordinator.executed(younger, None)
    assert not coordinator.is_next(younger)
    assert coordinator.is_next(older)
    assert coordinator.retract(older) == [younger]
    coordinator.check_invariants()
    coordinator.executed(older, None)
    group = taken(coordinator)
    assert group.jobs == [older]
    coordinator.committed(group)
    finish(coordinator, younger)
    assert coordinator.length == 0


def test_without_workers_everything_is_one_job_in_order_whatever_the_scheme_orders() -> None:
    options = CoordinatorOptions()
    coordinator: Coordinator[None] = Coordinator(GroupCommit(), options, alone=True)
    entries = [entry(1), entry(2, domain_id=1), entry(3)]
    group = coordinator.append_alone(entries)
    assert [list(job.entries) for job in group.jobs] == [entries]
    with pytest.raises(AssertionError, match="something before them"):
        coordinator.append_alone([entry(4)])
    coordinator.committed(group)
    assert (coordinator.length, coordinator.low_water_mark) == (0, entries[-1])
    assert coordinator.parallelism_mean == 1
    coordinator.check_invariants()
