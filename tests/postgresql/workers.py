"""Clients in threads, each at one server: they connect again whenever their session was ended."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Protocol

import psycopg

from tests.integration.waiting import wait_for
from tests.postgresql.told import Answer, Connection, Told

PAUSE_SECONDS = 0.05
CONNECT_SECONDS_MAX = 10


class Worker(Protocol):
    """What a thread does again and again."""

    def work(self, connection: Connection) -> Answer:
        """Runs one transaction."""
        ...


class Workers:
    """At work during the block `working`; `told` counts the answers, `committed` by server."""

    def __init__(
        self,
        dsns: Sequence[str],
        for_each: int,
        make: Callable[[str, random.Random], Worker],
        seed: int,
    ) -> None:
        """`make` gets the worker's name, and what draws for it."""
        self._dsns = dsns
        self._for_each = for_each
        self._make = make
        self._seed = seed
        self._stopped = threading.Event()
        self.told: Counter[Answer] = Counter()
        self.committed: Counter[str] = Counter()

    def wait_for_commits(self, dsn: str, count: int) -> None:
        """Returns when so many more transactions are committed at a server."""
        wanted = self.committed[dsn] + count
        wait_for(f"{count} more commits at {dsn}", lambda: self.committed[dsn] >= wanted)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Runs the workers, and returns when each has ended its transaction."""
        places = [dsn for dsn in self._dsns for _ in range(self._for_each)]
        with ThreadPoolExecutor(len(places)) as pool:
            running = [pool.submit(self._run, f"{n}", dsn) for n, dsn in enumerate(places)]
            try:
                yield
            finally:
                self._stopped.set()
            for each in running:
                each.result()

    def _run(self, name: str, dsn: str) -> None:
        worker = self._make(name, random.Random(f"{self._seed}/{name}"))
        while not self._stopped.is_set():
            with (
                suppress(psycopg.OperationalError),
                psycopg.connect(dsn, connect_timeout=CONNECT_SECONDS_MAX) as connection,
            ):
                while not self._stopped.is_set() and not connection.closed:
                    answer = worker.work(connection)
                    self.told[answer] += 1
                    if answer.told is Told.COMMITTED:
                        self.committed[dsn] += 1
            self._stopped.wait(PAUSE_SECONDS)
