"""Replicas as real processes, and what they must come to: every state that their source had.

The load transfers between accounts in tables of two databases, appends to a log in another domain,
and deletes from it. A row of an account counts its changes, so that a table whose server counts
them as well shows what was executed twice.
"""

import json
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any, Self

from groupcert import Client, Consistency, Transaction, TransactionFailed
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.target_progress import Checkpoint
from groupcert.applier.targets.rocksdb import RocksDbTarget
from groupcert.certifier.errors import Unavailable
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.storage.store import Store, StoreIdentity
from groupcert.members.commands.status_views import show_applier
from groupcert.members.demo.command_process import CommandProcess
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.errors.transactions import MemberFailed
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.replica.sources import ReplicaSources
from groupcert.members.wire.row_changes import decode_changes
from tests.integration.waiting import wait_for

SETTINGS: Mapping[str, object] = {
    "binary_log_file_bytes_max": 64 << 10,
    "domain_sessions": ["auditor"],
    "stable_set_period_ms": 200,
}
"""Small files, so that a stream has rotations; somebody who may set a domain."""
TABLES = ("bank.a1", "bank.a2", "shop.b1", "shop.b2")
AUDIT = "audit.log"
AUDIT_DOMAIN = 3
ACCOUNTS = 6
"""Of each table."""
BALANCE = 100
SCHEMES = (
    "logical-clock",
    "logical-clock --policy first-available",
    "commit-parent",
    "database",
    "group-commit",
    "table",
    "jobs --conflicts ignore",
    "jobs --conflicts ordered",
    "jobs --conflicts barrier",
    "jobs --conflicts graph",
    "jobs --conflicts merge",
    "rows",
)
STOP_SECONDS = 120
TIMEOUT_MS = 60_000
PAUSE_SECONDS = 0.02
"""Of each client after a commit, so that what is to be executed stays within seconds."""

Rows = dict[bytes, bytes]


def account(balance: int, changes: int) -> bytes:
    """The value of an account's row."""
    return json.dumps({"balance": balance, "changes": changes}).encode()


def total(rows: Mapping[bytes, bytes]) -> int:
    """What all accounts hold."""
    return sum(
        json.loads(value)["balance"]
        for key, value in rows.items()
        if not key.startswith(AUDIT.encode())
    )


def open_accounts(client: Client) -> None:
    """Makes the accounts, in one transaction."""
    with client.transaction() as transaction:
        for table in TABLES:
            for number in range(ACCOUNTS):
                transaction.put(f"{table}/{number}".encode(), account(BALANCE, 1))


