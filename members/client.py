"""The Python client: transactions on the embedded store, certification for stores of the caller's own.

The rule it keeps: a commit whose answer is lost is asked for again under the same transaction id, at
the same member or another one, and takes effect once. What it then answers is certain, or it says
`OutcomeUnknown`.

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
from types import TracebackType
from typing import Protocol, TypeVar

import grpc

from certifier.errors import InvalidRequest, SnapshotExpired, TooManySnapshots, Unavailable
from groupcert.v1 import certification_pb2, group_pb2, store_pb2, transaction_pb2
from groupcert.v1.certification_pb2 import GetOutcomeResponse
from groupcert.v1.group_pb2 import GroupStatus, MemberState, ReadHistoryResponse
from groupcert.v1.transaction_pb2 import Outcome
from groupcert.v1.transaction_pb2 import Transaction as CertifiableTransaction
from members.failures import (
    CertificationConflict,
    MemberFailed,
    OutcomeUnknown,
    TransactionFailed,
    TransactionRefused,
    TransactionTooOld,
)
from members.own_writes import KeyAndValue, OwnWrites
from members.remote import RemoteMember, RemoteMembers
from members.status import error_from

__all__ = (
    *("CertifiableTransaction", "CertificationConflict", "Client", "Consistency"),
    *("GetOutcomeResponse", "GroupStatus", "MemberFailed", "MemberState", "Outcome"),
    *("OutcomeUnknown", "ReadHistoryResponse", "Transaction", "TransactionFailed"),
    *("TransactionRefused", "TransactionTooOld", "certifiable"),
)

TIMEOUT_MS = 20_000
"""Longer than an election among log servers, which takes 4 to 9 s."""
ATTEMPTS_MAX = 10
PAGE_ROWS = 1_000
BACKOFF_MS_FIRST = 2
BACKOFF_MS_MAX = 250
CLOSE_MS = 1_000

Result = TypeVar("Result")
Request = TypeVar("Request", contravariant=True)
Response = TypeVar("Response", covariant=True)

_BEFORE_ORDER = (InvalidRequest, SnapshotExpired, TooManySnapshots)
"""With these a member answers before it has ordered anything."""
_REFUSING_CODES = {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"}
"""So it does with these, when it is gRPC that answers: too large a message, an older member."""


class Consistency(IntEnum):
    """What a transaction waits for, named as Group Replication names it."""

    EVENTUAL = transaction_pb2.CONSISTENCY_EVENTUAL
    """Nothing: it reads what its member has."""
    BEFORE = transaction_pb2.CONSISTENCY_BEFORE
    """Its snapshot has every transaction that was ordered before it began."""
    AFTER = transaction_pb2.CONSISTENCY_AFTER
    """Its commit returns when every member of the view has applied it."""
    BEFORE_AND_AFTER = transaction_pb2.CONSISTENCY_BEFORE_AND_AFTER
    """Both."""


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
    ) -> None:
        """Connects when it is first used.

        Args:
            address: `host:port` of a member, or of several: the next one is asked when one is gone.
            timeout_ms: What one call may take, with all its repetitions.
            serializable: Certify what transactions read, too: each row, whether it was found or
                not. Rows that appear in a scanned range later are not noticed.
            session: A name by which the group knows the session.
        """
        addresses = [address] if isinstance(address, str) else list(address)
        if not addresses:
            raise ValueError("a client needs the address of a member")
        self.timeout_ms = timeout_ms
        self.consistency = consistency
        self.serializable = serializable
        self.session = session
        self.version = 0
        """The newest state that this session has seen or made."""
        self._members = RemoteMembers(addresses)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; snapshots that are still open end with their lease."""
        self._members.close()

    @property
    def address(self) -> str:
        """The member that is asked now."""
        return self._members.current.address

    def transaction(self, *, snapshot_version: int | None = None) -> "Transaction":
        """Begins a transaction: its snapshot is taken now, and it commits at the end of the block.

        Args:
            snapshot_version: A state that the caller knows of, such as `version`. The transaction
                then only writes, and saves the round trip for a snapshot; it conflicts with what
                others wrote to the same rows since that state.

        Raises:
            NotServing: No member answered within the limit.
        """
        if snapshot_version is not None:
            return Transaction(self, None, 0, snapshot_version)
        request = store_pb2.OpenSnapshotRequest(
            consistency=_wire(self.consistency), version_min=self.version
        )
        member, opened = self._ask(
            lambda member, timeout_s: (member, member.store.OpenSnapshot(request, timeout_s))
        )
        self.version = max(self.version, opened.version)
        return Transaction(self, member, opened.snapshot_id, opened.version)

    def run(
        self, function: Callable[["Transaction"], Result], *, attempts_max: int = ATTEMPTS_MAX
    ) -> Result:
        """Returns the function's result once a transaction around it has committed.

        The function may be called several times, each time with a new transaction: after a
        conflict, a snapshot that was too old, or the loss of the member that held the snapshot. An
        outcome that is unknown is raised, not repeated.
        """
        for attempt in range(attempts_max):
            transaction = self.transaction()
            try:
                with transaction:
                    result = function(transaction)
            except (CertificationConflict, TransactionTooOld, Unavailable) as failure:
                if isinstance(failure, Unavailable) and not isinstance(failure, SnapshotExpired):
                    self._members.move_on()
                if attempt == attempts_max - 1:
                    raise
                ceiling_ms = min(BACKOFF_MS_FIRST << attempt, BACKOFF_MS_MAX)
                time.sleep(random.uniform(0, ceiling_ms) / 1000)
            else:
                return result
        raise ValueError(f"attempts_max is {attempts_max}: expected 1 or more")

    def certify(self, transaction: CertifiableTransaction) -> Outcome:
        """Orders and certifies one transaction; the verdict is in the outcome.

        Raises:
            OutcomeUnknown: No member could say within the limit what became of it.
        """
        request = certification_pb2.CertifyRequest(transaction=transaction)
        outcome = self._decide(
            transaction.transaction_id,
            transaction.snapshot_version,
            lambda member, timeout_s: member.certification.Certify(request, timeout_s).outcome,
        )
        self.version = max(self.version, outcome.version)
        return outcome

    def certify_stream(
        self, batches: Iterable[Sequence[CertifiableTransaction]]
    ) -> Iterator[tuple[int, Outcome]]:
        """Yields (number, outcome) as transactions are decided; they are numbered from 0 as sent.

        A broken stream is raised, not repeated: ask for the outcomes that are missing by id.
        """
        requests = (
            certification_pb2.CertifyStreamRequest(transactions=batch) for batch in batches
        )
        member = self._members.current
        stream = member.certification.CertifyStream(requests)
        for response in _received(stream, member):
            yield from zip(response.numbers, response.outcomes, strict=True)

    def outcome(self, transaction_id: bytes) -> GetOutcomeResponse:
        """What became of a transaction, as far as a member knows."""
        request = certification_pb2.GetOutcomeRequest(transaction_id=transaction_id)
        return self._ask(
            lambda member, timeout_s: member.certification.GetOutcome(request, timeout_s)
        )

    def status(self) -> GroupStatus:
        """The group as the member sees it."""
        request = group_pb2.GetStatusRequest()
        return self._ask(lambda member, timeout_s: member.group.GetStatus(request, timeout_s)).status

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

    def commit(self, request: store_pb2.CommitRequest) -> Outcome:
        """Commits what `Transaction` has collected, and returns the outcome: certified."""

        def attempt(member: RemoteMember, timeout_s: float) -> Outcome:
            response = member.store.Commit(request, timeout_s)
            return Outcome(
                transaction_id=request.transaction_id,
                verdict=transaction_pb2.VERDICT_CERTIFIED,
                gtid=response.gtid,
                version=response.version,
                log_sequence=response.log_sequence,
            )

        try:
            outcome = self._decide(request.transaction_id, request.snapshot_version, attempt)
        finally:
            request.ClearField("snapshot_id")
        self.version = max(self.version, outcome.version)
        return outcome

    def _ask(self, call: Callable[[RemoteMember, float], Result]) -> Result:
        """Returns the first answer that a member gives; only for calls that change nothing."""
        failure: Exception = AssertionError("no time for an attempt")
        for member, timeout_s in self._members.attempts(self.timeout_ms):
            try:
                return call(member, timeout_s)
            except grpc.RpcError as error:
                failure = error_from(error, member.address)
                if isinstance(failure, _BEFORE_ORDER + (MemberFailed,)):
                    break
        raise failure

    def _decide(
        self,
        transaction_id: bytes,
        snapshot_version: int,
        attempt: Callable[[RemoteMember, float], Outcome],
    ) -> Outcome:
        """Returns the outcome of a transaction that is sent until somebody answers.

        Raises:
            TransactionFailed: It did not commit, or nobody can say.
            GroupcertError: Nothing was ordered.
        """
        failure: Exception = AssertionError("no time for an attempt")
        sent = 0
        for member, timeout_s in self._members.attempts(self.timeout_ms):
            sent += 1
            try:
                outcome = attempt(member, timeout_s)
            except grpc.RpcError as error:
                failure = error_from(error, member.address)
                if _is_answer(failure):
                    if sent > 1:
                        return self._recalled(member, transaction_id, snapshot_version, failure)
                    raise failure from None
                if not transaction_id:
                    break
            else:
                if sent > 1 and outcome.verdict != transaction_pb2.VERDICT_CERTIFIED:
                    return self._recalled(member, transaction_id, snapshot_version, outcome)
                return outcome
        raise OutcomeUnknown(transaction_id=transaction_id, cause=str(failure)) from failure

    def _recalled(
        self,
        member: RemoteMember,
        transaction_id: bytes,
        snapshot_version: int,
        answer: Outcome | Exception,
    ) -> Outcome:
        """Returns, or raises, a negative answer to a repetition, if it is the transaction's own.

        A member that has forgotten that the first one committed finds that the repetition is in
        conflict with it. It has forgotten nothing of the kind if it remembers every outcome since
        the transaction's snapshot.
        """
        request = certification_pb2.GetOutcomeRequest(transaction_id=transaction_id)
        try:
            found = member.certification.GetOutcome(request, CLOSE_MS / 1000)
        except grpc.RpcError as error:
            cause = str(error_from(error, member.address))
            raise OutcomeUnknown(transaction_id=transaction_id, cause=cause) from None
        if found.outcome.verdict == transaction_pb2.VERDICT_CERTIFIED:
            return found.outcome
        if found.forgotten_version > snapshot_version or isinstance(answer, _BEFORE_ORDER):
            raise OutcomeUnknown(transaction_id=transaction_id, cause=str(answer))
        if isinstance(answer, Exception):
            raise answer
        return answer
