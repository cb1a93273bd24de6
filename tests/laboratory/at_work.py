"""Threads that are at work while a test does something else."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from tests.integration.waiting import SECONDS_MAX, wait_for


class AtWork(ABC):
    """At work from the beginning of the block to its end, which raises what a thread has raised."""

    def __init__(self, threads: int) -> None:
        self.stopped = threading.Event()
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)
        self._running: list[Future[None]] = []

    @abstractmethod
    def work(self, number: int) -> None:
        """Works until `stopped` is set, in the thread of that number."""

    def __enter__(self) -> Self:
        self._running = [self._pool.submit(self.work, number) for number in range(self._threads)]
        return self

    def __exit__(self, *_error: object) -> None:
        self.stopped.set()
        self._pool.shutdown()
        failures = [failure for each in self._running if (failure := each.exception())]
        if len(failures) > 1:
            raise BaseExceptionGroup("several threads have failed", failures)
        for failure in failures:
            raise failure

    @property
    def is_running(self) -> bool:
        """Whether every thread is still at work; the end of the block says why if one is not."""
        return not any(running.done() for running in self._running)

    def wait_for_more(
        self,
        what: str,
        count: int,
        counted: Callable[[], int],
        seconds_max: float = SECONDS_MAX,
    ) -> None:
        """Returns when so many more of something were counted, or a thread has failed."""
        wanted = counted() + count

        def is_there() -> bool:
            return counted() >= wanted or not self.is_running

        wait_for(f"{count} more {what}", is_there, seconds_max)
