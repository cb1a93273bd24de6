"""The checker finds each wrong answer, read or end, and nothing in a right history."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.checker.check import Reading, find_problems
from tests.checker.history import Observed, Operation, Told
from tests.checker.log_writer import UUID, LogWriter, transaction


@dataclass
class History:
    """A history that a group could have: two commits, a conflict, a lost answer, a refusal."""

    log: LogWriter
    operations: dict[str, Operation]
    observed: Observed

    def problems(self) -> list[str]:
        reading = Reading(self.log.messages, "m2")
        return find_problems(list(self.operations.values()), reading, self.observed)


@pytest.fixture
def history() -> History:
    """All of it is right."""
    log = LogWriter()
    operations = {
        "first": Operation("1", b"first", 0, 0, {b"x": None}, {b"x": b"1"}),
        "second": Operation("1", b"second", 1, 1, {b"x": b"1"}, {b"x": b"2", b"y": b"2"}),
        "loser": Operation("2", b"loser", 0, 1, {b"y": None}, {b"y": b"3"}, is_serializable=True),
        "unknown": Operation("2", b"unknown", 1, 2, {}, {b"z": b"4"}, told=Told.UNKNOWN),
        "lost": Operation("2", b"lost", 2, 2, {}, {b"z": b"5"}, told=Told.UNKNOWN),
        "unsent": Operation("3", b"unsent", 0, 3, {b"z": b"4"}, {b"z": b"6"}),
        "old": Operation("3", b"old", 0, 0, {}, {b"z": b"7"}, told=Told.TOO_OLD),
        "reader": Operation("4", b"reader", 0, 3, {b"y": b"2"}, told=Told.COMMITTED, version=3),
    }
    log.write("m1", transaction(b"first", 0, {b"x": b"1"}))
    won = log.write("m2", transaction(b"second", 1, {b"x": b"2", b"y": b"2"}))
    lost = log.write("m1", transaction(b"loser", 1, {b"y": b"3"}, reads=(b"y",)))
    log.write("m1", transaction(b"unknown", 2, {b"z": b"4"}))
    log.report(3)
    log.write("m1", transaction(b"old", 0, {b"z": b"7"}))
    for name, gtid, version in (("first", 1, 1), ("second", 101, 2)):
        operations[name].told = Told.COMMITTED
        operations[name].gtid, operations[name].version = f"{UUID}:{gtid}", version
    loser = operations["loser"]
    loser.told, loser.log_sequence = Told.CONFLICT, lost
    loser.winner_gtid, loser.winner_version = f"{UUID}:101", 2
    loser.winner_member, loser.winner_sequence = "m2", won
    reading = Reading(log.messages, "m2")
    loser.item = next(each.item for each in reading.decisions if each.winner)
    rows = {b"x": b"2", b"y": b"2", b"z": b"4"}
    observed = Observed(
        {"m1": dict(rows), "m2": dict(rows), "the replica": dict(rows)},
        {"m1": "d", "m2": "d"},
        {1: (1, 2), 2: (0, 0), 3: (1, 3)},
        {1: f"{UUID}:1", 2: f"{UUID}:101", 3: f"{UUID}:2"},
    )
    return History(log, operations, observed)


def change(name: str, **values: object) -> Callable[[History], None]:
    """Returns what changes an operation."""

    def make(history: History) -> None:
        for field, value in values.items():
            setattr(history.operations[name], field, value)

    return make


def observe(field: str, key: object, value: object) -> Callable[[History], None]:
    """Returns what changes the end."""

    def make(history: History) -> None:
        getattr(history.observed, field)[key] = value

    return make


def certify_again(history: History) -> None:
    """Writes as if an id that was forgotten had been certified a second time."""
    history.log.write("m1", transaction(b"", 3, {b"w": b"1"}))


WRONG: dict[str, tuple[Callable[[History], None], str]] = {
    "a lost commit": (
        change("lost", told=Told.COMMITTED, gtid=f"{UUID}:3", version=4),
        "was acknowledged, the log has nothing of it",
    ),
    "a commit that lost": (
        change("loser", told=Told.COMMITTED, gtid=f"{UUID}:3", version=4),
        "was acknowledged, the log has CONFLICT",
    ),
    "another version": (change("first", version=2), "version 2: it is"),
    "another GTID": (change("second", gtid=f"{UUID}:2"), "it is aaaaaaaa"),
    "a conflict that was none": (
        change("first", told=Told.CONFLICT),
        "lost, it was told; the log has CERTIFIED",
    ),
    "another winner": (change("loser", winner_gtid=f"{UUID}:1"), "lost against"),
    "another message": (change("loser", log_sequence=1), "is message 1: it is message 5"),
    "too old that was not": (
        change("loser", told=Told.TOO_OLD),
        "was too old, it was told; the log has CONFLICT",
    ),
    "a refusal that was certified": (
        change("unknown", told=Told.NOTHING),
        "was refused, it was told; it was certified",
    ),
    "a stale session": (change("reader", floor=4), "read version 3, and had seen 4"),
    "a version of the future": (change("reader", snapshot_version=9), "read version 9 of 3"),
    "another value": (change("reader", reads={b"y": b"1"}), "read b'y' = b'1' at 3: it was b'2'"),
    "a value of later": (change("second", reads={b"x": b"2"}), "it was b'1'"),
    "a phantom": (change("first", reads={b"x": b"0"}), "it was None"),
    "other rows than were sent": (change("first", writes={b"x": b"9"}), "other rows than were"),
    "another snapshot": (change("second", snapshot_version=0, floor=0, reads={}), "another snap"),
    "what nobody asked for": (certify_again, "which nobody asked for"),
    "a member's row": (observe("rows", "m1", {b"x": b"2"}), "m1 has other rows than the log: 2"),
    "a replica's row": (observe("rows", "the replica", {}), "the replica has other rows"),
    "a digest": (observe("digests", "m2", "e"), "members' digests differ"),
    "a stamp": (observe("stamps", 3, (2, 3)), "version 3 is "),
    "a stamp of its own": (observe("stamps", 2, (1, 3)), "version 2 is "),
    "a GTID in the history": (observe("gtids", 1, f"{UUID}:9"), "version 1 is "),
}


def test_a_right_history_has_no_problem(history: History) -> None:
    assert history.problems() == []


@pytest.mark.parametrize(("make", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_history_is_found(
    history: History, make: Callable[[History], None], words: str
) -> None:
    make(history)
    problems = history.problems()
    assert any(words in problem for problem in problems), problems


def test_an_id_that_is_certified_twice_is_found(history: History) -> None:
    reading = Reading(history.log.messages, "m2")
    reading.model.certified.append(reading.model.certified[0])
    operations = list(history.operations.values())
    problems = find_problems(operations, reading, history.observed)
    assert f"{b'first'.hex()} was certified 2 times" in problems


def test_a_serializable_transaction_whose_reads_are_not_in_the_log_is_found(
    history: History,
) -> None:
    history.operations["first"].is_serializable = True
    history.operations["first"].reads = {b"y": None}
    assert any("lacks the items of [b'y']" in problem for problem in history.problems())
