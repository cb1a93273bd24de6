"""The synchronous client: `AsyncClient`, run on a thread of its own.

    with Client(["10.0.0.1:7101", "10.0.0.2:7101"]) as client:
        with client.transaction() as transaction:  # the snapshot is taken here
            balance = int(transaction.get(b"account/1") or b"0")
            transaction.put(b"account/1", str(balance + 10).encode())

What a method does and raises, `AsyncClient` and `AsyncTransaction` say. All clients of a process
share one thread: several would only wait for each other's interpreter lock. Before the process
forks it ends, with all connections, unless a call or a transaction needs them; parent and child
begin another one when they need it.
"""

import asyncio
import atexit
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack
from weakref import WeakSet

from groupcert.v1.certification_pb2 import GetOutcomeResponse
from groupcert.v1.group_pb2 import GroupStatus, ReadHistoryResponse
from groupcert.v1.transaction_pb2 import Outcome
from groupcert.v1.transaction_pb2 import Transaction as CertifiableTransaction

from ...certifier.errors import GroupcertError
from ..host.client_loop import new_event_loop
from .async_client import AsyncClient
from .async_transaction import PAGE_ROWS, AsyncTransaction
from .client_options import ClientOptions, Consistency, check_names
from .forks import check_usable, grpc_runs, is_usable, note_child, note_fork
from .own_writes import KeyAndValue
from .retry import checked_result

__all__ = ["Client", "Transaction"]

Result = TypeVar("Result")
Item = TypeVar("Item")
FORK_SECONDS = 1.0
"""How long a fork waits at most for the calls that run, and as long for gRPC to end."""


class Connected(Protocol):
    """The members that a client is connected to."""

    @property
    def is_connected(self) -> bool: ...
    @property
    def holds_snapshots(self) -> bool: ...
    async def disconnect(self) -> None: ...


class _Thread:
    """The thread of a process, while there is one, and what goes on there."""

    def __init__(self) -> None:
        self._gate = threading.Condition()
        self._clients: WeakSet[Connected] = WeakSet()
        self._calls = self._iterations = 0
        """Calls that run now, and iterators that have not ended."""
        self._forks = False
        self.is_over = False
        """True once Python ends."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._before: _Thread | None = None
        """That of the process before, kept: its event loop, ended here, would change there."""

    def add(self, client: Connected) -> None:
        """Closes the connections of a client, too, before a fork."""
        with self._gate:
            self._clients.add(client)

    def begin(self, coroutine: Coroutine[Any, Any, Result], *, goes_on: bool) -> "Future[Result]":
        """Begins a call; `count` has to follow. While a fork is on its way, only those of what has
        begun `goes_on`.
        """
        with self._gate:
            while self._forks and not goes_on:
                self._gate.wait()
            if self._loop is None:
                self._loop = new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="groupcert-client", daemon=True
                )
                self._thread.start()
            self._calls += 1
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def count(self, *, calls: int = 0, iterations: int = 0) -> None:
        """Counts calls and iterators that have begun, or, if negative, ended."""
        with self._gate:
            self._calls += calls
            self._iterations += iterations
            self._gate.notify_all()

    def end(self) -> None:
        """Ends the calls of clients that were not closed, and the thread."""
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def end_for_ever(self) -> None:
        """Ends before Python does; what is not closed by then is not closed any more."""
        self.is_over = True
        self.end()

    def before_fork(self) -> None:
        """Lets nothing begin, and ends what the child could not use."""
        self._gate.acquire()
        self._forks = True
        note_fork(self._ended_for_fork())

    def _ended_for_fork(self) -> str:
        """Ends the thread and all connections, once nothing needs them. Returns what needs gRPC
        still; empty: nothing.
        """
        ends = time.monotonic() + FORK_SECONDS
        while (busy := self._busy()) and (left_s := ends - time.monotonic()) > 0:
            self._gate.wait(left_s)
        if busy:
            return busy
        was_used = self._loop is not None
        if self._loop is not None:
            ending = asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop)
            with suppress(TimeoutError):
                ending.result(FORK_SECONDS)
            self.end()
            gc.collect()  # A channel ends when nothing refers to it, and gRPC with the last one.
        return "something used gRPC" if grpc_runs(FORK_SECONDS if was_used else 0.0) else ""

    def _busy(self) -> str:
        if self._calls or self._iterations:
            return "a call of a client ran"
        is_open = any(each.holds_snapshots for each in self._clients)
        return "a client had an open transaction" if is_open else ""

    async def _disconnect(self) -> None:
        await asyncio.gather(*(each.disconnect() for each in self._clients))

    def after_fork(self) -> None:
        """Lets calls begin again, in the process that has forked."""
        self._forks = False
        self._gate.notify_all()
        self._gate.release()

    def in_child(self) -> "_Thread":
        """Returns that of a process that was forked: it has the clients, and no thread."""
        note_child()
        child = _Thread()
        child._clients, child._before = self._clients, self
        return child


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_thread = _Thread()


def ends_before_forks(client: Connected) -> None:
    """Has a client's connections closed before the process forks."""
    _thread.add(client)


def run(coroutine: Coroutine[Any, Any, Result], *, goes_on: bool = False) -> Result:
    """Returns the result of a coroutine, run on the thread; cancels it if the caller is
    interrupted. One that begins something waits for a fork that is on its way.

    Raises RuntimeError in a child that was forked in the midst of a call.
    """
    thread = _thread
    try:
        check_usable()
    except RuntimeError:
        coroutine.close()
        raise
    future = thread.begin(coroutine, goes_on=goes_on)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
    finally:
        thread.count(calls=-1)


def iterate(results: AsyncIterator[Result]) -> Iterator[Result]:
    """Yields the elements of an asynchronous iterator, produced on the thread; ends it with its
    reader.
    """
    thread = _thread
    thread.count(iterations=1)
    try:
        while (result := run(_next(results), goes_on=True)) is not None:
            yield result
    finally:
        if thread is _thread and not thread.is_over:  # Else what it was closed with is gone.
            run(_close(results), goes_on=True)
        thread.count(iterations=-1)


async def _next(results: AsyncIterator[Result]) -> Result | None:
    return await anext(results, None)


async def _close(results: AsyncIterator[Any]) -> None:
    close = getattr(results, "aclose", None)
    if close is not None:
        await close()


def _after_fork_in_child() -> None:
    global _thread
    _thread = _thread.in_child()


os.register_at_fork(
    before=lambda: _thread.before_fork(),
    after_in_parent=lambda: _thread.after_fork(),
    after_in_child=_after_fork_in_child,
)
atexit.register(lambda: _thread.end_for_ever())


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
        """Yields the decisions that the member applied after a version, in order, page by page."""
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
