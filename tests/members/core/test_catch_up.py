"""When a member that reads the log may join, and what it says until then."""

import pytest

from groupcert.members.core.catch_up import CatchUp

CATCH_UP = CatchUp(first_sequence=11, began_ms=0, messages_max=10, transactions_max=100)


@pytest.mark.parametrize(
    ("log_sequence", "pending", "is_near"),
    [(990, 100, True), (989, 0, False), (1_000, 101, False), (1_005, 0, True)],
)
def test_both_lags_must_be_small(log_sequence: int, pending: int, is_near: bool) -> None:
    assert CATCH_UP.is_near(log_sequence, 1_000, pending, 0) == is_near


def test_rows_that_are_ahead_are_read_up_to_first() -> None:
    assert CATCH_UP.is_near(998, 1_000, 0, 998)
    assert not CATCH_UP.is_near(998, 1_000, 0, 999)


@pytest.mark.parametrize(
    ("log_sequence", "now_ms", "text"),
    [
        (10, 5_000, "reading the log: 0 of 2,000 messages"),
        (510, 100, "reading the log: 500 of 2,000 messages"),
        (510, 1_000, "reading the log: 500 of 2,000 messages, 3 s left"),
        (2_010, 1_000, "applying: 7 transactions left"),
        (2_011, 1_000, "applying: 7 transactions left"),
    ],
)
def test_progress_says_what_is_left(log_sequence: int, now_ms: int, text: str) -> None:
    assert CATCH_UP.progress(log_sequence, 2_010, 7, now_ms) == text
