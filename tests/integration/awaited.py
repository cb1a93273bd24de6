"""The synchronous client behind the asynchronous one's interface: both pass the same tests."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self

from groupcert import AsyncClient, Client

_threads = ThreadPoolExecutor(64)


async def in_thread(call: Callable[..., Any], *args: Any) -> Any:
    """Returns the result of a call that a thread makes, of which there are enough."""
    return await asyncio.get_running_loop().run_in_executor(_threads, call, *args)


class Awaited:
    """An object of the synchronous client, each call of which a thread makes."""

    def __init__(self, called: Any) -> None:
        self._called = called

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._called, name)
        if not callable(found):
            return found
        if name in ("put", "delete"):
            return found
        if name in ("scan", "watch", "history", "certify_stream"):
            return lambda *args, **options: _iterate(lambda: found(*args, **options))
        return lambda *args, **options: _Call(lambda: found(*args, **options))

    async def run(self, function: Callable[[Any], Awaitable[Any]], **options: Any) -> Any:
        """Runs a coroutine function of this loop in transactions that a thread begins."""
        loop = asyncio.get_running_loop()

        def called(transaction: Any) -> Any:
            coroutine = function(Awaited(transaction))
            assert inspect.iscoroutine(coroutine)
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

        return await in_thread(partial(self._called.run, called, **options))

    async def __aenter__(self) -> Self:
        await in_thread(self._called.__enter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        await in_thread(self._called.__exit__, *error)


class _Call:
    """A call that is made when it is awaited, or entered as a context."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._entered: Any = None

    async def _made(self) -> Any:
        result = await in_thread(self._call)
        return Awaited(result) if type(result).__name__ == "Transaction" else result

    def __await__(self) -> Any:
        return self._made().__await__()

    async def __aenter__(self) -> Any:
        self._entered = await self._made()
        return await self._entered.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await self._entered.__aexit__(*error)


async def _iterate(call: Callable[[], Iterator[Any]]) -> AsyncIterator[Any]:
    items = await in_thread(call)
    end = object()
    while (item := await in_thread(next, items, end)) is not end:
        yield item


def asynchronous(*args: Any, **options: Any) -> Any:
    """Makes an asynchronous client."""
    return AsyncClient(*args, **options)


def synchronous(*args: Any, **options: Any) -> Any:
    """Makes a synchronous client with the same interface."""
    return Awaited(Client(*args, **options))
