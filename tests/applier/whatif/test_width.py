"""The width of parallelism over time, in buckets."""

from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.whatif.width import BUCKETS_MAX, WidthSeries


def test_buckets_are_one_microsecond_until_they_are_full() -> None:
    width = WidthSeries()
    width.add(0, 3, 2)
    width.add(3, 1, 5)
    assert width.areas_us(4) == [2, 2, 2, 5]
    assert (width.bucket_us, width.width_max) == (1, 5)


def test_two_buckets_become_one_when_time_goes_on() -> None:
    width = WidthSeries()
    width.add(0, BUCKETS_MAX, 3)
    width.add(BUCKETS_MAX, 2, 1)
    assert width.bucket_us == 2
    assert width.areas_us(BUCKETS_MAX + 2) == [6] * (BUCKETS_MAX // 2) + [2]


@given(st.lists(st.tuples(st.integers(1, 10_000), st.integers(0, 64)), max_size=30))
def test_no_time_is_lost(stretches: list[tuple[int, int]]) -> None:
    width, now_us = WidthSeries(), 0
    for length_us, workers in stretches:
        width.add(now_us, length_us, workers)
        now_us += length_us
    areas = width.areas_us(now_us)
    assert sum(areas) == sum(length_us * workers for length_us, workers in stretches)
    assert len(areas) <= BUCKETS_MAX
