"""Sends a client's commit to a member, in one call or in parts; and streams of `certify`.

The rule it keeps: of a large commit only its size is sent before the member has room for it; and
both ways have the same transaction id, so that it may be sent again. No message is larger than a
member takes.
"""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeAlias

from google.protobuf.message import Message

from groupcert.v1.certification_pb2 import CertifyStreamRequest
from groupcert.v1.store_pb2 import (
    CommitHeader,
    CommitPart,
    CommitRequest,
    CommitResponse,
    CommitStreamRequest,
    CommitStreamResponse,
)
from groupcert.v1.transaction_pb2 import Transaction as CertifiableTransaction

from ...certifier.errors import NotServing, TransactionTooLarge
from ..errors.transactions import MemberFailed
from ..wire.channels import STREAM_ENDED
from ..wire.message_fields import REPEATED_MAX
from ..wire.pieces import ROW_BYTES, split, split_payload
from .own_writes import OwnWrites
from .remote_member import RemoteMember

LARGE_BYTES = 1 << 20
"""Bytes of rows above which a commit goes in parts."""
PART_BYTES = 512 << 10
KEYS_A_MESSAGE = 1_000
ITEMS_A_MESSAGE = 10_000
CALL_BYTES_MAX = 1 << 20
"""Bytes of a transaction in one call, or of a message of a stream; members take 64 KiB more."""
ADVICE = "write less in one transaction, or write rows of the group's own store, which go in parts"
LARGE_BYTES_A_SECOND = 2_000_000
"""Bytes a second that a client expects when it allows time for a large commit."""
Batches: TypeAlias = (
    Iterable[Sequence[CertifiableTransaction]] | AsyncIterable[Sequence[CertifiableTransaction]]
)


class PartsSending:
    """A large transaction, which may be sent several times."""

    def __init__(self, header: CommitHeader, parts: Callable[[], Iterator[CommitPart]]) -> None:
        """Sends what `parts` yields, each time anew, once the member has room for it."""
        self.header = header
        self._parts = parts
        self.extra_s = header.changes_bytes / LARGE_BYTES_A_SECOND
        """Seconds that it may take beyond the limit of any call."""

    async def send(self, member: RemoteMember, timeout_s: float) -> CommitStreamResponse:
        """Sends it and returns the last answer. Raises as `RemoteMember.call`."""
        stream = await member.stream(member.store.CommitStream, timeout_s)
        is_sent = False
        try:
            async with aclosing(member.received(stream)) as responses:
                await _write(stream, CommitStreamRequest(header=self.header))
                async for response in responses:
                    if not response.HasField("admitted"):
                        answer: CommitStreamResponse = response
                        return answer
                    if not is_sent:
                        for part in self._parts():
                            await _write(stream, CommitStreamRequest(rows=part))
                        is_sent = True
                        await _done_writing(stream)
        except NotServing as failure:
            if not is_sent:
                failure.ordered = "nothing"  # Before it has all of them, no member orders it.
            raise
        finally:
            del stream  # The frames of an error that is kept would keep the call.
        raise MemberFailed(address=member.address, code="OK", explanation="no answer to a commit")


class CommitSending:
    """One commit, which may be sent several times."""

    def __init__(self, request: CommitRequest, writes: OwnWrites, read_keys: "list[bytes]") -> None:
        """Prepares the commit of `writes`; `request` has neither rows nor read keys yet."""
        self._request = request
        self._writes = writes
        self._read_keys = read_keys
        self._in_parts: PartsSending | None = None
        sizes = sum(
            len(key) + len(value or b"") + ROW_BYTES for key, value in writes.items()
        ) + sum(len(key) + ROW_BYTES for key in read_keys)
        if sizes > LARGE_BYTES:
            header = CommitHeader(
                changes_bytes=sum(map(len, self._changes())),
                rows=len(writes),
                read_keys=len(read_keys),
            )
            self._in_parts = PartsSending(header, self._parts)
            return
        changes, puts = request.changes, writes.puts()
        changes.put_keys.extend([key for key, _ in puts])
        changes.put_values.extend([value for _, value in puts])
        changes.delete_keys.extend(writes.deletes())
        request.read_keys.extend(read_keys)

    @property
    def is_large(self) -> bool:
        """Whether it goes in parts."""
        return self._in_parts is not None

    @property
    def extra_s(self) -> float:
        """Seconds that it may take beyond the limit of any call."""
        return self._in_parts.extra_s if self._in_parts else 0.0

    async def send(
        self, member: RemoteMember, snapshot_id: int, timeout_s: float
    ) -> CommitResponse:
        """Sends the commit and returns the answer. Raises as `RemoteMember.call`."""
        self._request.snapshot_id = snapshot_id
        if self._in_parts is None:
            answer: CommitResponse = await member.call("commit", self._request, timeout_s)
            return answer
        self._in_parts.header.commit.CopyFrom(self._request)
        answered = await self._in_parts.send(member, timeout_s)
        committed: CommitResponse = answered.committed
        return committed

    def _parts(self) -> Iterator[CommitPart]:
        for keys in pages(self._read_keys):
            yield CommitPart(read_keys=keys)
        for changes in self._changes():
            yield CommitPart(changes=changes)

    def _changes(self) -> Iterator[bytes]:
        return split(self._writes.puts(), self._writes.deletes(), PART_BYTES)


