"""Clients that transact while processes are killed, and write down all that they are told."""

import asyncio
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import uvloop

from groupcert import AsyncClient, AsyncTransaction, Consistency
from groupcert.certifier.errors import GroupcertError, Unavailable
from groupcert.members.client.options import session_token
from groupcert.members.errors.transactions import (
    CertificationConflict,
    OutcomeUnknown,
    TransactionTooOld,
)
from tests.checker.history import Operation, Told
from tests.integration.waiting import wait_for

CLIENTS = 6
ROWS = 40
PAUSE_SECONDS = 0.05
TIMEOUT_MS = 60_000
SESSION_TRANSACTIONS = 50
"""After as many, a client begins another session, with the token of the one before."""
LEVELS = (
    *(Consistency.EVENTUAL,) * 6,
    *(Consistency.BEFORE, Consistency.AFTER, Consistency.BEFORE_AND_AFTER),
)


class CheckedClients:
    """At work during the block `working`."""

    def __init__(self, addresses: Sequence[str], seed: int) -> None:
        self._addresses = list(addresses)
        self._seed = seed
        self._stopped = threading.Event()
        self.operations: list[Operation] = []
        self.committed = 0

    def wait_for_commits(self, count: int) -> None:
        """Returns when so many more transactions are committed."""
        wanted = self.committed + count
        wait_for(f"{count} more commits", lambda: self.committed >= wanted)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Runs the clients, and returns when each has ended its transaction."""
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(lambda: uvloop.run(self._run()))
            try:
                yield
            finally:
                self._stopped.set()
            running.result()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(self._work(number))

    async def _work(self, number: int) -> None:
        chance = random.Random(f"{self._seed}/{number}")
        floor = sessions = 0
        while not self._stopped.is_set():
            sessions += 1
            first = chance.randrange(len(self._addresses))
            client = AsyncClient(
                [*self._addresses[first:], *self._addresses[:first]],
                timeout_ms=TIMEOUT_MS,
                serializable=chance.random() < 0.3,
                consistency=chance.choice(LEVELS),
                spread=chance.random() < 0.3,
                after=session_token(floor),
            )
            async with client:
                for _ in range(SESSION_TRANSACTIONS):
                    if self._stopped.is_set():
                        return
                    floor = await self._transact(client, f"{number}.{sessions}", floor, chance)
                    await asyncio.sleep(PAUSE_SECONDS)

    async def _transact(
        self, client: AsyncClient, session: str, floor: int, chance: random.Random
    ) -> int:
        """Runs a transaction; returns the newest version that the session has seen by then."""
        transaction = client.transaction()
        operation = Operation(
            session, transaction.transaction_id, floor, is_serializable=client.serializable
        )
        self.operations.append(operation)
        try:
            await self._run_transaction(transaction, operation, chance)
            operation.told = Told.COMMITTED
            operation.gtid, operation.version = transaction.gtid, transaction.version
            self.committed += bool(operation.writes)
        except CertificationConflict as lost:
            operation.told, operation.item = Told.CONFLICT, lost.item
            operation.winner_gtid, operation.winner_version = lost.winner_gtid, lost.winner_version
            operation.winner_member = lost.winner_member
            operation.winner_sequence = lost.winner_log_sequence
            operation.log_sequence = lost.log_sequence
        except TransactionTooOld:
            operation.told = Told.TOO_OLD
        except OutcomeUnknown:
            operation.told = Told.UNKNOWN
        except Unavailable:
            await asyncio.sleep(PAUSE_SECONDS)
        return max(floor, operation.snapshot_version, operation.version)

    async def _run_transaction(
        self, transaction: AsyncTransaction, operation: Operation, chance: random.Random
    ) -> None:
        await transaction
        operation.snapshot_version = transaction.snapshot_version
        rows = [b"row/%02d" % each for each in chance.sample(range(ROWS), 3)]
        try:
            operation.reads.update(await transaction.get_many(rows))
        except GroupcertError:
            with suppress(GroupcertError):
                await transaction.rollback()
            raise
        for row in rows[: chance.choice((0, 1, 1, 2))]:
            value = b"%s %d" % (transaction.transaction_id.hex().encode(), chance.getrandbits(16))
            operation.writes[row] = None if chance.random() < 0.1 else value
        for row, written in operation.writes.items():
            if written is None:
                transaction.delete(row)
            else:
                transaction.put(row, written)
        await transaction.commit()
