"""The Python client: transactions on the embedded store, certification for stores of your own.

The rule it keeps: its answers are certain. A commit whose answer is lost is sent again under the
same transaction id, at the same member or another one, and takes effect once; if no member can say
what became of it, it raises `OutcomeUnknown`.

    with Client(["10.0.0.1:7101", "10.0.0.2:7101"]) as client:
        with client.transaction() as transaction:  # the snapshot is taken here
            balance = int(transaction.get(b"account/1") or b"0")
            transaction.put(b"account/1", str(balance + 10).encode())
"""

import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import TypeVar

import grpc

from groupcert.certifier.errors import SnapshotExpired, Unavailable
from groupcert.members.client.commit_sending import CommitSending, StreamSending, check_call, pages
from groupcert.members.client.own_writes import KeyAndValue, OwnWrites
from groupcert.members.client.remote import RemoteMember, RemoteMembers
from groupcert.members.errors.transactions import (
    CertificationConflict,
    MemberFailed,
    OutcomeUnknown,
    TransactionFailed,
    TransactionRefused,
    TransactionTooOld,
)
from groupcert.members.security.credentials import Credentials, Tls
from groupcert.v1 import certification_pb2, group_pb2, store_pb2, transaction_pb2
from groupcert.v1.certification_pb2 import GetOutcomeResponse
from groupcert.v1.group_pb2 import GroupStatus, MemberState, MemberStatus, ReadHistoryResponse
from groupcert.v1.transaction_pb2 import Outcome
from groupcert.v1.transaction_pb2 import Transaction as CertifiableTransaction

__all__ = [
    "CertifiableTransaction",
    "CertificationConflict",
    "Client",
    "Consistency",
    "GetOutcomeResponse",
    "GroupStatus",
    "MemberFailed",
    "MemberState",
    "MemberStatus",
    "Outcome",
    "OutcomeUnknown",
    "ReadHistoryResponse",
    "Tls",
    "Transaction",
    "TransactionFailed",
    "TransactionRefused",
    "TransactionTooOld",
    "certifiable",
]

TIMEOUT_MS = 20_000
"""Milliseconds; longer than an election among log servers, which takes 4 to 9 s."""
ATTEMPTS_MAX = 10
BACKOFF_MS_FIRST = 2
BACKOFF_MS_MAX = 250
PAGE_ROWS = 1_000
CLOSE_MS = 1_000

Result = TypeVar("Result")


class Consistency(IntEnum):
    """The wait of a transaction, named as in Group Replication."""

    EVENTUAL = transaction_pb2.CONSISTENCY_EVENTUAL
    """No wait: it reads the present state of its member."""
    BEFORE = transaction_pb2.CONSISTENCY_BEFORE
    """Its snapshot has every transaction that was ordered before it began."""
    AFTER = transaction_pb2.CONSISTENCY_AFTER
    """Its commit returns when every member has applied it."""
    BEFORE_AND_AFTER = transaction_pb2.CONSISTENCY_BEFORE_AND_AFTER
    """Both waits."""


