"""The logical clock's invariant. What moves its counters: WL#8440's scripts and `test_core.py`."""

import pytest

from groupcert.certifier.logical_clock import LogicalClock


def test_a_window_that_begins_in_the_future_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        LogicalClock(last_committed_global=7, sequence_number=7)
    with pytest.raises(AssertionError):
        LogicalClock(sequence_number=7).raise_window(7)
