"""Credit: a group goes at the pace of its slowest member, and everybody knows which one that is."""

from hypothesis import given
from hypothesis import strategies as st

from members.flow_control import UNLIMITED, FlowControl
from members.member_state import MemberState
from members.publisher import Submission
from tests.members.minds import SETTINGS, batch_of, deliver, online, report_of, write


def measured(newest: int, **applied: int) -> FlowControl:
    flow = FlowControl()
    flow.measure(newest, applied.items())
    return flow


def test_the_slowest_is_the_one_that_lags_most() -> None:
    flow = measured(1_000, m1=990, m2=400, m3=1_000)
    assert (flow.slowest, flow.lag) == ("m2", 600)


def test_who_has_not_reported_slows_nobody() -> None:
    flow = measured(1_000, m1=1_000, m2=0)
    assert (flow.slowest, flow.lag) == ("", 0)


def test_what_is_left_is_shared_and_in_flight_counts() -> None:
    flow = measured(1_000, m1=400)
    assert flow.credit(900, members=3, in_flight=20) == 80
    assert flow.credit(600, members=3, in_flight=0) == 0
    assert flow.credit(0, members=3, in_flight=10**6) == UNLIMITED


@given(st.integers(1, 9), st.integers(1, 1_000), st.integers(0, 2_000))
def test_all_members_together_never_send_past_the_limit(
    members: int, lag_max: int, lag: int
) -> None:
    flow = measured(3_000, m1=3_000 - lag)
    assert members * flow.credit(lag_max, members, 0) <= max(0, max(lag_max, members) - lag)


def test_a_limit_below_the_number_of_members_lets_each_send_one() -> None:
    assert measured(5, m1=5).credit(2, members=3, in_flight=0) == 1


def test_waiting_is_counted_and_explained() -> None:
    flow = measured(1_000, m1=400)
    assert flow.explanation() == ""
    for is_held, now_ms in ((True, 100), (True, 150), (False, 200), (False, 300)):
        flow.note(is_held, now_ms)
    assert flow.held_ms == 100
    flow.note(True, 400)
    assert flow.explanation() == "m1 slows the group: it has 600 transactions to apply"


def test_a_member_holds_back_until_the_slow_one_has_caught_up() -> None:
    member = online(2)
    limited = SETTINGS._replace(settings_version=2, flow_control_lag_max=8)
    writes = [write(0, item) for item in range(10)]
    deliver(member, batch_of(2, 2, writes, controls=[limited]))
    member.committed(10)
    deliver(member, report_of(member, 2, 3, 1, 1))
    member.publisher.submit(Submission([write(10, 99)], lambda ended: None))
    assert member.credit(0) == 0
    assert member.publisher.next_batch(credit=member.credit(0)) is None
    assert member.flow.slowest == "m2"
    deliver(member, report_of(member, 2, 4, 8, 8))
    batch = member.publisher.next_batch(credit=member.credit(50))
    assert batch is not None
    assert len(batch.transactions) == 1
    assert member.flow.held_ms == 50
    assert member.state is MemberState.ONLINE


def test_reports_and_marks_need_no_credit() -> None:
    member = online(2)
    member.publisher.submit(Submission([], lambda ended: None))
    member.publisher.submit(Submission([write(0, 1)], lambda ended: None))
    batch = member.publisher.next_batch(credit=0)
    assert batch is not None
    assert not batch.transactions
    deliver(member, batch)
    assert member.publisher.next_batch(credit=0) is None
    member.expel("m2")
    batch = member.publisher.next_batch(credit=0)
    assert batch is not None
    assert not batch.transactions
    assert member.publisher.waiting == 1


def test_a_member_reports_while_it_catches_up() -> None:
    member = online(2)
    limited = SETTINGS._replace(settings_version=2, flow_control_lag_max=80)
    writes = [write(0, item) for item in range(30)]
    deliver(member, batch_of(2, 2, writes, controls=[limited]))
    due = []
    for version in range(0, 30, 5):
        member.committed(version)
        due.append(member.report_if_due(0, 0))
    assert due == [False, False, True, False, True, False]
