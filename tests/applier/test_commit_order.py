"""The commit order: whatever becomes ready when, what is taken is the total order."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from applier.commit_order import CommitOrder
from applier.job import Job
from tests.applier.histories import entries_of, remote


def jobs_of(sizes: list[int]) -> list[Job[None]]:
    entries = entries_of(remote(1) for _ in range(sum(sizes)))
    jobs, start = [], 0
    for size in sizes:
        jobs.append(Job[None](entries[start : start + size], 0))
        start += size
    return jobs


@given(
    st.lists(st.integers(1, 3), max_size=10),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
)
def test_jobs_are_taken_in_order_whoever_is_ready_first(
    sizes: list[int], transactions_max: int, chance: random.Random
) -> None:
    jobs = jobs_of(sizes)
    order: CommitOrder[None] = CommitOrder()
    for job in jobs:
        order.append(job)
    taken: list[Job[None]] = []
    for job in chance.sample(jobs, len(jobs)):
        job.is_ready = True
        while order.is_ready:
            group = order.take(transactions_max)
            assert len(group) == 1 or sum(len(one.entries) for one in group) <= transactions_max
            taken += group
            order.check_invariants()
        assert all(one.is_ready for one in taken)
        assert list(order.jobs) == jobs[len(taken) :]
    assert taken == jobs


def test_the_whole_ready_prefix_is_one_group() -> None:
    jobs = jobs_of([2, 1, 3, 1])
    order: CommitOrder[None] = CommitOrder()
    for job in jobs:
        order.append(job)
    for index in (3, 1, 0):
        jobs[index].is_ready = True
    assert order.take(100) == jobs[:2]
    assert order.take(100) == []


def test_appending_out_of_the_total_order_is_a_bug() -> None:
    first, second = jobs_of([1, 1])
    order: CommitOrder[None] = CommitOrder()
    order.append(second)
    with pytest.raises(AssertionError, match="out of order"):
        order.append(first)
