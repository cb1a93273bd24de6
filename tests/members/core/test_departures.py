"""Who has gone stays named, but of too many those that have been away for longest."""

from groupcert.members.core.log_records import ViewProposal
from groupcert.members.core.members import DEPARTED_MAX, Departures
from groupcert.members.core.views import View
from tests.members.state_machines import run_of


def test_of_too_many_the_longest_away_are_forgotten() -> None:
    departures, here = Departures(), run_of(1)
    for number in range(2, DEPARTED_MAX + 7):
        before, after = (
            View(view_id=number, members=members) for members in ((here, run_of(number)), (here,))
        )
        departures.followed(before, after, 1, ViewProposal(number, after.members))
    names = {each.name for each in departures.named()}
    assert names == {f"m{number}" for number in range(7, DEPARTED_MAX + 7)}