class Client:
    """A session with a group: it sees its own commits, and never an older state than it has seen.

    One thread at a time uses a client; threads that work at the same time have one each.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        timeout_ms: int = TIMEOUT_MS,
        consistency: Consistency = Consistency.EVENTUAL,
        serializable: bool = False,
        session: str = "",
        gtid_domain_id: int = 0,
        tls: Tls | None = None,
        token: str = "",
    ) -> None:
        """Connects when it is first used.

        Args:
            address: `host:port` of a member, or of several: if one is gone, the next is asked.
            timeout_ms: Limit of one call with all its repetitions, in milliseconds.
            serializable: Certify the rows that transactions read, too, found or not. Rows that
                others insert into a scanned range are not noticed.
            session: Name of the session; members allow named sessions to set a domain.
            gtid_domain_id: The replication domain of its transactions: they depend on none of other
                domains, nor those on them. A domain other than 0 needs the right to set it.
            tls: Files for mutual TLS, if members require it.
            token: Identifies the caller without a certificate; over TLS, or on this machine only.
        """
        addresses = [address] if isinstance(address, str) else list(address)
        if not addresses or timeout_ms < 1:
            raise ValueError("a client needs a member's address, and a time limit of 1 ms or more")
        self.version = 0
        """The newest state that its reads have seen or its commits made."""
        self.consistency = consistency
        self.serializable = serializable
        self.session = session
        self.gtid_domain_id = gtid_domain_id
        self._timeout_s = timeout_ms / 1000
        credentials = Credentials(tls=tls, token=token)
        self._members = RemoteMembers(addresses, timeout_ms, credentials)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; snapshots that are still open end with them."""
        self._members.close()

    @property
    def address(self) -> str:
        """The member that is asked now."""
        return self._members.current.address

    def transaction(
        self, *, snapshot_version: int | None = None, gtid_domain_id: int | None = None
    ) -> "Transaction":
        """Begins a transaction: its snapshot is taken now, it commits at the end of the block.

        Args:
            snapshot_version: A state that the caller knows, such as `version`. The transaction then
                only writes, and saves the round trip for a snapshot; it conflicts with what others
                wrote to the same rows since that state.
            gtid_domain_id: Its replication domain; None: the session's.

        Raises:
            NotServing: No member answered within the limit.
        """
        domain_id = self.gtid_domain_id if gtid_domain_id is None else gtid_domain_id
        if snapshot_version is not None:
            return Transaction(self, None, 0, snapshot_version, domain_id)
        request = store_pb2.OpenSnapshotRequest(
            consistency=_wire(self.consistency), version_min=self.version
        )
        member, opened = self._members.ask(
            lambda member, timeout_s: (member, member.open_snapshot(request, timeout_s))
        )
        self.version = max(self.version, opened.version)
        return Transaction(self, member, opened.snapshot_id, opened.version, domain_id)

    def run(
        self, function: Callable[["Transaction"], Result], *, attempts_max: int = ATTEMPTS_MAX
    ) -> Result:
        """Returns the function's result once a transaction around it has committed.

        Calls it up to `attempts_max` times, each with a new transaction: again after a conflict,
        if the snapshot was too old or its member is gone; an unknown outcome raises.
        """
        if attempts_max < 1:
            raise ValueError(f"attempts_max is {attempts_max}: expected 1 or more")
        attempt = 0
        while True:
            transaction = self.transaction()
            try:
                with transaction:
                    result = function(transaction)
            except (CertificationConflict, TransactionTooOld, Unavailable) as failure:
                attempt += 1
                if attempt == attempts_max:
                    raise
                if isinstance(failure, Unavailable) and not isinstance(failure, SnapshotExpired):
                    self._members.move_on()
                time.sleep(_backoff_s(attempt))
            else:
                return result

    def certify(self, transaction: CertifiableTransaction) -> Outcome:
        """Orders and certifies one transaction (see `certifiable`); the outcome has the verdict.

        Raises:
            OutcomeUnknown: No member gave the outcome within `timeout_ms`.
        """
        check_call(transaction)
        request = certification_pb2.CertifyRequest(transaction=transaction)
        outcome = self._members.decide(
            transaction.transaction_id,
            0 if transaction.snapshot_gtid_set else transaction.snapshot_version,
            lambda member, timeout_s: member.certification.Certify(request, timeout_s).outcome,
        )
        self.version = max(self.version, outcome.version)
        return outcome

    def certify_stream(
        self, batches: Iterable[Sequence[CertifiableTransaction]]
    ) -> Iterator[tuple[int, Outcome]]:
        """Yields (number, outcome) as transactions are decided; numbers count from 0, as sent.

        A broken stream raises, and is not repeated: ask for the missing outcomes by their ids. A
        transaction that is too large for a message ends the stream before it.
        """
        sending = StreamSending(batches)
        member = self._members.current
        stream = member.certification.CertifyStream(sending.requests())
        for response in _received(stream, member):
            yield from zip(response.numbers, response.outcomes, strict=True)
        sending.check()

    def outcome(self, transaction_id: bytes) -> GetOutcomeResponse:
        """Returns the outcome of a transaction, as far as a member knows."""
        request = certification_pb2.GetOutcomeRequest(transaction_id=transaction_id)
        return self._members.ask(
            lambda member, timeout_s: member.certification.GetOutcome(request, timeout_s)
        )

    def status(self) -> GroupStatus:
        """Returns the group as the member sees it."""
        request = group_pb2.GetStatusRequest()
        return self._members.ask(
            lambda member, timeout_s: member.group.GetStatus(request, timeout_s).status
        )

    def watch(self, period_ms: int = 1_000) -> Iterator[GroupStatus]:
        """Yields the member's status again and again."""
        member = self._members.current
        stream = member.group.WatchStatus(group_pb2.WatchStatusRequest(period_ms=period_ms))
        for response in _received(stream, member):
            yield response.status

    def history(self, after_version: int = 0) -> Iterator[ReadHistoryResponse]:
        """Yields what the member decided and applied after a version, in order, page by page."""
        member = self._members.current
        request = group_pb2.ReadHistoryRequest(after_version=after_version)
        return _received(member.group.ReadHistory(request), member)

    def _read(self, call: Callable[[float], Result], member: RemoteMember) -> Result:
        """Calls the one member that has the snapshot."""
        try:
            return call(self._timeout_s)
        except grpc.RpcError as error:
            raise member.failure(error) from None

    def _commit(
        self,
        request: store_pb2.CommitRequest,
        sending: CommitSending,
        holder: RemoteMember | None,
        snapshot_id: int,
    ) -> Outcome:
        """Commits; only the holder of the snapshot gets the snapshot's id."""
        told = False

        def send(member: RemoteMember, timeout_s: float) -> Outcome:
            nonlocal told
            told_id = snapshot_id if member is holder and not told else 0
            told = True
            response = sending.send(member, told_id, timeout_s)
            return Outcome(
                transaction_id=request.transaction_id,
                verdict=transaction_pb2.VERDICT_CERTIFIED,
                gtid=response.gtid,
                version=response.version,
                log_sequence=response.log_sequence,
            )

        outcome = self._members.decide(
            request.transaction_id, request.snapshot_version, send, sending.extra_s
        )
        self.version = max(self.version, outcome.version)
        return outcome


