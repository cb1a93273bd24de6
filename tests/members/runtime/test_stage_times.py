"""The time of own commits, by stage and by outcome."""

import pytest

from groupcert.certifier.records import Outcome, Verdict
from groupcert.members.runtime.answers import StageTimes


def test_a_submission_counts_once_a_stage_and_once_a_transaction() -> None:
    times = StageTimes()
    times.add("queued", 0.25)
    certified, conflict = Outcome(Verdict.CERTIFIED), Outcome(Verdict.CONFLICT)
    times.end([certified, conflict, certified], 0.5)
    assert {name: (spent.count, spent.sum) for name, spent in times.stages.items()} == {
        "queued": (1, 0.25),
        "ordered": (0, 0.0),
        "committed": (0, 0.0),
    }
    assert {verdict: (spent.count, spent.sum) for verdict, spent in times.verdicts.items()} == {
        Verdict.CERTIFIED: (2, 1.0),
        Verdict.CONFLICT: (1, 0.5),
        Verdict.TOO_OLD: (0, 0.0),
        Verdict.REFUSED: (0, 0.0),
    }


def test_a_submission_does_not_end_undecided() -> None:
    with pytest.raises(AssertionError, match="undecided"):
        StageTimes().end([None], 0.5)
