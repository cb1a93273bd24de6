"""Calls members for a client: which one to ask, how long, and which answers are certain.

The rule it keeps: members are asked one after the other, until one answers or the time is up. No
attempt gets more than half of the time that is left, so that a member that hangs does not use up
the time in which another one could answer; a large commit gets the time for its bytes beside that.
A transaction is repeated under its id only, and a negative answer to a repetition counts only if no
member can have forgotten that the first one committed.
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import grpc

from groupcert.certifier.errors import InvalidRequest, NotServing, SnapshotExpired, UploadExpired
from groupcert.members.client.held_session import HeldSession
from groupcert.members.errors.calls import RequestIncomplete, SessionEnded, TooManySnapshots
from groupcert.members.errors.membership import NotPrimary
from groupcert.members.errors.transactions import MemberFailed, OutcomeUnknown, TransactionFailed
from groupcert.members.security.credentials import ANONYMOUS, Credentials
from groupcert.members.wire.channels import open_channel
from groupcert.members.wire.statuses import error_from
from groupcert.v1.certification_pb2 import GetOutcomeRequest
from groupcert.v1.certification_pb2_grpc import CertificationServiceStub
from groupcert.v1.group_pb2_grpc import GroupServiceStub
from groupcert.v1.store_pb2 import OpenSnapshotRequest, OpenSnapshotResponse
from groupcert.v1.store_pb2_grpc import StoreServiceStub
from groupcert.v1.transaction_pb2 import VERDICT_CERTIFIED, Outcome

MESSAGE_BYTES_MAX = 64 << 20
ATTEMPT_MS_MIN = 100
PAUSE_MS = 50
"""Mean pause after each member was asked once; a pause is between half of it and one and a half."""
RECALL_MS = 2_000

_SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [
                {"service": "groupcert.v1.StoreService", "method": "Get"},
                {"service": "groupcert.v1.StoreService", "method": "Scan"},
            ],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.05s",
                "maxBackoff": "0.5s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
"""Reads of a snapshot go to one member only: gRPC repeats them there."""
KEEPALIVE_MS = 2_000
KEEPALIVE_TIMEOUT_MS = 5_000
"""A member that owes an answer is pinged; one that hangs does not answer the ping, and another one
is asked. Members that are just busy answer it: gRPC does so beside Python."""
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # clients of one process have connections of their own
    ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
)
_REFUSALS = (InvalidRequest, SnapshotExpired, TooManySnapshots)
"""A member raises these before it has ordered anything."""
_REFUSING_CODES = {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"}
"""gRPC itself answers with these before a member sees the call: too large, or not known."""

Answer = TypeVar("Answer")


class RemoteMember:
    """One member's services."""

    def __init__(self, address: str, credentials: Credentials = ANONYMOUS) -> None:
        self.address = address
        self.channel = open_channel(address, credentials, _CHANNEL_OPTIONS)
        self.store = StoreServiceStub(self.channel)
        self.certification = CertificationServiceStub(self.channel)
        self.group = GroupServiceStub(self.channel)
        self._session = HeldSession(self.store)
        self._has_tls = credentials.tls is not None

    def open_snapshot(self, request: OpenSnapshotRequest, timeout_s: float) -> OpenSnapshotResponse:
        """Opens a snapshot that ends with the connection. Raises `grpc.RpcError`."""
        request.session_id = self._session.id(timeout_s / 2)
        try:
            return self.store.OpenSnapshot(request, timeout_s)
        except grpc.RpcError as error:
            if not isinstance(self.failure(error), SessionEnded):
                raise
        self._session.end()
        request.session_id = self._session.id(timeout_s / 2)
        return self.store.OpenSnapshot(request, timeout_s)

    def failure(self, error: grpc.RpcError) -> Exception:
        """Returns what a failed call to this member means to its caller."""
        return error_from(error, self.address, has_tls=self._has_tls)


