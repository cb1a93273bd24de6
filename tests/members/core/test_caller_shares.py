"""Places that callers share: half for one alone, and always room for a newcomer."""

from hypothesis import given
from hypothesis import strategies as st

from groupcert.members.core.caller_shares import Shares


def filled(shares: Shares, caller: str) -> int:
    """Takes as many places as the caller gets; returns how many."""
    taken = 0
    while shares.take(caller):
        taken += 1
    return taken


def test_one_caller_alone_gets_half_and_the_others_what_is_left_by_the_same_rule() -> None:
    shares = Shares(1_024)
    assert [filled(shares, caller) for caller in "abc"] == [512, 256, 128]
    assert (shares.held("a"), shares.held("d"), shares.taken) == (512, 0, 896)


def test_a_share_is_what_a_caller_gets_at_most() -> None:
    shares = Shares(100)
    assert shares.share("a") == 50
    filled(shares, "a")
    assert (shares.share("a"), shares.share("b")) == (50, 25)
    assert filled(shares, "b") == 25


def test_who_gives_back_may_take_again() -> None:
    shares = Shares(1)
    assert shares.take("a")
    assert not shares.take("b")
    shares.give_back("a")
    assert shares.take("b")
    assert (shares.held("a"), shares.share("b")) == (0, 1)


@given(
    places_max=st.integers(1, 40),
    steps=st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=120),
)
def test_a_newcomer_gets_a_place_for_as_long_as_one_is_left(
    places_max: int, steps: list[tuple[str, bool]]
) -> None:
    shares = Shares(places_max)
    for caller, takes in steps:
        if takes:
            is_below = shares.held(caller) < shares.places_max - shares.taken
            assert shares.take(caller) == is_below
        elif shares.held(caller):
            shares.give_back(caller)
        shares.check_invariants()
    is_one_left = shares.taken < places_max
    assert shares.take("newcomer") == is_one_left


def test_who_has_none_gets_what_it_asks_for_once_a_newcomer_has_room() -> None:
    shares = Shares(100, newcomer=10)
    assert shares.take("a", 50)
    assert not shares.take("a", 1)
    assert shares.take("b", 200)
    assert not shares.take("c", 1)
    shares.give_back("b", 195)
    assert shares.take("c", 60)
    shares.add("c", 7)
    assert (shares.held("c"), shares.taken) == (67, 122)
    shares.check_invariants()
