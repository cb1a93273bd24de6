"""Each anomaly that a wrong certifier lets in is found by its code, at its place, in words."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.answers.findings import Code, Finding
from groupcert.certifier.audit.isolation import isolation
from groupcert.certifier.audit.isolation.cycles import Cycle, Dependency, Edge, Operation
from groupcert.certifier.audit.isolation.isolation import Candidate
from groupcert.certifier.audit.rows.certification_log import Log
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
        senders = re.sub(r"of (m\d)", rf"of {scene.name}-\1", words)
        text = senders.format(g=group, x=f"item {X:016x}", y=f"item {Y:016x}")
        expected |= {key: text for key in scene.expected if key[0] in ANOMALIES}
    found = audited.results_of("isolation", WORDS)
    assert {(each.code, each.observer, each.place): each.witness for each in found} == expected
    assert len(found) == len(expected)
    assert audited.results["isolation"].summary["unsearched"] == 1
    cycles: Any = audited.results["isolation"].summary["cycles"]
    drawn = {(each["code"], each["observer"], each["place"]): each for each in cycles}
    in_words = {key: text for key, text in expected.items() if text.count(" read ")}
    assert len(cycles) == len(drawn)
    told = {key for key, text in in_words.items() if "decided after" not in text}
    assert drawn.keys() & expected.keys() == told
    for key, each in ((key, drawn[key]) for key in told):
        for sentence, edge in zip(in_words[key].split("; "), each["edges"], strict=True):
            assert edge["row"] in sentence
        names = [f"{one['gtid']} of {one['member']}" for one in each["transactions"]]
        assert all(name in expected[key] for name in names) and len(names) == len(each["edges"])


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


def test_cycles_that_are_too_many_or_too_long_are_not_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first by place are, of each code."""
    one, other = (
        Operation(version=n, snapshot=0, writes=frozenset(), reads=frozenset()) for n in (1, 2)
    )
    edges = [Edge(one, other, Dependency.ANTI, X), Edge(other, one, Dependency.ANTI, Y)]
    codes = (Code.WRITE_SKEW, Code.READ_SKEW)
    found = [
        (Finding(code, "m1", "1", place, "", "", ""), Cycle(code, edges))
        for place in (3, 1, 2)
        for code in codes
    ]
    monkeypatch.setattr(isolation, "DRAWN_MAX", 2)
    drawn = list(isolation._drawn(found, {}))
    assert [(each["code"], each["place"]) for each in drawn] == [
        (code, place) for place in (1, 2) for code in codes
    ]
    monkeypatch.setattr(isolation, "EDGES_MAX", 1)
    assert list(isolation._drawn(found, {})) == []


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
