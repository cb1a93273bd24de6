"""Comparisons of rows: what is stored of one; testdata/members/comparisons.txt has its rules."""

import json

import pytest

from groupcert.members.core.comparisons import Comparisons
from groupcert.members.core.log_records import RANGE_BYTES, RANGES, LogBatch, RowDigests
from groupcert.members.core.record_kinds import GroupBefore, why_no_digests
from tests.members.state_machines import new_member, run_of

EQUAL = bytes(RANGES * RANGE_BYTES)


def test_what_is_stored_is_the_comparison_with_the_answers_so_far() -> None:
    compared = Comparisons(run_of(1))
    compared.begin(7, 3, 99, [run_of(number) for number in (1, 2, 3)])
    compared.take(1, RowDigests(7, 5, EQUAL))
    compared.take(2, RowDigests(7, 5, EQUAL[:-1] + b"\1", tables=2**64 - 1))
    compared.take(9, RowDigests(7, 5, EQUAL))
    restored = Comparisons(run_of(1))
    restored.restore(json.loads(json.dumps(compared.dump())))
    assert (restored.position, restored.version, restored.requested_us) == (7, 3, 99)
    assert (restored.asked, restored.answers) == (compared.asked, compared.answers)
    assert restored.waiting == ["m3"]


def test_equal_digests_are_stored_once() -> None:
    compared = Comparisons(run_of(1))
    compared.begin(7, 3, 99, [run_of(number) for number in range(1, 9)])
    for run in range(1, 9):
        compared.take(run, RowDigests(7, 5, EQUAL))
    assert len(json.dumps(compared.dump())) < 2 * len(EQUAL) + 1_000
    assert compared.is_over
    assert compared.differences() == []


@pytest.mark.parametrize(
    ("digests", "why"),
    [
        (RowDigests(7, 5, EQUAL), ""),
        (RowDigests(9 << 20, 5, EQUAL), "comes before that"),
        (RowDigests(7, 5, EQUAL[1:]), "of 2047 bytes of 5 rows"),
        (RowDigests(7, 2**63, EQUAL), f"of 2048 bytes of {2**63} rows"),
    ],
)
def test_digests_that_no_member_has_make_a_message_invalid(digests: RowDigests, why: str) -> None:
    member = new_member()
    before = GroupBefore(9, member.view, member.settings, 0, member.numbers)
    found = why_no_digests(digests, LogBatch("m1", 1, 1), before)
    assert why in found
    assert bool(found) == bool(why)
