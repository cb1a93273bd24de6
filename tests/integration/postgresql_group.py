"""Three PostgreSQL servers that keep the rows of a group's members."""

import os
import platform
import random
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psycopg
from typer.testing import CliRunner

from groupcert.members.commands.cli import app
from groupcert.members.demo import postgresql_servers
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.demo.postgresql_servers import GroupAtServers
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.postgresql.attachment import Attachment
from groupcert.members.postgresql.sequences import Numbering
from groupcert.members.postgresql.status import ask_member
from tests.frozen import frozen
from tests.integration.waiting import SECONDS_MAX, wait_for

SCHEMA = """
CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL, email text UNIQUE);
INSERT INTO accounts SELECT number, 100, NULL FROM generate_series(1, 40) number;
CREATE TABLE orders (id int, line smallint, account int REFERENCES accounts ON DELETE RESTRICT,
    PRIMARY KEY (id, line));
CREATE TYPE colour AS ENUM ('red', 'green');
CREATE TABLE things (name text PRIMARY KEY, colour colour, price numeric(10, 2), weight float8,
    data bytea, extra jsonb, tags text[], at timestamptz, took interval, is_old boolean,
    twice numeric GENERATED ALWAYS AS (price * 2) STORED, CHECK (extract(hour FROM at) <> 23));
CREATE TABLE counters (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, count int NOT NULL);
CREATE TABLE keyless (note text);
CREATE TABLE people (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text, is_gone boolean
    NOT NULL DEFAULT false, number int UNIQUE);
CREATE UNIQUE INDEX people_here ON people (lower(email)) WHERE NOT is_gone;
CREATE TYPE pair AS (first int, second text);
CREATE TABLE awkward (old_name numeric(78, 0), "50%s" int, "100%" pair[], "a ""b"" {c}" bit(5),
    place point, span box[], numbers int[], weight float4, small "char", code char(4), digits bit[],
    PRIMARY KEY (old_name) DEFERRABLE);
ALTER TABLE awkward RENAME old_name TO key;
CREATE TABLE parts (id int, at date, note text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE parts_old (note text, at date NOT NULL, id int NOT NULL);
ALTER TABLE parts ATTACH PARTITION parts_old FOR VALUES FROM (MINVALUE) TO ('2000-01-01');
CREATE TABLE parts_new PARTITION OF parts FOR VALUES FROM ('2000-01-01') TO (MAXVALUE)
    PARTITION BY HASH (id);
CREATE TABLE parts_even PARTITION OF parts_new FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parts_odd PARTITION OF parts_new FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE bulk (id int PRIMARY KEY, note text, data bytea);
"""
ROWS = (
    "SELECT * FROM accounts ORDER BY id",
    "SELECT * FROM orders ORDER BY id, line",
    "SELECT name, things::text FROM things ORDER BY name",
    "SELECT * FROM counters ORDER BY id",
    "SELECT id, people::text FROM people ORDER BY id",
    "SELECT key, awkward::text FROM awkward ORDER BY key",
    "SELECT tableoid::regclass::text, id, at::text, note FROM parts ORDER BY at, id",
    "SELECT count(*), md5(string_agg(bulk::text, '' ORDER BY id)) FROM bulk",
    "SELECT max(version) FROM groupcert.executed",
)

RECEIVES = {"x86_64": "45 ", "aarch64": "207 "}[platform.machine()]
"""The system call recvfrom."""
SERVERS_MAX = 4
TRANSACTION_BYTES_MAX = 24 << 20
"""A limit that a test reaches quickly."""
SETTINGS: Mapping[str, object] = {"transaction_bytes_max": TRANSACTION_BYTES_MAX}


