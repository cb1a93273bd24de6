"""The checker finds each wrong answer, read or end, and nothing in a right history."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tests.checker.check import Reading, find_problems
from tests.checker.log_writer import UUID, LogWriter, transaction
from tests.laboratory.history import Conflict, FinalState, History, Operation, Outcome, Workload
from tests.laboratory.test_agreement import applied
from tests.laboratory.written_histories import written_history

X, Y, Z = (b"append/" + row for row in (b"x", b"y", b"z"))
SESSIONS = {
    "first": "T1.0 committed s=0 v=1: read x; write x 1",
    "second": "T1.1 committed s=1 min=1 v=2: read x 1; write x 2; write y 2",
    "loser": "T2.0 conflict s=1: read y; write y 3",
    "unknown": "T2.1 unknown s=2 min=1: write z 4",
    "lost": "T2.2 unknown s=2 min=2: write z 5",
    "unsent": "T3.0 unavailable s=3: read z 4; write z 6",
    "old": "T3.1 too_old s=0: write z 7",
    "reader": "T4.0 committed s=3 v=3: read y 2",
}


def operations_of(*lines: str) -> list[Operation]:
    """Returns the transactions of these lines, as their clients saw them."""
    return written_history(Workload("append"), lines).operations


@dataclass
class Group:
    """What a group could have done: two commits, a conflict, a lost answer, a refusal."""

    log: LogWriter
    operations: dict[str, Operation]
    finals: dict[str, FinalState]
    replica: dict[bytes, bytes]

    def problems(self, reading: Reading | None = None) -> list[str]:
        operations, finals = list(self.operations.values()), list(self.finals.values())
        history = History(seed=0, workloads=(), operations=operations, finals=finals)
        reading = reading or Reading(self.log.messages, "m2")
        return find_problems(history, reading, {"the replica": self.replica})


@pytest.fixture
def group() -> Group:
    """All of it is right."""
    log = LogWriter()
    operations = dict(zip(SESSIONS, operations_of(*SESSIONS.values()), strict=True))
    log.write("m1", transaction(b"T1.0", 0, {X: b"1"}))
    won = log.write("m2", transaction(b"T1.1", 1, {X: b"2", Y: b"2"}))
    lost = log.write("m1", transaction(b"T2.0", 1, {Y: b"3"}, reads=(Y,)))
    log.write("m1", transaction(b"T2.1", 2, {Z: b"4"}))
    log.report(3)
    log.write("m1", transaction(b"T3.1", 0, {Z: b"7"}))
    gtids = [f"{UUID}:{number}" for number in (1, 101, 2)]
    item = next(each.item for each in Reading(log.messages, "m2").decisions if each.winner)
    conflict = Conflict(item, gtids[1], 2, "m2", winner_sequence=won, log_sequence=lost)
    operations |= {
        "first": replace(operations["first"], gtid=gtids[0]),
        "second": replace(operations["second"], gtid=gtids[1]),
        "loser": replace(operations["loser"], conflict=conflict, workload="append-serializable"),
    }
    stamps = ((1, 2), (0, 0), (1, 3))
    history = [
        replace(applied(version), gtid=gtid, last_committed=last, sequence_number=number)
        for version, (gtid, (last, number)) in enumerate(zip(gtids, stamps, strict=True), 1)
    ]
    rows = {X: b"2", Y: b"2", Z: b"4"}
    one = FinalState(member="m1", version=3, digest="d", gtid_executed="", rows=rows)
    finals = {"m1": one, "m2": replace(one, member="m2", applied=history)}
    return Group(log, operations, finals, dict(rows))


def change(name: str, read: str = "", write: str = "", **values: object) -> Callable[[Group], None]:
    """Returns what changes an operation; `read`, `write`: its only ones, as in a line."""

    def make(group: Group) -> None:
        operation = replace(group.operations[name], **values)  # type: ignore[arg-type]  # its own
        for is_write, row in enumerate((read, write)):
            if row:
                (other,) = operations_of(f"T9.0 committed: {('read', 'write')[is_write]} {row}")
                kept = (step for step in operation.steps if step.is_write is not bool(is_write))
                steps = sorted((*kept, *other.steps), key=lambda step: step.is_write)
                operation = replace(operation, steps=tuple(steps))
        group.operations[name] = operation

    return make


def end(member: str, **values: object) -> Callable[[Group], None]:
    """Returns what changes what a member has in the end."""

    def make(group: Group) -> None:
        group.finals[member] = replace(group.finals[member], **values)  # type: ignore[arg-type]

    return make


def apply(version: int, **values: object) -> Callable[[Group], None]:
    """Returns what changes the observer's history."""

    def make(group: Group) -> None:
        history = list(group.finals["m2"].applied)
        history[version - 1] = replace(history[version - 1], **values)  # type: ignore[arg-type]
        end("m2", applied=history)(group)

    return make


