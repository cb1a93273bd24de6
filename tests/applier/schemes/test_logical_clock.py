"""C3 of WL#7165: what starts together on the examples of WL#8440, and on anything, by a naive C3.

An example is the stamps of its transactions; its waves are what starts together when each wave is
committed before the scheme is asked again. Stories are in tests/testdata/schemes.
"""

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.queue.job import Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.schemes.logical_clock import LogicalClock, Policy
from tests.applier.histories import Step, entries_of, histories
from tests.applier.scheme_driver import SchemeDriver, entry, run_randomly, streams, waves

EXAMPLES = {
    "EX3": (
        [(1, 2), (1, 3), (2, 4), (1, 5), (1, 6), (6, 7), (1, 8), (1, 9)],
        [[1, 2], [3, 4, 5], [6, 7, 8]],
    ),
    "EX4, no write set": ([(1, 2), (2, 3), (2, 4), (4, 5), (5, 6)], [[1], [2, 3], [4], [5]]),
    "EX6, garbage collection after T2": ([(1, 2), (1, 3), (3, 4), (3, 5)], [[1, 2], [3, 4]]),
    "EX7, view change before T3": ([(1, 2), (1, 3), (0, 0), (1, 4)], [[1, 2], [3], [4]]),
    "WL#7165, fall back to sequential": (
        [(0, 0), (0, 0), (1, 2), (1, 3)],
        [[1], [2], [3, 4]],
    ),
}


def may_start(job: Job[Any], others: Sequence[Job[Any]], before: Sequence[RelayEntry]) -> bool:
    """C3 over all that is not committed, scheduled or not; 0 is greater than nothing."""
    executing = [one.sequence_number for one in before if not one.local]
    for one in job.entries:
        if one.local:
            continue
        if not one.sequence_number and executing:
            return False
        if any(number <= one.last_committed for number in executing):
            return False
        executing.append(one.sequence_number)
    return True


def of(policy: Policy = Policy.AT_MOST_ONE, **options: Any) -> LogicalClock:
    return LogicalClock(policy, **options)


schemes = st.builds(
    lambda policy, least, more, ordered: of(
        policy,
        job_transactions_min=least,
        job_transactions_max=least + more,
        preserve_commit_order=ordered,
    ),
    st.sampled_from(Policy),
    st.integers(1, 3),
    st.integers(0, 4),
    st.booleans(),
)
entries_or_locals = streams | histories.map(entries_of)
workers = st.integers(1, 4)
rooms = st.integers(1, 20)
seeds = st.integers(0, 2**32)


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_in_its_waves(name: str, policy: Policy) -> None:
    stamps, expected = EXAMPLES[name]
    entries = [entry(position, pair) for position, pair in enumerate(stamps, 1)]
    assert waves(of(policy), entries) == expected


@given(schemes, entries_or_locals, workers, rooms, seeds)
def test_everything_commits_and_nothing_starts_against_c3(
    scheme: LogicalClock, entries: list[RelayEntry], workers: int, room: int, seed: int
) -> None:
    driver = SchemeDriver(scheme, workers, room=room, rule=may_start)
    run_randomly(driver, entries, random.Random(seed))
    assert not scheme.assigned
    remote = [one.sequence_number for one in entries if not one.local]
    assert scheme.assigned.low_water_mark == (remote[-1] if remote else 0)


@given(histories)
def test_all_starts_that_c3_lets_start(history: list[Step]) -> None:
    """With a worker for each: the rule written down naively, one wave after the other."""
    entries = entries_of(history)
    expected: list[list[int]] = []
    executing: list[RelayEntry] = []
    for one in entries:
        if not may_start(Job([one]), [], executing):
            executing = []
        if not executing:
            expected.append([])
        executing.append(one)
        expected[-1].append(one.position)
    assert waves(of(), entries) == expected


@given(streams, workers, seeds)
def test_both_policies_start_the_same_in_the_same_order(
    entries: list[RelayEntry], workers: int, seed: int
) -> None:
    one, other = (
        run_randomly(SchemeDriver(of(policy), workers), entries, random.Random(seed))
        for policy in Policy
    )
    assert [job.entries for job in one.started] == [job.entries for job in other.started]
    assert [job.worker for job in one.started] == [job.worker for job in other.started]


@given(st.integers(1, 5), st.integers(0, 5), st.integers(1, 6), st.integers(1, 40))
def test_runs_are_fair_full_and_not_too_many(
    least: int, more: int, idle: int, transactions: int
) -> None:
    most = least + more
    scheme = of(job_transactions_min=least, job_transactions_max=most)
    pending = deque(entry(number, (0, number)) for number in range(1, transactions + 1))
    jobs = scheme.take(pending, range(idle), 1_000)
    sizes = [len(job.entries) for job in jobs]
    assert sum(sizes) == min(transactions, idle * most)
    assert max(sizes) <= most and max(sizes) - min(sizes) <= 1
    assert len(jobs) == 1 or min(sizes) >= least or (len(jobs) - 1) * most < sum(sizes)
    assert len(jobs) == idle or sum(sizes) < (len(jobs) + 1) * least
    assert [job.worker for job in jobs] == list(range(len(jobs)))


def test_the_low_water_mark_waits_for_the_oldest_where_commits_have_no_order() -> None:
    scheme = of(preserve_commit_order=False)
    pending = deque(entry(number, (0, number)) for number in range(1, 4))
    first, second, third = scheme.take(pending, [1, 2, 3], 10)
    scheme.committed(third)
    scheme.committed(second)
    assert (scheme.assigned.low_water_mark, scheme.assigned.oldest) == (0, 1)
    scheme.committed(first)
    assert scheme.assigned.low_water_mark == 3


def test_a_scheme_that_ignores_the_stamps_is_caught() -> None:
    class Reckless(LogicalClock):
        def _startable(self, pending: deque[RelayEntry], limit: int, room: int) -> int:
            return min(limit, len(pending))

    driver = SchemeDriver(Reckless(), 2, rule=may_start)
    with pytest.raises(AssertionError, match="2 must not start"):
        run_randomly(driver, [entry(1, (0, 1)), entry(2, (1, 2))], random.Random(1))


def test_a_scheme_that_waits_for_itself_is_caught() -> None:
    class Stuck(LogicalClock):
        def committed(self, job: Job[Any]) -> None:
            pass

    with pytest.raises(AssertionError, match="deadlock"):
        run_randomly(
            SchemeDriver(Stuck(), 2), [entry(1, (0, 1)), entry(2, (1, 2))], random.Random(1)
        )
