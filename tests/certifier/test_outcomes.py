"""The outcome table: what is known of recent transactions, and when it is forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.certifier.core import Certifier, CertifierOptions
from groupcert.certifier.gtid import NUMBER_MAX, Gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.outcomes import REASON_CHARACTERS_MAX, OutcomeTable
from groupcert.certifier.records import GarbageCollection, Outcome, Transaction, Verdict

SOURCE = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
CONFLICT = Outcome(Verdict.CONFLICT)


def name(number: int) -> bytes:
    """The id of transaction `number`."""
    return b"%d" % number


def certified(number: int) -> Outcome:
    """The outcome of transaction `number`."""
    return Outcome(Verdict.CERTIFIED, version=number + 1)


def table_of(count: int, outcomes_max: int) -> OutcomeTable:
    """A table that has remembered so many transactions."""
    table = OutcomeTable(outcomes_max)
    for number in range(count):
        table.remember(name(number), certified(number))
    return table


@given(st.integers(2, 9), st.integers(0, 60))
def test_at_least_half_and_at_most_all_of_the_limit_is_known(limit: int, count: int) -> None:
    table = table_of(count, limit)
    known = [number for number in range(count) if table.get(name(number))]
    assert known == list(range(table.first_number, count))
    assert min(count, limit // 2) <= len(table) == len(known) <= limit
    assert all(table.get(name(number)) == certified(number) for number in known)
    assert table.forgotten_version == table.first_number


def test_what_was_not_certified_does_not_move_the_forgotten_version() -> None:
    table = OutcomeTable(2)
    for number in range(4):
        table.remember(name(number), CONFLICT)
    assert len(table) == 2
    assert table.forgotten_version == 0


def test_outcomes_are_read_in_the_order_of_their_numbers() -> None:
    table = table_of(7, 6)
    assert table.first_number == 3
    assert table.young_number == 6
    assert list(table) == table.since(0)
    assert table.since(5) == [(name(5), certified(5)), (name(6), certified(6))]
    assert table.since(7) == []


def test_a_table_can_begin_where_a_generation_does() -> None:
    table = OutcomeTable(6, 3)
    for number in range(3, 9):
        table.remember(name(number), certified(number))
    assert list(table) == list(table_of(9, 6))


def test_a_table_cannot_begin_within_a_generation() -> None:
    with pytest.raises(AssertionError, match="generation"):
        OutcomeTable(6, 4)


def test_remembering_twice_is_a_mistake() -> None:
    table = table_of(2, 6)
    with pytest.raises(AssertionError):
        table.remember(name(0), CONFLICT)


def test_a_reason_that_keeps_what_a_client_sent_is_a_mistake() -> None:
    table = OutcomeTable(6)
    table.remember(b"short", Outcome(Verdict.REFUSED, reason="x" * REASON_CHARACTERS_MAX))
    with pytest.raises(AssertionError, match="xxx"):
        table.remember(b"long", Outcome(Verdict.REFUSED, reason="x" * (REASON_CHARACTERS_MAX + 1)))


@pytest.mark.parametrize(
    "transaction",
    [
        Transaction(1, "m1", NUMBER_MAX, [1]),
        Transaction(
            1, "m1", GtidSet.parse(f"{SOURCE}:{':'.join(map(str, range(1, 9_999, 2)))}"), [1]
        ),
        Transaction(1, "m1", 0, [1], gtid=Gtid(f"{SOURCE}:{'t' * 32}", NUMBER_MAX)),
        Transaction(1, "m1", 1, [1]),
    ],
    ids=["future version", "unknown set", "used GTID", "too old"],
)
def test_a_reason_is_short_whatever_was_sent(transaction: Transaction) -> None:
    certifier = Certifier(CertifierOptions(group_source=SOURCE))
    certifier.certify(Transaction(0, "m1", 0, [1], gtid=Gtid(f"{SOURCE}:{'t' * 32}", NUMBER_MAX)))
    certifier.certify(Transaction(0, "m1", 1, [2]))
    if transaction.snapshot == 1:
        certifier.deliver(GarbageCollection(0, 2))
    else:
        transaction = transaction._replace(write_set=[3])
    outcome = certifier.certify(transaction)
    assert outcome.verdict in (Verdict.REFUSED, Verdict.TOO_OLD)
    assert 0 < len(outcome.reason) <= REASON_CHARACTERS_MAX


@given(st.integers(2, 9), st.lists(st.integers(0, 6), max_size=6))
def test_outcomes_are_remembered_together_as_one_by_one(limit: int, counts: list[int]) -> None:
    together, alone = OutcomeTable(limit), OutcomeTable(limit)
    first = 1
    for count in counts:
        new = {name(number): certified(number) for number in range(first, first + count)}
        first += count
        assert not together.knows_any(new)
        together.remember_all(new)
        for each, outcome in new.items():
            alone.remember(each, outcome)
        assert list(together) == list(alone)
        assert together.knows_any(new) == any(alone.get(each) is not None for each in new)
        found = (together.next_number, together.young_number, together.forgotten_version)
        assert found == (alone.next_number, alone.young_number, alone.forgotten_version)
