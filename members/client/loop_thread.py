"""The thread on which synchronous clients of a process run the asynchronous one.

It is one thread for all of them: several would only wait for each other's interpreter lock. Before
the process forks it ends, with all connections, unless a call or a transaction needs them; parent
and child begin another one when they need it.
"""

import asyncio
import atexit
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from groupcert.members.client.forks import check_usable, grpc_runs, note_child, note_fork
from groupcert.members.host.client_loop import new_event_loop

FORK_SECONDS = 1.0
"""How long a fork waits at most for the calls that run, and as long for gRPC to end."""
Result = TypeVar("Result")


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
    """Yields what an asynchronous iterator yields, each produced on the thread; ends it with its
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