class RemoteMembers:
    """The members that a client may ask; it stays with one for as long as that one answers."""

    def __init__(
        self, addresses: Sequence[str], timeout_ms: int, credentials: Credentials = ANONYMOUS
    ) -> None:
        self._addresses = tuple(addresses)
        self._timeout_ms = timeout_ms
        self._credentials = credentials
        self._members: dict[str, RemoteMember] = {}
        self._index = 0
        self._closed = False

    @property
    def current(self) -> RemoteMember:
        """The member that is asked first."""
        if self._closed:
            raise ValueError("the client is closed: make another one")
        address = self._addresses[self._index % len(self._addresses)]
        if address not in self._members:
            self._members[address] = RemoteMember(address, self._credentials)
        return self._members[address]

    def move_on(self) -> None:
        """Asks the next member from now on."""
        self._index += 1

    def _ask_next(self, address: str) -> None:
        """Asks a certain member next, if its address is known."""
        if address:
            if address not in self._addresses:
                self._addresses = (*self._addresses, address)
            self._index = self._addresses.index(address) - 1

    def close(self) -> None:
        """Closes every connection."""
        self._closed = True
        for member in self._members.values():
            member.channel.close()

    def ask(self, call: Callable[[RemoteMember, float], Answer]) -> Answer:
        """Returns the first answer to a call that changes nothing; it gets a member and seconds.

        Raises:
            GroupcertError: What a member answered, or `NotServing` if none did.
            MemberFailed: A member answered something else.
        """
        failure: Exception | None = None
        for member, timeout_s in self._attempts():
            try:
                return call(member, timeout_s)
            except grpc.RpcError as error:
                if failure is not None and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    continue  # An earlier error says more than the end of the time.
                failure = member.failure(error)
                if isinstance(failure, (*_REFUSALS, MemberFailed)):
                    break
        assert failure is not None, "a time limit of 0"
        raise failure

    def decide(
        self,
        transaction_id: bytes,
        snapshot_version: int,
        send: Callable[[RemoteMember, float], Outcome],
        extra_s: float = 0.0,
    ) -> Outcome:
        """Returns the outcome of a transaction; repeats it until a member answers; it may take
        `extra_s` longer than any call.

        Raises:
            TransactionFailed: It did not commit, or no member can say.
            GroupcertError, MemberFailed: It was not even ordered.
        """
        failure: Exception | None = None
        perhaps_ordered = False
        for member, timeout_s in self._attempts(extra_s):
            try:
                outcome = send(member, timeout_s)
            except grpc.RpcError as error:
                failure = member.failure(error)
                if isinstance(failure, TransactionFailed) and perhaps_ordered:
                    return self._recall(member, transaction_id, snapshot_version, failure)
                if isinstance(failure, TransactionFailed) or is_refusal(failure):
                    break
                if isinstance(failure, NotPrimary):
                    self._ask_next(failure.address)
                elif not _is_turned_away(error, failure):
                    perhaps_ordered = True
                if perhaps_ordered and not transaction_id:
                    break
            else:
                if outcome.verdict != VERDICT_CERTIFIED and perhaps_ordered:
                    return self._recall(member, transaction_id, snapshot_version, outcome)
                return outcome
        assert failure is not None, "a time limit of 0"
        if perhaps_ordered:
            raise OutcomeUnknown(transaction_id=transaction_id, cause=str(failure)) from failure
        raise failure

    def _recall(
        self,
        member: RemoteMember,
        transaction_id: bytes,
        snapshot_version: int,
        answer: Outcome | TransactionFailed,
    ) -> Outcome:
        """Returns, or raises, the negative answer to a repetition if it is the transaction's own.

        If the first one committed and is forgotten, the repetition conflicts with it. It cannot be
        forgotten if the member remembers every outcome since the transaction's snapshot.
        """
        request = GetOutcomeRequest(transaction_id=transaction_id)
        try:
            found = member.certification.GetOutcome(request, RECALL_MS / 1000)
        except grpc.RpcError as error:
            cause = str(member.failure(error))
            raise OutcomeUnknown(transaction_id=transaction_id, cause=cause) from None
        if found.outcome.verdict == VERDICT_CERTIFIED:
            return found.outcome
        if found.forgotten_version > snapshot_version:
            cause = f"outcomes up to version {found.forgotten_version} are forgotten"
            raise OutcomeUnknown(transaction_id=transaction_id, cause=cause)
        if isinstance(answer, TransactionFailed):
            raise answer
        return answer

    def _attempts(self, extra_s: float = 0.0) -> Iterator[tuple[RemoteMember, float]]:
        """Yields members to ask and seconds to wait for the answer, until the time is up."""
        ends = time.monotonic() + self._timeout_ms / 1000 + extra_s
        while (left_s := ends - time.monotonic()) > 0:
            half_s = max((left_s + extra_s) / 2, ATTEMPT_MS_MIN / 1000)  # Of what is not extra.
            yield self.current, min(left_s, half_s)
            self.move_on()
            if self._index % len(self._addresses) == 0:
                pause_s = random.uniform(0.5, 1.5) * PAUSE_MS / 1000
                time.sleep(max(0.0, min(pause_s, ends - time.monotonic())))


def is_refusal(failure: Exception) -> bool:
    """Returns whether a member refused a request without ordering anything."""
    return isinstance(failure, _REFUSALS) or (
        isinstance(failure, MemberFailed) and failure.code in _REFUSING_CODES
    )


def _is_turned_away(error: grpc.RpcError, failure: Exception) -> bool:
    """Returns whether a member, or gRPC for it, was too full for a request, refused it at its door
    or gave up its upload: no member has ordered such a request.
    """
    exhausted = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    refused = isinstance(failure, NotServing) and failure.ordered == "nothing"
    return exhausted or refused or isinstance(failure, (RequestIncomplete, UploadExpired))
