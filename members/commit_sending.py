"""How a client's commit goes to a member: in one call, or in parts where it is large.

The rule it keeps: of a large commit only its size is sent before the member has room for it; and
both ways the same transaction id stands for it, so that it may be sent again.
"""

import threading
from collections.abc import Iterator

from certifier.errors import TransactionTooLarge
from groupcert.v1.store_pb2 import (
    CommitHeader,
    CommitPart,
    CommitRequest,
    CommitResponse,
    CommitStreamRequest,
)
from groupcert.v1.transaction_pb2 import Changes
from groupcert.v1.transaction_pb2 import Transaction as CertifiableTransaction
from members.failures import MemberFailed
from members.large_changes import ROW_BYTES, split
from members.own_writes import OwnWrites
from members.remote import RemoteMember

LARGE_BYTES = 1 << 20
"""Rows that take more go in parts."""
PART_BYTES = 512 << 10
CALL_BYTES_MAX = 8 << 20
"""Of one call; members take no larger ones."""
LARGE_BYTES_A_SECOND = 2_000_000
"""What a client counts on when it allows time for a large commit."""
READ_KEYS_A_PART = 1_000


class CommitSending:
    """One commit, which may be sent several times."""

    def __init__(self, request: CommitRequest, writes: OwnWrites, read_keys: "list[bytes]") -> None:
        """`request`: without rows and read keys."""
        self._request = request
        self._writes = writes
        self._read_keys = read_keys
        sizes = sum(
            len(key) + len(value or b"") + ROW_BYTES for key, value in writes.items()
        ) + sum(map(len, read_keys))
        self.is_large = sizes > LARGE_BYTES
        self._parts_bytes = sum(map(len, self._parts())) if self.is_large else 0
        self.extra_s = sizes / LARGE_BYTES_A_SECOND if self.is_large else 0.0
        """Time that it may take beyond what any call may."""
        if not self.is_large:
            changes = Changes(delete_keys=writes.deletes())
            for key, value in writes.puts():
                changes.put_keys.append(key)
                changes.put_values.append(value)
            request.changes.CopyFrom(changes)
            request.read_keys.extend(read_keys)

    def send(self, member: RemoteMember, snapshot_id: int, timeout_s: float) -> CommitResponse:
        """Sends it and returns the answer. Raises `grpc.RpcError` or MemberFailed."""
        self._request.snapshot_id = snapshot_id
        if not self.is_large:
            return member.store.Commit(self._request, timeout_s)
        answered, ended = threading.Event(), threading.Event()

        def requests() -> Iterator[CommitStreamRequest]:
            header = CommitHeader(commit=self._request, changes_bytes=self._parts_bytes)
            yield CommitStreamRequest(header=header)
            answered.wait(timeout_s)
            if not ended.is_set():
                yield from self._requests()

        call = member.store.CommitStream(requests(), timeout_s)
        try:
            for response in call:
                if response.HasField("committed"):
                    return response.committed
                answered.set()
        finally:
            ended.set()
            answered.set()
            call.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs leaves it out
        raise MemberFailed(address=member.address, code="OK", explanation="no answer to a commit")

    def _requests(self) -> Iterator[CommitStreamRequest]:
        for start in range(0, len(self._read_keys), READ_KEYS_A_PART):
            keys = self._read_keys[start : start + READ_KEYS_A_PART]
            yield CommitStreamRequest(rows=CommitPart(read_keys=keys))
        for part in self._parts():
            yield CommitStreamRequest(rows=CommitPart(changes=part))

    def _parts(self) -> Iterator[bytes]:
        return split(self._writes.puts(), self._writes.deletes(), PART_BYTES)


def check_call(transaction: CertifiableTransaction) -> None:
    """Raises TransactionTooLarge if a transaction of a store of the caller's own does not fit."""
    size = transaction.ByteSize()
    if size > CALL_BYTES_MAX:
        raise TransactionTooLarge(bytes=size, bytes_max=CALL_BYTES_MAX)
