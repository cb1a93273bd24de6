"""A member is suspected for its own silence only, never for ours or for the log's."""

from groupcert.members.core.members import Suspicions

GAP_MS_MAX = 2_000


def test_a_silence_is_worth_a_word_before_it_is_suspicious_and_no_single_report_is() -> None:
    for gap_ms_max, first_ms in ((GAP_MS_MAX, 3_000), (200, 3_000), (4_000, 5_000)):
        suspicions = Suspicions(gap_ms_max)
        suspicions.heard_own(0)
        suspicions.heard(2)
        step_ms = min(gap_ms_max, 1_000)
        for now_ms in range(step_ms, 6_000, step_ms):
            suspicions.heard_own(now_ms)
            assert suspicions.overdue_ms(2) in (0, now_ms)
            if now_ms % 1_000 == 0:
                assert (suspicions.overdue_ms(2) > 0) == (now_ms >= first_ms)


def test_who_is_not_watched_is_not_silent() -> None:
    suspicions = Suspicions(GAP_MS_MAX)
    suspicions.heard(2)
    suspicions.heard(3)
    suspicions.keep_only({3})
    suspicions.heard_own(0)
    suspicions.heard_own(1_000)
    assert (suspicions.silent_ms(2), suspicions.silent_ms(3)) == (0, 1_000)
