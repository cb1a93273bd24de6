"""Transactions that commit in two phases, on both servers.

Aim: the rows of all parts are there or none are, whatever fails between the phases. Method: as in
`test_sql.py`; the replica's process ends, or its sessions are killed, before each round trip.
"""

from collections.abc import Callable, Iterator

import pytest

from groupcert.applier.queue.target_progress import Checkpoint
from groupcert.applier.targets.sql import SqlTarget
from tests.applier.sql_databases import Database, SqlJob, apply, commit, divided, entry, gtids


@pytest.fixture
def two_phase(database: Database) -> Iterator[SqlTarget]:
    """A target that commits the parts of a transaction in two phases."""
    opened = database.open(two_phase=True)
    yield opened
    opened.close()


def test_parts_are_committed_all_or_none(database: Database, two_phase: SqlTarget) -> None:
    whole = entry(1, {f"shop.orders/{number}": "x" for number in range(20)})
    apply(two_phase, *divided(whole, 3))
    assert len(database.orders()) == 20
    assert database.executed()[0] == (1, "")
    assert database.prepared() == 0
    for _ in range(2):
        two_phase.save(Checkpoint(gtid_executed=gtids(1)))
    assert database.executed() == []


def test_a_single_part_commits_in_one_phase(database: Database, two_phase: SqlTarget) -> None:
    whole = entry(1, {f"shop.orders/{number}": "x" for number in range(20)})
    apply(two_phase, divided(whole, 3)[1])
    assert database.executed() == [(1, "part 1/3")]
    assert database.prepared() == 0


def test_an_abandoned_part_leaves_nothing(database: Database, two_phase: SqlTarget) -> None:
    parts = divided(entry(1, {f"shop.orders/{n}": "x" for n in range(20)}), 2)
    for each in parts:
        each.execution = two_phase.execute(each)
        two_phase.abandon(each)
    apply(two_phase, *parts)
    assert len(database.orders()) == 20


class Crash(Exception):
    """The replica's process ends here."""


class Requests:
    """Counts round trips once it is armed, and does something before one of them."""

    def __init__(self) -> None:
        self.left = -1
        self.interrupt: Callable[[], None] = lambda: None

    def __call__(self) -> None:
        self.left -= 1
        if self.left == -1:
            self.interrupt()


def executed_parts(target: SqlTarget) -> list[SqlJob]:
    """The three parts of a transaction with 20 rows, executed and not committed."""
    parts = divided(entry(1, {f"shop.orders/{number}": "x" for number in range(20)}), 3)
    for each in parts:
        each.execution = target.execute(each)
    return parts


STEPS = 7
"""Three branches are prepared (0 to 2), decided on (3), committed (4 to 6)."""


@pytest.mark.parametrize("step", range(STEPS + 1))
def test_a_crash_between_the_phases_leaves_all_or_nothing(database: Database, step: int) -> None:
    requests = Requests()
    target = database.open(two_phase=True, before_request=requests)
    parts = executed_parts(target)

    def crash() -> None:
        target.close()
        raise Crash

    requests.left, requests.interrupt = step, crash
    if step < STEPS:
        with pytest.raises(Crash):
            commit(target, *parts)
    else:
        commit(target, *parts)
        target.close()
    again = database.open(two_phase=True)
    found = again.checkpoint()
    assert database.prepared() == 0
    if step <= 3:
        assert (found, database.orders()) == (None, {})
        apply(again, *parts)
    else:
        assert found is not None and found.gtid_executed == gtids(1)
    assert len(database.orders()) == 20
    again.close()


@pytest.mark.parametrize("step", range(STEPS))
def test_sessions_lost_between_the_phases_change_nothing(database: Database, step: int) -> None:
    requests = Requests()
    target = database.open(two_phase=True, before_request=requests)
    parts = executed_parts(target)
    requests.left, requests.interrupt = step, database.kill_sessions
    assert commit(target, *parts).gtid_executed == gtids(1)
    assert len(database.orders()) == 20
    assert database.prepared() == 0
    assert [part for _, part in database.executed()] == [
        "",
        "part 0/3",
        "part 1/3",
        "part 2/3",
    ]
    target.close()
