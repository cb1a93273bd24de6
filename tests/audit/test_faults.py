"""Every kind of wrong history is found by its code, at its place, and nothing else is; right
histories of random groups under several options, traces, joiners, exports give no finding.
"""

import pytest

from groupcert.certifier.audit.answers.findings import Code
from tests.audit.anomalies import EXPLAINED
from tests.audit.audited import RIGHT_ONES, Audited, keys

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_each_fault_is_found_by_its_code_and_told_once_and_nothing_else_is(
    audited: Audited,
) -> None:
    """An anomaly follows from a wrong verdict, and what was changed may explain what is behind it:
    that is told below its cause.
    """
    expected = {
        each
        for scene in audited.faulty.values()
        for each in scene.expected
        if each[0] not in EXPLAINED
    }
    told, counts, _ = audited.told
    below = keys(audited.following)
    assert sorted(keys(told) - expected) == []
    assert sorted(expected - keys(told) - below) == []
    assert counts.total() == len(told)
    may_follow = {
        (code, str(rows[0]["observer"]))
        for scene in audited.faulty.values()
        for rows in scene.histories.values()
        for code in (*EXPLAINED, Code.DIGEST_WRONG, *scene.may_follow)
    }
    assert [each for each in below - expected if each[:2] not in may_follow] == []


def test_random_histories_of_every_kind_have_no_findings(audited: Audited) -> None:
    histories = [rows for scene in audited.right.values() for rows in scene.histories.values()]
    observers = {str(rows[0]["observer"]) for rows in histories}
    for result in audited.results.values():
        assert [each for each in result.findings if each.observer in observers] == []
    assert sorted(observers.intersection(audited.observers)) == sorted(observers)
    assert len(observers) == 3 * len(RIGHT_ONES)
