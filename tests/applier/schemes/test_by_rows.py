"""The rows scheme executes one transaction at a time, each with as many workers as it has rows.

The story is in tests/testdata/schemes/rows.txt.
"""

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.queue.job import Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.row_parts import Part
from groupcert.applier.schemes.by_rows import ByRows
from tests.applier.scheme_driver import SchemeDriver, run_randomly, streams


@given(
    stream=streams,
    workers=st.integers(1, 4),
    room=st.integers(1, 30),
    chance=st.randoms(use_true_random=True),
)
def test_nothing_starts_beside_another_transaction_and_all_commit_in_order(
    stream: Sequence[RelayEntry], workers: int, room: int, chance: random.Random
) -> None:
    def rule(job: Job[Any], others: Sequence[Job[Any]], before: Sequence[RelayEntry]) -> bool:
        return not before and all(other.entries == job.entries for other in others)

    driver = SchemeDriver(ByRows(), workers, room=room, rule=rule)
    run_randomly(driver, stream, chance)
    assert driver.committed == stream
    for one in stream:
        jobs = [job for job in driver.started if job.entries == [one]]
        rows = len(one.header.items) or workers
        assert len(jobs) == (min(workers, rows) if one.gtid else 1)
        if len(jobs) > 1:
            slots = [Part(slot=slot, slots=len(jobs)) for slot in range(len(jobs))]
            assert [job.part for job in jobs] == slots
