"""Honest clients that transfer money all the time, and the check that they lost nothing."""

import asyncio
import hashlib
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from groupcert import AsyncClient, AsyncTransaction, Client, Consistency
from groupcert.members.demo.checks import check_group, settle
from groupcert.members.demo.load import BankWorkload, LoadCounts, run_load
from groupcert.members.security.credentials import Credentials

CLIENTS = 4
ACCOUNTS = 100
PAUSE_SECONDS = 0.05
FOREVER = 1e9


class PausingBank(BankWorkload):
    """Transfers of clients that pause between them."""

    async def transact(self, client: AsyncClient, chance: random.Random) -> AsyncTransaction:
        """Pauses, then transfers."""
        await asyncio.sleep(PAUSE_SECONDS)
        return await super().transact(client, chance)


class HonestClients:
    """At work from the beginning of the block `working` to its end."""

    def __init__(self, addresses: Sequence[str], credentials: Credentials, seed: int) -> None:
        self._addresses = addresses
        self._credentials = credentials
        self._seed = seed
        self._bank = PausingBank(accounts=ACCOUNTS)
        self._stopped = threading.Event()
        self.commits = 0
        self.counts = LoadCounts()

    @contextmanager
    def working(self) -> Iterator["Future[tuple[LoadCounts, float]]"]:
        """Runs the clients during the block; yields what ends early if one of them fails."""
        with self._client(self._addresses) as client:
            self._bank.prepare(client)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(
                run_load,
                self._bank,
                self._addresses,
                clients=CLIENTS,
                seconds=FOREVER,
                seed=self._seed,
                credentials=self._credentials,
                on_tick=self._note,
                stopped=self._stopped,
            )
            try:
                yield running
            finally:
                self._stopped.set()
        self.counts, _ = running.result()

    def problems(self) -> list[str]:
        """Returns where members differ, or an answer that a client got does not hold.

        The first member has a certification log: its history is checked. The others, which certify
        in larger steps without one, have to equal it.
        """
        with ExitStack() as stack:
            observers = [
                stack.enter_context(self._client([address], Consistency.BEFORE))
                for address in self._addresses
            ]
            for observer in observers:
                observer.transaction().rollback()
            statuses = settle(observers)
            findings = check_group(self._bank, observers[:1], statuses[:1], self.counts)
            for what, found in (
                ("rows", list(map(_rows, observers))),
                ("digests", [each.digest for each in statuses]),
                ("executed GTIDs", [each.gtid_executed for each in statuses]),
            ):
                if any(each != found[0] for each in found):
                    shown = ", ".join(str(each)[:200] for each in found)
                    findings.texts.append(f"members differ in their {what}: {shown}")
        ids = self.counts.committed_ids
        if len(set(ids)) != len(ids) or not ids:
            findings.texts.append(f"{len(ids)} commits acknowledged, {len(set(ids))} of them once")
        return findings.texts

    def _client(
        self, addresses: Sequence[str], consistency: Consistency = Consistency.EVENTUAL
    ) -> Client:
        tls, token = self._credentials.tls, self._credentials.token
        return Client(addresses, tls=tls, token=token, consistency=consistency)

    def _note(self, commits: int, elapsed: float) -> None:
        del elapsed
        self.commits = commits


def _rows(client: Client) -> str:
    """Returns a digest of all rows of a member."""
    digest = hashlib.sha256()
    with client.transaction() as transaction:
        for key, value in transaction.scan():
            digest.update(b"%d %b %d %b" % (len(key), key, len(value), value))
    return digest.hexdigest()
