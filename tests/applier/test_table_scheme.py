"""The table scheme keeps each table's order, and nothing else, whatever comes in and commits when.

The story is in tests/testdata/schemes/table.txt.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from applier.coordinator import Coordinator, CoordinatorOptions
from applier.job import Job
from applier.parts import Part
from applier.relay_queue import RelayEntry
from applier.schemes import Consistency, Ordering
from applier.schemes.table import Table
from certifier.errors import InvalidSetting
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
    chance=st.randoms(use_true_random=False),
)
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

    scheme = Table(worker_queue_max=worker_queue_max)
    driver = SchemeDriver(scheme, workers, room=room, rule=rule)
    run_randomly(driver, stream, chance)
    assert scheme.assigned.records == {}
    for table in {name for one in stream for name in one.header.tables or ()}:
        changed = [one.position for one in stream if table in (one.header.tables or ())]
        started = [job.entries[0].position for job in driver.started if table in _changes(job)]
        assert started == changed


def _changes(job: Job[Any]) -> frozenset[str]:
    return tables_of(job) or frozenset()


def test_it_promises_the_end_and_no_order_before() -> None:
    assert (Table.consistency, Table.ordering) == (Consistency.EVENTUAL, Ordering.NONE)


def test_a_transaction_of_no_table_or_one_is_not_divided() -> None:
    driver = SchemeDriver(Table(), 2)
    driver.append([entry(1, tables=()), entry(2, tables=("shop.orders",))])
    assert [(job.part, job.parts) for job in driver.take()] == [(None, 1), (None, 1)]


def test_a_divided_transaction_is_committed_when_its_last_part_is() -> None:
    coordinator: Coordinator[None] = Coordinator(Table(), CoordinatorOptions())
    coordinator.append([entry(1, tables=("shop.items", "shop.orders", "shop.stock"))])
    items, orders = coordinator.next_jobs([0, 1])
    for job in (items, orders):
        coordinator.executed(job, None)
    while group := coordinator.take_committable():
        coordinator.committed(group)
    assert (coordinator.committed_entries, coordinator.low_water_mark) == (0, None)
    [stock] = coordinator.next_jobs([0, 1])
    assert stock.part == Part(table="shop.stock")
    coordinator.executed(stock, None)
    group = coordinator.take_committable()
    assert group
    coordinator.committed(group)
    assert coordinator.low_water_mark and coordinator.low_water_mark.position == 1
    assert (coordinator.committed_entries, coordinator.length) == (1, 0)


def test_the_limit_of_a_queue_is_1_or_more() -> None:
    with pytest.raises(InvalidSetting, match="worker_queue_max is '0': expected 1 or more"):
        Table(worker_queue_max=0)
