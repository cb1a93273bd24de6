"""The demo's check of stamps and execution, on histories that are wrong in one place."""

from dataclasses import replace

import pytest

from groupcert.members.demo.group_checks import Applied, overlap_problems

FIRST = Applied(
    transaction_id=b"1",
    gtid="u:1",
    version=1,
    clock_run=0,
    last_committed=1,
    sequence_number=2,
    started_tick=1,
    committed_tick=2,
    items=(7, 8),
)
SECOND = replace(
    FIRST, version=2, last_committed=2, sequence_number=3, started_tick=2, committed_tick=3
)
LOCAL = replace(SECOND, last_committed=0, sequence_number=0, started_tick=0)


def problems(*history: Applied) -> list[str]:
    """What is wrong with transactions, in their order."""
    newest_writer: dict[int, Applied] = {}
    return [text for applied in history for text in overlap_problems(applied, newest_writer)]


@pytest.mark.parametrize(
    "history",
    [
        (FIRST, SECOND),
        (FIRST, replace(SECOND, last_committed=1, started_tick=1, items=(9,))),
        (FIRST, LOCAL, replace(SECOND, version=3, started_tick=2, committed_tick=4)),
        (FIRST, replace(SECOND, last_committed=1, sequence_number=2, clock_run=1)),
    ],
    ids=["one by one", "other rows at once", "beside a local one", "after a reset of the clock"],
)
def test_a_history_that_keeps_the_rule_is_fine(history: tuple[Applied, ...]) -> None:
    assert problems(*history) == []


def test_dependent_transactions_that_ran_at_once_are_found() -> None:
    (text, _) = problems(FIRST, replace(SECOND, started_tick=1))
    assert text == (
        "version 2 began at tick 1, before version 1, which wrote the same row, committed at 2"
    )


def test_a_stamp_that_lets_dependent_transactions_run_at_once_is_found() -> None:
    (text,) = problems(FIRST, replace(SECOND, last_committed=1, items=(8,)))
    assert text == "version 2 is stamped 1, below 2 of version 1, which wrote the same row"


def test_a_transaction_that_was_never_applied_is_found() -> None:
    assert problems(replace(FIRST, committed_tick=0)) == ["version 1 was never committed"]
