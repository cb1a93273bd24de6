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
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Self, TypeVar

from groupcert.certifier.errors import GroupcertError, SnapshotExpired, Unavailable
from groupcert.members.client.commit_sending import (
    Batches,
    CommitSending,
    check_call,
    pages,
    send_batches,
)
from groupcert.members.client.options import (
    TIMEOUT_MS,
    Consistency,
    session_token,
    token_version,
)
from groupcert.members.client.own_writes import KeyAndValue, OwnRange, OwnWrites
from groupcert.members.client.remote import RemoteMembers, no_answer
from groupcert.members.client.remote_member import RemoteMember
from groupcert.members.client.retry import Retry
from groupcert.members.client.sizes import check_id, checked_key, checked_value
from groupcert.members.errors.transactions import CertificationConflict, OutcomeUnknown
from groupcert.members.security.credentials import Credentials, Tls
from groupcert.v1 import certification_pb2, group_pb2, store_pb2, transaction_pb2
from groupcert.v1.certification_pb2 import GetOutcomeResponse
from groupcert.v1.group_pb2 import GroupStatus, ReadHistoryResponse
from groupcert.v1.transaction_pb2 import Outcome
from groupcert.v1.transaction_pb2 import Transaction as CertifiableTransaction

__all__ = ["AsyncClient", "AsyncTransaction"]

PAGE_ROWS = 1_000
CLOSE_MS = 1_000
TRANSACTION_ID_BYTES = 16

Result = TypeVar("Result")


