"""Who lost to whom is kept, and the rows that are fought over are found in bounded memory."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from groupcert.certifier.records import Outcome
from groupcert.members.core.conflict_record import (
    CONFLICTS_MAX,
    GENERATION_US,
    NAMES_MAX,
    PAYLOAD_BYTES_MAX,
    ConflictRecord,
)
from groupcert.members.core.hot_rows import ROWS_MAX, HotRows, hottest
from groupcert.members.core.log_records import LoggedTransaction
from groupcert.members.core.member import Member
from tests.members.state_machines import batch_of, deliver, online, write


def record_of(member: Member) -> ConflictRecord:
    return member.counters.conflicts


def fight(member: Member, item: int, number: int, payload: bytes = b"") -> None:
    """m2 writes a row, and m1 too, who has not read that."""
    first = write(member.certifier.window.newest_version, item)
    deliver(member, batch_of(2, number, [first]))
    late = first._replace(transaction_id=b"late%d" % number, payload=payload)
    deliver(member, batch_of(1, number, [late]))


def test_a_conflict_is_kept_with_winner_and_loser() -> None:
    member = online(2)
    fight(member, 7, 10)
    (lost,) = record_of(member).last()
    assert (lost.member, lost.transaction_id) == ("m1", b"late10")
    assert (lost.conflict.item, lost.conflict.winner_origin) == (7, "m2")


def test_a_repeated_transaction_has_conflicted_once() -> None:
    member = online(2)
    fight(member, 7, 10)
    again: LoggedTransaction = write(0, 7, transaction_id=b"late10")
    deliver(member, batch_of(1, 11, [again]))
    assert member.counters.repeated == 1
    assert len(record_of(member).last()) == 1


def test_the_newest_conflicts_are_kept_and_large_changes_are_not() -> None:
    member = online(2)
    for number in range(10, 10 + CONFLICTS_MAX + 5):
        fight(member, number, number, bytes(PAYLOAD_BYTES_MAX + number % 2))
    last = record_of(member).last()
    assert [each.conflict.item for each in last] == [*range(14 + CONFLICTS_MAX, 14, -1)]
    assert {len(each.payload) for each in last} == {0, PAYLOAD_BYTES_MAX}


def test_rows_are_counted_in_two_generations() -> None:
    record = ConflictRecord()
    member = online(2)
    member.counters.conflicts = record
    fight(member, 7, 10)
    rows, _ = record.rows(0)
    assert [(each.item, each.conflicts) for each in rows] == [(7, 1)]
    record.rows(GENERATION_US)
    rows, since_us = record.rows(GENERATION_US + 1)
    assert ([(each.item, each.conflicts) for each in rows], since_us) == ([(7, 1)], 0)
    assert record.rows(2 * GENERATION_US) == ([], GENERATION_US)
    assert record.rows(9 * GENERATION_US) == ([], 9 * GENERATION_US)


def test_the_last_names_of_rows_are_kept() -> None:
    record = ConflictRecord()
    record.name(1, b"first")
    for item in range(2, NAMES_MAX + 1):
        record.name(item, b"x")
    record.name(1, b"again")
    record.name(0, b"y" * 1_000)
    names = record.names()
    assert (len(names), names[1], len(names[0])) == (NAMES_MAX, b"again", 256)
    assert 2 not in names


@given(st.lists(st.one_of(st.integers(0, 5), st.integers(0, 500)), max_size=600))
def test_a_row_with_its_share_is_there_and_no_count_is_too_low(items: list[int]) -> None:
    rows, truth = HotRows(), Counter(items)
    for at, item in enumerate(items):
        rows.count(item, at, b"")
    found = {each.item: each for each in rows.rows()}
    assert len(found) <= ROWS_MAX
    for item, count in truth.items():
        assert item in found or count * ROWS_MAX <= len(items)
    for item, row in found.items():
        assert row.conflicts - row.overcount <= truth[item] <= row.conflicts


def test_the_hottest_rows_are_told_first_and_added_up() -> None:
    before, now = HotRows(), HotRows()
    for item in (1, 2, 2, 3):
        before.count(item, 1, b"old")
    now.count(1, 5, b"")
    now.count(1, 6, b"")
    told = hottest(before.rows() + now.rows(), 2)
    assert [(each.item, each.conflicts, each.decided_us) for each in told] == [(1, 3, 6), (2, 2, 1)]
    assert told[0].payload == b"old"


def test_an_outcome_without_a_conflict_is_none() -> None:
    member = online(2)
    deliver(member, batch_of(2, 10, [write(0, 1), write(0, 2)]))
    assert isinstance(member.certifier.refuse(""), Outcome)
    assert record_of(member).last() == []
