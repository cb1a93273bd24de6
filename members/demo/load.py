"""Workloads against running members, and the driver that runs them with many clients at once.

The rule it keeps: acknowledged, failed and unknown transactions are counted apart, and their ids
are kept, so that a later check can compare the group with its answers.
"""

import asyncio
import json
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from rich.console import Console
from rich.table import Table

from ...certifier.errors import Unavailable
from ..client.async_client import AsyncClient
from ..client.async_transaction import AsyncTransaction
from ..client.client import Client, Transaction
from ..errors.transactions import (
    CertificationConflict,
    OutcomeUnknown,
    TransactionTooOld,
)
from ..host import client_loop
from ..host.interruption import Course
from ..host.progress_bar import progress
from ..security.credentials import ANONYMOUS, Credentials

ACCOUNTS = 1_000
INITIAL_BALANCE = 1_000
PREPARED_ROWS = 1_000
TICK_MS = 250
ANSWER_MS = 5_000
"""Milliseconds in which a member has to answer before any load begins."""
PAUSE_SECONDS = 0.1
"""Seconds that a client pauses when no member takes its transaction."""


class Workload(Protocol):
    """The transactions of clients, one at a time."""

    def prepare(self, client: Client) -> None:
        """Inserts the rows that the transactions need; existing rows stay."""
        ...

    async def transact(self, client: AsyncClient, chance: random.Random) -> AsyncTransaction:
        """Runs one transaction and returns it, committed."""
        ...


class BankWorkload:
    """Transfers between accounts: whatever happens, the sum of all balances stays as it was.

    Each transfer also writes a row under its transaction's id: it is there if, and only if, the
    transfer committed.
    """

    account_prefix = b"account/"
    ledger_prefix = b"transfer/"

    def __init__(self, *, accounts: int = ACCOUNTS, initial_balance: int = INITIAL_BALANCE) -> None:
        if accounts < 2:
            raise ValueError(f"a bank of {accounts} accounts: expected 2 or more")
        self.accounts = accounts
        self.initial_balance = initial_balance

    @property
    def expected_total(self) -> int:
        """The sum of all balances, always."""
        return self.accounts * self.initial_balance

    def prepare(self, client: Client) -> None:
        """Opens the accounts that do not exist yet."""
        _put_missing(
            client,
            [self.account(number) for number in range(self.accounts)],
            b"%d" % self.initial_balance,
        )

    async def transact(self, client: AsyncClient, chance: random.Random) -> AsyncTransaction:
        """Transfers an amount between two accounts drawn by chance; returns the transaction.

        Raises:
            TransactionFailed: As `Transaction.commit` does.
        """
        source, target = map(self.account, chance.sample(range(self.accounts), 2))
        async with client.transaction() as transaction:
            balances = await transaction.get_many([source, target])
            amount = chance.randint(1, 10)
            transaction.put(source, b"%d" % (int(balances[source] or b"0") - amount))
            transaction.put(target, b"%d" % (int(balances[target] or b"0") + amount))
            ledger = b"%s>%s:%d" % (source, target, amount)
            transaction.put(self.ledger_key(transaction.transaction_id), ledger)
        return transaction

    def total(self, client: Client) -> int:
        """Returns the sum of all balances, at one moment."""
        with client.transaction() as transaction:
            rows = transaction.scan(self.account_prefix, _after(self.account_prefix))
            return sum(int(value) for _, value in rows)

    def ledger(self, client: Client) -> set[bytes]:
        """Returns the ids of all transfers that committed."""
        start = len(self.ledger_prefix)
        with client.transaction() as transaction:
            rows = transaction.scan(self.ledger_prefix, _after(self.ledger_prefix))
            return {bytes.fromhex(key[start:].decode()) for key, _ in rows}

    def account(self, number: int) -> bytes:
        """Returns the key of an account."""
        return b"%s%08d" % (self.account_prefix, number)

    def ledger_key(self, transaction_id: bytes) -> bytes:
        """Returns the key of a transfer's own row."""
        return self.ledger_prefix + transaction_id.hex().encode()


