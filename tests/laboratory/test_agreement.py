"""Members that differ in one place, and relays that went wrong in one place."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from groupcert.members.demo.group_checks import Applied
from tests.laboratory.check import check_history
from tests.laboratory.history import FinalState, History, Operation, Outcome, Step, Workload

SET = Workload("set")


def applied(version: int) -> Applied:
    """The transaction of that version, executed alone."""
    return Applied(
        transaction_id=b"%d" % version,
        gtid=f"u:{version}",
        version=version,
        clock_run=0,
        last_committed=version,
        sequence_number=version + 1,
        started_tick=2 * version - 1,
        committed_tick=2 * version,
        items=(version % 2,),
    )


def final(member: str) -> FinalState:
    """A member as it should be."""
    return FinalState(
        member=member,
        version=3,
        digest="d",
        gtid_executed="u:1-3",
        rows={b"set/item/%d" % version: b"%d" % version for version in (1, 2, 3)},
        applied=tuple(map(applied, (1, 2, 3))),
        outcomes={"34": ("verdict 2", "place 7")},
    )


def operation(version: int, outcome: Outcome = Outcome.COMMITTED) -> Operation:
    """The transaction as its client saw it."""
    return Operation(
        process=version,
        index=0,
        workload=SET.name,
        transaction_id=b"%d" % version,
        member="m1",
        invoked_ms=version * 10,
        completed_ms=version * 10 + 5,
        version_min=0,
        latest=False,
        snapshot_version=version - 1,
        steps=(Step(True, b"set/item/%d" % version, b"%d" % version),),
        outcome=outcome,
        version=version if outcome is Outcome.COMMITTED else 0,
    )


def whole() -> History:
    """A run as it should be: version 3 is of a client that never learnt of it."""
    operations = [operation(1), operation(2), operation(3, Outcome.UNKNOWN)]
    finals = [final("m1"), final("m2")]
    return History(seed=0, workloads=[SET], operations=operations, finals=finals)


def with_second(changed: Callable[[FinalState], FinalState]) -> History:
    """The same with another state of m2."""
    history = whole()
    history.finals[1] = changed(history.finals[1])
    return history


def with_applied(*instead: Applied) -> History:
    """The same with another history at m2."""
    return with_second(lambda state: replace(state, applied=instead))


ONE, TWO, THREE = map(applied, (1, 2, 3))
CHANGES: dict[str, Callable[[FinalState], FinalState]] = {
    "digest-differs": lambda state: replace(state, digest="e"),
    "gtid-executed-differs": lambda state: replace(state, gtid_executed="u:1-2"),
    "outcome-differs": lambda state: replace(state, outcomes={"34": ("verdict 3", "")}),
    "rows-differ": lambda state: replace(state, rows={**state.rows, b"other": b"1"}),
}
HISTORIES: dict[str, tuple[Applied, ...]] = {
    "acknowledged-lost": (ONE, replace(TWO, transaction_id=b"9"), THREE),
    "certified-twice": (ONE, TWO, replace(THREE, transaction_id=b"2")),
    "decision-differs": (ONE, replace(TWO, gtid="u:9"), THREE),
    "gtid-twice": (ONE, TWO, replace(THREE, gtid="u:2")),
    "relay-order": (ONE, replace(TWO, started_tick=6, committed_tick=7), THREE),
    "relay-overlap": (ONE, TWO, replace(THREE, started_tick=1)),
    "relay-skipped": (ONE, replace(TWO, committed_tick=0), THREE),
    "relay-twice": (ONE, TWO, THREE, replace(TWO, started_tick=7, committed_tick=8)),
    "versions-not-dense": (ONE, THREE),
}
FOLLOWS = {
    "acknowledged-lost",
    "decision-differs",
    "relay-overlap",
    "version-differs",
    "versions-not-dense",
}
"""Where one thing is wrong with a history, others are, too: a transaction instead of another one
is one that is missing.
"""


def codes(history: History) -> set[str]:
    """What is found."""
    return {finding.code for finding in check_history(history)}


def test_equal_members_have_no_findings() -> None:
    assert codes(whole()) == set()


def test_histories_are_compared_where_they_overlap() -> None:
    assert codes(with_applied(TWO, THREE)) == set()
    assert codes(with_applied()) == set(), "a member that keeps no history"


@pytest.mark.parametrize("code", CHANGES)
def test_a_member_that_differs_is_found(code: str) -> None:
    assert codes(with_second(CHANGES[code])) == {code}


@pytest.mark.parametrize(("place", "expected"), [("", set()), ("place 8", {"outcome-differs"})])
def test_another_place_of_a_conflict_is_found_unless_it_was_forgotten(
    place: str, expected: set[str]
) -> None:
    outcomes = {"34": ("verdict 2", place)}
    assert codes(with_second(lambda state: replace(state, outcomes=outcomes))) == expected


@pytest.mark.parametrize("code", HISTORIES)
def test_a_history_that_is_wrong_is_found(code: str) -> None:
    found = codes(with_applied(*HISTORIES[code]))
    assert code in found
    assert found <= {code, *FOLLOWS}


def test_an_aborted_transaction_in_a_history_is_found() -> None:
    history = whole()
    history.operations[2] = operation(3, Outcome.CONFLICT)
    assert codes(history) == {"aborted-committed", "set-aborted"}


def test_another_version_than_the_client_was_told_is_found() -> None:
    history = whole()
    history.operations[1] = replace(operation(2), version=3)
    assert codes(history) == {"version-differs"}
