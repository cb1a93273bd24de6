"""Histories that belong together, or do not, where not all files are there, or too many."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.history.schema import RecordKind, Row
from groupcert.certifier.records import ViewChange
from tests.audit.faults import (
    Scene,
    edited_record,
    integer,
    is_decided,
    members_disagree,
    numbered,
)
from tests.audit.histories import OPENED_US, Workload, rows_of

WORKLOAD = Workload(transactions=600, view_every=100)
_TIMES = (
    "decided_us",
    "started_us",
    "executed_us",
    "committed_us",
    "started_tick",
    "committed_tick",
    "worker",
)
"""What no export has."""


def late(scene: Scene) -> None:
    """The first files of two members are gone."""
    for member in ("m2", "m3"):
        del scene.histories[member][:200]


def late_in_blocks(scene: Scene) -> None:
    """The first files of all members are gone, and with them what says how GTIDs are assigned."""
    scene.workload = replace(scene.workload, block_size=10)
    scene.certify({})
    for rows in scene.histories.values():
        del rows[:200]


def cut_at_its_end(scene: Scene) -> None:
    """A log ends early, behind it are reports that its member told."""
    rows = scene.histories["m1"]
    del rows[-150:]
    scene.expect(Code.HISTORY_CUT, rows[-1])


def read_while_written(scene: Scene) -> None:
    """A log ends early, and what its member told of its end came after the audit had begun."""
    rows = scene.histories["m1"]
    end = integer(rows[-150], "place")
    for each in scene.histories.values():
        for row in each:
            if integer(row, "place") >= end:
                row["decided_us"] = integer(row, "decided_us") + OPENED_US
    scene.chain()
    del scene.histories["m1"][-150:]


def second_history_cut(scene: Scene) -> None:
    """A member has begun another history, and that one ends early; the first is whole."""
    rows = scene.histories["m1"]
    rows[200:] = [{**row, "history": "2"} for row in rows[200:]]
    scene.chain()
    rows = scene.histories["m1"]
    del rows[-150:]
    scene.expect(Code.HISTORY_CUT, rows[-1])


def store_lost_and_not_joined(scene: Scene) -> None:
    """A member reads the log from its beginning, into another history; its old one is gone."""
    rows = _read_anew(scene, joins=False)
    for row in rows:
        row["decided_us"] = integer(row, "decided_us") + 10**9
        for name in ("started_us", "executed_us", "committed_us"):
            if row.get(name) is not None:
                row[name] = integer(row, name) + 10**9
    scene.histories["m1"] = numbered(rows)


def store_lost_and_joined(scene: Scene) -> None:
    """It has joined since, and the clocks of all members differ."""
    rows = _read_anew(scene, joins=True)
    rows[0]["decided_us"] = 1
    scene.histories["m1"] = numbered(rows)


def _read_anew(scene: Scene, *, joins: bool) -> list[Row]:
    """What a member that lost its store records, who `joins` with the last view or not yet."""
    views = [record for record in scene.records if isinstance(record, ViewChange)]
    records = [
        record._replace(resets_clock=joins and record is views[-1])
        if isinstance(record, ViewChange)
        else record
        for record in scene.records
    ]
    rows = rows_of(records, "m1", scene.workload, name=f"{scene.name}-m1")
    told = [row for row in scene.histories["m1"] if row["kind"] == RecordKind.REPORT]
    return _again(sorted([*rows, *told], key=lambda row: integer(row, "place")))


def exported_again(scene: Scene) -> None:
    """The group's log was exported under the name of a member, whose own log is there too."""
    rows = _again(scene.histories["m1"])
    rows = [{**row, **dict.fromkeys(_TIMES)} for row in rows]
    rows[0]["settings"] = str(rows[0]["settings"]).replace("member", "total_order")
    scene.histories["m3"] = numbered(rows)


def of_another_group(scene: Scene) -> None:
    """A member of that name is in another group, too, and its log alone was given."""
    group = f"f{scene.workload.group[1:]}"
    other = Scene(scene.name, scene.seed + 1, replace(scene.workload, group=group))
    scene.histories["m1"] = other.histories["m1"]


def _again(rows: Sequence[Row]) -> list[Row]:
    """The rows as another history of their member."""
    return [{**row, "history": "2"} for row in rows]


def late_and_disagrees(scene: Scene) -> None:
    """A member whose first files are gone has recorded another run of a sender than the others."""
    rows = scene.histories["m3"]
    wrong = next(row for row in rows[300:] if is_decided(row, "conflict"))
    wrong["session"] = "2"
    scene.chain()
    del scene.histories["m3"][:200]
    scene.expect(Code.MEMBERS_DISAGREE, wrong)


def late_and_skips(scene: Scene) -> None:
    """All members have skipped a GTID; the first files of one are gone, in which it may have been
    used: there only the digest that was told says so.
    """
    skipped = scene.pick(lambda row: is_decided(row, "certified") and not row["gtid_brought"])
    place = integer(skipped, "place")
    scene.expect(Code.GTID_GAP, *scene.at_all(place)[:2])
    for rows in scene.histories.values():
        for row in rows:
            if is_decided(row, "certified") and integer(row, "place") >= place:
                row["gtid_number"] = integer(row, "gtid_number") + (not row["gtid_brought"])
    scene.chain()
    told = (row for row in scene.histories["m3"] if row["kind"] == RecordKind.REPORT)
    scene.expect(Code.DIGEST_WRONG, next(row for row in told if integer(row, "place") > place))
    del scene.histories["m3"][:200]


def store_lost_and_alone(scene: Scene) -> None:
    """A member that lost its store has not joined again, and only its log was given."""
    scene.histories = {"m1": numbered(_read_anew(scene, joins=False))}


def store_lost_and_begins_late(scene: Scene) -> None:
    """A member that lost its store has joined since; of its log, which alone was given, the first
    files are gone.
    """
    store_lost_and_joined(scene)
    scene.histories = {"m1": scene.histories["m1"][100:]}


def edited(scene: Scene) -> None:
    """A record is changed in a file."""
    edited_record(scene)


def without_common_places(scene: Scene) -> None:
    """Two logs have nothing in common."""
    del scene.histories["m3"], scene.histories["m1"][300:], scene.histories["m2"][:300]
    scene.expect(Code.HISTORY_CUT, scene.histories["m1"][-1])


def twin(scene: Scene) -> None:
    """Members of a group that have the names of another group's."""
    scene.histories = Scene("twin", scene.seed, scene.workload).histories


def other_twin(scene: Scene) -> None:
    """The other group: there they disagree."""
    other = Scene("twin", scene.seed, scene.workload)
    other.histories = {member: _again(rows) for member, rows in other.histories.items()}
    members_disagree(other)
    scene.histories, scene.expected = other.histories, other.expected


AGREEMENT_SCENES: Sequence[Callable[[Scene], None]] = (
    late,
    late_in_blocks,
    cut_at_its_end,
    store_lost_and_not_joined,
    store_lost_and_joined,
    exported_again,
    of_another_group,
    late_and_disagrees,
    late_and_skips,
    store_lost_and_alone,
    store_lost_and_begins_late,
    edited,
    without_common_places,
    twin,
    other_twin,
    read_while_written,
    second_history_cut,
)
