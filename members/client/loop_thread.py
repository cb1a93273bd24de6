"""The thread on which synchronous clients of a process run the asynchronous one.

It is one thread for all of them: several would only wait for each other's interpreter lock.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

from groupcert.members.host.client_loop import new_event_loop

Result = TypeVar("Result")
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Returns the result of a coroutine, run on the thread; cancels it if the caller is
    interrupted.
    """
    future = asyncio.run_coroutine_threadsafe(coroutine, _running_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def iterate(results: AsyncIterator[Result]) -> Iterator[Result]:
    """Yields what an asynchronous iterator yields, each produced on the thread; ends it with its
    reader.
    """
    try:
        while (result := run(_next(results))) is not None:
            yield result
    finally:
        run(_close(results))


async def _next(results: AsyncIterator[Result]) -> Result | None:
    return await anext(results, None)


async def _close(results: AsyncIterator[Any]) -> None:
    close = getattr(results, "aclose", None)
    if close is not None:
        await close()


def _running_loop() -> asyncio.AbstractEventLoop:
    """Returns the loop, which begins with the first call."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = new_event_loop()
            thread = threading.Thread(
                target=_loop.run_forever, name="groupcert-client", daemon=True
            )
            thread.start()
            atexit.register(_stop, _loop, thread)
        return _loop


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Ends the calls of clients that were not closed, and the thread, before Python ends."""
    asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _forget() -> None:
    """Has a forked process, in which the thread does not run, begin its own."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
