"""The asynchronous client: transactions on the embedded store, certification for other stores.

The rule it keeps: its answers are certain. A commit whose answer is lost is sent again under the
same transaction id, at the same member or another one, and takes effect once; if no member can say
what became of it, it raises `OutcomeUnknown`.

    async with AsyncClient(["10.0.0.1:7101", "10.0.0.2:7101"]) as client:
        async with client.transaction() as transaction:  # the snapshot is taken here
            balance = int(await transaction.get(b"account/1") or b"0")
            transaction.put(b"account/1", str(balance + 10).encode())

`Client` is the same for programs without an event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Never, Self, TypeVar

from groupcert.v1 import certification_pb2, group_pb2, transaction_pb2
from groupcert.v1.certification_pb2 import GetOutcomeResponse
from groupcert.v1.group_pb2 import GroupStatus, ReadHistoryResponse
from groupcert.v1.store_pb2 import CommitStreamResponse
from groupcert.v1.transaction_pb2 import Outcome
from groupcert.v1.transaction_pb2 import Transaction as CertifiableTransaction

from ...certifier.errors import GroupcertError, SnapshotExpired, Unavailable
from ..errors.transactions import CertificationConflict, OutcomeUnknown
from ..security.credentials import Credentials, Tls
from .async_transaction import AsyncTransaction, flat
from .client_options import (
    TIMEOUT_MS,
    Consistency,
    ConsistencyOption,
    check_names,
    checked_addresses,
    checked_consistency,
    session_token,
    token_version,
)
from .commit_sending import (
    CALL_BYTES_MAX,
    Batches,
    PartsSending,
    certified_in_parts,
    send_batches,
)
from .remote import RemoteMembers
from .remote_member import RemoteMember
from .retry import Retry, checked_awaitable
from .sizes import check_id

__all__ = ["AsyncClient", "AsyncTransaction"]

Result = TypeVar("Result")


VERDICTS = (
    transaction_pb2.VERDICT_CERTIFIED,
    transaction_pb2.VERDICT_CONFLICT,
    transaction_pb2.VERDICT_TOO_OLD,
    transaction_pb2.VERDICT_REFUSED,
)
"""What can become of a transaction; any other number says that nobody can tell."""


class AsyncClient:
    """A session with a group: it sees its own commits, and never an older state than it has seen.

    Any number of tasks of one event loop may use it at the same time: they share a connection to
    each member, and what waits of them travels together.
    """

    consistency = ConsistencyOption()

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        timeout_ms: int = TIMEOUT_MS,
        consistency: Consistency | str = Consistency.EVENTUAL,
        serializable: bool = False,
        session: str = "",
        gtid_domain_id: int = 0,
        spread: bool = False,
        after: str = "",
        tls: Tls | None = None,
        token: str = "",
        **unknown: Never,
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
            spread: Begin transactions at all members in turn, not at one for as long as it answers.
                Each waits until its member has what the session has seen, mostly some ms.
            after: The `token` of another client, whose commits this one is to see.
            tls: Files for mutual TLS, if members require it.
            token: Identifies the caller without a certificate; over TLS, or on this machine only.
        """
        check_names(type(self).__name__, unknown)
        addresses = checked_addresses(address, timeout_ms)
        self.version = token_version(after)
        """The newest state that its reads have seen or its commits made."""
        self.consistency = checked_consistency(consistency)
        self.serializable = serializable
        self.session = session
        self.gtid_domain_id = gtid_domain_id
        self._timeout_s = timeout_ms / 1000
        credentials = Credentials(tls=tls, token=token)
        self._members = RemoteMembers(addresses, timeout_ms, credentials, spread=spread)

    def __repr__(self) -> str:
        return self._members.described(type(self).__name__)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; snapshots that are still open end with them."""
        await self._members.close()

    @property
    def address(self) -> str:
        """The member that is asked now."""
        return self._members.current_address

    @property
    def token(self) -> str:
        """What this session has seen, for `after` of another client."""
        return session_token(self.version)

    def transaction(
        self, *, snapshot_version: int | None = None, gtid_domain_id: int | None = None
    ) -> AsyncTransaction:
        """Returns a transaction; it begins, with a snapshot, by `async with` or `await`, and
        commits at the end of the block.

        Args:
            snapshot_version: A state that the caller knows, such as `version`. The transaction then
                only writes, and saves the round trip for a snapshot; it conflicts with what others
                wrote to the same rows since that state.
            gtid_domain_id: Its replication domain; None: the session's.

        Raises:
            NotServing: No member answered within the limit; when it begins.
        """
        domain_id = self.gtid_domain_id if gtid_domain_id is None else gtid_domain_id
        return AsyncTransaction(self, snapshot_version, domain_id)

    async def run(
        self,
        function: "Callable[[AsyncTransaction], Awaitable[Result]]",
        *,
        attempts_max: int | None = None,
        timeout_ms: int | None = None,
    ) -> Result:
        """Returns the function's result once a transaction around it has committed.

        Calls it again, each time with a new transaction, after a conflict, if the snapshot was too
        old or its member is gone; an unknown outcome raises.

        Args:
            attempts_max: Most calls; None: as many as begin within the time.
            timeout_ms: Milliseconds within which an attempt may begin; None: as one call.
        """
        retry = self.retry(attempts_max, timeout_ms)
        while True:
            transaction = self.transaction()
            try:
                async with transaction:
                    return await checked_awaitable(function(transaction), function)
            except GroupcertError as failure:
                await self.pause(retry, transaction, failure)

    async def certify(
        self, transaction: CertifiableTransaction, changes: Sequence[bytes] = ()
    ) -> Outcome:
        """Orders and certifies one transaction (see `certifiable`); the outcome has the verdict. A
        large one goes in parts.

        Args:
            changes: Its row changes as serialized `Changes` messages of at most 1 MiB, if they are
                not in the transaction: the caller then need not have them as a whole.

        Raises:
            OutcomeUnknown: No member gave the outcome within `timeout_ms`, or the transaction may
                be a repetition of one whose outcome is forgotten.
        """
        request = certification_pb2.CertifyRequest()
        in_parts: PartsSending | None = None
        if sum(map(len, changes), transaction.ByteSize()) > CALL_BYTES_MAX:
            in_parts = certified_in_parts(transaction, changes)
            sent = in_parts.header.transaction
        else:
            sent = request.transaction
            sent.CopyFrom(transaction)
            sent.changes += b"".join(changes)

        async def send(member: RemoteMember, timeout_s: float) -> Outcome:
            answer: certification_pb2.CertifyResponse | CommitStreamResponse
            if in_parts:
                answer = await in_parts.send(member, timeout_s)
            else:
                answer = await member.call("certify", request, timeout_s)
            told = answer.outcome
            if told.verdict not in VERDICTS:
                cause = told.reason or f"verdict {told.verdict} is none that this release knows"
                raise OutcomeUnknown(transaction_id=told.transaction_id, cause=cause)
            return told

        first, extra_s = self._members.begin(), in_parts.extra_s if in_parts else 0.0
        outcome = await self._members.decide(sent, send, first=first, extra_s=extra_s)
        self.version = max(self.version, outcome.version)
        return outcome

    def certify_stream(self, batches: Batches) -> AsyncIterator[tuple[int, Outcome]]:
        """Yields (number, outcome) as transactions are decided; numbers count from 0, as sent.

        A broken stream raises, and is not repeated: ask for the missing outcomes by their ids. A
        transaction that is too large for a message ends the stream before it.
        """
        return flat(self.certified(batches))

    async def outcome(self, transaction_id: bytes) -> GetOutcomeResponse:
        """Returns the outcome of a transaction, as far as a member knows."""
        check_id(transaction_id)
        request = certification_pb2.GetOutcomeRequest(transaction_id=transaction_id)

        async def ask(member: RemoteMember, timeout_s: float) -> GetOutcomeResponse:
            found: GetOutcomeResponse = await member.call("get_outcome", request, timeout_s)
            return found

        return await self._members.ask(ask)

    async def status(self) -> GroupStatus:
        """Returns the group as the member sees it."""
        request = group_pb2.GetStatusRequest()

        async def ask(member: RemoteMember, timeout_s: float) -> GroupStatus:
            answer: group_pb2.GetStatusResponse
            answer = await member.unary(member.group.GetStatus, request, timeout_s)
            return answer.status

        return await self._members.ask(ask)

    async def watch(self, period_ms: int = 1_000) -> AsyncIterator[GroupStatus]:
        """Yields the member's status again and again."""
        member = self._members.current
        request = group_pb2.WatchStatusRequest(period_ms=period_ms)
        stream = member.group.WatchStatus(request, metadata=member.metadata)
        received = member.received(stream)
        del stream  # The frames of an error that is kept would keep the call.
        async with aclosing(received) as responses:
            async for response in responses:
                yield response.status

    async def history(self, after_version: int = 0) -> AsyncIterator[ReadHistoryResponse]:
        """Yields the decisions that the member applied after a version, in order, page by page."""
        member = self._members.current
        request = group_pb2.ReadHistoryRequest(after_version=after_version)
        stream = member.group.ReadHistory(request, metadata=member.metadata)
        received = member.received(stream)
        del stream  # The frames of an error that is kept would keep the call.
        async with aclosing(received) as responses:
            async for response in responses:
                yield response

    async def certified(self, batches: Batches) -> AsyncIterator[list[tuple[int, Outcome]]]:
        """Yields the numbered outcomes of each message, as `certify_stream`."""
        member = self._members.begin()
        stream = await member.stream(member.certification.CertifyStream)
        received = member.received(stream)
        sending = asyncio.create_task(send_batches(stream, batches))
        try:
            async with aclosing(received) as responses:
                async for response in responses:
                    yield list(zip(response.numbers, response.outcomes, strict=True))
            await sending
        finally:
            sending.cancel()
            del stream, sending  # The frames of an error that is kept would keep the call.

    def retry(self, attempts_max: int | None, timeout_ms: int | None) -> Retry:
        timeout_s = self._timeout_s if timeout_ms is None else timeout_ms / 1000
        return Retry(timeout_s, attempts_max)

    async def pause(
        self, retry: Retry, transaction: AsyncTransaction | None, failure: GroupcertError
    ) -> None:
        """Waits until `run` may try again after a transaction that failed, if it had begun. Raises
        the failure if it must not.

        The next snapshot has the transaction that this one lost to: without it, it would lose to
        the same one again.
        """
        pause_s = retry.pause_s(failure)
        if isinstance(failure, CertificationConflict):
            self.version = max(self.version, failure.winner_version)
        is_gone = isinstance(failure, Unavailable) and not isinstance(failure, SnapshotExpired)
        if is_gone and transaction is not None and transaction.member is not None:
            self._members.move_on(transaction.member)
        await asyncio.sleep(pause_s)
