"""Who has gone stays named, with when and why, until the name returns or is forgotten."""

import json

from members.departures import DEPARTED_MAX, SINCE_US_MAX, Cause, Departure, Departures
from members.log_records import ViewProposal
from members.views import View, ViewMember
from tests.members.minds import run_of

M1, M2, M3 = (run_of(number) for number in (1, 2, 3))
ALL = View(view_id=3, members=(M1, M2, M3))


def follow(
    departures: Departures,
    before: View,
    members: tuple[ViewMember, ...],
    *,
    by: int,
    cause: int = 0,
    proposed_us: int = 0,
) -> View:
    """The view that a proposal makes, which is noted."""
    proposal = ViewProposal(before.view_id, members, cause, proposed_us)
    view = before.follow(*proposal[:2])
    assert view is not None
    departures.followed(before, view, by, proposal)
    return view


def test_who_leaves_is_named_with_its_reason_and_its_time() -> None:
    departures = Departures()
    follow(departures, ALL, (M1, M2), by=M1.incarnation, cause=2, proposed_us=5_000)
    assert departures.named() == [Departure("m3", "m3:1", Cause.SILENT, 4, 5_000)]


def test_who_proposes_a_view_without_itself_has_left_whatever_the_cause_says() -> None:
    departures = Departures()
    follow(departures, ALL, (M1, M2), by=M3.incarnation)
    assert departures.named()[0].cause is Cause.LEFT


def test_what_an_earlier_release_or_nonsense_says_is_not_known() -> None:
    for cause in (0, 99):
        departures = Departures()
        follow(departures, ALL, (M1,), by=M1.incarnation, cause=cause, proposed_us=SINCE_US_MAX)
        assert [(each.name, each.cause, each.since_us) for each in departures.named()] == [
            ("m2", Cause.UNKNOWN, 0),
            ("m3", Cause.UNKNOWN, 0),
        ]


def test_a_name_that_returns_is_not_missed_any_more() -> None:
    departures = Departures()
    view = follow(departures, ALL, (M1, M2), by=M1.incarnation, cause=3)
    again = run_of(3, run=1)
    follow(departures, view, (M1, M2, again), by=again.incarnation)
    assert departures.named() == []


def test_another_run_of_a_member_that_is_there_is_no_departure() -> None:
    departures = Departures()
    again = run_of(3, run=1)
    follow(departures, ALL, (M1, M2, again), by=again.incarnation)
    assert departures.named() == []


def test_what_is_forgotten_is_named_no_more_and_nobody_else_is_meant() -> None:
    departures = Departures()
    follow(departures, ALL, (M1,), by=M1.incarnation, cause=2)
    departures.forget("m2")
    departures.forget("m9")
    assert [each.name for each in departures.named()] == ["m3"]


def test_it_goes_on_from_what_was_stored() -> None:
    departures, restored = Departures(), Departures()
    follow(departures, ALL, (M1,), by=M1.incarnation, cause=2, proposed_us=7)
    restored.restore(json.loads(json.dumps(departures.dump())))
    assert restored.named() == departures.named()
    assert restored.dump() == departures.dump()


def test_of_too_many_the_longest_away_are_forgotten() -> None:
    departures = Departures()
    for number in range(DEPARTED_MAX + 5):
        gone = ViewMember(name=f"x{number:03}", incarnation=number + 10, address="a:1")
        follow(departures, View(view_id=number, members=(M1, gone)), (M1,), by=M1.incarnation)
    names = [each.name for each in departures.named()]
    assert names == [f"x{number:03}" for number in range(5, DEPARTED_MAX + 5)]