def certified_in_parts(
    transaction: CertifiableTransaction, changes: Sequence[bytes]
) -> PartsSending:
    """Returns the sending of a transaction of a store of the caller's own; its header has the
    transaction itself. Raises TransactionTooLarge if that is more than a message.

    Args:
        changes: Its changes in parts, as `CommitPart` takes them; none: the transaction has them.
    """
    changes = changes or [*split_payload(transaction.changes, PART_BYTES)]
    items = transaction.write_set
    header = CommitHeader(
        transaction=transaction, changes_bytes=sum(map(len, changes)), rows=len(items)
    )
    header.transaction.ClearField("changes")
    header.transaction.ClearField("write_set")
    check_call(header.transaction)

    def parts() -> Iterator[CommitPart]:
        for first in range(0, len(items), ITEMS_A_MESSAGE):
            yield CommitPart(write_set=items[first : first + ITEMS_A_MESSAGE])
        for part in changes:
            yield CommitPart(changes=part)

    return PartsSending(header, parts)


def pages(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yields the keys in as few messages as they fit into."""
    first, size = 0, 0
    for index, key in enumerate(keys):
        size += len(key) + ROW_BYTES
        if index > first and (size > PART_BYTES or index == first + KEYS_A_MESSAGE):
            yield keys[first:index]
            first, size = index, len(key) + ROW_BYTES
    if keys:
        yield keys[first:]


def check_call(transaction: CertifiableTransaction) -> None:
    """Raises TransactionTooLarge if a transaction of a store of the caller's own does not fit."""
    size = transaction.ByteSize()
    if size > CALL_BYTES_MAX:
        raise TransactionTooLarge(bytes=size, bytes_max=CALL_BYTES_MAX, advice=ADVICE)


async def send_batches(stream: Any, batches: Batches) -> None:
    """Sends batches of transactions as messages of a stream: one each, or several if large. Raises
    TransactionTooLarge at a transaction that is too large for one.
    """
    try:
        async for transactions in _each(batches):
            for message in messages(checked_batch(transactions)):
                await _write(stream, message)
    finally:
        await _done_writing(stream)
        del stream


async def _done_writing(stream: Any) -> None:
    """Ends what is sent, unless the call has ended."""
    with suppress(*STREAM_ENDED):
        await stream.done_writing()


async def _write(stream: Any, message: Message) -> None:
    """Sends a message, unless the call has ended: its answer says why."""
    if stream.done():
        return
    with suppress(*STREAM_ENDED):
        await stream.write(message)


async def _each(batches: Batches) -> AsyncIterator[Sequence[CertifiableTransaction]]:
    if isinstance(batches, AsyncIterable):
        async for batch in batches:
            yield batch
    else:
        for batch in batches:
            yield batch


def checked_batch(batch: Sequence[CertifiableTransaction]) -> Sequence[CertifiableTransaction]:
    """Returns a batch. Raises TypeError if it is none: a transaction in its place, say."""
    if isinstance(batch, CertifiableTransaction) or not isinstance(batch, Sequence):
        kind = type(batch).__name__
        text = f"certify_stream takes batches, each a list of transactions, and got a {kind}"
        raise TypeError(f"{text}: give [[first, second], [third]]")
    return batch


def messages(transactions: Sequence[CertifiableTransaction]) -> Iterator[CertifyStreamRequest]:
    """Yields the messages in which a batch is sent. Raises TransactionTooLarge."""
    if len(transactions) <= REPEATED_MAX:
        whole = CertifyStreamRequest(transactions=transactions)
        if whole.ByteSize() <= CALL_BYTES_MAX:
            yield whole
            return
    message, size = CertifyStreamRequest(), 0
    for transaction in transactions:
        check_call(transaction)
        more = transaction.ByteSize() + ROW_BYTES
        is_full = size + more > CALL_BYTES_MAX or len(message.transactions) == REPEATED_MAX
        if message.transactions and is_full:
            yield message
            message, size = CertifyStreamRequest(), 0
        message.transactions.append(transaction)
        size += more
    yield message
