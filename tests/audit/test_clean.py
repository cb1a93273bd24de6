"""Right histories give no finding: random groups under several options, traces, joiners, exports.

All are audited at once, each in a group of its own, and in segments so short that each history has
several of them.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from certifier.audit import agree, apply, isolation, proof, states, verify
from certifier.audit.consequences import told_once
from certifier.audit.log import Log
from tests.audit.faults import Scene
from tests.audit.histories import Workload, write_as_is

pytestmark = [pytest.mark.spark, pytest.mark.slow]
JOBS = (verify, agree, isolation, apply, proof)
BASE = Workload(transactions=600)
WORKLOADS = {
    "usual": BASE,
    "tight": replace(BASE, gc_window="tight"),
    "blocks": replace(BASE, block_size=10),
    "hot": replace(BASE, items=3, items_each=2),
    "cold": replace(BASE, items=5_000, stable_every=15),
    "alone": replace(BASE, alone_share=0.5),
    "at-once": replace(BASE, period=0),
    "reads": replace(BASE, read_share=1.0),
    "brought": replace(BASE, brought_share=0.5, brought_own=True),
    "busy": replace(BASE, block_size=100, load=(8, 1, 1), view_every=97),
    "views": replace(BASE, view_every=20, block_size=7),
    "joins": replace(BASE, joins=True, gc_window="tight"),
}


@pytest.mark.timeout(600)
def test_random_histories_of_every_kind_have_no_findings(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number, (name, workload) in enumerate(WORKLOADS.items()):
        group = f"00000000-0000-0000-0001-{number:012x}"
        scene = Scene(name, number, replace(workload, group=group))
        for rows in scene.histories.values():
            write_as_is(tmp_path, rows)
    log = Log(spark, [str(tmp_path)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "SEGMENT_ROWS", 100)
        findings, counts = told_once([job.run(log) for job in JOBS])
    assert findings == []
    assert not counts
    assert len(log.histories) == 3 * len(WORKLOADS)