class Primary(postgresql_servers.Primary):
    """A server of a member, which has metrics; clients run again what lost."""

    def __init__(self, name: str, folder: Path, *, dsn: str | None = None) -> None:
        self.metrics_address = f"{HOST}:{free_port()}"
        super().__init__(name, folder, dsn=dsn)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Runs a statement in a transaction of its own, again after each conflict; its rows."""
        while True:
            with (
                suppress(psycopg.errors.SerializationFailure),
                closing(self.connect()) as session,
                session.transaction(),
            ):
                cursor = session.execute(statement.encode())
                return cursor.fetchall() if cursor.description else []

    def start_member(self, group: LocalGroup, **settings: object) -> None:
        """Starts a member for it that joins a running group."""
        self.group = group
        group.addresses.setdefault(self.name, f"{HOST}:{free_port()}")
        group.start_member(self.name, {"postgresql": self.dsn, **settings})

    def end_member(self) -> None:
        """Stops that member, if it runs."""
        if hasattr(self, "group") and self.name in self.group.processes:
            self.group.stop_member(self.name)

    def state(self) -> list[list[tuple[Any, ...]]]:
        """All rows, and the newest version."""
        return [self.query(query) for query in ROWS]

    def takes_commits(self) -> bool:
        """Whether a transaction commits; it changes nothing."""
        with suppress(psycopg.Error):
            self.query("UPDATE accounts SET balance = balance WHERE id = 40")
            return True
        return False


class PostgresqlGroup:
    """Three servers, and their members."""

    def __init__(
        self, group: LocalGroup, primaries: Sequence[Primary], attachments: Sequence[Attachment]
    ) -> None:
        self.group = group
        self.primaries = primaries
        self.attachments = attachments

    def settle(self, *joined: Primary) -> list[list[tuple[Any, ...]]]:
        """Returns the rows of all servers once they are equal, those of others that have joined,
        too.
        """

        def equal() -> list[list[tuple[Any, ...]]]:
            first, *others = (primary.state() for primary in (*self.primaries, *joined))
            return first if all(other == first for other in others) else []

        return wait_for("all servers have the same rows", equal)

    def member_stopped(self, number: int) -> AbstractContextManager[None]:
        """Keeps a member from answering within the block."""
        return frozen(self.group.processes[self.group.names[number]].pid)


@contextmanager
def postgresql_group(
    folder: Path, names: Sequence[str] = ("m1", "m2", "m3"), **settings: object
) -> Iterator[PostgresqlGroup]:
    """Starts servers and members of some names, with settings beside `SETTINGS`; all take
    commits.
    """
    with ExitStack() as stack:
        (folder / "group").mkdir()
        primaries, attachments = [], []
        for offset, name in enumerate(names, 1):
            primary = Primary(name, folder)
            stack.enter_context(primary.server)
            numbering = Numbering(offset, SERVERS_MAX)
            attachments.append(primary.attach(SCHEMA, numbering=numbering))
            primaries.append(primary)
        metrics = {each.name: {"metrics_address": each.metrics_address} for each in primaries}
        group = GroupAtServers(
            primaries, folder / "group", settings={**SETTINGS, **settings}, own_settings=metrics
        )
        stack.enter_context(group)
        for primary in primaries:
            wait_for("the member serves it", primary.takes_commits)
        yield PostgresqlGroup(group, primaries, attachments)


def incremented(primary: Primary, accounts: Iterable[int]) -> Iterator[int]:
    """Increments the balances of accounts, each in a transaction; yields each once it is committed.

    One that has lost is run again. One that is so slow that it stands in the way of what others
    have committed has its session ended, and is run again in another one.
    """
    session = primary.connect()
    try:
        for account in accounts:
            is_committed = False
            while not is_committed:
                if session.closed:
                    session = primary.connect()
                with suppress(psycopg.OperationalError):
                    with session.transaction():
                        session.execute(
                            "UPDATE accounts SET balance = balance + 1 WHERE id = %s", (account,)
                        )
                    is_committed = True
            yield account
    finally:
        session.close()


class Increments:
    """How often clients have incremented a balance; `unknown`: those that were not told."""

    def __init__(self, primaries: Sequence[Primary], accounts: Sequence[int]) -> None:
        self._accounts = accounts
        self._ended = Event()
        self.done = [0] * len(primaries)
        self.unknown = 0
        self._clients = ThreadPoolExecutor(len(primaries))
        self._running = [
            self._clients.submit(self._increment, number, primary)
            for number, primary in enumerate(primaries)
        ]

    def end(self) -> None:
        """Returns when all clients have ended, each with an answer."""
        self._ended.set()
        with self._clients:
            for each in self._running:
                each.result()

    def _increment(self, number: int, primary: Primary) -> None:
        choose = random.Random(number)
        query = "UPDATE accounts SET balance = balance + 1 WHERE id = %s"
        while not self._ended.is_set():
            with suppress(psycopg.OperationalError), closing(primary.connect()) as session:
                while not self._ended.is_set():
                    try:
                        with session.transaction():
                            found = session.execute(query, (choose.choice(self._accounts),))
                            assert found.rowcount == 1, "the row is not there"
                        self.done[number] += 1
                    except psycopg.errors.SerializationFailure:
                        continue
                    except psycopg.errors.TransactionResolutionUnknown:
                        self.unknown += 1


@contextmanager
def increments(primaries: Sequence[Primary], accounts: Sequence[int]) -> Iterator[Increments]:
    """Has a client at each server increment balances, again and again, until the block ends."""
    running = Increments(primaries, accounts)
    try:
        yield running
    finally:
        running.end()


class Commit(Thread):
    """A COMMIT in a thread of its own; `failure` is what the client got."""

    def __init__(self, session: "psycopg.Connection[Any]") -> None:
        super().__init__(daemon=True)
        self._session = session
        self.pid = session.info.backend_pid
        self.failure: psycopg.Error | None = None
        self.start()

    def run(self) -> None:
        try:
            self._session.commit()
        except psycopg.Error as error:
            self.failure = error

    def ended(self) -> psycopg.Error | None:
        """Waits for the answer."""
        self.join(SECONDS_MAX)
        assert not self.is_alive(), "the COMMIT got no answer"
        return self.failure


def group_verb(verb: str, primary: Primary, *flags: str) -> bool:
    """Has an operator act on a server's member; returns whether that was done."""
    return CliRunner().invoke(app, ["group", verb, primary.address, *flags]).exit_code == 0


