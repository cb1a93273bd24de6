"""What the fuzzer takes for a failure, and what it knows to be meant."""

import json

import pytest

from groupcert.internal.v1.log_pb2 import (
    ControlRecord,
    GroupSettings,
    LogBatch,
    LoggedTransaction,
    Member,
    RowDigests,
    ViewProposal,
)
from tests.fuzz.log_messages import CapturedLog, Judgement, judged
from tests.fuzz.watcher import error_problems, growth_problems, hold_problems

MIB = 1 << 20
RUN = 7


def batch(number: int, incarnation: int = RUN, **fields: object) -> bytes:
    values: dict[str, object] = {"format_version": 2, "member": "m1", **fields}
    values |= {"incarnation": incarnation, "batch_number": number}
    return LogBatch(**values).SerializeToString()  # type: ignore[arg-type]  # its own fields


@pytest.fixture
def log() -> CapturedLog:
    """A log in which m1 has written its batch 5."""
    log = CapturedLog()
    log.take(batch(5, transactions=[LoggedTransaction()]))
    log.take(b"\xff")
    return log


VIEW = [ControlRecord(view_proposal=ViewProposal(previous_view_id=1))]
SETTINGS = [ControlRecord(group_settings=GroupSettings(settings_version=2))]
DIGESTS = [ControlRecord(row_digests=RowDigests())]
TWIN = [
    ControlRecord(view_proposal=ViewProposal(members=[Member(name="m2", incarnation=9)])),
]
JUDGED = {
    "noise": (b"\xff", Judgement()),
    "a repetition": (batch(5, transactions=[LoggedTransaction()]), Judgement()),
    "a stranger's": (batch(1, incarnation=9, transactions=[LoggedTransaction()]), Judgement()),
    "its next batch": (batch(6, transactions=[LoggedTransaction()]), Judgement(run_of="m1")),
    "of another format": (batch(6, format_version=9), Judgement()),
    "a view of its run": (batch(6, controls=VIEW), "may change settings and views"),
    "settings of its run": (batch(6, controls=SETTINGS), "may change settings and views"),
    "digests of its rows": (batch(6, controls=DIGESTS), "tell of its rows"),
    "an old view of its run": (batch(4, controls=VIEW), Judgement()),
    "a twin that joins": (batch(1, incarnation=9, controls=TWIN), "takes it over"),
}


@pytest.mark.parametrize(("payload", "expected"), JUDGED.values(), ids=JUDGED)
def test_messages_that_have_an_effect_by_design_are_known(
    log: CapturedLog, payload: bytes, expected: Judgement | str
) -> None:
    found = judged(payload, log)
    if isinstance(expected, str):
        assert expected in found.left_out
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("late_ms", "loop_ms", "blocked_ms", "stack", "is_found"),
    [
        (300, 290, 0, [], True),
        (300, 10, 290, [], True),
        (3_000, 100, 100, [], False),
        (240, 240, 240, [], False),
        (70_000, 0, 0, [], True),
        (900, 800, 0, ['File "x/members/runtime/runtime.py", line 57, in __init__'], False),
        (900, 10, 800, ['File "x/members/runtime/runtime.py", line 199, in close'], False),
        (900, 800, 0, ['File "x/members/runtime/runtime.py", line 99, in deliver'], True),
    ],
    ids=[
        "works",
        "waits",
        "others have the processors",
        "short",
        "for ever",
        "begins",
        "has ended",
        "reads",
    ],
)
def test_an_event_loop_that_is_held_is_found(
    late_ms: int, loop_ms: int, blocked_ms: int, stack: list[str], is_found: bool
) -> None:
    delay: dict[str, object] = {
        "late_ms": late_ms,
        "loop_ms": loop_ms,
        "blocked_ms": blocked_ms,
        "stack": stack,
    }
    assert bool(hold_problems("m1", [delay])) == is_found


@pytest.mark.parametrize(
    ("seconds", "first", "last", "words"),
    [
        (30, 300, 400, ""),
        (30, 300, 1_000, "grew from"),
        (3_600, 300, 340, ""),
        (1_800, 300, 690, "grows by"),
        (30, 500, 300, ""),
    ],
)
def test_a_member_that_grows_is_found(seconds: int, first: int, last: int, words: str) -> None:
    count = 40
    resident = [
        (place * seconds / count, (first + (last - first) * place // count) * MIB)
        for place in range(count)
    ]
    problems = growth_problems("m1", resident)
    assert bool(problems) == bool(words)
    assert all(words in problem for problem in problems)


def test_exceptions_that_a_member_logs_are_found_each_once() -> None:
    raised = {"event": "Unexpected", "level": "error", "exception": "Traceback\nValueError: no"}
    lines = [
        json.dumps({"event": "call_refused", "level": "warning"}),
        json.dumps(raised),
        json.dumps(raised),
        json.dumps({"event": "ExecuteBatchError raised in core", "level": "error"}),
        "Traceback (most recent call last):",
    ]
    problems = error_problems("m1", lines)
    assert len(problems) == 2
    assert "Unexpected ValueError: no" in problems[0]
