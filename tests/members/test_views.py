"""Views: compare-and-set, and what joining and leaving do to the list of members."""

from hypothesis import given
from hypothesis import strategies as st

from members.views import View, ViewMember
from tests.members.minds import run_of

GROUP = View(view_id=3, members=(run_of(1), run_of(3)))


def test_a_proposal_for_the_current_view_makes_the_next_one() -> None:
    assert GROUP.follow(3, [run_of(2)]) == View(view_id=4, members=(run_of(2),))


def test_a_proposal_for_another_view_does_not_count() -> None:
    assert GROUP.follow(2, [run_of(2)]) is None
    assert GROUP.follow(4, [run_of(2)]) is None


def test_of_two_racing_joiners_one_wins() -> None:
    second, fourth = (GROUP.with_member(run_of(number)) for number in (2, 4))
    after = GROUP.follow(3, second)
    assert after is not None
    assert after.members == (run_of(1), run_of(2), run_of(3))
    assert after.follow(3, fourth) is None


def test_a_member_is_found_by_its_run_and_by_its_name() -> None:
    assert GROUP.member(3) == run_of(3)
    assert GROUP.member(13) is None
    assert GROUP.named("m3") == run_of(3)
    assert GROUP.named("m2") is None


def test_a_new_run_takes_the_place_of_the_old_one() -> None:
    members = GROUP.with_member(run_of(3, run=1))
    assert members == (run_of(1), run_of(3, run=1))


def test_leaving_takes_the_name_out_whatever_its_run() -> None:
    assert GROUP.without_member("m3") == (run_of(1),)
    assert GROUP.without_member("m2") == GROUP.members


@given(st.lists(st.builds(run_of, st.integers(1, 5), st.integers(0, 3)), max_size=8))
def test_names_are_unique_and_in_order_whoever_joins(joiners: list[ViewMember]) -> None:
    view = View()
    for joiner in joiners:
        view = View(members=view.with_member(joiner))
        assert view.member(joiner.incarnation) == joiner
    names = [member.name for member in view.members]
    assert names == sorted({joiner.name for joiner in joiners})
