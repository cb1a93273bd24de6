"""The rows scheme executes one transaction at a time, each with as many workers as it has rows.

The story is in tests/testdata/schemes/rows.txt.
"""

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from applier.coordinator import Coordinator, CoordinatorOptions
from applier.job import Job
from applier.parts import Part
from applier.relay_queue import RelayEntry
from applier.schemes import Cause, Consistency, Hold, Ordering
from applier.schemes.rows import Rows
from tests.applier.scheme_driver import SchemeDriver, entry, run_randomly, streams


@given(
    stream=streams,
    workers=st.integers(1, 4),
    room=st.integers(1, 30),
    chance=st.randoms(use_true_random=False),
)
def test_nothing_starts_beside_another_transaction_and_all_commit_in_order(
    stream: Sequence[RelayEntry], workers: int, room: int, chance: random.Random
) -> None:
    def rule(job: Job[Any], others: Sequence[Job[Any]], before: Sequence[RelayEntry]) -> bool:
        return not before and all(other.entries == job.entries for other in others)

    driver = SchemeDriver(Rows(), workers, room=room, rule=rule)
    run_randomly(driver, stream, chance)
    assert driver.committed == stream
    for one in stream:
        jobs = [job for job in driver.started if job.entries == [one]]
        rows = len(one.header.items) or workers
        assert len(jobs) == (min(workers, rows) if one.gtid else 1)
        if len(jobs) > 1:
            slots = [Part(slot=slot, slots=len(jobs)) for slot in range(len(jobs))]
            assert [job.part for job in jobs] == slots


def test_it_promises_no_more_than_a_target_whose_parts_commit_one_by_one() -> None:
    assert (Rows.consistency, Rows.ordering) == (Consistency.MOST_OF_THE_TIME, Ordering.SOURCE)


def test_the_parts_commit_as_one_group_when_the_last_is_executed() -> None:
    coordinator: Coordinator[None] = Coordinator(Rows(), CoordinatorOptions())
    coordinator.append([entry(1, items=(1, 2, 3)), entry(2, items=(1, 2, 3))])
    jobs = coordinator.next_jobs([0, 1, 2])
    assert len(jobs) == 3
    for job in jobs[1:]:
        coordinator.executed(job, None)
        assert coordinator.take_committable() is None
    coordinator.executed(jobs[0], None)
    group = coordinator.take_committable()
    assert group
    assert sorted(job.worker for job in group.jobs) == [0, 1, 2]
    coordinator.committed(group)
    assert coordinator.low_water_mark and coordinator.low_water_mark.position == 1
    assert len(coordinator.next_jobs([0, 1, 2])) == 3
    coordinator.check_invariants()


def test_a_transaction_waits_for_a_worker_and_for_room() -> None:
    scheme = Rows()
    driver = SchemeDriver(scheme, 0)
    driver.append([entry(1)])
    assert driver.take() == []
    assert scheme.hold == Hold(Cause.WORKER)
    assert scheme.take(driver.pending, [1, 2], 0) == []
    assert scheme.hold == Hold(Cause.QUEUE)
