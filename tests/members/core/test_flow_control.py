"""Credit: a group goes at the pace of its slowest member."""

from hypothesis import given
from hypothesis import strategies as st

from groupcert.members.core.flow_control import FlowControl


@given(st.integers(1, 9), st.integers(1, 1_000), st.integers(0, 2_000))
def test_all_members_together_never_send_past_the_limit(
    members: int, lag_max: int, lag: int
) -> None:
    flow = FlowControl()
    flow.measure(3_000, [("m1", 3_000 - lag)])
    assert members * flow.credit(lag_max, members, 0) <= max(0, max(lag_max, members) - lag)
