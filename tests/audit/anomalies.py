"""Anomalies that a wrong certifier lets in, each as a group of its own of a few transactions."""

from collections.abc import Callable, Sequence

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.history.schema import RecordKind, place_of
from groupcert.certifier.position import position_of
from groupcert.certifier.records import Transaction
from tests.audit.faults import MEMBERS, Scene

X, Y, Z = 7, 8, 9
NEIGHBOURS_MAX = 500
"""What the audit of these is limited to, in place of ten times as many."""
LAST = 4
"""How many transactions a scene has, if it says nothing else; the last one is the wrong one."""


def transaction(
    number: int, snapshot: int, writes: Sequence[int], reads: Sequence[int] = ()
) -> Transaction:
    """The one at a position, which becomes that version; members send in turn."""
    return Transaction(
        position=position_of(number, 0),
        origin=MEMBERS[number % len(MEMBERS)],
        snapshot=snapshot,
        write_set=list(writes),
        read_set=list(reads),
    )


def place(number: int) -> int:
    """Where the transaction of a version stands."""
    return place_of(position_of(number, 0), RecordKind.TRANSACTION)


def decide(scene: Scene, transactions: Sequence[Transaction]) -> None:
    """All members certify all of them, whatever they have read."""
    scene.records = list(transactions)
    newest = {each.position: number for number, each in enumerate(transactions)}
    scene.certify(newest)


def write_skew(scene: Scene) -> None:
    """Each of two transactions wrote what the other had read."""
    decide(
        scene,
        [
            transaction(1, 0, [X, Y]),
            transaction(2, 1, [Z]),
            transaction(3, 1, [X], [Y]),
            transaction(4, 1, [Y], [X]),
        ],
    )
    scene.expect(Code.WRITE_SKEW, *scene.at_all(place(4)))
    scene.expect(Code.CONFLICT_MISSED, *scene.at_all(place(4)))


def read_skew(scene: Scene) -> None:
    """A snapshot that is a GTID set has what followed from a change, but not the change."""
    decide(
        scene,
        [
            transaction(1, 0, [X, Y]),
            transaction(2, 1, [X]),
            transaction(3, 2, [Y], [X]),
            transaction(4, 1, [Z], [X, Y]),
        ],
    )
    for row in scene.at_all(place(4)):
        del row["snapshot_version"]
        row["snapshot_set"] = f"{scene.workload.group}:1:3"
    scene.chain()
    scene.expect(Code.READ_SKEW, *scene.at_all(place(4)))
    scene.expect(Code.CONFLICT_MISSED, *scene.at_all(place(4)))


def lost_update(scene: Scene) -> None:
    """Two transactions wrote the same item, and the second had not seen the first."""
    decide(
        scene,
        [
            transaction(1, 0, [X]),
            transaction(2, 1, [Y]),
            transaction(3, 2, [X]),
            transaction(4, 2, [X]),
        ],
    )
    scene.expect(Code.LOST_UPDATE, *scene.at_all(place(4)))
    scene.expect(Code.CONFLICT_MISSED, *scene.at_all(place(4)))


def lost_update_far_back(scene: Scene) -> None:
    """The same, with a GTID set, later in a history than any search reaches back."""
    last = NEIGHBOURS_MAX + 100
    decide(scene, [transaction(1, 0, [X])])
    several = [transaction(number, number - 1, [100 + number]) for number in range(1, last - 1)]
    decide(scene, [*several, transaction(last - 1, last - 2, [X]), transaction(last, 0, [X])])
    del scene.histories["m2"], scene.histories["m3"]
    for row in scene.at_all(place(last)):
        del row["snapshot_version"]
        row["snapshot_set"] = f"{scene.workload.group}:1-{last - 2}"
    scene.chain()
    scene.expect(Code.LOST_UPDATE, *scene.at_all(place(last)))
    scene.expect(Code.CONFLICT_MISSED, *scene.at_all(place(last)))


def lost_update_of_an_old_snapshot(scene: Scene) -> None:
    """The same with a snapshot that is older than any search reaches back."""
    last = NEIGHBOURS_MAX + 101
    several = [transaction(number, number - 1, [100 + number]) for number in range(1, last - 1)]
    decide(scene, [*several, transaction(last - 1, last - 2, [X]), transaction(last, 0, [X])])
    del scene.histories["m2"], scene.histories["m3"]
    scene.expect(Code.LOST_UPDATE, *scene.at_all(place(last)))
    scene.expect(Code.CONFLICT_MISSED, *scene.at_all(place(last)))


