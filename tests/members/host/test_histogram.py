"""A histogram against plain counting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.members.host.histogram import AMOUNTS, SECONDS, Histogram


@given(st.lists(st.floats(0, 100) | st.sampled_from(SECONDS)))
def test_each_measurement_is_counted_at_the_first_bound_that_it_does_not_pass(
    measured: list[float],
) -> None:
    histogram = Histogram()
    for each in measured:
        histogram.add(each)
    for index, bound in enumerate(SECONDS):
        assert sum(histogram.counts[: index + 1]) == sum(each <= bound for each in measured)
    assert histogram.count == len(measured)
    assert histogram.sum == pytest.approx(sum(measured))


def test_bounds_ascend() -> None:
    for bounds in (SECONDS, AMOUNTS):
        assert list(bounds) == sorted(set(bounds))
