"""Transactions of a message that are certified together have the effects of each by itself."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from groupcert.applier.queue.fragment_references import FragmentSet
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.core.effects import Delivered
from groupcert.members.core.log_records import (
    COLUMN_ITEMS_MIN,
    COLUMNS_MIN,
    LoggedTransaction,
    PlainColumns,
)
from groupcert.members.core.member import Member
from tests.members.state_machines import SETTINGS, batch_of, deliver, online, write

IDS = st.sampled_from((b"", b"", b"a", b"b", b"c", b"d", b"e", b"f"))
TRANSACTIONS = st.lists(
    st.builds(
        lambda snapshot, items, name: write(snapshot, *items, transaction_id=name),
        st.integers(0, 4),
        st.lists(st.integers(1, 6), max_size=2),
        IDS,
    ),
    max_size=8,
)


def columns_of(transactions: Sequence[LoggedTransaction]) -> PlainColumns:
    """The same transactions as columns, however few."""
    return PlainColumns(
        [each.transaction_id for each in transactions],
        [each.snapshot for each in transactions if isinstance(each.snapshot, int)],
        [each.write_set for each in transactions],
        [each.payload for each in transactions],
    )


def effects(delivered: Delivered) -> object:
    """All that a driver has to do."""
    return (list(delivered.entries), delivered.ended, delivered.dropped, delivered.skipped)


def state_of(member: Member) -> object:
    """What later messages, and clients that ask again, meet."""
    return (
        member.certifier.digest(),
        [(*each, type(each[1])) for each in member.outcomes],
        (member.outcomes.next_number, member.outcomes.forgotten_version),
        (member.counters.verdicts, member.counters.local, member.counters.repeated),
    )


@given(st.lists(st.tuples(st.sampled_from((1, 2)), TRANSACTIONS), max_size=6))
def test_columns_have_the_effects_of_one_transaction_after_the_other(
    messages: list[tuple[int, list[LoggedTransaction]]],
) -> None:
    settings = SETTINGS._replace(outcomes_max=4)
    together, alone = online(2, settings=settings), online(2, settings=settings)
    for number, (sender, transactions) in enumerate(messages, start=10):
        batch = batch_of(sender, number, transactions)
        found = deliver(together, batch._replace(transactions=columns_of(transactions)))
        assert effects(found) == effects(deliver(alone, batch))
        assert state_of(together) == state_of(alone)


def test_columns_are_a_sequence_of_plain_transactions() -> None:
    plain = [write(number, number, transaction_id=b"%d" % number) for number in range(COLUMNS_MIN)]
    columns = PlainColumns.of(plain)
    assert columns == plain
    assert columns is not None and columns[1:] == plain[1:]
    assert columns != 7
    for others in (
        {"read_set": [1]},
        {"gtid": Gtid("a", 1)},
        {"report_applied": True},
        {"domain_id": 1},
        {"snapshot": GtidSet()},
        {"payload": FragmentSet(1, 2, 3, 4, bytes(16)).reference()},
    ):
        other = plain[0]._replace(**others)
        assert PlainColumns.of([*plain, other]) is None
    assert PlainColumns.of(plain[1:]) is None


def test_one_transaction_of_many_items_goes_as_columns() -> None:
    items = range(COLUMN_ITEMS_MIN)
    assert PlainColumns.of([write(0, *items)]) == [write(0, *items)]
    assert PlainColumns.of([write(0, *items[1:])]) is None