def lost_update_that_is_old(scene: Scene) -> None:
    """What was not seen is so old that no search reaches it: only the verdict tells."""
    last = NEIGHBOURS_MAX + 102
    several = [transaction(number, number - 1, [100 + number]) for number in range(2, last)]
    decide(scene, [transaction(1, 0, [X]), *several, transaction(last, 0, [X])])
    del scene.histories["m2"], scene.histories["m3"]
    scene.expect(Code.CONFLICT_MISSED, *scene.at_all(place(last)))


def cycle_over_three(scene: Scene) -> None:
    """One that only reads shows two others in an order that they cannot have."""
    decide(
        scene,
        [
            transaction(1, 0, [Z]),
            transaction(2, 1, [X]),
            transaction(3, 1, [Y], [X]),
            transaction(4, 2, [], [X, Y]),
        ],
    )
    scene.expect(Code.SERIALIZATION_CYCLE, *scene.at_all(place(4)))
    for number in (3, 4):
        scene.expect(Code.CONFLICT_MISSED, *scene.at_all(place(number)))


def write_cycle(scene: Scene) -> None:
    """At one member two writers of an item became visible in another order than decided."""
    decide(scene, [transaction(number, number - 1, [X]) for number in range(1, LAST + 1)])
    rows = scene.histories["m2"]
    one, other = (row for row in rows if row["place"] in (place(3), place(4)))
    one["committed_tick"], other["committed_tick"] = other["committed_tick"], one["committed_tick"]
    scene.chain()
    scene.expect(Code.WRITE_CYCLE, other)
    scene.expect(Code.APPLIED_OUT_OF_ORDER, other)


def read_the_future(scene: Scene) -> None:
    """A snapshot that has the transaction itself."""
    decide(scene, [transaction(number, number - 1, [number]) for number in range(1, LAST)])
    scene.records.append(transaction(LAST, LAST, [X]))
    scene.certify({position_of(LAST, 0): LAST - 1})
    scene.expect(Code.INFORMATION_CYCLE, *scene.at_all(place(4)))
    scene.expect(Code.REFUSAL_MISSED, *scene.at_all(place(4)))


WORDS: dict[Callable[[Scene], None], str] = {
    write_skew: "{g}:4 of m2 read {x} as it was before {g}:3 of m1 wrote it; "
    "{g}:3 of m1 read {y} as it was before {g}:4 of m2 wrote it",
    read_skew: "{g}:4 of m2 read {x} as it was before {g}:2 of m3 wrote it; "
    "{g}:2 of m3 wrote {x} as {g}:3 of m1 read it; "
    "{g}:3 of m1 wrote {y} as {g}:4 of m2 read it",
    lost_update: "{g}:4 of m2 read {x} as it was before {g}:3 of m1 wrote it; "
    "{g}:3 of m1 wrote {x}, which {g}:4 of m2 overwrote",
    lost_update_far_back: "{g}:600 of m1 read {x} as it was before {g}:599 of m3 wrote it; "
    "{g}:599 of m3 wrote {x}, which {g}:600 of m1 overwrote",
    lost_update_of_an_old_snapshot: "{g}:601 of m2 read {x} as it was before {g}:600 of m1 wrote "
    "it; {g}:600 of m1 wrote {x}, which {g}:601 of m2 overwrote",
    lost_update_that_is_old: "",
    cycle_over_three: "{g}:4 of m2 read {y} as it was before {g}:3 of m1 wrote it; "
    "{g}:3 of m1 read {x} as it was before {g}:2 of m3 wrote it; "
    "{g}:2 of m3 wrote {x} as {g}:4 of m2 read it",
    write_cycle: "both wrote {x}",
    read_the_future: "the transaction at version 4 read what was decided after it, or itself",
}
ANOMALIES = {
    Code.WRITE_SKEW,
    Code.READ_SKEW,
    Code.LOST_UPDATE,
    Code.SERIALIZATION_CYCLE,
    Code.WRITE_CYCLE,
    Code.INFORMATION_CYCLE,
}
EXPLAINED = ANOMALIES - {Code.WRITE_CYCLE}
"""What follows from a wrong verdict, and is not told beside it."""
