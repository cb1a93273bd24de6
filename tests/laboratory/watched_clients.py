"""Clients at work while a test or a benchmark stops things: every error that they get, every gap.

Each client begins at a member of its own and knows all: it sees what an application would see that
goes on at another member when its own is gone. A conflict is no error: somebody else was first.
Whatever else a client raises is one.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from heapq import merge
from itertools import pairwise

from groupcert import CertificationConflict, Client, Transaction, TransactionTooOld, certifiable
from groupcert.v1 import transaction_pb2
from tests.integration.waiting import wait_for
from tests.laboratory.at_work import AtWork

TIMEOUT_MS = 60_000
PAUSE_SECONDS = 0.02
ROWS = 20
"""Shared by all clients: some conflict."""

Kind = Callable[[Client, int, int], None]
"""One transaction of a client, by its number and turn."""


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


def put_one(client: Client, number: int, turn: int) -> None:
    """Writes a row of the client's own."""
    with client.transaction() as transaction:
        transaction.put(b"probe/%d" % number, b"%d" % turn)


KINDS: tuple[Kind, ...] = (_run, _transaction, _certify)
"""`Client.run`, plain transactions that read and write, and `certify`, for a store of its own."""


class WatchedClients(AtWork):
    """At work from the beginning of the block to its end, each with transactions of one kind."""

    def __init__(
        self,
        addresses: Sequence[str],
        clients: int = 6,
        *,
        kinds: Sequence[Kind] = KINDS,
        timeout_ms: int = TIMEOUT_MS,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        super().__init__(clients)
        self.errors: list[str] = []
        """In words, with the client's number and what it was at."""
        self.times: list[list[float]] = [[] for _ in range(clients)]
        """Of each client: when it was given a verdict, by `time.monotonic`."""
        self._addresses = addresses
        self._kinds = kinds
        self._timeout_ms = timeout_ms
        self._pause_seconds = pause_seconds

    def wait_for_answers(self, count: int) -> None:
        """Returns when each client was given so many more verdicts."""
        wanted = [len(times) + count for times in self.times]

        def all_are_there() -> bool:
            return all(map(int.__le__, wanted, map(len, self.times)))

        wait_for(f"{count} more verdicts for each client", all_are_there)

    def stalls_ms(self, began: float, ended: float) -> list[int]:
        """For each client the longest time without a verdict between two moments."""
        return [_longest_ms(times, began, ended) for times in self.times]

    def stall_of_all_ms(self, began: float, ended: float) -> int:
        """The longest time in which nobody was given a verdict."""
        return _longest_ms(list(merge(*self.times)), began, ended)

    def work(self, number: int) -> None:
        """Runs the transactions of a client."""
        transact = self._kinds[number % len(self._kinds)]
        first = number % len(self._addresses)
        addresses = [*self._addresses[first:], *self._addresses[:first]]
        turn = 0
        with Client(addresses, timeout_ms=self._timeout_ms) as client:
            while not self.stopped.is_set():
                turn += 1
                try:
                    with suppress(CertificationConflict, TransactionTooOld):
                        transact(client, number, turn)
                except Exception as error:
                    kind = type(error).__name__
                    self.errors.append(f"{number} {transact.__name__}: {kind}: {error}")
                else:
                    self.times[number].append(time.monotonic())
                self.stopped.wait(self._pause_seconds)


prober = partial(
    WatchedClients, clients=3, kinds=(put_one,), timeout_ms=20_000, pause_seconds=0.002
)
"""Small commits, one after the other, of a client for each member."""


def _longest_ms(times: Sequence[float], began: float, ended: float) -> int:
    """The longest gap that reaches into the time between two moments."""
    moments = [time for time in times if began <= time <= ended]
    return round(1000 * max(after - before for before, after in pairwise([began, *moments, ended])))
