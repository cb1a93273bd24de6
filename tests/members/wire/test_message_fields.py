"""Fields of serialized messages: what the parser finds is what is counted, and no more is read."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from groupcert.certifier.errors import InvalidWriteSet
from groupcert.internal.v1.log_pb2 import LogBatch, LoggedTransaction
from groupcert.members.wire.message_fields import REPEATED_MAX, check_repeated, fields
from groupcert.v1.certification_pb2 import CertifyStreamRequest
from groupcert.v1.store_pb2 import GetRequest
from groupcert.v1.transaction_pb2 import Transaction

BATCH = LogBatch(
    format_version=2,
    member="m1",
    incarnation=2**64 - 1,
    batch_number=2**64 - 1,
    transactions=[LoggedTransaction(), LoggedTransaction(changes=bytes(300))],
)


def test_each_field_is_found_with_its_bytes() -> None:
    transaction = BATCH.transactions[1].ByteSize()
    assert list(fields(BATCH.SerializeToString())) == [
        (1, 1),
        (2, 2),
        (3, 8),
        (4, 10),
        (5, 0),
        (5, transaction),
    ]


def test_fields_of_a_group_and_of_32_bits_are_found_too() -> None:
    assert list(fields(b"\x0b\x10\x07\x0c\x1d\x01\x02\x03\x04")) == [(1, 0), (2, 1), (1, 0), (3, 4)]


@given(st.binary(max_size=200))
def test_any_bytes_are_looked_through(data: bytes) -> None:
    found = list(fields(data))
    assert sum(size for _, size in found) <= len(data)
    try:
        batch = LogBatch.FromString(data)
    except DecodeError:
        return
    repeated = len(batch.transactions) + len(batch.controls) + len(batch.fragments)
    assert sum(number in (5, 6, 7) for number, _ in found) >= repeated


@given(st.integers(0, len(BATCH.SerializeToString())))
def test_a_message_that_is_cut_off_has_the_fields_before_the_cut(end: int) -> None:
    whole = list(fields(BATCH.SerializeToString()))
    found = list(fields(BATCH.SerializeToString()[:end]))
    assert found == whole[: len(found)]


@pytest.mark.parametrize(
    "tail", [b"\x0e", b"\xff" * 11, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"]
)
def test_what_is_no_field_ends_it(tail: bytes) -> None:
    assert list(fields(b"\x08\x01" + tail)) == [(1, 1)]


def test_a_request_repeats_no_more_messages_than_it_may() -> None:
    request = CertifyStreamRequest(transactions=[Transaction(changes=b"1")] * REPEATED_MAX)
    check_repeated(request.SerializeToString(), "transactions")
    request.transactions.add()
    with pytest.raises(InvalidWriteSet, match="more than 10000 transactions in one message"):
        check_repeated(request.SerializeToString(), "transactions")


def test_fields_that_nobody_knows_count_too() -> None:
    with pytest.raises(InvalidWriteSet):
        check_repeated(b"\xf8\x7f\x01" * (REPEATED_MAX + 1), "transactions")


def test_keys_may_be_as_many_as_there_is_room_for() -> None:
    check_repeated(GetRequest(keys=[b""] * 500_000).SerializeToString(), "")
