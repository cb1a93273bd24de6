"""The logical clock: what moves its two counters. The examples of WL#8440 are scripts."""

import pytest

from certifier.logical_clock import LogicalClock


def test_a_group_starts_with_one_and_two() -> None:
    assert LogicalClock().stamp(0) == (1, 2)


def test_a_dependency_counts_only_above_the_edge() -> None:
    clock = LogicalClock(last_committed_global=5, sequence_number=8)
    assert clock.stamp(3) == (5, 8)
    assert clock.stamp(6) == (6, 9)
    assert (clock.last_committed_global, clock.sequence_number) == (5, 10)


def test_a_transaction_without_write_set_parts_before_from_after() -> None:
    clock = LogicalClock(last_committed_global=1, sequence_number=5)
    assert clock.stamp_alone() == (4, 5)
    assert clock.stamp(0) == (5, 6)


def test_a_closed_window_begins_at_the_last_assigned_number() -> None:
    clock = LogicalClock(sequence_number=7)
    clock.close_window()
    assert clock.stamp(0) == (6, 7)


def test_a_raised_window_never_falls() -> None:
    clock = LogicalClock(last_committed_global=4, sequence_number=7)
    clock.raise_window(3)
    assert clock.last_committed_global == 4
    clock.raise_window(6)
    assert clock.last_committed_global == 6


def test_a_reset_clock_stamps_as_a_new_one() -> None:
    clock = LogicalClock(last_committed_global=4, sequence_number=7)
    clock.reset()
    assert clock.stamp(0) == LogicalClock().stamp(0)


def test_a_window_that_begins_in_the_future_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        LogicalClock(last_committed_global=7, sequence_number=7)
    with pytest.raises(AssertionError):
        LogicalClock(sequence_number=7).raise_window(7)
