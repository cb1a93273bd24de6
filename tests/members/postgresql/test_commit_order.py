"""The turns of a server's commits, as the state machine gives them."""

from groupcert.certifier.gtid import Gtid
from groupcert.certifier.write_set import store_key_item
from groupcert.members.postgresql.commit_order import (
    BATCH_TRANSACTIONS_MAX,
    CommitOrder,
    Entry,
    Execute,
    Grant,
    Local,
)

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def entry(version: int, key: bytes = b"other") -> Entry:
    """A transaction of one row."""
    return Entry(version, Gtid(SOURCE, version), (), frozenset([store_key_item(key)]))


def local(name: str, key: bytes = b"mine") -> Local:
    """A backend's transaction of one row."""
    return Local(transaction_id=name, pid=len(name), write_set=frozenset([store_key_item(key)]))


def step(order: CommitOrder) -> Grant | Execute | None:
    """The next step."""
    return order.next_step()


def test_versions_take_turns_whoever_has_them() -> None:
    order = CommitOrder(4)
    one, other = local("one"), local("other")
    order.submitted(one)
    order.submitted(other)
    order.decided(other, entry(7, b"mine"))
    assert step(order) is None
    order.decided(one, entry(5, b"mine"))
    assert step(order) == Grant(one, None)
    assert step(order) is None
    order.received([entry(5, b"mine"), entry(6)])
    assert step(order) == Execute([entry(6)], one)
    assert not order.is_settled
    order.committed(one)
    assert order.is_settled
    assert step(order) == Grant(other, None)


def test_a_backend_commits_behind_the_one_before_it() -> None:
    order = CommitOrder(0)
    one, other = local("one"), local("other")
    order.decided(one, entry(1))
    order.decided(other, entry(2))
    assert [step(order), step(order)] == [Grant(one, None), Grant(other, one)]
    assert order.executed_for(one) is other
    assert order.executed_for(other) is None


def test_an_entry_that_may_be_in_flight_waits_for_the_outcome() -> None:
    order = CommitOrder(0)
    mine = local("mine")
    order.submitted(mine)
    order.received([entry(1), entry(2, b"mine"), entry(3)])
    assert step(order) == Execute([entry(1)], None)
    assert step(order) is None
    order.withdrawn(mine)
    assert step(order) == Execute([entry(2, b"mine"), entry(3)], None)


def test_an_entry_of_a_backend_is_not_executed() -> None:
    order = CommitOrder(0)
    mine = local("mine")
    order.submitted(mine)
    order.received([entry(1), entry(2, b"mine"), entry(3)])
    order.decided(mine, entry(2, b"mine"))
    assert step(order) == Execute([entry(1)], None)
    assert step(order) == Grant(mine, None)
    assert step(order) == Execute([entry(3)], mine)


def test_versions_without_a_transaction_are_passed_over() -> None:
    order = CommitOrder(0)
    mine = local("mine")
    order.decided(mine, entry(3, b"mine"))
    order.received([entry(3, b"mine"), entry(9)])
    assert step(order) == Grant(mine, None)
    assert step(order) == Execute([entry(9)], mine)
    assert order.version == 9


def test_a_backend_that_made_way_is_executed_for_in_its_turn() -> None:
    order = CommitOrder(0)
    mine = local("mine")
    order.decided(mine, entry(2, b"mine"))
    order.received([entry(1)])
    assert order.waiting_of(mine.pid) is mine
    mine.is_given_up = True
    assert order.waiting_of(mine.pid) is None
    assert step(order) == Execute([entry(1)], None)
    assert step(order) == Execute([entry(2, b"mine")], None)
    assert order.is_settled


def test_a_batch_has_a_limit() -> None:
    order = CommitOrder(0)
    order.received([entry(version) for version in range(1, BATCH_TRANSACTIONS_MAX + 2)])
    first, second = step(order), step(order)
    assert isinstance(first, Execute) and len(first.entries) == BATCH_TRANSACTIONS_MAX
    assert second == Execute([entry(BATCH_TRANSACTIONS_MAX + 1)], None)
    assert order.entries_count == 0
