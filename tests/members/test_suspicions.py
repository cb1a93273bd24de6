"""A member is suspected for its own silence only, never for ours or for the log's."""

from members.suspicions import Suspicions

GAP_MS_MAX = 2_000


def test_a_member_is_silent_for_as_long_as_ours_go_through_and_its_do_not() -> None:
    suspicions = Suspicions(GAP_MS_MAX)
    suspicions.heard_own(0)
    suspicions.heard(2)
    for now_ms in range(1_000, 6_000, 1_000):
        suspicions.heard_own(now_ms)
    assert suspicions.silent_ms(2) == 5_000
    suspicions.heard(2)
    assert suspicions.silent_ms(2) == 0


def test_a_log_that_is_away_makes_nobody_look_dead() -> None:
    suspicions = Suspicions(GAP_MS_MAX)
    suspicions.heard_own(0)
    suspicions.heard(2)
    suspicions.heard_own(60_000)
    assert suspicions.silent_ms(2) == GAP_MS_MAX


def test_who_is_not_watched_is_not_silent() -> None:
    suspicions = Suspicions(GAP_MS_MAX)
    suspicions.heard(2)
    suspicions.heard(3)
    suspicions.keep_only({3})
    suspicions.heard_own(0)
    suspicions.heard_own(1_000)
    assert (suspicions.silent_ms(2), suspicions.silent_ms(3)) == (0, 1_000)
