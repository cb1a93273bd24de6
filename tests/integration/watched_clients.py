"""Clients at work while a test or a benchmark stops things: every error that they get, every gap.

Each client begins at a member of its own and knows all. One kind uses `Client.run`, one plain
transactions that read and write, one `certify`, as a store of its own would. A conflict is no
error: somebody else was first. Whatever else a client raises is one.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Self

from groupcert import CertificationConflict, Client, Transaction, TransactionTooOld, certifiable
from groupcert.v1 import transaction_pb2
from tests.integration.waiting import wait_for

TIMEOUT_MS = 60_000
PAUSE_SECONDS = 0.02
ROWS = 20
"""Shared by all clients: some conflict."""


def _run(client: Client, number: int, turn: int) -> None:
    def write(transaction: Transaction) -> None:
        key = b"run/%d" % number
        count = int(transaction.get(key) or b"0")
        transaction.put(key, b"%d" % (count + 1))

    client.run(write)


def _transaction(client: Client, number: int, turn: int) -> None:
    with client.transaction() as transaction:
        key = b"shared/%d" % (turn % ROWS)
        transaction.get(key)
        transaction.put(key, b"%d" % turn)


def _certify(client: Client, number: int, turn: int) -> None:
    outcome = client.certify(
        certifiable(snapshot=client.version, write_set=[f"certified/{number}/{turn}"])
    )
    if outcome.verdict == transaction_pb2.VERDICT_TOO_OLD:
        client.transaction().rollback()
    elif outcome.verdict != transaction_pb2.VERDICT_CERTIFIED:
        raise AssertionError(f"nobody else writes that row: {outcome}")


KINDS: tuple[Callable[[Client, int, int], None], ...] = (_run, _transaction, _certify)


class WatchedClients:
    """At work from the beginning of the block to its end."""

    def __init__(self, addresses: Sequence[str], clients: int = 6) -> None:
        self.errors: list[str] = []
        """In words, with the client's number and what it was at."""
        self.times: list[list[float]] = [[] for _ in range(clients)]
        """Of each client: when it was given a verdict, by `time.monotonic`."""
        self._addresses = addresses
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(clients)
        self._running: list[Future[None]] = []

    def __enter__(self) -> Self:
        self._running = [self._pool.submit(self._work, n) for n in range(len(self.times))]
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        self._pool.shutdown()
        for running in self._running:
            running.result()

    def wait_for_answers(self, count: int) -> None:
        """Returns when each client was given so many more verdicts."""
        wanted = [len(times) + count for times in self.times]

        def all_are_there() -> bool:
            return all(map(int.__le__, wanted, map(len, self.times)))

        wait_for(f"{count} more verdicts for each client", all_are_there)

    def stalls_ms(self, began: float, ended: float) -> list[int]:
        """For each client the longest time without a verdict between two moments."""
        return [round(1000 * _longest(times, began, ended)) for times in self.times]

    def _work(self, number: int) -> None:
        transact = KINDS[number % len(KINDS)]
        first = number % len(self._addresses)
        addresses = [*self._addresses[first:], *self._addresses[:first]]
        turn = 0
        with Client(addresses, timeout_ms=TIMEOUT_MS) as client:
            while not self._stopped.is_set():
                turn += 1
                try:
                    with suppress(CertificationConflict, TransactionTooOld):
                        transact(client, number, turn)
                except Exception as error:
                    kind = type(error).__name__
                    self.errors.append(f"{number} {transact.__name__}: {kind}: {error}")
                else:
                    self.times[number].append(time.monotonic())
                self._stopped.wait(PAUSE_SECONDS)


def _longest(times: Sequence[float], began: float, ended: float) -> float:
    moments = [time for time in times if began <= time <= ended]
    return max(after - before for before, after in pairwise([began, *moments, ended]))
