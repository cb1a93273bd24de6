"""A transaction of the asynchronous client: reads of a snapshot, and writes that it keeps until its
commit.

The rule it keeps: it sees one state of the group, and its own writes on top of that; its commit
takes effect once.
"""

import os
from collections.abc import AsyncIterator, Generator, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from groupcert.v1 import store_pb2, transaction_pb2
from groupcert.v1.transaction_pb2 import Outcome

from ...certifier.errors import GroupcertError
from .commit_sending import (
    CommitSending,
    pages,
)
from .own_writes import KeyAndValue, OwnRange, OwnWrites
from .remote import no_answer
from .remote_member import RemoteMember
from .sizes import check_id, checked_key, checked_value

if TYPE_CHECKING:
    from .async_client import AsyncClient

PAGE_ROWS = 1_000
CLOSE_MS = 1_000
TRANSACTION_ID_BYTES = 16

Result = TypeVar("Result")


class AsyncTransaction:
    """Reads of one snapshot, which see the transaction's own writes; the writes are sent at commit.

    As a context manager it commits at the end of the block, and sends nothing if the block raises.
    """

    def __init__(
        self, client: "AsyncClient", snapshot_version: int | None, gtid_domain_id: int
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

    def __repr__(self) -> str:
        return self.described(type(self).__name__)

    def described(self, kind: str) -> str:
        """Returns the `repr` of the transaction, as an object of a `kind`."""
        state = "has ended" if self._ended else f"{len(self._writes)} writes"
        if self.version:
            state = f"committed as version {self.version}"
        name = self.transaction_id.hex()
        return f"<{kind} {name} on version {self.snapshot_version}, {state}>"

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
        return flat(self.pages(start, end, page_rows))

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

            await client._members.ask_at(client.version, ask)
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


async def flat(pages: AsyncIterator[list[Result]]) -> AsyncIterator[Result]:
    """Yields the items of lists."""
    async for page in pages:
        for item in page:
            yield item
