"""Processes that share long computations, and end with who has started them.

A pool of the standard library waits for what its processes compute, however long that takes, even
when somebody has pressed Ctrl-C; and each of them shows a traceback of its own then.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import ParamSpec, Self, TypeVar

from .interruption import beginning_undisturbed

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class WorkerProcesses:
    """New processes that call functions, until the block ends; after an error they are killed."""

    def __init__(self, count: int, begin: Callable[[], None] | None = None) -> None:
        """Starts none yet; each process calls `begin` first."""
        self._pool = ProcessPoolExecutor(
            count, multiprocessing.get_context("spawn"), initializer=begin
        )

    def submit(
        self,
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Future[Result]:
        """Has one of the processes call a function."""
        with beginning_undisturbed():
            return self._pool.submit(function, *args, **kwargs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        if error is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                if process.name.startswith("SpawnProcess"):
                    process.kill()
        self._pool.shutdown()
