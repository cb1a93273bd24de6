"""Clients of a bank that transfer until they are told to stop, while a test breaks the group."""

import asyncio
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from groupcert import AsyncClient, AsyncTransaction, Client, Consistency
from groupcert.members.demo.checks import check_group, settle
from groupcert.members.demo.load import BankWorkload, LoadCounts, run_load
from groupcert.members.demo.local_group import LocalGroup
from groupcert.v1.group_pb2 import MemberStatus
from tests.integration.waiting import wait_for

CLIENTS = 6
LOAD_SECONDS_MAX = 600.0
PAUSE_SECONDS = 0.02


class PausingBank(BankWorkload):
    """Transfers of clients that pause between them, so that a busy machine is at other work too."""

    async def transact(self, client: AsyncClient, chance: random.Random) -> AsyncTransaction:
        """Pauses, then transfers."""
        await asyncio.sleep(PAUSE_SECONDS)
        return await super().transact(client, chance)


class BankLoad:
    """A load that runs in a thread of its own."""

    def __init__(self) -> None:
        self.bank = PausingBank(accounts=100)
        self.commits = 0
        self._stopped = threading.Event()
        self._running: Future[tuple[LoadCounts, float]]

    def wait_for_commits(self, commits: int) -> None:
        """Returns when so many more transactions were acknowledged."""
        wanted = self.commits + commits
        wait_for(f"{commits} more commits", lambda: self._running.done() or self.commits >= wanted)

    @property
    def counts(self) -> LoadCounts:
        """What the clients were told, once they have stopped."""
        return self._running.result()[0]

    @contextmanager
    def running(self, addresses: Sequence[str], seed: int) -> Iterator[None]:
        """Clients are at work during the block."""
        with Client(addresses) as client:
            self.bank.prepare(client)
        with ThreadPoolExecutor(1) as pool:
            self._running = pool.submit(
                run_load,
                self.bank,
                addresses,
                clients=CLIENTS,
                seconds=LOAD_SECONDS_MAX,
                seed=seed,
                on_tick=self._note,
                stopped=self._stopped,
            )
            try:
                yield
            finally:
                self._stopped.set()

    def _note(self, commits: int, elapsed: float) -> None:
        del elapsed
        self.commits = commits


def assert_whole(group: LocalGroup, bank: BankWorkload, counts: LoadCounts) -> list[MemberStatus]:
    """All members are equal, and have every acknowledged transfer once; returns their statuses."""
    observers = [
        Client(address, consistency=Consistency.BEFORE) for address in group.addresses.values()
    ]
    try:
        for observer in observers:
            observer.transaction().rollback()
        statuses = settle(observers)
        findings = check_group(bank, observers, statuses, counts)
    finally:
        for observer in observers:
            observer.close()
    assert not findings.texts, findings.texts
    assert len(counts.committed_ids) == len(set(counts.committed_ids)) > 0
    return statuses
