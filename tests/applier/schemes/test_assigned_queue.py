"""The GAQ against a list of all runs ever assigned."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.schemes.logical_clock import AssignedQueue

run_lengths = st.lists(st.integers(1, 4), max_size=12)


def runs_of(lengths: list[int]) -> list[tuple[int, int]]:
    runs, first = [], 2
    for length in lengths:
        runs.append((first, first + length - 1))
        first += length
    return runs


@given(run_lengths, st.randoms(use_true_random=True))
def test_the_low_water_mark_passes_what_is_done_with_all_before(
    lengths: list[int], chance: random.Random
) -> None:
    runs = runs_of(lengths)
    queue = AssignedQueue()
    for first, last in runs:
        queue.append(first, last)
    waiting = list(runs)
    for first, last in chance.sample(runs, len(runs)):
        queue.done(first)
        waiting.remove((first, last))
        queue.check_invariants()
        assert queue.oldest == (waiting[0][0] if waiting else None)
        newest = runs[-1][1] if not waiting else waiting[0][0] - 1
        assert queue.low_water_mark == (newest if newest > 1 else 0)
    assert len(queue) == 0


def test_sequence_numbers_start_again_when_nothing_executes() -> None:
    queue = AssignedQueue()
    queue.append(40, 41)
    queue.done(40)
    queue.append(0)
    assert (queue.oldest, queue.low_water_mark) == (0, 41)
    queue.done(0)
    queue.append(2)
    assert (queue.oldest, queue.low_water_mark) == (2, 0)


def test_assigning_out_of_order_is_a_bug() -> None:
    queue = AssignedQueue()
    queue.append(3, 5)
    with pytest.raises(AssertionError, match="out of order"):
        queue.append(5)


def test_a_run_is_done_once() -> None:
    queue = AssignedQueue()
    queue.append(2)
    queue.append(3)
    queue.done(3)
    with pytest.raises(AssertionError, match="3 is done already"):
        queue.done(3)
