"""No message of a client is larger than members take; what cannot be divided is refused here."""

import pytest

from groupcert.certifier.errors import TransactionTooLarge
from groupcert.members.client.client_options import CertifiableTransaction, certifiable
from groupcert.members.client.commit_sending import (
    CALL_BYTES_MAX,
    KEYS_A_MESSAGE,
    LARGE_BYTES,
    CommitSending,
    check_call,
    messages,
    pages,
)
from groupcert.members.client.own_writes import OwnWrites
from groupcert.members.door.door_server import MESSAGE_BYTES_MAX
from groupcert.members.wire.message_fields import REPEATED_MAX
from groupcert.v1.store_pb2 import CommitPart, CommitRequest, CommitStreamRequest

HUGE = CertifiableTransaction(changes=bytes(CALL_BYTES_MAX))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([8] * (2 * KEYS_A_MESSAGE + 1), [KEYS_A_MESSAGE, KEYS_A_MESSAGE, 1]),
        ([300 << 10] * 3, [1, 1, 1]),
        ([200 << 10] * 3, [2, 1]),
        ([700 << 10, 8, 8], [1, 2]),
    ],
)
def test_keys_are_divided_by_number_and_bytes(sizes: list[int], expected: list[int]) -> None:
    keys = [bytes(size) for size in sizes]
    divided = list(pages(keys))
    assert [len(page) for page in divided] == expected
    assert [key for page in divided for key in page] == keys
    for page in divided:
        part = CommitStreamRequest(rows=CommitPart(read_keys=page))
        assert part.ByteSize() < MESSAGE_BYTES_MAX


def test_a_commit_of_many_short_keys_goes_in_parts_before_it_is_too_large() -> None:
    writes = OwnWrites()
    writes.put(b"key", b"value")
    read_keys = [b"%d" % number for number in range(LARGE_BYTES // 20)]
    request = CommitRequest()
    assert not CommitSending(request, writes, read_keys[: len(read_keys) // 2]).is_large
    assert request.ByteSize() < MESSAGE_BYTES_MAX
    assert CommitSending(CommitRequest(), writes, read_keys).is_large


def test_a_batch_is_divided_where_it_is_larger_than_a_message() -> None:
    small = [certifiable(snapshot=1, write_set=[number]) for number in range(4)]
    large = [CertifiableTransaction(changes=bytes(300 << 10)) for _ in range(5)]
    assert [len(request.transactions) for request in messages(small)] == [4]
    requests = list(messages([*small, *large]))
    assert [len(request.transactions) for request in requests] == [7, 2]
    sent = [transaction for request in requests for transaction in request.transactions]
    assert sent == [*small, *large]
    assert all(request.ByteSize() < MESSAGE_BYTES_MAX for request in requests)


def test_a_batch_is_divided_where_it_has_more_than_a_message_may() -> None:
    batch = [certifiable(snapshot=1, write_set=[1])] * (2 * REPEATED_MAX + 1)
    divided = [len(request.transactions) for request in messages(batch)]
    assert divided == [REPEATED_MAX, REPEATED_MAX, 1]


def test_a_transaction_that_is_too_large_ends_a_batch_and_says_why() -> None:
    small = certifiable(snapshot=1, write_set=[1])
    with pytest.raises(TransactionTooLarge, match=f"the limit is {CALL_BYTES_MAX}: write less"):
        list(messages([small, HUGE]))
    with pytest.raises(TransactionTooLarge, match="the group's own store, which go in parts"):
        check_call(HUGE)