def balances(group: PostgresqlGroup) -> dict[int, int]:
    """Returns the balances by account, once all servers have the same rows."""
    return {row[0]: row[1] for row in group.settle()[0]}


def total_of(group: PostgresqlGroup) -> int:
    """The sum of all balances, once all servers have the same rows."""
    return sum(row[1] for row in group.settle()[0])


def has_asked(primary: Primary) -> "psycopg.Connection[Any]":
    """Returns a session that has committed before: its backend and the member know each other."""
    session = primary.connect()
    session.execute("UPDATE accounts SET balance = balance WHERE id = 40")
    session.commit()
    wait_for("that is seen", lambda: not ask_member(primary.dsn).granted_transactions)
    return session


def waits_for_verdict(commit: Commit) -> bool:
    """Whether a backend at its COMMIT has asked its member, and reads the answer."""
    return Path(f"/proc/{commit.pid}/syscall").read_text().startswith(RECEIVES)


def conflict_of(
    group: PostgresqlGroup, one: "psycopg.Connection[Any]", other: "psycopg.Connection[Any]"
) -> psycopg.Error:
    """Commits at the first server, then at the second, which has not heard of that by then; returns
    what the second one's client gets. One that is late is in the way, and its session is ended.
    """
    with group.member_stopped(1):
        one.commit()
        commit = Commit(other)
        wait_for("it waits for its verdict", lambda: waits_for_verdict(commit))
    failure = commit.ended()
    assert failure is not None
    return failure


def stop_process(pid: int) -> None:
    """Stops a process where it is, until `continue_process`."""
    os.kill(pid, signal.SIGSTOP)


def continue_process(pid: int) -> None:
    """Lets a stopped process run."""
    os.kill(pid, signal.SIGCONT)
