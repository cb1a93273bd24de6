"""Every kind of wrong history is found by its code, at its place, and nothing else is.

All faults are audited at once, each in a group of its own: Spark needs seconds for a plan, whatever
the number of rows. Segments are so short that each history has several of them.
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from certifier.audit import agree, apply, isolation, proof, stable_sets, states, verify
from certifier.audit.consequences import told_once
from certifier.audit.log import Log
from tests.audit.faults import FAULTS, Scene
from tests.audit.histories import Workload, write_as_is

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def group(number: int) -> str:
    """The UUID of the group of a fault."""
    return f"00000000-0000-0000-0000-{number:012x}"


@pytest.mark.timeout(600)
def test_each_fault_is_found_by_its_code_and_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    expected = set()
    for number, fault in enumerate(FAULTS):
        workload = Workload(transactions=400, brought_share=0.2, group=group(number))
        scene = Scene(fault.__name__, 100 + number, workload)
        fault(scene)
        expected |= scene.expected
        for rows in scene.histories.values():
            write_as_is(tmp_path, rows)
    log = Log(spark, [str(tmp_path)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "SEGMENT_ROWS", 100)
        patch.setattr(stable_sets, "BATCH_ROWS", 7)
        jobs = (verify, agree, isolation, apply, proof)
        findings, counts = told_once([job.run(log) for job in jobs])
    found = {(each.code, each.observer, each.place) for each in findings}
    assert sorted(found - expected) == []
    assert sorted(expected - found) == []
    assert counts.total() == len(expected)
