"""The turns of a server's commits, as the state machine gives them."""

from groupcert.certifier.gtid import Gtid
from groupcert.members.postgresql.commit_order import (
    BATCH_TRANSACTIONS_MAX,
    CommitOrder,
    Entry,
    Execute,
    Grant,
    Local,
    Take,
)

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def entry(version: int) -> Entry:
    """A transaction without rows."""
    return Entry(version, Gtid(SOURCE, version), (), version)


def decided(order: CommitOrder, version: int) -> Local:
    """A backend's transaction that waits for its turn."""
    return order.decided(version, f"transaction {version}", pid=version)


def order_of(version: int, *received: int) -> CommitOrder:
    """An order behind a version that has received others."""
    order = CommitOrder(version)
    order.received([entry(each) for each in received])
    return order


def test_versions_take_turns_whoever_has_them() -> None:
    order = order_of(4, 5, 6, 7)
    other = decided(order, 7)
    one = decided(order, 5)
    assert order.next_step() == Grant(one, None)
    assert order.next_step() == Execute([entry(6)], one.transaction_id)
    assert not order.is_settled
    order.committed(one)
    assert order.is_settled
    assert order.next_step() == Grant(other, None)
    assert order.next_step() is None
    assert order.version == 7


def test_a_backend_commits_behind_the_one_before_it() -> None:
    order = order_of(0, 1, 2)
    one = decided(order, 1)
    other = decided(order, 2)
    assert [order.next_step(), order.next_step()] == [
        Grant(one, None),
        Grant(other, one.transaction_id),
    ]
    assert order.executed_for(one) is other
    assert order.executed_for(other) is None


def test_an_entry_of_a_backend_is_not_executed() -> None:
    order = order_of(0, 1, 2, 3)
    mine = decided(order, 2)
    assert order.next_step() == Execute([entry(1)], None)
    assert order.next_step() == Grant(mine, None)
    assert order.next_step() == Execute([entry(3)], mine.transaction_id)


def test_nothing_has_its_turn_before_the_version_that_has_not_come() -> None:
    order = order_of(0, 2)
    assert (order.first_version, order.next_step()) == (2, None)
    order.received([])
    assert order.next_step() is None
    assert order_of(0).first_version == 0


def test_a_backend_that_made_way_is_executed_for_in_its_turn() -> None:
    order = order_of(0, 1, 2)
    mine = decided(order, 2)
    assert order.waiting_of(mine.pid) is mine
    mine.is_given_up = True
    assert order.waiting_of(mine.pid) is None
    assert order.next_step() == Execute([entry(1)], None)
    assert order.next_step() == Execute([entry(2)], None)
    assert order.is_settled


def test_a_batch_has_a_limit() -> None:
    order = order_of(0, *range(1, BATCH_TRANSACTIONS_MAX + 2))
    first, second = order.next_step(), order.next_step()
    assert isinstance(first, Execute) and len(first.entries) == BATCH_TRANSACTIONS_MAX
    assert second == Execute([entry(BATCH_TRANSACTIONS_MAX + 1)], None)


def test_rows_are_taken_between_the_versions_around_them() -> None:
    order = order_of(0, 1, 2, 3, 4)
    one = decided(order, 2)
    other = decided(order, 4)
    order.take_after(2, 77)
    assert [order.next_step(), order.next_step()] == [Execute([entry(1)], None), Grant(one, None)]
    assert order.next_step() == Take(2, 77, one.transaction_id)
    order.take_after(3, 78)
    order.take_after(3, 79)
    assert order.next_step() == Execute([entry(3)], one.transaction_id)
    assert [order.next_step(), order.next_step()] == [
        Take(3, 79, one.transaction_id),
        Grant(other, one.transaction_id),
    ]
    order.committed(one)
    order.committed(other)
    order.take_after(4, 80)
    assert [order.next_step(), order.next_step()] == [Take(4, 80, None), None]


def test_entries_behind_the_rows_that_are_taken_are_not_executed_with_those_before() -> None:
    order = order_of(0, *range(1, 10))
    order.take_after(5, 77)
    before, taken, after = (order.next_step() for _ in range(3))
    assert isinstance(before, Execute) and [each.version for each in before.entries] == [
        *range(1, 6)
    ]
    assert taken == Take(5, 77, None)
    assert isinstance(after, Execute) and [each.version for each in after.entries] == [
        *range(6, 10)
    ]
