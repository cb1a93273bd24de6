"""Small commits, one at a time for each member, with the time of each acknowledgement.

Each client begins at a member of its own and knows all: so what it sees is what an application
would see that goes on at another member when its own is gone.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, pairwise
from typing import NamedTuple, Self

from groupcert import Client, MemberFailed, TransactionFailed
from groupcert.certifier.errors import GroupcertError
from tests.cluster.docker_cluster import MEMBERS, DockerCluster

PAUSE_SECONDS = 0.002


class Stalls(NamedTuple):
    """The longest time without an acknowledgement, in ms, after a moment."""

    group_ms: int
    """Nobody's commit was acknowledged."""
    client_ms: dict[str, int]
    """By the member that the client began at."""

    @property
    def worst_ms(self) -> int:
        """Of the client that waited longest."""
        return max(self.client_ms.values())


class Prober:
    """Clients at work from the beginning of the block to its end."""

    def __init__(self, cluster: DockerCluster, *, timeout_ms: int = 20_000) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._stopped = threading.Event()
        self._times: dict[str, list[float]] = {name: [] for name in MEMBERS}
        self._pool = ThreadPoolExecutor(len(MEMBERS))
        self._running: list[Future[None]] = []
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._running = [self._pool.submit(self._work, name) for name in MEMBERS]
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        self._pool.shutdown()
        for running in self._running:
            running.result()

    def commits(self) -> int:
        """Acknowledged so far."""
        return sum(map(len, self._times.values()))

    def wait_for_commits(self, count: int, seconds_max: float = 60.0) -> None:
        """Returns when each client had so many more acknowledged."""
        wanted = {name: len(times) + count for name, times in self._times.items()}
        deadline = time.monotonic() + seconds_max
        while any(len(self._times[name]) < wanted[name] for name in MEMBERS):
            assert time.monotonic() < deadline, f"no commits: {self.failures[-3:]}"
            time.sleep(PAUSE_SECONDS)

    def stalls(self, began: float, ended: float) -> Stalls:
        """Between two moments by `time.monotonic`; after the block."""
        return Stalls(
            _longest_ms(sorted(chain.from_iterable(self._times.values())), began, ended),
            {name: _longest_ms(times, began, ended) for name, times in self._times.items()},
        )

    def _work(self, name: str) -> None:
        others = [each for each in MEMBERS if each != name]
        addresses = [self._cluster.address(each) for each in (name, *others)]
        key = f"probe/{name}".encode()
        with Client(addresses, timeout_ms=self._timeout_ms) as client:
            number = 0
            while not self._stopped.is_set():
                number += 1
                try:
                    with client.transaction() as transaction:
                        transaction.put(key, b"%d" % number)
                except (GroupcertError, MemberFailed, TransactionFailed) as failure:
                    self.failures.append(f"{name}: {type(failure).__name__}: {failure}")
                else:
                    self._times[name].append(time.monotonic())
                self._stopped.wait(PAUSE_SECONDS)


def _longest_ms(times: Sequence[float], began: float, ended: float) -> int:
    """The longest gap that reaches into the time between two moments."""
    edges = [time for time in times if began <= time <= ended]
    gaps = (after - before for before, after in pairwise([began, *edges, ended]))
    return round(max(gaps) * 1000)
