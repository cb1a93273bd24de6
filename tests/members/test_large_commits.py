"""Large commits as their parts come in."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from certifier.errors import InvalidWriteSet
from groupcert.v1 import store_pb2
from groupcert.v1.transaction_pb2 import Changes
from members.convert import RequestLimits
from members.large_commits import PartsReader
from members.log_records import LoggedTransaction
from tests.members.test_copies import running

LIMITS = RequestLimits(100, 1 << 20, ())
ONE, OTHER = b"one", b"other"


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
        reader = PartsReader(runtime, store_pb2.CommitRequest(), LIMITS)
        with runtime.uploads.begin(1_000) as upload:
            with pytest.raises(InvalidWriteSet, match="row b'one' twice"):
                await reader.read(requests(*parts), upload, LoggedTransaction(b"", 0, []))
        assert (runtime.uploads.count, runtime.uploads.bytes) == (0, 0)


async def test_a_value_that_goes_on_in_the_next_part_is_one_row(tmp_path: Path) -> None:
    async with running(tmp_path) as runtime:
        reader = PartsReader(runtime, store_pb2.CommitRequest(), LIMITS)
        parts = (
            Changes(put_keys=[ONE], put_values=[b"begin "], continued=True),
            Changes(put_keys=[ONE, OTHER], put_values=[b"end", b""]),
        )
        with runtime.uploads.begin(1_000) as upload:
            logged = await reader.read(requests(*parts), upload, LoggedTransaction(b"", 0, []))
            assert len(logged.write_set) == 2
