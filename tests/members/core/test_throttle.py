"""The token bucket keeps its rate over any time."""

from hypothesis import given
from hypothesis import strategies as st

from groupcert.members.core.throttle import BURST_SECONDS, Throttle


def test_without_a_rate_nothing_waits() -> None:
    assert Throttle(0).delay_seconds(1 << 40, 0.0) == 0.0


def test_time_that_goes_back_gives_nothing() -> None:
    throttle = Throttle(1_000)
    assert throttle.delay_seconds(1_100, 5.0) == 1.0
    assert throttle.delay_seconds(1_000, 4.0) == 2.0


@given(
    st.integers(1, 10_000),
    st.lists(st.tuples(st.integers(1, 5_000), st.floats(0.0, 3.0)), min_size=1, max_size=50),
)
def test_no_more_goes_than_rate_and_burst_allow(rate: int, calls: list[tuple[int, float]]) -> None:
    """Each call waits as long as it is told to, and then some."""
    throttle = Throttle(rate)
    now, sent = 0.0, 0
    for size, idle in calls:
        now += throttle.delay_seconds(size, now)
        sent += size
        assert sent <= rate * (now + BURST_SECONDS) + 1e-3 * sent
        now += idle
