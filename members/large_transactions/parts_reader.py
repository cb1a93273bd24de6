"""Reads a large commit as its client sends it: a header, then its rows part by part.

The rule it keeps: a commit that is over a limit is refused before its parts are sent, and no more
is taken than was announced.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from groupcert.v1 import store_pb2

from ...certifier.errors import (
    InvalidWriteSet,
    TransactionTooLarge,
    UploadExpired,
    WriteSetTooLarge,
)
from ...certifier.write_set import store_key_item
from ..core.log_records import LoggedTransaction
from ..wire.requests import RequestLimits, check_keys
from .uploads import LargeUpload


async def in_time(
    requests: AsyncIterator[store_pb2.CommitStreamRequest], lease_ms: int
) -> AsyncIterator[store_pb2.CommitStreamRequest]:
    """Yields the requests of a large commit. Raises UploadExpired if one takes too long."""
    while True:
        try:
            async with asyncio.timeout(lease_ms / 1000):
                request = await anext(requests, None)
        except TimeoutError:
            raise UploadExpired(lease_ms=lease_ms) from None
        if request is None:
            return
        yield request


async def header_of(
    requests: AsyncIterator[store_pb2.CommitStreamRequest], limits: RequestLimits
) -> store_pb2.CommitHeader:
    """Returns the header of a large commit.

    Raises:
        InvalidWriteSet: It is none.
        TransactionTooLarge, WriteSetTooLarge: What it announces is over a limit; nothing more was
            taken.
    """
    first = await anext(requests, None)
    if first is None or not first.HasField("header"):
        raise InvalidWriteSet(value="a stream without a header", expected="the header first")
    if first.header.HasField("commit") and first.header.HasField("transaction"):
        expected = "one of them: a commit of the embedded store, or another store's transaction"
        raise InvalidWriteSet(value="a header with commit and transaction", expected=expected)
    if first.header.commit.HasField("changes") or first.header.transaction.changes:
        expected = "a header without them: they follow in parts"
        raise InvalidWriteSet(value="changes in the header of a large commit", expected=expected)
    size = first.header.changes_bytes
    if size > limits.transaction_bytes_max:
        raise TransactionTooLarge(bytes=size, bytes_max=limits.transaction_bytes_max)
    items = max(first.header.rows, first.header.read_keys)
    if items > limits.write_set_items_max:
        raise WriteSetTooLarge(items=items, items_max=limits.write_set_items_max)
    return first.header


class PartsReader:
    """Reads the parts of a large commit, and keeps only what is certified."""

    def __init__(self, limits: RequestLimits, keep_snapshot: Callable[[], object]) -> None:
        """Reads within `limits`; each part calls `keep_snapshot`, which raises if that is gone."""
        self._keep_snapshot = keep_snapshot
        self._limits = limits
        self._written: dict[int, None] = {}
        self._claimed: dict[int, None] = {}
        self._read: dict[int, None] = {}

    async def read(
        self,
        requests: AsyncIterator[store_pb2.CommitStreamRequest],
        upload: LargeUpload,
        logged: LoggedTransaction,
    ) -> LoggedTransaction:
        """Returns the whole transaction once its changes are in the log. Raises as `LargeUpload`
        does, WriteSetTooLarge, KeyReserved, and InvalidWriteSet for a message that is no part, for
        fewer bytes than were announced, and for a row that is written twice: members take the later
        part's row, but replicas, which join all parts, cannot know the order.
        """
        taken = 0
        async for request in requests:
            if not request.HasField("rows"):
                part = request.WhichOneof("part") or "nothing"
                expected = "rows: a large commit has one header"
                raise InvalidWriteSet(value=f"{part} as a part", expected=expected)
            taken += len(request.rows.changes)
            keys = await upload.add(request.rows.changes) if request.rows.changes else ()
            check_keys(self._limits, keys)
            for key in keys:
                item = store_key_item(key)
                if item in self._written:
                    value, expected = f"row {key[:32]!r} twice", "the last change of each row only"
                    raise InvalidWriteSet(value=value, expected=expected)
                self._written[item] = None
            self._claimed.update(dict.fromkeys(request.rows.write_set))
            self._read.update(dict.fromkeys(map(store_key_item, request.rows.read_keys)))
            written = len(logged.write_set) + len(self._claimed) + len(self._written)
            items = max(written, len(self._read))
            items_max = self._limits.write_set_items_max
            if items > items_max:
                raise WriteSetTooLarge(items=items, items_max=items_max)
            self._keep_snapshot()
        if taken < upload.size:
            expected = f"the {upload.size} that changes_bytes of the header announced"
            raise InvalidWriteSet(value=f"{taken} bytes of changes", expected=expected)
        await upload.finish()
        return logged._replace(
            write_set=list(dict.fromkeys([*logged.write_set, *self._claimed, *self._written])),
            read_set=list(dict.fromkeys([*logged.read_set, *self._read])),
            payload=upload.reference,
        )
