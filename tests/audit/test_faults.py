"""Every kind of wrong history is found by its code, at its place, and nothing else is; right
histories of random groups under several options, traces, joiners, exports give no finding.

All are audited at once, each in a group of its own: Spark needs seconds for a plan, whatever the
number of rows. Segments are so short that each history has several of them.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.agree import agree
from groupcert.certifier.audit.answers.findings import Finding
from groupcert.certifier.audit.apply import apply
from groupcert.certifier.audit.isolation import isolation
from groupcert.certifier.audit.proof import proof
from groupcert.certifier.audit.rows import states
from groupcert.certifier.audit.rows.consequences import told_once
from groupcert.certifier.audit.rows.log import Log
from groupcert.certifier.audit.verify import stable_sets, verify
from tests.audit.faults import FAULTS, Scene
from tests.audit.histories import Workload, write_as_is

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
JOBS = (verify, agree, isolation, apply, proof)
FAULTY = Workload(transactions=400, brought_share=0.2)
RIGHT = Workload(transactions=300)
RIGHT_ONES = {
    "usual": RIGHT,
    "tight": replace(RIGHT, gc_window="tight"),
    "blocks": replace(RIGHT, block_size=10),
    "hot": replace(RIGHT, items=3, items_each=2),
    "cold": replace(RIGHT, items=5_000, stable_every=15),
    "alone": replace(RIGHT, alone_share=0.5),
    "at-once": replace(RIGHT, period=0),
    "reads": replace(RIGHT, read_share=1.0),
    "brought": replace(RIGHT, brought_share=0.5, brought_own=True),
    "busy": replace(RIGHT, block_size=100, load=(8, 1, 1), view_every=97),
    "views": replace(RIGHT, view_every=20, block_size=7),
    "joins": replace(RIGHT, joins=True, gc_window="tight"),
}


class Audited(NamedTuple):
    """The scenes, and what an audit of all of them has found."""

    faulty: list[Scene]
    right: list[Scene]
    findings: list[Finding]
    found: int
    observers: list[str]


def scenes_of_faults() -> Iterator[Scene]:
    """Each fault in a group of its own."""
    for number, fault in enumerate(FAULTS):
        group = f"00000000-0000-0000-0000-{number:012x}"
        scene = Scene(fault.__name__, 100 + number, replace(FAULTY, group=group))
        fault(scene)
        yield scene


def right_scenes() -> Iterator[Scene]:
    """Each kind of right histories in a group of its own."""
    for number, (name, workload) in enumerate(RIGHT_ONES.items()):
        group = f"00000000-0000-0000-0001-{number:012x}"
        yield Scene(name, number, replace(workload, group=group))


@pytest.fixture(scope="module")
def audited(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """An audit of all scenes."""
    folder = tmp_path_factory.mktemp("scenes")
    faulty, right = [*scenes_of_faults()], [*right_scenes()]
    scenes = (*faulty, *right)
    write_as_is(folder, *(rows for scene in scenes for rows in scene.histories.values()))
    log = Log(spark, [str(folder)])
    observers = [each.observer for each in log.histories]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "SEGMENT_ROWS", 100)
        patch.setattr(stable_sets, "BATCH_ROWS", 7)
        findings, counts = told_once([job.run(log) for job in JOBS])
    return Audited(faulty, right, findings, counts.total(), observers)


def test_each_fault_is_found_by_its_code_and_nothing_else(audited: Audited) -> None:
    expected = {each for scene in audited.faulty for each in scene.expected}
    found = {(each.code, each.observer, each.place) for each in audited.findings}
    assert sorted(found - expected) == []
    assert sorted(expected - found) == []
    assert audited.found == len(expected)


def test_random_histories_of_every_kind_have_no_findings(audited: Audited) -> None:
    histories = [rows for scene in audited.right for rows in scene.histories.values()]
    observers = {str(rows[0]["observer"]) for rows in histories}
    assert [each for each in audited.findings if each.observer in observers] == []
    assert sorted(observers.intersection(audited.observers)) == sorted(observers)
    assert len(observers) == 3 * len(RIGHT_ONES)
