"""What covers what: findings of one history explain nothing of another one's."""

from collections import Counter

import pytest

from groupcert.certifier.audit.answers.causes import FOLLOWS_MESSAGES, told_once
from groupcert.certifier.audit.answers.findings import Code, Finding
from groupcert.certifier.audit.answers.result import Result
from groupcert.certifier.history.schema import LOG_SEQUENCE_SHIFT


def finding(code: Code, place: int, history: str = "1") -> Finding:
    """A finding of m1."""
    return Finding(code, "m1", history, place, "", "", "")


def left(*findings: Finding) -> list[Finding]:
    """What is told of findings."""
    result = Result()
    result.add(list(findings))
    told, counts, following = told_once([result])
    assert counts.total() == len(told)
    assert len(told) + sum(map(len, following.values())) == len(findings)
    return told


DIGEST = finding(Code.DIGEST_WRONG, 9)


@pytest.mark.parametrize("code", [Code.RECORD_EDITED, Code.CONFLICT_FALSE, Code.GTID_DUPLICATE])
def test_digest_follows_from_an_earlier_decision(code: Code) -> None:
    assert left(finding(code, 3), DIGEST) == [finding(code, 3)]
    assert left(DIGEST, finding(code, 10)) == [DIGEST, finding(code, 10)]


@pytest.mark.parametrize("code", [Code.STAMP_TOO_HIGH, Code.VIEW_CHANGE_WRONG, Code.LOST_UPDATE])
def test_digest_does_not_follow_from_what_it_does_not_cover(code: Code) -> None:
    assert left(finding(code, 3), DIGEST) == [finding(code, 3), DIGEST]


def test_histories_of_one_name_are_told_apart() -> None:
    other = finding(Code.RECORD_EDITED, 3, "2")
    assert left(other, DIGEST) == [other, DIGEST]
    assert left(DIGEST, DIGEST._replace(history="2")) == [DIGEST, DIGEST._replace(history="2")]
    anomaly = finding(Code.LOST_UPDATE, 3)
    missed = finding(Code.CONFLICT_MISSED, 3)
    assert left(anomaly, missed) == [missed]
    assert left(anomaly, missed._replace(history="2")) == [anomaly, missed._replace(history="2")]


MESSAGE = 1 << LOG_SEQUENCE_SHIFT


@pytest.mark.parametrize(
    ("cause", "code", "reaches_for_good"),
    [
        (Code.RECORD_EDITED, Code.CONFLICT_MISSED, False),
        (Code.MEMBERS_DISAGREE, Code.WINDOW_WRONG, False),
        (Code.RECORD_EDITED, Code.REPORT_WRONG, True),
        (Code.SETTINGS_WRONG, Code.WINDOW_WRONG, True),
    ],
)
def test_the_rule_expects_something_else_for_a_while_behind_a_changed_row(
    cause: Code, code: Code, reaches_for_good: bool
) -> None:
    begin = finding(cause, 3 * MESSAGE)
    near = finding(code, (3 + FOLLOWS_MESSAGES) * MESSAGE)
    far = finding(code, (4 + FOLLOWS_MESSAGES) * MESSAGE)
    assert left(near, begin) == [begin]
    assert left(far, begin) == ([begin] if reaches_for_good else [begin, far])


@pytest.mark.parametrize("code", [Code.RECORD_EDITED, Code.APPLIED_TOGETHER, Code.HISTORY_CUT])
def test_some_findings_follow_from_no_row_before_theirs(code: Code) -> None:
    begin, own = finding(Code.RECORD_EDITED, 3), finding(code, 4)
    assert left(begin, own) == [begin, own]


def test_what_was_not_kept_follows_as_often_as_what_was() -> None:
    edits = [finding(Code.RECORD_EDITED, place) for place in range(4)]
    digests = [finding(Code.DIGEST_WRONG, place) for place in (-1, 3)]
    found = Result([*edits, *digests], Counter(RECORD_EDITED=9, DIGEST_WRONG=7))
    again = Result([*edits[1:]], Counter(RECORD_EDITED=8))
    told, counts, _ = told_once([found, again])
    assert told == [digests[0], *edits]
    assert counts == {"RECORD_EDITED": 9, "DIGEST_WRONG": 4}
