"""The source's clock against WL#7165: what may overlap on a replica is what overlapped here.

Aim: the master logic of the worklog, its figure of six transactions, commits out of order, and the
exhaustion of the counters. The oracle keeps the lock intervals themselves, as times.
"""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.source.clock import SEQUENCE_NUMBER_MAX, SourceClock
from groupcert.certifier.errors import InvalidSetting


def test_the_last_statement_counts() -> None:
    clock = SourceClock()
    other = clock.flush()
    last_committed = clock.end_statement()
    clock.commit(other)
    last_committed = clock.end_statement()
    assert clock.stamp(last_committed) == (other, 2)


def test_transactions_that_hold_their_locks_at_once_say_so() -> None:
    """WL#7165's figure: L1 L2 L3 C1 L4 C2 L5 L6 C3 L7 ..., each C after a flush."""
    clock = SourceClock()
    read, stamps = {}, {}
    for event, number in ("L1", "L2", "L3", "C1", "L4", "C2", "L5", "L6", "C3", "L7", "C4", "C5"):
        if event == "L":
            read[number] = clock.end_statement()
        else:
            stamps[number] = clock.stamp(read[number])
            clock.commit(stamps[number][1])
    assert stamps == {"1": (0, 1), "2": (0, 2), "3": (0, 3), "4": (1, 4), "5": (2, 5)}
    assert (clock.stamp(read["6"]), clock.stamp(read["7"])) == ((2, 6), (3, 7))


def test_a_commit_that_was_overtaken_does_not_turn_the_clock_back() -> None:
    """Note 1 of the worklog: T3 cannot run beside T1, though it could."""
    clock = SourceClock()
    first, second = clock.flush(), clock.flush()
    clock.commit(second)
    third = clock.stamp(clock.end_statement())
    clock.commit(first)
    assert third == (second, 3)
    assert clock.max_committed_transaction == second


def test_what_has_no_write_set_runs_alone() -> None:
    clock = SourceClock()
    read = clock.end_statement()
    assert clock.stamp(read) == (0, 1)
    assert clock.stamp(read, knows_rows=False) == (1, 2)
    assert clock.stamp(read) == (2, 3)
    assert clock.stamp(read) == (2, 4)


def test_what_is_not_known_waits_for_all_before_it_and_for_no_more() -> None:
    clock = SourceClock()
    read = clock.end_statement()
    assert [clock.stamp(each) for each in (read, None, read)] == [(0, 1), (1, 2), (0, 3)]


def test_a_lock_interval_that_began_before_the_file_begins_with_it() -> None:
    assert SourceClock().stamp(-7) == (0, 1)


def test_both_counters_begin_again_with_a_file() -> None:
    clock = SourceClock()
    clock.stamp(0, knows_rows=False)
    clock.commit(1)
    clock.rotate()
    assert (clock.transaction_counter, clock.max_committed_transaction) == (0, 0)
    assert clock.stamp(clock.end_statement()) == (0, 1)


def test_an_exhausted_counter_asks_for_a_rotation() -> None:
    clock = SourceClock(sequence_number_max=2)
    assert SourceClock().left == SEQUENCE_NUMBER_MAX
    clock.flush()
    assert clock.left == 1
    clock.flush()
    assert clock.left == 0
    with pytest.raises(AssertionError, match="more transactions than numbers"):
        clock.flush()
    clock.rotate()
    assert clock.flush() == 1


def test_a_file_without_a_number_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="sequence_number_max is '0'"):
        SourceClock(0)


def test_only_what_was_flushed_commits() -> None:
    with pytest.raises(AssertionError, match="1 is not flushed"):
        SourceClock().commit(1)


@given(st.integers(0, 2**32), st.integers(1, 12), st.booleans())
def test_stamps_never_let_two_overlap_whose_lock_intervals_did_not(
    seed: int, count: int, in_order: bool
) -> None:
    """Random histories; with ordered commits the stamps also forbid nothing else (C1, C2)."""
    chance = Random(seed)
    clock = SourceClock()
    time = 0
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    read: list[tuple[int, int]] = []
    stamps: dict[int, int] = {}
    flushed: list[int] = []
    while len(ends) < count:
        time += 1
        step = chance.choice("LFC")
        if step == "L" and len(begins) + len(read) < count:
            read.append((clock.end_statement(), time))
        elif step == "F" and read:
            value, began = read.pop(chance.randrange(len(read)))
            stamps_of, number = clock.stamp(value)
            stamps[number], begins[number] = stamps_of, began
            flushed.append(number)
        elif step == "C" and flushed:
            number = flushed.pop(0 if in_order else chance.randrange(len(flushed)))
            clock.commit(number)
            ends[number] = time
    for later in begins:
        for earlier in range(1, later):
            may_overlap = earlier > stamps[later]
            did_overlap = ends[earlier] > begins[later]
            assert did_overlap or not may_overlap
            assert may_overlap == did_overlap or not in_order
