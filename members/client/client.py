"""The synchronous client: `AsyncClient`, run on a thread of its own.

    with Client(["10.0.0.1:7101", "10.0.0.2:7101"]) as client:
        with client.transaction() as transaction:  # the snapshot is taken here
            balance = int(transaction.get(b"account/1") or b"0")
            transaction.put(b"account/1", str(balance + 10).encode())

What a method does and raises, `AsyncClient` and `AsyncTransaction` say.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Generic, Self, TypeVar, Unpack

from groupcert.certifier.errors import GroupcertError
from groupcert.members.client.async_client import AsyncClient
from groupcert.members.client.async_transaction import PAGE_ROWS, AsyncTransaction
from groupcert.members.client.forks import is_usable
from groupcert.members.client.loop_thread import ends_before_forks, iterate, run
from groupcert.members.client.options import ClientOptions, Consistency, check_names
from groupcert.members.client.own_writes import KeyAndValue
from groupcert.members.client.retry import checked_result
from groupcert.v1.certification_pb2 import GetOutcomeResponse
from groupcert.v1.group_pb2 import GroupStatus, ReadHistoryResponse
from groupcert.v1.transaction_pb2 import Outcome
from groupcert.v1.transaction_pb2 import Transaction as CertifiableTransaction

__all__ = ["Client", "Transaction"]

Result = TypeVar("Result")
Item = TypeVar("Item")


class Forwarded(Generic[Item]):
    """An attribute of the asynchronous object below a synchronous one."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: "Client | Transaction", kind: object) -> Item:
        value: Item = getattr(owner.asynchronous, self._name)
        return value

    def __set__(self, owner: "Client | Transaction", value: Item) -> None:
        setattr(owner.asynchronous, self._name, value)


class Client:
    """A session with a group: it sees its own commits, and never an older state than it has seen.

    Any number of threads may use it at the same time. A transaction is for one of them.
    """

    version = Forwarded[int]()
    """The newest state that its reads have seen or its commits made."""
    consistency = Forwarded[Consistency]()
    serializable = Forwarded[bool]()
    session = Forwarded[str]()
    gtid_domain_id = Forwarded[int]()

    def __init__(self, address: str | Sequence[str], **options: Unpack[ClientOptions]) -> None:
        """Connects when it is first used; arguments are those of `AsyncClient`."""
        check_names(type(self).__name__, options)
        self.asynchronous = AsyncClient(address, **options)
        ends_before_forks(self.asynchronous._members)

    def __repr__(self) -> str:
        return self.asynchronous._members.described(type(self).__name__)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; snapshots that are still open end with them."""
        if is_usable():
            run(self.asynchronous.close())

    @property
    def address(self) -> str:
        """The member that is asked now."""
        return self.asynchronous.address

    @property
    def token(self) -> str:
        """What this session has seen, for `after` of another client."""
        return self.asynchronous.token

    def transaction(
        self, *, snapshot_version: int | None = None, gtid_domain_id: int | None = None
    ) -> "Transaction":
        """Begins a transaction: its snapshot is taken now, it commits at the end of the block."""
        transaction = self.asynchronous.transaction(
            snapshot_version=snapshot_version, gtid_domain_id=gtid_domain_id
        )
        return Transaction(run(transaction.begun()))

    def run(
        self,
        function: "Callable[[Transaction], Result]",
        *,
        attempts_max: int | None = None,
        timeout_ms: int | None = None,
    ) -> Result:
        """Returns the function's result once a transaction around it has committed; the function is
        called on the caller's thread.
        """
        retry = self.asynchronous.retry(attempts_max, timeout_ms)
        while True:
            begun: AsyncTransaction | None = None
            try:
                with self.transaction() as transaction:
                    begun = transaction.asynchronous
                    return checked_result(function(transaction), function)
            except GroupcertError as failure:
                run(self.asynchronous.pause(retry, begun, failure))

    def certify(self, transaction: CertifiableTransaction) -> Outcome:
        """Orders and certifies one transaction (see `certifiable`); the outcome has the verdict. A
        large one goes in parts.
        """
        return run(self.asynchronous.certify(transaction))

    def certify_stream(
        self, batches: Iterable[Sequence[CertifiableTransaction]]
    ) -> Iterator[tuple[int, Outcome]]:
        """Yields (number, outcome) as transactions are decided; numbers count from 0, as sent."""
        pages = self.asynchronous.certified(_beside_the_loop(iter(batches)))
        return chain.from_iterable(iterate(pages))

    def outcome(self, transaction_id: bytes) -> GetOutcomeResponse:
        """Returns the outcome of a transaction, as far as a member knows."""
        return run(self.asynchronous.outcome(transaction_id))

    def status(self) -> GroupStatus:
        """Returns the group as the member sees it."""
        return run(self.asynchronous.status())

    def watch(self, period_ms: int = 1_000) -> Iterator[GroupStatus]:
        """Yields the member's status again and again."""
        return iterate(self.asynchronous.watch(period_ms))

    def history(self, after_version: int = 0) -> Iterator[ReadHistoryResponse]:
        """Yields what the member decided and applied after a version, in order, page by page."""
        return iterate(self.asynchronous.history(after_version))


class Transaction:
    """Reads of one snapshot, which see the transaction's own writes; the writes are sent at commit.

    As a context manager it commits at the end of the block, and sends nothing if the block raises.
    """

    transaction_id = Forwarded[bytes]()
    """The group knows the transaction by this id."""
    snapshot_version = Forwarded[int]()
    """The state that it reads."""
    gtid = Forwarded[str]()
    """Set by the commit of a transaction that wrote."""
    version = Forwarded[int]()
    """Set by the commit: reads of this version or a later one see what was written."""

    def __init__(self, begun: AsyncTransaction) -> None:
        """Keeps what `Client.transaction` has begun."""
        self.asynchronous = begun

    def __repr__(self) -> str:
        return self.asynchronous.described(type(self).__name__)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        if is_usable():  # Else the block is its parent's.
            run(self.asynchronous.__aexit__(error_type, *error), goes_on=True)

    def get(self, key: bytes) -> bytes | None:
        """Returns the key's value, or None."""
        return run(self.asynchronous.get(key), goes_on=True)

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """Returns the values of keys, None where there is none."""
        return run(self.asynchronous.get_many([*keys]), goes_on=True)

    def scan(
        self, start: bytes = b"", end: bytes = b"", *, page_rows: int = PAGE_ROWS
    ) -> Iterator[KeyAndValue]:
        """Yields the rows from `start` up to, not including, `end`, in byte order."""
        return chain.from_iterable(iterate(self.asynchronous.pages(start, end, page_rows)))

    def put(self, key: bytes, value: bytes) -> None:
        """Gives a key a value, at commit."""
        self.asynchronous.put(key, value)

    def delete(self, key: bytes) -> None:
        """Removes a key, at commit."""
        self.asynchronous.delete(key)

    def commit(self) -> None:
        """Ends the transaction: its writes are in the group when this returns."""
        run(self.asynchronous.commit(), goes_on=True)

    def rollback(self) -> None:
        """Ends the transaction without a trace."""
        run(self.asynchronous.rollback(), goes_on=True)


async def _beside_the_loop(items: Iterator[Item]) -> AsyncIterator[Item]:
    """Yields the items of an iterator that may block, each of which a thread waits for."""
    while (item := await asyncio.to_thread(next, items, None)) is not None:
        yield item
