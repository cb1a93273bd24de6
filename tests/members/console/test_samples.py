"""Rates and percentiles of the last 15 minutes, from counters that may begin again."""

import random

import pytest

from groupcert.members.console.samples import (
    POINTS_MAX,
    WINDOW_SECONDS,
    History,
    Sample,
    between,
    quantile,
)
from groupcert.members.host.histogram import SECONDS, Histogram


def sample(seconds: float, certified: int, aborted: int = 0, **durations: list[int]) -> Sample:
    return Sample(seconds, int(seconds * 1e6), certified, aborted, (0.001, 0.01), durations)


def test_rates_are_of_the_time_that_has_passed() -> None:
    point = between(sample(10, 100, 5), sample(12, 300, 9))
    assert (point.at_us, point.commits_per_second, point.aborts_per_second) == (12_000_000, 100, 2)
    assert (point.p50_seconds, point.p99_seconds) == (None, None)


def test_durations_are_of_all_members_that_were_there_before() -> None:
    before = sample(0, 0, m1=[5, 0, 0], m2=[0, 7, 0])
    point = between(before, sample(5, 0, m1=[15, 0, 0], m2=[0, 17, 0], m3=[0, 0, 999]))
    assert point.p50_seconds == pytest.approx(0.001)
    assert point.p99_seconds == pytest.approx(0.001 + 0.98 * 0.009)


def test_a_run_that_began_again_counts_from_zero() -> None:
    point = between(sample(0, 0, m1=[50, 50, 0]), sample(5, 0, m1=[4, 0, 0]))
    assert point.p99_seconds == pytest.approx(0.99 * 0.001)


def test_percentiles_are_within_the_bucket_of_the_true_ones() -> None:
    drawn = random.Random(7)
    histogram, times = Histogram(), []
    for _ in range(5_000):
        times.append(drawn.lognormvariate(-6, 1))
        histogram.add(times[-1])
    for share in (0.5, 0.99):
        truth = sorted(times)[int(share * len(times))]
        upper = next(bound for bound in SECONDS if bound >= truth)
        lower = max(bound for bound in (0.0, *SECONDS) if bound < truth)
        found = quantile(histogram.bounds, histogram.counts, share)
        assert found is not None and lower <= found <= upper


def test_what_is_above_all_bounds_is_at_least_the_last_one() -> None:
    assert quantile((1.0, 2.0), (0, 0, 3), 0.5) == 2.0


def test_the_window_has_its_points_and_gaps() -> None:
    history = History()
    history.add(None, 0)
    assert history.points() == ()
    for at in range(3):
        history.add(sample(5 * at, 10 * at, m1=[at, 0, 0]), 0)
    assert [each.commits_per_second for each in history.points()] == [2, 2]
    assert history.commits_per_second == {"m1": 0.2}
    history.add(None, 77)
    assert history.points()[-1] == (77, None, None, None, None)
    assert history.commits_per_second == {}
    for at in range(2 * POINTS_MAX):
        history.add(sample(5 * at, at), 0)
    assert len(history.points()) == POINTS_MAX == WINDOW_SECONDS / 5
