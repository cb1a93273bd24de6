"""Commits that are too large for one message of the log: their requests, read part by part.

The rule it keeps: a commit that is over a limit is refused before its parts are sent, and what was
announced is what may come.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from certifier.errors import (
    InvalidWriteSet,
    TransactionTooLarge,
    UploadExpired,
    WriteSetTooLarge,
)
from certifier.write_set import store_key_item
from groupcert.v1 import store_pb2
from members.convert import RequestLimits
from members.log_records import LoggedTransaction, bytes_of
from members.membership_errors import NotPrimary
from members.publisher import Submission
from members.runtime import MemberRuntime
from members.uploads import LargeUpload

RECORD_BYTES_MAX = 7 << 20
"""Of a transaction in the log without its fragments: a message has 8 MB at most."""


def is_large(runtime: MemberRuntime, logged: LoggedTransaction) -> bool:
    """Whether a transaction goes through the log in fragments."""
    return len(logged.payload) > runtime.config.fragment_bytes


async def submit_any(runtime: MemberRuntime, logged: LoggedTransaction) -> Submission:
    """Orders a transaction of any size, see `MemberRuntime.submit` and `Uploads.begin`."""
    if is_large(runtime, logged):
        return await submit_large(runtime, [logged])
    _check_record(logged)
    return await runtime.submit((logged,))


async def submit_large(
    runtime: MemberRuntime, transactions: Sequence[LoggedTransaction]
) -> Submission:
    """Orders transactions of which some are large: the changes of these first."""
    uploads: dict[int, LargeUpload] = {}
    try:
        for index, logged in enumerate(transactions):
            if is_large(runtime, logged):
                uploads[index] = await runtime.uploads.send(logged.payload)
        shortened = [
            logged._replace(payload=uploads[index].reference) if index in uploads else logged
            for index, logged in enumerate(transactions)
        ]
        return await submit_uploaded(runtime, list(uploads.values()), shortened)
    finally:
        for upload in uploads.values():
            upload.end()


async def submit_uploaded(
    runtime: MemberRuntime,
    uploads: Sequence[LargeUpload],
    transactions: Sequence[LoggedTransaction],
) -> Submission:
    """Orders transactions whose changes are in the log. From here on it is they who end their
    fragments, whether or not somebody waits for it.
    """
    for logged in transactions:
        _check_record(logged)
    ordered = runtime.submit(transactions)
    for upload in uploads:
        upload.is_submitted = True
    try:
        return await ordered
    except NotPrimary:  # Nothing was kept of them.
        for upload in uploads:
            upload.is_submitted = False
        raise


async def in_time(
    requests: AsyncIterator[store_pb2.CommitStreamRequest], lease_ms: int
) -> AsyncIterator[store_pb2.CommitStreamRequest]:
    """The requests of a large commit. Raises UploadExpired where the next one takes too long."""
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
    """The beginning of a large commit.

    Raises:
        InvalidWriteSet: It is none.
        TransactionTooLarge: What it announces is over the limit; nothing more was taken.
    """
    first = await anext(requests, None)
    if first is None or not first.HasField("header"):
        raise InvalidWriteSet(value="a stream without a header", expected="the header first")
    if first.header.commit.HasField("changes"):
        expected = "a header without them: they follow in parts"
        raise InvalidWriteSet(value="changes in the header of a large commit", expected=expected)
    size = first.header.changes_bytes
    if size > limits.transaction_bytes_max:
        raise TransactionTooLarge(bytes=size, bytes_max=limits.transaction_bytes_max)
    return first.header


def snapshot_of(runtime: MemberRuntime, request: store_pb2.CommitRequest) -> int:
    """The version that a commit has read; its snapshot counts as used now."""
    if request.snapshot_id:
        return runtime.snapshots.version(request.snapshot_id, runtime.now_ms())
    return request.snapshot_version


class PartsReader:
    """Reads the parts of a large commit, and keeps of them no more than what is certified."""

    def __init__(
        self, runtime: MemberRuntime, request: store_pb2.CommitRequest, limits: RequestLimits
    ) -> None:
        self._runtime = runtime
        self._request = request
        self._items_max = limits.write_set_items_max
        self._written: dict[int, None] = {}
        self._read: dict[int, None] = {}

    async def read(
        self,
        requests: AsyncIterator[store_pb2.CommitStreamRequest],
        upload: LargeUpload,
        logged: LoggedTransaction,
    ) -> LoggedTransaction:
        """Returns the whole transaction once its changes are in the log. Raises as `LargeUpload`
        does, WriteSetTooLarge, and InvalidWriteSet for what is no part, for fewer bytes than were
        announced, and for a row that is written twice: the order of parts says to members which of
        both counts, but not to replicas, who put all together.
        """
        taken = 0
        async for request in requests:
            if not request.HasField("rows"):
                part = request.WhichOneof("part") or "nothing"
                expected = "rows: a large commit has one header"
                raise InvalidWriteSet(value=f"{part} as a part", expected=expected)
            taken += len(request.rows.changes)
            keys = await upload.add(request.rows.changes) if request.rows.changes else ()
            for key in keys:
                item = store_key_item(key)
                if item in self._written:
                    value, expected = f"row {key[:32]!r} twice", "the last change of each row only"
                    raise InvalidWriteSet(value=value, expected=expected)
                self._written[item] = None
            self._read.update(dict.fromkeys(map(store_key_item, request.rows.read_keys)))
            items = max(len(self._written), len(self._read))
            if items > self._items_max:
                raise WriteSetTooLarge(items=items, items_max=self._items_max)
            snapshot_of(self._runtime, self._request)
        if taken < upload.size:
            expected = f"the {upload.size} that changes_bytes of the header announced"
            raise InvalidWriteSet(value=f"{taken} bytes of changes", expected=expected)
        await upload.finish()
        return logged._replace(
            write_set=[*self._written],
            read_set=list(dict.fromkeys([*logged.read_set, *self._read])),
            payload=upload.reference,
        )


def _check_record(logged: LoggedTransaction) -> None:
    size = bytes_of(logged)
    if size > RECORD_BYTES_MAX:
        raise TransactionTooLarge(bytes=size, bytes_max=RECORD_BYTES_MAX)
