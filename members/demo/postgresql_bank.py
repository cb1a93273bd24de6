"""A bank in SQL at several PostgreSQL servers: its clients, and the checks once they have stopped.

The clients are written as for one PostgreSQL: they run a transaction again after SQLSTATE 40001,
and go on at another server where one does not answer or takes no writes. Of each transfer there is
a row under an id that its client has drawn; so a later check can compare the servers with what the
clients were told.
"""

import random
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from typing import Any, NamedTuple

import psycopg
from psycopg import errors

from ...certifier.errors import NotServing
from ..client.client import Client
from .group_checks import (
    SETTLE_SECONDS,
    SHOWN_MAX,
    Findings,
    check_equal,
    check_ledger,
    check_total,
)
from .load import PAUSE_SECONDS, LoadCounts
from .postgresql_servers import Primary

ACCOUNTS = 200
INITIAL_BALANCE = 1_000
SCHEMA = f"""
CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE transfers (
    id uuid PRIMARY KEY, source int NOT NULL, target int NOT NULL, amount int NOT NULL
);
INSERT INTO accounts SELECT id, {INITIAL_BALANCE} FROM generate_series(1, {ACCOUNTS}) id;
"""
NO_CHANGE = "UPDATE accounts SET balance = balance WHERE id = 1"
SESSION_SECONDS = 2.0
"""After which a client opens a session at the next server, as a pool of connections may do."""
POLL_SECONDS = 0.05
_RETRIED = (errors.SerializationFailure, errors.DeadlockDetected, errors.QueryCanceled)
_UNKNOWN = ("08", "57P")
"""How the SQLSTATE of a COMMIT begins whose outcome nobody has told."""
_DIGESTS = """
SELECT (SELECT md5(string_agg(accounts::text, ',' ORDER BY id)) FROM accounts),
    (SELECT md5(string_agg(transfers::text, ',' ORDER BY id)) FROM transfers)
"""
_MISBOOKED = f"""
SELECT id, balance, {INITIAL_BALANCE} + coalesce(sum(moved), 0)::bigint AS expected
FROM accounts LEFT JOIN (
    SELECT target AS id, amount AS moved FROM transfers
    UNION ALL SELECT source, -amount FROM transfers
) AS movements USING (id)
GROUP BY id HAVING balance <> {INITIAL_BALANCE} + coalesce(sum(moved), 0) ORDER BY id
"""


class Transfer(NamedTuple):
    """An amount that is to move from one account to another."""

    id: uuid.UUID
    source: int
    target: int
    amount: int


class Conflict(NamedTuple):
    """What a client got at a server whose transaction another server's was ahead of."""

    server: str
    sqlstate: str
    message: str
    detail: str
    hint: str


class BankClient:
    """One client: a transfer after the other, at one server for a while, then at the next."""

    def __init__(self, number: int, primaries: Sequence[Primary], stopped: threading.Event) -> None:
        """Begins at the server `number`, counted round the servers; ends once `stopped` is set."""
        self.counts = {primary.name: LoadCounts() for primary in primaries}
        """What it was told, by server."""
        self.conflicts: list[Conflict] = []
        self._turns = islice(cycle(primaries), number % len(primaries), None)
        self._chance = random.Random(number)
        self._stopped = stopped

    def run(self) -> None:
        """Transfers until it is stopped."""
        for primary in self._turns:
            if self._stopped.is_set():
                return
            try:
                session = primary.connect()
            except psycopg.OperationalError:
                self.counts[primary.name].unavailable += 1
                self._stopped.wait(PAUSE_SECONDS)
                continue
            # The transfer under way is given up with the session; `_transfer` has counted it.
            with session, suppress(psycopg.OperationalError, errors.ReadOnlySqlTransaction):
                end = time.monotonic() + SESSION_SECONDS
                while time.monotonic() < end and not self._stopped.is_set():
                    self._transfer(session, primary.name)

    def _transfer(self, session: "psycopg.Connection[Any]", server: str) -> None:
        """Makes a transfer, and begins again where another transaction was first.

        Raises:
            psycopg.OperationalError: The session has ended, or nobody knows about the COMMIT.
            ReadOnlySqlTransaction: The server takes no writes now.
        """
        source, target = self._chance.sample(range(1, ACCOUNTS + 1), 2)
        transfer = Transfer(uuid.uuid4(), source, target, self._chance.randint(1, 10))
        counts = self.counts[server]
        while not self._stopped.is_set():
            began = time.perf_counter()
            is_at_commit = False
            try:
                _book(session, transfer)
                is_at_commit = True
                session.commit()
            except _RETRIED as error:
                session.rollback()
                counts.conflicts += 1
                self._note(server, error)
            except psycopg.Error as error:
                state = error.sqlstate
                if is_at_commit and (state is None or state.startswith(_UNKNOWN)):
                    counts.unknown_ids.append(transfer.id.bytes)
                else:
                    counts.unavailable += 1
                raise
            else:
                counts.latencies_ms.append((time.perf_counter() - began) * 1000)
                counts.committed_ids.append(transfer.id.bytes)
                return

    def _note(self, server: str, error: psycopg.Error) -> None:
        """Keeps what the group has said of a conflict; of those within one server it says none."""
        told = error.diag
        if told.message_detail and "at member" in told.message_detail:
            self.conflicts.append(
                Conflict(
                    server,
                    error.sqlstate or "",
                    told.message_primary or "",
                    told.message_detail,
                    told.message_hint or "",
                )
            )


