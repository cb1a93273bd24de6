"""Refusals that come while more is being sent, or after an answer that was lost.

Why it matters: a refusal is certain, and a caller can do something about it; "unknown" is neither.
"""

import uuid
from collections.abc import Iterator

import pytest

from groupcert import CertifiableTransaction, Client, GetOutcomeResponse, certifiable
from groupcert.certifier.errors import InvalidWriteSet, TransactionTooLarge, WriteSetTooLarge
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.wire.pieces import VALUE_BYTES_MAX
from groupcert.v1 import store_pb2
from tests.frozen import frozen
from tests.integration.conftest import SETTINGS

pytestmark = [pytest.mark.nats, pytest.mark.cluster]

ITEMS_MAX = int(str(SETTINGS["write_set_items_max"]))
TIMES = 5
"""A refusal during a message on its way was lost in four of five cases."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """Two members, of which the second one takes small transactions only."""
    own = {"m1": {"transaction_bytes_max": 64 << 20}, "m2": {"transaction_bytes_max": 1_000}}
    folder = tmp_path_factory.mktemp("group")
    settings = {**SETTINGS, "member_expel_timeout_ms": 600_000}
    with LocalGroup(folder, members=2, settings=settings, own_settings=own) as group:
        yield group


@pytest.fixture
def key() -> bytes:
    """A row that no other test uses."""
    return uuid.uuid4().bytes


@pytest.mark.parametrize("serializable", [False, True])
def test_too_many_rows_of_a_large_commit_are_refused_before_they_are_sent(
    group: LocalGroup, key: bytes, serializable: bool
) -> None:
    addresses = list(group.addresses.values())
    with Client(addresses, serializable=serializable) as client:
        transaction = client.transaction()
        for number in range(ITEMS_MAX + 1):
            row = key + b"%d" % number
            transaction.get(row) if serializable else transaction.put(row, bytes(2_000))
        transaction.put(key, bytes(2 << 20))
        with pytest.raises(WriteSetTooLarge, match=f"of {ITEMS_MAX + 2 - serializable} items"):
            transaction.commit()


def test_a_refusal_within_a_large_commit_is_what_the_caller_is_told(
    group: LocalGroup, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that announces too little."""

    def silent(**fields: object) -> store_pb2.CommitHeader:
        del fields["rows"], fields["read_keys"]
        return store_pb2.CommitHeader(**fields)  # type: ignore[arg-type]  # as they are

    monkeypatch.setattr("groupcert.members.client.commit_sending.CommitHeader", silent)
    for _ in range(TIMES):
        with Client(group.addresses["m1"]) as client:
            transaction = client.transaction()
            for number in range(8 * ITEMS_MAX):
                transaction.put(key + b"%d" % number, bytes(2_000))
            with pytest.raises(WriteSetTooLarge, match=f"the limit is {ITEMS_MAX}"):
                transaction.commit()


def test_a_refusal_within_a_stream_is_what_the_caller_is_told(group: LocalGroup) -> None:
    refused = certifiable(snapshot=0, write_set=range(1, ITEMS_MAX + 2))
    large = CertifiableTransaction(write_set=[1], changes=bytes(1_000_000))
    for _ in range(TIMES):
        with Client(group.addresses["m1"]) as client, pytest.raises(WriteSetTooLarge):
            list(client.certify_stream([[refused], *([large],) * 40]))


def test_a_refusal_after_a_lost_attempt_keeps_the_attempt_from_being_ordered(
    group: LocalGroup, key: bytes
) -> None:
    """The first member stands still with the commit before it; the second one refuses it."""
    first, second = group.addresses.values()
    with Client([first, second], timeout_ms=30_000) as client:
        transaction = client.transaction()
        transaction.put(key, bytes(2_000))
        with (
            frozen(group.processes["m1"].pid),
            pytest.raises(TransactionTooLarge, match="the limit is 1000"),
        ):
            transaction.commit()
        decided = client.outcome(transaction.transaction_id)
        assert decided.state == GetOutcomeResponse.STATE_DECIDED
        assert "is not certified yet" in decided.outcome.reason
        with Client(first, timeout_ms=60_000) as late:
            late.run(lambda transaction: transaction.put(key + b"later", b""))
            with late.transaction() as reading:
                assert reading.get(key) is None


def test_a_value_is_as_long_as_a_row_may_be_and_no_longer(group: LocalGroup, key: bytes) -> None:
    with Client(group.addresses["m1"]) as client:
        with client.transaction() as transaction:
            transaction.put(key, bytes(VALUE_BYTES_MAX))
        for more in (1, 1 << 20, 8 << 20):
            with pytest.raises(InvalidWriteSet, match="divide it among rows"):
                with client.transaction() as transaction:
                    transaction.put(key, bytes(VALUE_BYTES_MAX + more))
        assert client.outcome(transaction.transaction_id).state == GetOutcomeResponse.STATE_UNKNOWN
