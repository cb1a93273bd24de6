"""The first try is made at once, later ones after a pause, and at some point no more."""

from groupcert.members.core.rejoins import Rejoins


def test_tries_are_an_interval_apart_and_end() -> None:
    rejoins = Rejoins(3, 30_000)
    assert [rejoins.next_delay_ms(now_ms) for now_ms in range(4)] == [0, 30_000, 30_000, None]
    assert rejoins.tries == 3


def test_a_member_that_was_back_for_long_has_all_its_tries_again() -> None:
    rejoins = Rejoins(1, 30_000)
    assert rejoins.next_delay_ms(0) == 0
    rejoins.joined(1_000)
    assert rejoins.next_delay_ms(31_000) == 0


def test_a_member_that_was_back_for_a_moment_has_not() -> None:
    rejoins = Rejoins(1, 30_000)
    assert rejoins.next_delay_ms(0) == 0
    rejoins.joined(1_000)
    assert rejoins.next_delay_ms(30_999) is None


def test_without_tries_a_member_stays_out() -> None:
    assert Rejoins(0, 1).next_delay_ms(0) is None