class BankLoad:
    """All clients of the bank."""

    def __init__(self, primaries: Sequence[Primary], clients: int) -> None:
        self._stopped = threading.Event()
        self._clients = [BankClient(number, primaries, self._stopped) for number in range(clients)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the clients within the block. Raises what one of them did not expect."""
        with ThreadPoolExecutor(len(self._clients)) as pool:
            try:  # An interrupt may come before all of them run.
                tasks = [pool.submit(client.run) for client in self._clients]
                yield
            finally:
                self._stopped.set()
            for task in tasks:
                task.result()

    def counts(self, server: str) -> LoadCounts:
        """Returns the answers that clients got at a server until now."""
        total = LoadCounts()
        for client in self._clients:
            total.add(client.counts[server])
        return total

    def commits(self, server: str) -> int:
        """Returns the number of commits that clients were told of at a server until now."""
        return len(self.counts(server).committed_ids)

    def first_conflicts(self) -> list[Conflict]:
        """Returns a conflict between servers as a client got it, of each server that had some."""
        found: dict[str, Conflict] = {}
        for client in self._clients:
            for conflict in client.conflicts:
                found.setdefault(conflict.server, conflict)
        return sorted(found.values())


def settle_servers(primaries: Sequence[Primary], version: int) -> None:
    """Waits until all servers show a version.

    Raises:
        NotServing: One does not get there in time.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    for primary in primaries:
        while (shown := primary.version()) < version:
            primary.tend_companion()
            if time.monotonic() > deadline:
                state = f"at version {shown}, behind version {version}"
                raise NotServing(member=f"PostgreSQL {primary.name}", state=state)
            time.sleep(POLL_SECONDS)


def check_servers(
    primaries: Sequence[Primary], acknowledged: set[bytes], findings: Findings
) -> dict[str, frozenset[bytes]]:
    """Checks servers that show the same version: against each other, each by itself, and against
    what clients were told. Returns the transfers that each has.
    """
    digests = {primary.name: tuple(primary.query(_DIGESTS)) for primary in primaries}
    check_equal("servers", "rows", digests, findings)
    ledgers = {primary.name: ledger(primary) for primary in primaries}
    for primary in primaries:
        ((total,),) = primary.query("SELECT sum(balance)::bigint FROM accounts")
        check_total(total, ACCOUNTS * INITIAL_BALANCE, primary.name, findings)
        check_ledger(ledgers[primary.name], acknowledged, primary.name, findings)
        _check_bookings(primary, findings)
    return ledgers


def _check_bookings(primary: Primary, findings: Findings) -> None:
    """Checks that each account holds what the transfers have moved: each of them once."""
    wrong = primary.query(_MISBOOKED)
    findings.exactly_once &= not wrong
    for account, balance, expected in wrong[:SHOWN_MAX]:
        findings.texts.append(
            f"{primary.name}: account {account} holds {balance}, its transfers make {expected}"
        )


def _book(session: "psycopg.Connection[Any]", transfer: Transfer) -> None:
    """Writes a transfer's rows; accounts in the order of their numbers, against deadlocks."""
    movements = ((transfer.source, -transfer.amount), (transfer.target, transfer.amount))
    for account, change in sorted(movements):
        session.execute(
            "UPDATE accounts SET balance = balance + %s WHERE id = %s", (change, account)
        )
    session.execute("INSERT INTO transfers VALUES (%s, %s, %s, %s)", transfer)


def ledger(primary: Primary) -> frozenset[bytes]:
    """Returns the ids of the transfers that a server has."""
    rows = primary.query("SELECT id FROM transfers")
    return frozenset(transfer_id.bytes for (transfer_id,) in rows)


def member_ledger(member: Client) -> frozenset[bytes]:
    """Returns the ids of the transfers that the embedded store of a member has."""
    prefix = b"public.transfers/"
    with member.transaction() as transaction:
        keys = (key for key, _ in transaction.scan(prefix, prefix[:-1] + b"0"))
        return frozenset(uuid.UUID(key[len(prefix) :].decode()).bytes for key in keys)