def certify_again(group: Group) -> None:
    """Writes as if an id that was forgotten had been certified a second time."""
    group.log.write("m1", transaction(b"", 3, {b"w": b"1"}))


def lose_by(**values: object) -> Callable[[Group], None]:
    """Returns what changes the conflict that the loser was told of."""

    def make(group: Group) -> None:
        conflict = group.operations["loser"].conflict
        assert conflict
        change("loser", conflict=conflict._replace(**values))(group)  # type: ignore[arg-type]

    return make


WRONG: dict[str, tuple[Callable[[Group], None], str]] = {
    "a lost commit": (
        change("lost", outcome=Outcome.COMMITTED, gtid=f"{UUID}:3", version=4),
        "was acknowledged, the log has nothing of it",
    ),
    "a commit that lost": (
        change("loser", outcome=Outcome.COMMITTED, gtid=f"{UUID}:3", version=4),
        "was acknowledged, the log has CONFLICT",
    ),
    "another version": (change("first", version=2), "version 2: it is"),
    "another GTID": (change("second", gtid=f"{UUID}:2"), "it is aaaaaaaa"),
    "a conflict that was none": (
        change("first", outcome=Outcome.CONFLICT),
        "lost, it was told; the log has CERTIFIED",
    ),
    "another winner": (lose_by(winner_gtid=f"{UUID}:1"), "it was told: it was by Conflict("),
    "another winner's version": (lose_by(winner_version=1), "winner_version=2"),
    "another winner's member": (lose_by(winner_member="m1"), "winner_member='m2'"),
    "another winner's message": (lose_by(winner_sequence=1), "winner_sequence=4"),
    "another item": (lose_by(item=1), "it was told: it was by Conflict("),
    "another message": (lose_by(log_sequence=1), "log_sequence=5"),
    "too old that was not": (
        change("loser", outcome=Outcome.TOO_OLD),
        "was too old, it was told; the log has CONFLICT",
    ),
    "a refusal that was certified": (
        change("unknown", outcome=Outcome.UNAVAILABLE),
        "was refused, it was told; it was certified",
    ),
    "a stale session": (change("reader", version_min=4), "read version 3, and had seen 4"),
    "a version of the future": (change("reader", snapshot_version=9), "read version 9 of 3"),
    "another value": (change("reader", "y 1"), "read b'append/y' = b'1' at 3: it was b'2'"),
    "a value of later": (change("second", "x 2"), "it was b'1'"),
    "a phantom": (change("first", "x 0"), "it was None"),
    "other rows than were sent": (change("first", write="x 9"), "other rows than were"),
    "another snapshot": (change("second", snapshot_version=0, version_min=0), "another snap"),
    "what nobody asked for": (certify_again, "which nobody asked for"),
    "a member's row": (end("m1", rows={X: b"2"}), "m1 has other rows than the log: 2"),
    "a replica's row": (lambda group: group.replica.clear(), "the replica has other rows"),
    "a digest": (end("m2", digest="e"), "members' digests differ"),
    "a stamp": (apply(3, last_committed=2), "version 3 is "),
    "a stamp of its own": (apply(2, last_committed=1, sequence_number=3), "version 2 is "),
    "a GTID in the history": (apply(1, gtid=f"{UUID}:9"), "version 1 is "),
    "a version that the history lacks": (end("m2", applied=()), "version 1 is None at m2"),
}


def test_a_right_history_has_no_problem(group: Group) -> None:
    assert group.problems() == []


@pytest.mark.parametrize(("make", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_history_is_found(group: Group, make: Callable[[Group], None], words: str) -> None:
    make(group)
    problems = group.problems()
    assert any(words in problem for problem in problems), problems


def test_an_id_that_is_certified_twice_is_found(group: Group) -> None:
    reading = Reading(group.log.messages, "m2")
    reading.model.certified.append(reading.model.certified[0])
    assert f"{b'T1.0'.hex()} was certified 2 times" in group.problems(reading)


def test_a_serializable_transaction_whose_reads_are_not_in_the_log_is_found(group: Group) -> None:
    change("first", "y", workload="append-serializable")(group)
    assert any("lacks the items of [b'append/y']" in problem for problem in group.problems())