class UpdateWorkload:
    """New values for single rows drawn by chance, in one round trip each."""

    def __init__(self, *, rows: int) -> None:
        self.rows = rows

    def prepare(self, client: Client) -> None:
        """Inserts the rows that do not exist yet."""
        _put_missing(client, [self.row(number) for number in range(self.rows)], b"0")

    async def transact(self, client: AsyncClient, chance: random.Random) -> AsyncTransaction:
        """Writes one row on the newest state that the client knows."""
        return await _write(client, self.row(chance.randrange(self.rows)), chance)

    def row(self, number: int) -> bytes:
        """Returns the key of a row."""
        return b"row/%08d" % number


class AppendWorkload:
    """Inserts one new row each: there are no conflicts."""

    def prepare(self, client: Client) -> None:
        """Needs no rows."""

    async def transact(self, client: AsyncClient, chance: random.Random) -> AsyncTransaction:
        """Inserts one row."""
        return await _write(client, b"append/" + uuid.uuid4().hex.encode(), chance)


@dataclass(slots=True)
class LoadCounts:
    """The answers that clients got, counted."""

    committed_ids: list[bytes] = field(default_factory=list)
    unknown_ids: list[bytes] = field(default_factory=list)
    conflicts: int = 0
    too_old: int = 0
    unavailable: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    """Milliseconds of each commit, from the begin of its transaction to the answer."""

    def add(self, other: "LoadCounts") -> None:
        """Adds the counts of another client."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def document(self, seconds: float) -> dict[str, float]:
        """Returns the counts as `load --json` prints them."""
        ordered = sorted(self.latencies_ms)
        return {
            "seconds": round(seconds, 3),
            "commits": len(self.committed_ids),
            "conflicts": self.conflicts,
            "too_old": self.too_old,
            "unknown": len(self.unknown_ids),
            "unavailable": self.unavailable,
            "commits_per_second": round(len(self.committed_ids) / seconds, 1) if seconds else 0.0,
            "p50_ms": round(percentile(ordered, 50), 3),
            "p99_ms": round(percentile(ordered, 99), 3),
        }


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Returns the smallest value that `percent` percent of ascending values do not exceed; 0 for
    none.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50), percentile([1.0, 2.0, 3.0, 4.0], 99)
    (2.0, 4.0)
    """
    return ordered[-(-len(ordered) * percent // 100) - 1] if ordered else 0.0


def run_load(
    workload: Workload,
    addresses: Sequence[str],
    *,
    clients: int,
    seconds: float,
    seed: int = 0,
    credentials: Credentials = ANONYMOUS,
    on_tick: Callable[[int, float], None] = lambda commits, elapsed: None,
    stopped: threading.Event | None = None,
    course: Course | None = None,
) -> tuple[LoadCounts, float]:
    """Runs a workload whose rows are prepared; returns what happened, and the seconds it took.

    Args:
        addresses: Members; the clients are spread over them, and go to the next if one is gone.
        clients: Tasks of one thread; those that begin at the same member share connections.
        credentials: What the clients show.
        seed: Makes what the clients draw by chance; not in which order they are served.
        on_tick: Called several times a second with the commits so far and the time since the start.
        stopped: Ends the load before its time when the caller sets it.
        course: Takes note if the user ends it, whose counts are returned then.
    """
    each = [LoadCounts() for _ in range(clients)]
    stopped = stopped or threading.Event()
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        work = partial(_run_clients, workload, addresses, seed, each, stopped, credentials)
        running = pool.submit(lambda: client_loop.run(work()))
        try:
            with course or nullcontext():
                while (elapsed := time.monotonic() - began) < seconds and not running.done():
                    on_tick(sum(len(counts.committed_ids) for counts in each), elapsed)
                    stopped.wait(min(TICK_MS / 1000, seconds - elapsed))
        finally:
            stopped.set()
        running.result()
    total = LoadCounts()
    for counts in each:
        total.add(counts)
    return total, time.monotonic() - began


def show_load(
    name: str,
    addresses: Sequence[str],
    *,
    clients: int,
    seconds: float,
    rows: int,
    as_json: bool,
    credentials: Credentials = ANONYMOUS,
) -> int:
    """Runs a workload for `groupcert load` and prints a summary, also if the user ends it; returns
    1 if the bank's sum changed.

    Raises:
        NotServing: No member answers.
    """
    tls, token = credentials.tls, credentials.token
    with Client(addresses, timeout_ms=ANSWER_MS, tls=tls, token=token) as client:
        client.status()
    bank = BankWorkload(accounts=rows)
    workloads: dict[str, Workload] = {
        "bank": bank,
        "update": UpdateWorkload(rows=rows),
        "append": AppendWorkload(),
    }
    course = Course()
    with Client(addresses, tls=tls, token=token) as client:
        workloads[name].prepare(client)
        before = bank.total(client) if name == "bank" else 0
        with progress(name, seconds, "{:.0f} s".format) as state:

            def on_tick(commits: int, elapsed: float) -> None:
                state.name = f"{name}, {commits:,} commits"
                state.at(elapsed)

            counts, took = run_load(
                workloads[name],
                addresses,
                clients=clients,
                seconds=seconds,
                credentials=credentials,
                on_tick=on_tick,
                course=course,
            )
        after = bank.total(client) if name == "bank" else 0
    document: dict[str, object] = {"workload": name, "clients": clients, **counts.document(took)}
    if name == "bank":
        document["total_unchanged"] = before == after
    document |= course.document()
    if as_json:
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        Console().print(_table(document))
    return course.exit_code(0) if before == after else 1


async def _run_clients(
    workload: Workload,
    addresses: Sequence[str],
    seed: int,
    each: Sequence[LoadCounts],
    stopped: threading.Event,
    credentials: Credentials,
) -> None:
    """Runs a task for each of the counts until it is stopped, or one of them fails."""
    async with AsyncExitStack() as stack:
        connect = partial(AsyncClient, tls=credentials.tls, token=credentials.token)
        sessions = [
            await stack.enter_async_context(connect(_rotated(addresses, first)))
            for first in range(min(len(addresses), len(each)))
        ]
        tasks = []
        for number, counts in enumerate(each):
            client, chance = sessions[number % len(sessions)], random.Random(f"{seed}/{number}")
            work = _run_client(workload, client, chance, counts, stopped)
            tasks.append(asyncio.create_task(work))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        stopped.set()
        await asyncio.gather(*tasks)


async def _run_client(
    workload: Workload,
    client: AsyncClient,
    chance: random.Random,
    counts: LoadCounts,
    stopped: threading.Event,
) -> None:
    while not stopped.is_set():
        began = time.perf_counter()
        try:
            transaction = await workload.transact(client, chance)
        except CertificationConflict:
            counts.conflicts += 1
        except TransactionTooOld:
            counts.too_old += 1
        except OutcomeUnknown as failure:
            counts.unknown_ids.append(failure.transaction_id)
        except Unavailable:
            counts.unavailable += 1
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            counts.latencies_ms.append((time.perf_counter() - began) * 1000)
            counts.committed_ids.append(transaction.transaction_id)


async def _write(client: AsyncClient, key: bytes, chance: random.Random) -> AsyncTransaction:
    """Writes one row on the newest state that the client knows."""
    transaction = client.transaction(snapshot_version=client.version or None)
    try:
        async with transaction:
            transaction.put(key, chance.randbytes(16))
    except TransactionTooOld:
        await (await client.transaction()).rollback()
        raise
    return transaction


def _put_missing(client: Client, keys: Sequence[bytes], value: bytes) -> None:
    """Gives a value to those of the keys that have none."""
    for start in range(0, len(keys), PREPARED_ROWS):
        page = keys[start : start + PREPARED_ROWS]

        def put(transaction: Transaction, page: Sequence[bytes] = page) -> None:
            for key, found in transaction.get_many(page).items():
                if found is None:
                    transaction.put(key, value)

        client.run(put)


def _after(prefix: bytes) -> bytes:
    """Returns the first key behind all that begin with a prefix, which does not end in 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _rotated(addresses: Sequence[str], number: int) -> list[str]:
    first = number % len(addresses)
    return [*addresses[first:], *addresses[:first]]


def _table(document: dict[str, object]) -> Table:
    table = Table(title="Load", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in document.items():
        table.add_row(
            name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value)
        )
    return table
