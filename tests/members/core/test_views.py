"""Views: compare-and-set, and what joining and leaving do to the list of members."""

from hypothesis import given
from hypothesis import strategies as st

from groupcert.members.core.views import View, ViewMember
from tests.members.state_machines import run_of


@given(st.lists(st.builds(run_of, st.integers(1, 5), st.integers(0, 3)), max_size=8))
def test_names_are_unique_and_in_order_whoever_joins(joiners: list[ViewMember]) -> None:
    view = View()
    for joiner in joiners:
        view = View(members=view.with_member(joiner))
        assert view.member(joiner.incarnation) == joiner
    names = [member.name for member in view.members]
    assert names == sorted({joiner.name for joiner in joiners})
