"""Clients of a bank that transfer until they are told to stop, while a test breaks the group."""

import asyncio
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from groupcert import AsyncClient, AsyncTransaction, Client, Consistency
from groupcert.members.demo.group_checks import check_convergence, check_group, settle
from groupcert.members.demo.load import BankWorkload, LoadCounts, run_load
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.security.credentials import ANONYMOUS, Credentials
from groupcert.v1.group_pb2 import MemberStatus
from tests.integration.waiting import wait_for

CLIENTS = 6
PAUSE_SECONDS = 0.02
FOREVER = 1e9


class PausingBank(BankWorkload):
    """Transfers of clients that pause between them, so that a busy machine is at other work too."""

    pause_seconds = PAUSE_SECONDS

    async def transact(self, client: AsyncClient, chance: random.Random) -> AsyncTransaction:
        """Pauses, then transfers."""
        await asyncio.sleep(self.pause_seconds)
        return await super().transact(client, chance)


class BankLoad:
    """A load that runs in a thread of its own."""

    def __init__(
        self, credentials: Credentials = ANONYMOUS, *, pause_seconds: float = PAUSE_SECONDS
    ) -> None:
        self.bank = PausingBank(accounts=100)
        self.bank.pause_seconds = pause_seconds
        self.commits = 0
        self.credentials = credentials
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

    @property
    def has_ended(self) -> bool:
        """Whether the clients have stopped, or one of them has failed."""
        return self._running.done()

    @contextmanager
    def running(
        self, addresses: Sequence[str], seed: int, clients: int = CLIENTS
    ) -> Iterator[None]:
        """Clients are at work during the block."""
        own = self.credentials
        with Client(addresses, tls=own.tls, token=own.token) as client:
            self.bank.prepare(client)
        with ThreadPoolExecutor(1) as pool:
            self._running = pool.submit(
                run_load,
                self.bank,
                addresses,
                clients=clients,
                seconds=FOREVER,
                seed=seed,
                credentials=own,
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


def find_problems(
    load: BankLoad, addresses: Sequence[str], historians: int
) -> tuple[list[MemberStatus], list[str]]:
    """Returns members' statuses, and where they differ, or an answer that a client got does not
    hold.

    Args:
        historians: How many members, the first ones, keep a history to be checked.
    """
    own = load.credentials
    with ExitStack() as stack:
        observers = [
            stack.enter_context(
                Client(address, tls=own.tls, token=own.token, consistency=Consistency.BEFORE)
            )
            for address in addresses
        ]
        for observer in observers:
            observer.transaction().rollback()
        statuses = settle(observers)
        kept = observers[:historians], statuses[:historians]
        findings = check_group(load.bank, *kept, load.counts)
        if historians < len(observers):
            check_convergence(observers, statuses, findings)
    ids = load.counts.committed_ids
    if len(set(ids)) != len(ids) or not ids:
        findings.texts.append(f"{len(ids)} commits acknowledged, {len(set(ids))} of them once")
    return statuses, findings.texts


def assert_whole(group: LocalGroup, load: BankLoad) -> list[MemberStatus]:
    """All members are equal, and have every acknowledged transfer once; returns their statuses."""
    addresses = list(group.addresses.values())
    statuses, problems = find_problems(load, addresses, len(addresses))
    assert not problems, problems
    return statuses
