"""An event loop in a thread of its own, for a process whose main thread does other work."""

import asyncio
from collections.abc import Callable, Coroutine
from threading import Thread
from typing import Any, Self, TypeVar

from .client_loop import new_event_loop

Result = TypeVar("Result")


class LoopThread:
    """A loop that runs during its block."""

    def __enter__(self) -> Self:
        self._loop = new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="event-loop", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Returns the result of a coroutine, run on the loop; for other threads."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def call_soon(self, function: Callable[[], object]) -> None:
        """Has a function called on the loop; for other threads, none of which waits for it."""
        self._loop.call_soon_threadsafe(function)
