"""Which histories and checkpoints belong together, when not all files are there, or too many.

All groups are audited at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.agree import agree
from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.answers.result import Result
from groupcert.certifier.audit.proof import proof
from groupcert.certifier.audit.rows.checks import run_checks
from groupcert.certifier.audit.rows.consequences import told_once
from groupcert.certifier.audit.rows.log import Log
from groupcert.certifier.audit.rows.sequence import walked
from groupcert.certifier.audit.verify.gtids import order_checks
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
from tests.audit.histories import Workload, rows_of, write_as_is

WORKLOAD = Workload(transactions=600, view_every=100)


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
    """A log ends early, behind it are checkpoints that its member told."""
    del scene.histories["m1"][-150:]


def store_lost_and_not_joined(scene: Scene) -> None:
    """A member reads the log from its beginning, into another history; its old one is gone."""
    rows = _read_anew(scene, joins=False)
    for row in rows:
        row["decided_us"] = integer(row, "decided_us") + 10**9
        for name in ("started_us", "committed_us"):
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
    told = [row for row in scene.histories["m1"] if row["kind"] == RecordKind.CHECKPOINT]
    return _again(sorted([*rows, *told], key=lambda row: integer(row, "place")))


def exported_again(scene: Scene) -> None:
    """The group's log was exported under the name of a member, whose own log is there too."""
    rows = _again(scene.histories["m1"])
    rows[0]["settings"] = str(rows[0]["settings"]).replace("member", "total_order")
    scene.histories["m3"] = numbered(rows)


def of_another_group(scene: Scene) -> None:
    """A member of that name is in another group, too, and its log alone was given."""
    group = f"{scene.workload.group[:-1]}f"
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
    """All members have skipped a GTID; the first files of one are gone."""
    rows = scene.histories["m1"]
    skipped = scene.pick(lambda row: is_decided(row, "certified") and not row["gtid_brought"])
    place = integer(skipped, "place")
    scene.expect(Code.GTID_GAP, *scene.at_all(place))
    for rows in scene.histories.values():
        for row in rows:
            if is_decided(row, "certified") and integer(row, "place") >= place:
                row["gtid_number"] = integer(row, "gtid_number") + (not row["gtid_brought"])
    scene.chain()
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


def twin(scene: Scene) -> None:
    """Members of a group that have the names of another group's."""
    scene.histories = Scene("twin", scene.seed, scene.workload).histories


def other_twin(scene: Scene) -> None:
    """The other group: there they disagree."""
    other = Scene("twin", scene.seed, scene.workload)
    other.histories = {member: _again(rows) for member, rows in other.histories.items()}
    members_disagree(other)
    scene.histories, scene.expected = other.histories, other.expected


SCENES: Sequence[Callable[[Scene], None]] = (
    *(late, late_in_blocks, cut_at_its_end, store_lost_and_not_joined, store_lost_and_joined),
    *(exported_again, of_another_group, late_and_disagrees, late_and_skips),
    *(store_lost_and_alone, store_lost_and_begins_late, edited, without_common_places),
    *(twin, other_twin),
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_only_what_belongs_together_is_compared(spark: SparkSession, tmp_path: Path) -> None:
    expected = set()
    histories: list[list[Row]] = []
    shared: dict[str, int] = {}
    edited_places: list[int] = []
    for number, make in enumerate(SCENES):
        group = f"00000000-0000-0000-0002-{number:012x}"
        scene = Scene(make.__name__, 50 + number, replace(WORKLOAD, group=group))
        make(scene)
        expected |= scene.expected
        histories += scene.histories.values()
        places = [integer(row, "place") for row in next(iter(scene.histories.values()))]
        shared[scene.name] = len(places) - 1  # Without that of START.
        if make is edited:
            edited_places = places
    write_as_is(tmp_path, *histories)
    log = Log(spark, [str(tmp_path)])
    skipped = run_checks(log, walked(log), order_checks(log))
    numbers = Result([each.finding for each in skipped.found], skipped.counts)
    results = [agree.run(log), proof.run(log), numbers]
    findings, _ = told_once(results)
    found = {(each.code, each.observer, each.place) for each in findings}
    assert sorted(found - expected) == []
    assert sorted(expected - found) == []
    pairs: Any = results[0].summary["pairs"]
    compared = {
        (each["one"], each["other"], *each["histories"]): (each["places"], each["differing"])
        for each in pairs
    }
    assert compared["without_common_places-m1", "without_common_places-m2", "1", "1"] == (0, 0)
    assert compared["twin-m1", "twin-m3", "1", "1"] == (shared["twin"], 0)
    assert compared["twin-m1", "twin-m3", "2", "2"] == (shared["other_twin"], 1)
    proved: Any = results[1].summary["observers"]
    (chained,) = [each for each in proved if each["observer"] == "edited-m1"]
    (wrong,) = [each for each in findings if each.code is Code.RECORD_EDITED]
    assert chained["rows"] - chained["chained"] == 1
    assert chained["last_place"] == max(place for place in edited_places if place < wrong.place)
    behind = {each["observer"]: each["checkpoints_behind"] for each in proved}
    assert behind.pop("cut_at_its_end-m1") == 1
    assert behind.pop("without_common_places-m1") == 2
    assert not any(behind.values())
