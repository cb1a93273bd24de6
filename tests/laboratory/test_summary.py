"""What a run says of itself: counts, and the longest time without an acknowledgement."""

from dataclasses import replace

import pytest

from tests.laboratory.findings import Finding
from tests.laboratory.history import Fault, Operation, Outcome, Workload
from tests.laboratory.summary import longest_stall, summary_of
from tests.laboratory.written_histories import written_history

APPEND = Workload("append")


def attempt(invoked_ms: int, completed_ms: int, outcome: Outcome = Outcome.COMMITTED) -> Operation:
    """A transaction that wrote, and took from then to then."""
    (operation,) = written_history(APPEND, ["T1.0 committed: write x 1"]).operations
    return replace(operation, invoked_ms=invoked_ms, completed_ms=completed_ms, outcome=outcome)


@pytest.mark.parametrize(
    ("attempts", "stall"),
    [
        ([], (0, 0)),
        ([attempt(0, 10), attempt(10, 40), attempt(40, 45)], (30, 10)),
        ([attempt(0, 10), attempt(5_000, 5_010)], (10, 0)),
        ([attempt(0, 10), attempt(20, 900, Outcome.UNKNOWN), attempt(910, 950)], (940, 10)),
        ([attempt(0, 10), attempt(20, 900, Outcome.UNKNOWN)], (890, 10)),
        ([attempt(0, 900), attempt(100, 500)], (500, 0)),
    ],
    ids=["nobody", "one by one", "nobody tries between", "unknown", "to the end", "two at once"],
)
def test_the_longest_stall_is_where_somebody_tried(
    attempts: list[Operation], stall: tuple[int, int]
) -> None:
    assert longest_stall(attempts) == stall


def test_reads_acknowledge_nothing() -> None:
    history = written_history(APPEND, ["T1.0 committed: read x"])
    read = replace(history.operations[0], invoked_ms=100, completed_ms=200)
    assert longest_stall([attempt(0, 10), read, attempt(10, 500)]) == (490, 10)


def test_the_summary_tells_all_that_is_asked_of_a_run() -> None:
    history = written_history(
        APPEND,
        [
            "T1.0 committed: write x 1",
            "T1.1 unknown: write x 2",
            "T1.2 conflict: write x 3",
            "T1.3 too_old: write x 4",
            "T2.0 conflict: write x 5",
            "final m1: x 1",
        ],
    )
    history.seed = 9
    history.faults.append(Fault(12, "kill m2"))
    lost = [
        Finding(code="lost-append", summary="", lost=frozenset(["T1.0"])),
        Finding(code="acknowledged-lost", summary="", lost=frozenset(["T1.0"])),
    ]
    assert str(summary_of(history, lost)).splitlines() == [
        "seed          9",
        "faults        kill m2 at 12 ms",
        "operations    5",
        "acknowledged  1",
        "unknown       1, 0 of them committed",
        "aborted       2 conflict, 1 too_old",
        "lost          1",
        "longest stall 40 ms from 5 ms on",
        "members       m1, with 0 decisions",
        "findings      1 acknowledged-lost, 1 lost-append",
    ]
    history.finals.clear()
    assert "lost          0, without a final read" in str(summary_of(history, []))
