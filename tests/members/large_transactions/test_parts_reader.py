"""Large commits as their parts come in."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from groupcert.certifier.errors import InvalidWriteSet, WriteSetTooLarge
from groupcert.certifier.write_set import store_key_item
from groupcert.members.core.log_records import LoggedTransaction
from groupcert.members.large_transactions.parts_reader import PartsReader, header_of
from groupcert.members.wire.requests import RequestLimits
from groupcert.v1 import store_pb2
from groupcert.v1.transaction_pb2 import Changes, Transaction
from tests.members.recovery.test_copies import running

LIMITS = RequestLimits(100, 1 << 20, ())
ONE, OTHER = b"one", b"other"


async def one(
    request: store_pb2.CommitStreamRequest,
) -> AsyncIterator[store_pb2.CommitStreamRequest]:
    yield request


async def requests(*parts: Changes) -> AsyncIterator[store_pb2.CommitStreamRequest]:
    for part in parts:
        rows = store_pb2.CommitPart(changes=part.SerializeToString())
        yield store_pb2.CommitStreamRequest(rows=rows)


@pytest.mark.parametrize(
    "parts",
    [
        (Changes(delete_keys=[ONE]), Changes(put_keys=[ONE], put_values=[b"1"])),
        (Changes(put_keys=[ONE], put_values=[b"1"]), Changes(delete_keys=[OTHER, ONE])),
        (Changes(put_keys=[ONE], put_values=[b"1"], delete_keys=[ONE]),),
    ],
)
async def test_a_row_that_is_written_twice_is_refused_by_name(
    tmp_path: Path, parts: tuple[Changes, ...]
) -> None:
    async with running(tmp_path) as runtime:
        reader = PartsReader(LIMITS, lambda: None)
        with runtime.uploads.begin(1_000) as upload:
            with pytest.raises(InvalidWriteSet, match="row b'one' twice"):
                await reader.read(requests(*parts), upload, LoggedTransaction(b"", 0, []))
        assert (runtime.uploads.count, runtime.uploads.bytes) == (0, 0)


async def test_a_value_that_goes_on_in_the_next_part_is_one_row(tmp_path: Path) -> None:
    async with running(tmp_path) as runtime:
        reader = PartsReader(LIMITS, lambda: None)
        parts = (
            Changes(put_keys=[ONE], put_values=[b"begin "], continued=True),
            Changes(put_keys=[ONE, OTHER], put_values=[b"end", b""]),
        )
        size = sum(part.ByteSize() for part in parts)
        with runtime.uploads.begin(size) as upload:
            logged = await reader.read(requests(*parts), upload, LoggedTransaction(b"", 0, []))
            assert len(logged.write_set) == 2


@pytest.mark.parametrize("announced", [0, 1])
async def test_fewer_bytes_than_announced_are_refused_with_both(
    tmp_path: Path, announced: int
) -> None:
    async with running(tmp_path) as runtime:
        reader = PartsReader(LIMITS, lambda: None)
        part = Changes(put_keys=[ONE], put_values=[b"1"])
        size = part.ByteSize()
        with runtime.uploads.begin(size + announced) as upload:
            reading = reader.read(requests(part), upload, LoggedTransaction(b"", 0, []))
            if announced:
                value = f"found '{size} bytes of changes', expected the {size + 1} that"
                with pytest.raises(InvalidWriteSet, match=value):
                    await reading
            else:
                assert len((await reading).write_set) == 1


async def test_a_second_header_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as runtime:
        reader = PartsReader(LIMITS, lambda: None)
        for value, second in (
            ("header", store_pb2.CommitStreamRequest(header=store_pb2.CommitHeader())),
            ("nothing", store_pb2.CommitStreamRequest()),
        ):
            with runtime.uploads.begin(0) as upload:
                with pytest.raises(InvalidWriteSet, match=f"found '{value} as a part'"):
                    await reader.read(one(second), upload, LoggedTransaction(b"", 0, []))


async def test_changes_in_a_header_are_refused_and_not_left_out() -> None:
    header = store_pb2.CommitHeader(changes_bytes=1)
    header.commit.changes.delete_keys.append(ONE)
    other = store_pb2.CommitHeader(transaction=Transaction(changes=b"changes"))
    for found in (header, other):
        with pytest.raises(InvalidWriteSet, match="found 'changes in the header of a large commit"):
            await header_of(one(store_pb2.CommitStreamRequest(header=found)), LIMITS)


async def test_a_header_is_of_a_commit_or_of_a_transaction() -> None:
    header = store_pb2.CommitHeader(commit=store_pb2.CommitRequest(), transaction=Transaction())
    with pytest.raises(InvalidWriteSet, match="found 'a header with commit and transaction'"):
        await header_of(one(store_pb2.CommitStreamRequest(header=header)), LIMITS)


async def test_items_of_parts_are_in_the_write_set_once_and_count(tmp_path: Path) -> None:
    part = store_pb2.CommitPart(
        changes=Changes(delete_keys=[ONE]).SerializeToString(),
        write_set=[7, 8, 7, store_key_item(ONE)],
    )
    size = len(part.changes)
    begun = LoggedTransaction(b"", 0, [8, 9])
    async with running(tmp_path) as runtime:
        for items_max in (3, 10):
            reader = PartsReader(LIMITS._replace(write_set_items_max=items_max), lambda: None)
            with runtime.uploads.begin(size) as upload:
                reading = reader.read(one(store_pb2.CommitStreamRequest(rows=part)), upload, begun)
                if items_max == 3:
                    with pytest.raises(WriteSetTooLarge, match="the limit is 3"):
                        await reading
                else:
                    assert (await reading).write_set == [8, 9, 7, store_key_item(ONE)]


async def test_what_a_header_announces_is_refused_before_it_is_sent() -> None:
    limits = LIMITS._replace(write_set_items_max=10)
    for announced in (store_pb2.CommitHeader(rows=11), store_pb2.CommitHeader(read_keys=11)):
        with pytest.raises(WriteSetTooLarge, match="write set of 11 items, the limit is 10"):
            await header_of(one(store_pb2.CommitStreamRequest(header=announced)), limits)
    fits = store_pb2.CommitHeader(rows=10, read_keys=10)
    assert await header_of(one(store_pb2.CommitStreamRequest(header=fits)), limits) == fits
