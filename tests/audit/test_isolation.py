"""Each anomaly that a wrong certifier lets in is found by its code, at its place, in words."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.isolation import isolation
from groupcert.certifier.audit.isolation.isolation import Candidate
from groupcert.certifier.audit.rows.log import Log
from tests.audit.anomalies import ANOMALIES, WORDS, X, Y, write_skew
from tests.audit.audited import Audited, Found
from tests.audit.faults import MEMBERS, Scene
from tests.audit.histories import Workload, write_as_is


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_anomaly_is_found_in_words(audited: Audited) -> None:
    expected: dict[Found, str] = {}
    for anomaly, words in WORDS.items():
        scene = audited.faulty[anomaly.__name__]
        group = scene.workload.group
        text = words.format(g=group, x=f"item {X:016x}", y=f"item {Y:016x}")
        expected |= {key: text for key in scene.expected if key[0] in ANOMALIES}
    found = audited.results_of("isolation", WORDS)
    assert {(each.code, each.observer, each.place): each.witness for each in found} == expected
    assert len(found) == len(expected)
    assert audited.results["isolation"].summary["unsearched"] == 1


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_no_more_candidates_are_searched_than_may_be(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene("skewed", 0, Workload(transactions=1))
    write_skew(scene)
    write_as_is(tmp_path, *scene.histories.values())
    monkeypatch.setattr(isolation, "CANDIDATES_MAX", 1)
    assert isolation.run(Log(spark, [str(tmp_path)])).summary["unsearched"] == len(MEMBERS) - 1


def test_candidates_are_searched_while_their_neighbours_are_not_too_many() -> None:
    """Those of the same history share them."""
    held = isolation.OPERATIONS_MAX // 4
    ends = [(0, held), (1, held), (0, held + 9), (0, 3 * held), (1, 3 * held)]
    candidates = [
        Candidate(h, number, number, version, version - held + 1)
        for number, (h, version) in enumerate(ends)
    ]
    assert isolation._within_bounds(candidates) == candidates[:4]
    assert isolation._within_bounds(candidates[1:]) == candidates[1:]