class Transaction:
    """Reads of one snapshot, which see the transaction's own writes; the writes are sent at commit.

    As a context manager it commits at the end of the block, and sends nothing if the block raises.
    """

    def __init__(
        self,
        client: Client,
        member: RemoteMember | None,
        snapshot_id: int,
        snapshot_version: int,
        gtid_domain_id: int = 0,
    ) -> None:
        """Keeps what `Client.transaction` passes in."""
        self.transaction_id = uuid.uuid4().bytes
        """The group knows the transaction by this id."""
        self.snapshot_version = snapshot_version
        self.gtid = ""
        """Set by the commit of a transaction that wrote."""
        self.version = 0
        """Set by the commit: reads of this version or a later one see what was written."""
        self._client = client
        self._member = member
        self._snapshot_id = snapshot_id
        self._domain_id = gtid_domain_id
        self._writes = OwnWrites()
        self._read_keys: dict[bytes, None] = {}
        self._ended = False

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_error: object) -> None:
        if self._ended:
            return
        if error_type is None:
            self.commit()
        else:
            self.rollback()

    def get(self, key: bytes) -> bytes | None:
        """Returns the key's value, or None."""
        return self.get_many([key])[key]

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """Returns the values of keys, None where there is none. It takes a round trip for each
        1,000 keys, and one for each 8 MiB.
        """
        self._check_open()
        wanted = [_checked(key, "key") for key in dict.fromkeys(keys)]
        found = {key: self._writes[key] if key in self._writes else None for key in wanted}
        missing = [key for key in wanted if key not in self._writes]
        while missing:
            member, keys = self._holder(), next(pages(missing))
            request = store_pb2.GetRequest(snapshot_id=self._snapshot_id, keys=keys)
            rows = self._client._read(partial(member.store.Get, request), member).rows
            self._note_read(row.key for row in rows)
            found.update((row.key, row.value) for row in rows if row.HasField("value"))
            del missing[: len(rows)]
        return found

    def scan(
        self, start: bytes = b"", end: bytes = b"", *, page_rows: int = PAGE_ROWS
    ) -> Iterator[KeyAndValue]:
        """Yields the rows from `start` up to, not including, `end`, in byte order.

        An empty `end` means to the end. Writes made during the scan are not seen by it.
        """
        self._check_open()
        pages = self._pages(_checked(start, "start"), _checked(end, "end"), page_rows)
        return self._writes.merge(start, end, pages)

    def put(self, key: bytes, value: bytes) -> None:
        """Gives a key a value, at commit."""
        self._check_open()
        self._writes.put(_checked(key, "key"), _checked(value, "value"))

    def delete(self, key: bytes) -> None:
        """Removes a key, at commit."""
        self._check_open()
        self._writes.delete(_checked(key, "key"))

    def commit(self) -> None:
        """Ends the transaction: its writes are in the group when this returns.

        A transaction that wrote nothing needs no certification: it read one state of the group.

        Raises:
            CertificationConflict: Another transaction wrote one of the rows and committed first.
            TransactionTooOld: It took so long that conflicts can no longer be checked.
            TransactionRefused: The group does not take it.
            OutcomeUnknown: No member gave the outcome within `timeout_ms`.
            InvalidRequest: It is over a limit.
        """
        self._check_open()
        if not self._writes:
            self.rollback()
            self.version = self.snapshot_version
            return
        self._ended = True
        request = store_pb2.CommitRequest(
            transaction_id=self.transaction_id,
            snapshot_version=self.snapshot_version,
            consistency=_wire(self._client.consistency),
            session=self._client.session,
            gtid_domain_id=self._domain_id,
        )
        sending = CommitSending(request, self._writes, [*self._read_keys])
        outcome = self._client._commit(request, sending, self._member, self._snapshot_id)
        self.gtid, self.version = outcome.gtid, outcome.version

    def rollback(self) -> None:
        """Ends the transaction without a trace."""
        self._check_open()
        self._ended = True
        if self._member is not None:
            request = store_pb2.CloseSnapshotRequest(snapshot_id=self._snapshot_id)
            with suppress(grpc.RpcError):  # the lease ends it anyway
                self._member.store.CloseSnapshot(request, CLOSE_MS / 1000)

    def _pages(self, start: bytes, end: bytes, page_rows: int) -> Iterator[KeyAndValue]:
        member, next_key = self._holder(), start
        while True:
            request = store_pb2.ScanRequest(
                snapshot_id=self._snapshot_id,
                start_key=next_key,
                end_key=end,
                rows_max=page_rows,
            )
            page = self._client._read(partial(member.store.Scan, request), member)
            self._note_read(row.key for row in page.rows)
            yield from ((row.key, row.value) for row in page.rows)
            if not page.next_key:
                return
            next_key = page.next_key

    def _note_read(self, keys: Iterable[bytes]) -> None:
        if self._client.serializable:
            self._read_keys.update(dict.fromkeys(keys))

    def _holder(self) -> RemoteMember:
        """Returns the member that holds the snapshot."""
        if self._member is None:
            raise ValueError("a transaction on a known version only writes: begin one without it")
        return self._member

    def _check_open(self) -> None:
        if self._ended:
            raise ValueError("the transaction has ended: begin another one")


