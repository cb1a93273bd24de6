"""Which histories and checkpoints belong together, when not all files are there, or too many.

All groups are audited at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from certifier.audit import agree, proof
from certifier.audit.checks import run_checks
from certifier.audit.consequences import told_once
from certifier.audit.findings import Code
from certifier.audit.gtids import order_checks
from certifier.audit.log import Log
from certifier.audit.result import Result
from certifier.audit.sequence import walked
from certifier.history import Row
from certifier.records import ViewChange
from tests.audit.faults import Scene, integer, is_decided, numbered
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
    scene.histories["m1"] = _again(scene.histories["m1"])
    for row in scene.histories["m1"]:
        row["decided_us"] = integer(row, "decided_us") + 10**9
        for name in ("started_us", "committed_us"):
            if row.get(name) is not None:
                row[name] = integer(row, name) + 10**9
    scene.histories["m1"] = numbered(scene.histories["m1"])


def store_lost_and_joined(scene: Scene) -> None:
    """It has joined since, and the clocks of all members differ."""
    views = [record for record in scene.records if isinstance(record, ViewChange)]
    records = [
        record._replace(resets_clock=True) if record is views[-1] else record
        for record in scene.records
    ]
    rows = rows_of(records, "m1", scene.workload, name=f"{scene.name}-m1")
    places = {row["place"] for row in rows}
    told = [row for row in scene.histories["m1"] if row["place"] not in places]
    scene.histories["m1"] = _again(sorted([*rows, *told], key=lambda row: integer(row, "place")))
    scene.histories["m1"][0]["decided_us"] = 1
    scene.histories["m1"] = numbered(scene.histories["m1"])


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


SCENES: Sequence[Callable[[Scene], None]] = (
    *(late, late_in_blocks, cut_at_its_end, store_lost_and_not_joined, store_lost_and_joined),
    *(exported_again, of_another_group, late_and_disagrees, late_and_skips),
)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_only_what_belongs_together_is_compared(spark: SparkSession, tmp_path: Path) -> None:
    expected = set()
    for number, make in enumerate(SCENES):
        group = f"00000000-0000-0000-0002-{number:012x}"
        scene = Scene(make.__name__, 50 + number, replace(WORKLOAD, group=group))
        make(scene)
        expected |= scene.expected
        for rows in scene.histories.values():
            write_as_is(tmp_path, rows)
    log = Log(spark, [str(tmp_path)])
    skipped = run_checks(log, walked(log), order_checks(log))
    numbers = Result([each.finding for each in skipped.found], skipped.counts)
    results = [agree.run(log), proof.run(log), numbers]
    findings, _ = told_once(results)
    found = {(each.code, each.observer, each.place) for each in findings}
    assert sorted(found - expected) == []
    assert sorted(expected - found) == []
    proved: Any = results[1].summary["observers"]
    behind = {each["observer"]: each["checkpoints_behind"] for each in proved}
    assert behind.pop("cut_at_its_end-m1") == 1
    assert not any(behind.values())
