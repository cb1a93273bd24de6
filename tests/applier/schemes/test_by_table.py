"""The table scheme keeps each table's order, and nothing else, whatever comes in and commits when.

The story is in tests/testdata/schemes/table.txt.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.queue.job import Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.schemes.by_table import ByTable
from tests.applier.partitioned_streams import busy_streams
from tests.applier.scheme_driver import SchemeDriver, entry, run_randomly, streams


def tables_of(job: Job[Any]) -> frozenset[str] | None:
    """The tables that a job changes; None stands for all."""
    [one] = job.entries
    if job.part:
        return frozenset({job.part.table})
    if one.gtid is None or one.header.tables is None:
        return None
    return frozenset(one.header.tables)


@given(
    stream=streams | busy_streams,
    workers=st.integers(1, 4),
    worker_queue_max=st.integers(1, 4),
    room=st.integers(1, 30),
    chance=st.randoms(use_true_random=True),
)
@pytest.mark.slow
def test_each_table_is_changed_by_one_worker_at_a_time_in_the_order_of_the_source(
    stream: Sequence[RelayEntry],
    workers: int,
    worker_queue_max: int,
    room: int,
    chance: random.Random,
) -> None:
    def rule(job: Job[Any], others: Sequence[Job[Any]], before: Sequence[RelayEntry]) -> bool:
        mine = tables_of(job)
        if mine is None:
            return job.part is None and not before and not others
        theirs = map(tables_of, others)
        return all(their is not None and mine.isdisjoint(their) for their in theirs)

    scheme = ByTable(worker_queue_max=worker_queue_max)
    driver = SchemeDriver(scheme, workers, room=room, rule=rule)
    run_randomly(driver, stream, chance)
    assert scheme.records == {}
    for table in {name for one in stream for name in one.header.tables or ()}:
        changed = [one.position for one in stream if table in (one.header.tables or ())]
        started = [job.entries[0].position for job in driver.started if table in _changes(job)]
        assert started == changed


def _changes(job: Job[Any]) -> frozenset[str]:
    return tables_of(job) or frozenset()


def test_a_transaction_of_no_table_or_one_is_not_divided() -> None:
    driver = SchemeDriver(ByTable(), 2)
    driver.append([entry(1, tables=()), entry(2, tables=("shop.orders",))])
    assert [(job.part, job.parts) for job in driver.take()] == [(None, 1), (None, 1)]