class Load:
    """Clients that transfer and append, as long as they are asked to."""

    def __init__(self, addresses: Sequence[str], seed: int = 1) -> None:
        self._addresses = addresses
        self._chance = random.Random(seed)
        self._stopped = threading.Event()
        self._appended = 0
        self.commits = 0

    def run(self, count: int, clients: int = 4) -> None:
        """Commits so many transactions, by clients at work at the same time."""
        shares = [count // clients + (number < count % clients) for number in range(clients)]
        threads = [
            threading.Thread(target=self._work, args=(share, self._chance.random()))
            for share in shares
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @contextmanager
    def running(self, clients: int = 2) -> Iterator[None]:
        """Clients are at work during the block."""
        self._stopped.clear()
        thread = threading.Thread(target=self.run, args=(clients * 10**6, clients))
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join()

    def wait_for_commits(self, count: int) -> None:
        """Returns when so many more are committed."""
        wanted = self.commits + count
        wait_for(f"{count} more commits", lambda: self.commits >= wanted)

    def _work(self, count: int, seed: float) -> None:
        chance = random.Random(seed)
        with (
            Client(self._addresses, timeout_ms=TIMEOUT_MS) as client,
            Client(
                self._addresses,
                timeout_ms=TIMEOUT_MS,
                session="auditor",
                gtid_domain_id=AUDIT_DOMAIN,
            ) as auditor,
        ):
            for _ in range(count):
                if self._stopped.is_set():
                    return
                with suppress(TransactionFailed, Unavailable):
                    if chance.random() < 0.2:
                        self._append(auditor)
                    else:
                        client.run(lambda transaction: _transfer(transaction, chance))
                    self.commits += 1
                    self._stopped.wait(PAUSE_SECONDS)

    def _append(self, auditor: Client) -> None:
        self._appended += 1
        number = self._appended
        with auditor.transaction() as transaction:
            transaction.put(f"{AUDIT}/{number}".encode(), b"%d" % number)
            if number % 3 == 0:
                transaction.delete(f"{AUDIT}/{number - 2}".encode())


def _transfer(transaction: Transaction, chance: random.Random) -> None:
    rows = [(table, number) for table in TABLES for number in range(ACCOUNTS)]
    keys = [f"{table}/{number}".encode() for table, number in chance.sample(rows, 2)]
    amount = chance.randrange(1, 10)
    for key, change in zip(keys, (-amount, amount), strict=True):
        row = json.loads(transaction.get(key) or b"{}")
        transaction.put(key, account(row["balance"] + change, row["changes"] + 1))


class History:
    """What a member's binary log says was committed: every state that there was, one by one."""

    def __init__(self, address: str) -> None:
        with Client(address, consistency=Consistency.BEFORE) as client:
            reader = client.transaction()
            self.version = client.version
            self.rows: Rows = dict(reader.scan())
            reader.rollback()
        self.entries: list[RelayEntry] = []
        self.gtids = GtidSet()
        sources = ReplicaSources([address], "history")
        for news in sources.follow(GtidSet(), lambda: 1):
            for entry in news.entries:
                if entry.gtid and entry.version <= self.version:
                    self.entries.append(entry)
                    self.gtids.add(entry.gtid)
            if news.source_version >= self.version <= self._last:
                sources.stop()
        assert len(self.entries) == self.gtids.count() == self.version

    @property
    def _last(self) -> int:
        return self.entries[-1].version if self.entries else 0

    def states(self) -> Iterator[Rows]:
        """The rows after each transaction; before the first there are none."""
        rows: Rows = {}
        yield {}
        for entry in self.entries:
            put_keys, put_values, delete_keys = decode_changes(entry.payload)
            rows |= zip(put_keys, put_values, strict=True)
            for key in delete_keys:
                rows.pop(key, None)
            yield dict(rows)


class ReplicaProcess(CommandProcess):
    """A replica as its operator starts it; again and again, under one name and target."""

    def __init__(
        self, folder: Path, sources: Sequence[str], target: str, scheme: str, *arguments: str
    ) -> None:
        """`scheme`: its name, and further flags of it."""
        self.address = f"{HOST}:{free_port()}"
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(
            [
                "replica",
                "--target",
                target,
                *sources,
                "--address",
                self.address,
                "--scheme",
                *scheme.split(),
                *arguments,
            ],
            folder / "replica.log",
        )

    def __enter__(self) -> Self:
        return self  # A test starts it when it has what it needs.

    def __exit__(self, *_raised: object) -> None:
        self.kill()

    def start(self, *more: str) -> None:
        """Starts it; one that runs is killed before."""
        self.kill()
        super().start(*more)

    def run(self, *arguments: str) -> int:
        """Starts it, and returns its exit code when it has ended by itself."""
        self.start(*arguments)
        return self.wait(STOP_SECONDS)

    def wait_for_start(self, run: int = 1) -> None:
        """Returns when its run of this number has found out what is executed."""
        wait_for("its start", lambda: len(self.events("replica_started")) >= run)

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """What it has logged, of all its runs, as far as its lines are whole."""
        lines = self.log.read_text().splitlines() if self.log.exists() else ()
        events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [event for event in events if not name or event["event"] == name]

    def status(self) -> dict[str, Any]:
        """What `status --applier --json` prints of it, in this process: it is asked again and
        again; nothing while it starts.
        """
        with redirect_stdout(StringIO()) as printed, suppress(MemberFailed, Unavailable):
            show_applier(self.address, as_json=True, watch=False, period_ms=1)
        answer: dict[str, Any] = json.loads(printed.getvalue() or "{}")
        return answer


@contextmanager
def embedded(folder: Path, name: str = "replica") -> Iterator[RocksDbTarget]:
    """The target of a replica that does not run."""
    with Store(folder, StoreIdentity(group="replica", member=name)) as store:
        yield RocksDbTarget(store, decode_changes)


def embedded_state(folder: Path) -> tuple[Rows, Checkpoint]:
    """Rows and checkpoint of a replica that does not run."""
    with embedded(folder) as target:
        rows = dict(target.open_snapshot().scan())
        return rows, target.checkpoint() or Checkpoint()


@contextmanager
def group_with_history(
    folder: Path, transactions: int, *, members: int = 2
) -> Iterator[tuple[LocalGroup, History]]:
    """Some members, and what was committed there."""
    with LocalGroup(folder, members=members, settings=SETTINGS) as group:
        with Client(group.addresses["m1"]) as client:
            open_accounts(client)
        Load(list(group.addresses.values())).run(transactions)
        yield group, History(group.addresses["m1"])