def certifiable(
    *,
    snapshot: int | str,
    write_set: Iterable[int | str],
    read_set: Iterable[int] = (),
    gtid: str = "",
    transaction_id: bytes | None = None,
) -> CertifiableTransaction:
    """Builds a transaction of a store of the caller's own, for `certify` and `certify_stream`.

    Args:
        snapshot: The state that it read: a version of the group, or the executed GTID set.
        write_set: The rows that it wrote: 64-bit items, or texts such as `shop.orders/PRIMARY/42`.
            Empty means unknown: it is applied alone.
        read_set: Items of rows that it read, for serializable certification.
        gtid: Its own GTID; empty: the group assigns one.
        transaction_id: Up to 32 bytes; None: a new one; empty: its outcome cannot be asked for.
    """
    items = list(write_set)
    return CertifiableTransaction(
        transaction_id=uuid.uuid4().bytes if transaction_id is None else transaction_id,
        snapshot_version=snapshot if isinstance(snapshot, int) else 0,
        snapshot_gtid_set=snapshot if isinstance(snapshot, str) else "",
        write_set=[item for item in items if isinstance(item, int)],
        write_set_keys=[item for item in items if isinstance(item, str)],
        read_set=read_set,
        gtid=gtid,
    )


def _wire(consistency: Consistency) -> transaction_pb2.Consistency.ValueType:
    return transaction_pb2.Consistency.ValueType(consistency)


def _checked(value: bytes, name: str) -> bytes:
    if not isinstance(value, bytes):
        kind = type(value).__name__
        raise TypeError(f"{name} is {kind} {value!r:.80}: give bytes, such as b'account/1'")
    return value


def _received(stream: "grpc.CallIterator[Result]", member: RemoteMember) -> Iterator[Result]:
    """Yields the messages of a stream; ends it with its reader."""
    try:
        yield from stream
    except grpc.RpcError as error:
        raise member.failure(error) from None
    finally:
        stream.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs leaves it out


def _backoff_s(attempt: int) -> float:
    """Returns a random pause in seconds, from a range that doubles with each attempt."""
    return random.uniform(0, min(BACKOFF_MS_FIRST << attempt, BACKOFF_MS_MAX)) / 1000
