"""A member that has asked to join: it is refused, or leaves before that is decided."""

import pytest

from members.log_records import GroupSettings, LogBatch
from members.member import Member
from members.member_state import MemberState
from members.security_errors import MemberNotAllowed
from tests.members.minds import SETTINGS, batch_of, deliver, joining, mind, names, send

CLOSED = SETTINGS._replace(settings_version=2, members_allowed=("m1",))
MENDED = CLOSED._replace(settings_version=3, members_allowed=("m1", "m2"))


def founded() -> tuple[Member, Member]:
    """A member that is alone in its group, and one that has asked to join."""
    founder, joiner = mind(), mind(2)
    founder.caught_up()
    send(founder, joiner)
    joiner.caught_up()
    return founder, joiner


def allowing(number: int, settings: GroupSettings) -> LogBatch:
    return batch_of(1, number, controls=[settings])


def test_a_joiner_that_a_newer_list_refuses_says_so() -> None:
    founder, joiner = founded()
    for member in (founder, joiner):
        deliver(member, allowing(2, CLOSED))
    with pytest.raises(MemberNotAllowed, match="member 'm2' is not allowed"):
        send(joiner)
    assert names(joiner) == ["m1"]


def test_a_joiner_that_the_list_takes_again_joins() -> None:
    founder, joiner = founded()
    for member in (founder, joiner):
        deliver(member, allowing(2, CLOSED), allowing(3, MENDED))
    send(joiner, founder)
    assert joiner.state is MemberState.ONLINE
    assert names(founder) == ["m1", "m2"]


def test_who_leaves_before_it_has_joined_does_both() -> None:
    founder, joiner = founded()
    joiner.leave()
    send(joiner, founder)
    assert names(founder) == ["m1", "m2"]
    states = [joiner.state]
    send(joiner, founder)
    states.append(joiner.state)
    assert names(founder) == ["m1"]
    assert states == [MemberState.JOINING, MemberState.LEFT], "it takes no clients in between"


def test_who_leaves_and_is_overtaken_has_left() -> None:
    founder, joiner = founded()
    joiner.leave()
    deliver(joiner, joining(founder, 3))
    assert joiner.state is MemberState.LEFT
    send(joiner)
    assert names(joiner) == ["m1", "m3"]
    assert joiner.publisher.next_batch() is None, "it does not ask again"


def test_who_leaves_and_is_refused_has_left() -> None:
    _, joiner = founded()
    joiner.leave()
    deliver(joiner, allowing(2, CLOSED))
    send(joiner)
    assert joiner.state is MemberState.LEFT
    assert names(joiner) == ["m1"]


def test_who_leaves_before_it_has_asked_does_not_ask() -> None:
    member = mind()
    member.leave()
    assert member.state is MemberState.LEFT
    member.caught_up()
    assert member.publisher.next_batch() is None