class AsyncClient:
    """A session with a group: it sees its own commits, and never an older state than it has seen.

    Any number of tasks of one event loop may use it at the same time: they share a connection to
    each member, and what waits of them travels together.
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
        spread: bool = False,
        after: str = "",
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
            spread: Begin transactions at all members in turn, not at one for as long as it answers.
                Each waits until its member has what the session has seen, mostly some ms.
            after: The `token` of another client, whose commits this one is to see.
            tls: Files for mutual TLS, if members require it.
            token: Identifies the caller without a certificate; over TLS, or on this machine only.
        """
        addresses = [address] if isinstance(address, str) else list(address)
        if not addresses or timeout_ms < 1:
            raise ValueError("a client needs a member's address, and a time limit of 1 ms or more")
        self.version = token_version(after)
        """The newest state that its reads have seen or its commits made."""
        self.consistency = consistency
        self.serializable = serializable
        self.session = session
        self.gtid_domain_id = gtid_domain_id
        self._timeout_s = timeout_ms / 1000
        credentials = Credentials(tls=tls, token=token)
        self._members = RemoteMembers(addresses, timeout_ms, credentials, spread=spread)

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
    ) -> "AsyncTransaction":
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
                    return await function(transaction)
            except GroupcertError as failure:
                await self.pause(retry, transaction, failure)

    async def certify(self, transaction: CertifiableTransaction) -> Outcome:
        """Orders and certifies one transaction (see `certifiable`); the outcome has the verdict.

        Raises:
            OutcomeUnknown: No member gave the outcome within `timeout_ms`, or the transaction may
                be a repetition of one whose outcome is forgotten.
        """
        check_call(transaction)
        request = certification_pb2.CertifyRequest(transaction=transaction)

        async def send(member: RemoteMember, timeout_s: float) -> Outcome:
            answer: certification_pb2.CertifyResponse
            answer = await member.call("certify", request, timeout_s)
            told = answer.outcome
            if told.verdict == transaction_pb2.VERDICT_UNKNOWN:
                raise OutcomeUnknown(transaction_id=told.transaction_id, cause=told.reason)
            return told

        outcome = await self._members.decide(request.transaction, send, first=self._members.begin())
        self.version = max(self.version, outcome.version)
        return outcome

    def certify_stream(self, batches: Batches) -> AsyncIterator[tuple[int, Outcome]]:
        """Yields (number, outcome) as transactions are decided; numbers count from 0, as sent.

        A broken stream raises, and is not repeated: ask for the missing outcomes by their ids. A
        transaction that is too large for a message ends the stream before it.
        """
        return _flat(self.certified(batches))

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
        """Yields what the member decided and applied after a version, in order, page by page."""
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
        self, retry: Retry, transaction: "AsyncTransaction | None", failure: GroupcertError
    ) -> None:
        """Returns when `run` may try again after a transaction that failed, if it had begun. Raises
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


class AsyncTransaction:
    """Reads of one snapshot, which see the transaction's own writes; the writes are sent at commit.

    As a context manager it commits at the end of the block, and sends nothing if the block raises.
    """

    def __init__(
        self, client: AsyncClient, snapshot_version: int | None, gtid_domain_id: int
    ) -> None:
        """Keeps what `AsyncClient.transaction` passes in."""
        self.transaction_id = self._new_id = os.urandom(TRANSACTION_ID_BYTES)
        """The group knows the transaction by this id. With that of another one it is taken for a
        repetition.
        """
        self.snapshot_version = snapshot_version or 0
        self.gtid = ""
        """Set by the commit of a transaction that wrote."""
        self.version = 0
        """Set by the commit: reads of this version or a later one see what was written."""
        self.member: RemoteMember | None = None
        """The member that holds its snapshot."""
        self._client = client
        self._only_writes = snapshot_version is not None
        self._snapshot_id = 0
        self._domain_id = gtid_domain_id
        self._writes = OwnWrites()
        self._read_keys: dict[bytes, None] = {}
        self._ended = False

    def __await__(self) -> Generator[Any, None, Self]:
        return self.begun().__await__()

    async def __aenter__(self) -> Self:
        return await self.begun()

    async def __aexit__(self, error_type: type[BaseException] | None, *_error: object) -> None:
        if self._ended:
            return
        if error_type is None:
            await self.commit()
        else:
            await self.rollback()

    async def get(self, key: bytes) -> bytes | None:
        """Returns the key's value, or None."""
        return (await self.get_many([key]))[key]

    async def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """Returns the values of keys, None where there is none. It takes a round trip for each
        1,000 keys, and one for each 8 MiB.
        """
        self._check_open()
        wanted = [checked_key(key) for key in dict.fromkeys(keys)]
        found = {key: self._writes[key] if key in self._writes else None for key in wanted}
        missing = [key for key in wanted if key not in self._writes]
        while missing:
            request = store_pb2.GetRequest(snapshot_id=self._snapshot_id, keys=next(pages(missing)))
            rows = (await self._read("get", request)).rows
            self._note_read(row.key for row in rows)
            found.update((row.key, row.value) for row in rows if row.HasField("value"))
            del missing[: len(rows)]
        return found

    def scan(
        self, start: bytes = b"", end: bytes = b"", *, page_rows: int = PAGE_ROWS
    ) -> AsyncIterator[KeyAndValue]:
        """Yields the rows from `start` up to, not including, `end`, in byte order.

        An empty `end` means to the end. Writes made after the call are not seen.
        """
        return _flat(self.pages(start, end, page_rows))

    def pages(self, start: bytes, end: bytes, page_rows: int) -> AsyncIterator[list[KeyAndValue]]:
        """Yields the rows as `scan`, in lists of about `page_rows`."""
        self._check_open()
        own = self._writes.within(checked_key(start, "start"), checked_key(end, "end"))
        request = store_pb2.ScanRequest(start_key=start, end_key=end, rows_max=page_rows)
        return self._pages(own, request)

    async def _pages(
        self, own: OwnRange, request: store_pb2.ScanRequest
    ) -> AsyncIterator[list[KeyAndValue]]:
        while True:
            request.snapshot_id = self._snapshot_id
            page = await self._read("scan", request)
            self._note_read(row.key for row in page.rows)
            yield own.merged(((row.key, row.value) for row in page.rows), page.next_key)
            if not page.next_key:
                return
            request.start_key = page.next_key

    def put(self, key: bytes, value: bytes) -> None:
        """Gives a key a value, at commit."""
        self._check_open()
        self._writes.put(checked_key(key), checked_value(value, key))

    def delete(self, key: bytes) -> None:
        """Removes a key, at commit."""
        self._check_open()
        self._writes.delete(checked_key(key))

    async def commit(self) -> None:
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
        check_id(self.transaction_id)
        if not self._writes:
            await self.rollback()
            self.version = self.snapshot_version
            return
        self._end()
        client = self._client
        request = store_pb2.CommitRequest(
            transaction_id=self.transaction_id,
            first_attempt=self.transaction_id == self._new_id,
            snapshot_version=self.snapshot_version,
            consistency=client.consistency.on_wire,
            session=client.session,
            gtid_domain_id=self._domain_id,
        )
        sending = CommitSending(request, self._writes, [*self._read_keys])
        outcome = await client._members.decide(
            request,
            partial(self._send, sending),
            first=self.member or client._members.begin(),
            extra_s=sending.extra_s,
        )
        self.gtid, self.version = outcome.gtid, outcome.version
        client.version = max(client.version, outcome.version)

    async def rollback(self) -> None:
        """Ends the transaction without a trace."""
        self._check_open()
        self._end()
        if self.member is not None:
            request = store_pb2.CloseSnapshotRequest(snapshot_id=self._snapshot_id)
            with suppress(GroupcertError, TimeoutError):  # the lease ends it anyway
                await self.member.call("close_snapshot", request, CLOSE_MS / 1000)

    async def begun(self) -> Self:
        """Takes the snapshot, unless it has begun or only writes."""
        client = self._client
        if self.member is None and not self._only_writes:
            request = store_pb2.OpenSnapshotRequest(
                consistency=client.consistency.on_wire, version_min=client.version
            )

            async def ask(member: RemoteMember, timeout_s: float) -> None:
                opened: store_pb2.OpenSnapshotResponse
                opened = await member.call("open_snapshot", request, timeout_s)
                self.member = member
                member.transactions.add(self)
                self._snapshot_id, self.snapshot_version = opened.snapshot_id, opened.version

            await client._members.ask(ask, client._members.begin())
            client.version = max(client.version, self.snapshot_version)
        return self

    async def _send(
        self, sending: CommitSending, member: RemoteMember, timeout_s: float
    ) -> Outcome:
        """Sends the commit once; only the holder of the snapshot gets its id, and only once."""
        snapshot_id = self._snapshot_id if member is self.member else 0
        self._snapshot_id = 0 if member is self.member else self._snapshot_id
        response = await sending.send(member, snapshot_id, timeout_s)
        return Outcome(
            transaction_id=self.transaction_id,
            verdict=transaction_pb2.VERDICT_CERTIFIED,
            gtid=response.gtid,
            version=response.version,
            log_sequence=response.log_sequence,
        )

    async def _read(self, field: str, request: Any) -> Any:
        """Calls the one member that has the snapshot."""
        if self.member is None:
            if self._only_writes:
                text = "a transaction on a known version only writes: begin one without it"
                raise ValueError(text)
            raise ValueError("the transaction has not begun: use `async with`, or await it")
        timeout_s = self._client._timeout_s
        try:
            return await self.member.call(field, request, timeout_s)
        except TimeoutError:
            raise no_answer(self.member, timeout_s) from None

    def _note_read(self, keys: Iterable[bytes]) -> None:
        if self._client.serializable:
            self._read_keys.update(dict.fromkeys(keys))

    def _end(self) -> None:
        self._ended = True
        if self.member is not None:
            self.member.transactions.discard(self)

    def _check_open(self) -> None:
        if self._ended:
            raise ValueError("the transaction has ended: begin another one")


async def _flat(pages: AsyncIterator[list[Result]]) -> AsyncIterator[Result]:
    """Yields the items of lists."""
    async for page in pages:
        for item in page:
            yield item
