"""Three PostgreSQL servers that are primaries of one group, on loopback, and `pgbench` at them.

The first server has a second database that is not attached: plain PostgreSQL, in the same process
with the same settings. The rule it keeps: a transaction of the log of `pgbench` counts once it has
committed, with all the times that it was run again.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from groupcert.members.benchmarks.clients import ROWS, VALUE_BYTES, Load
from groupcert.members.demo.command_process import CommandProcess
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.database_servers import (
    PostgreSqlServer,
    postgresql_program,
    postgresql_server,
)
from groupcert.members.postgresql.attachment import attach

PLAIN, ATTACHED = "plain", "attached"
WAIT_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02
TRIES_MAX = 1_000
SCHEMA = f"""
CREATE TABLE item (id int PRIMARY KEY, value varchar({VALUE_BYTES}) NOT NULL);
INSERT INTO item SELECT number, '' FROM generate_series(0, {ROWS - 1}) number;
CREATE TABLE added (id bigint PRIMARY KEY, value varchar({VALUE_BYTES}) NOT NULL);
"""
SCRIPTS = {
    "update": f"""\\set id random(0, {ROWS - 1})
\\set number random(1, 1000000000)
UPDATE item SET value = rpad(:number::text, {VALUE_BYTES}, 'x') WHERE id = :id;
""",
    "insert": f"""\\set id random(1, 1000000000000000000)
INSERT INTO added VALUES (:id, rpad(:id::text, {VALUE_BYTES}, 'x'));
""",
}
"""Scripts of `pgbench`, one statement a transaction."""


@dataclass(frozen=True, slots=True)
class PostgreSqlGroup:
    """The servers, and the processes that a commit of the group goes through."""

    servers: Sequence[PostgreSqlServer]
    group: LocalGroup
    companions: Sequence[CommandProcess]

    def pids(self) -> list[int]:
        """Returns the processes that a commit goes through."""
        commands = (*self.companions, *self.group.processes.values())
        servers = [server.pid for server in self.servers]
        return [self.group.log_server.pid, *servers, *(command.pid for command in commands)]

    def lag(self) -> int:
        """Returns how many versions the last server is behind what the first member certified."""
        newest = self.group.status(self.group.names[0]).observer.certified_version
        return max(0, newest - min(map(_version, self.servers)))

    def settle(self) -> None:
        """Returns when all servers have everything."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while self.lag():
            assert time.monotonic() < deadline, "a server does not catch up"
            time.sleep(POLL_SECONDS)


@contextmanager
def postgresql_group(folder: Path) -> Iterator[PostgreSqlGroup]:
    """Starts members, servers and companions; all of them take commits.

    Raises:
        ServerMissing: PostgreSQL is not installed.
        UnsuitableTarget: PL/Python is not.
    """
    with ExitStack() as stack:
        (folder / "group").mkdir(parents=True)
        group = stack.enter_context(LocalGroup(folder / "group"))
        servers, companions = [], []
        for name, address in group.addresses.items():
            server = stack.enter_context(postgresql_server(folder / name))
            for database in (PLAIN, ATTACHED):
                _make(server, database)
            attach(server.dsn_of(ATTACHED), ["public.*"], set_isolation=True)
            arguments = ("postgresql", "--dsn", server.dsn_of(ATTACHED), "--member", address)
            companions.append(CommandProcess(arguments, folder / f"companion-{name}.log"))
            stack.callback(_end, companions[-1])
            servers.append(server)
        for server in servers:
            _wait_writable(server)
        yield PostgreSqlGroup(servers, group, companions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PgBench:
    """One run of `pgbench` at each of some databases."""

    script: str
    clients: int
    seconds: int
    folder: Path
    """For its script and its logs."""
    synchronous_commit: str = "on"

    def run(self, databases: Sequence[str]) -> "PgBenchLoad":
        """Runs the clients, an equal share of them at each database.

        Raises:
            subprocess.CalledProcessError: A client could not go on; its output says why.
        """
        script = self.folder / f"{self.script}.sql"
        script.write_text(SCRIPTS[self.script])
        for old in self.folder.glob("log.*"):
            old.unlink()
        settings = (
            "default_transaction_isolation=repeatable\\ read",
            f"synchronous_commit={self.synchronous_commit}",
        )
        options = " ".join(f"-c {setting}" for setting in settings)
        share = max(1, self.clients // len(databases))
        command = [
            *(str(postgresql_program("pgbench")), "--no-vacuum", "--protocol=prepared"),
            *(f"--client={share}", f"--time={self.seconds}", f"--file={script}", "--log"),
            f"--max-tries={TRIES_MAX}",
        ]
        running = [
            subprocess.Popen(
                [*command, f"--log-prefix={self.folder}/log.{number}", database],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "PGOPTIONS": options},
            )
            for number, database in enumerate(databases)
        ]
        for process in running:
            output, _ = process.communicate(timeout=self.seconds + WAIT_SECONDS_MAX)
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, process.args, output)
        return _load(self.folder)


@dataclass(frozen=True, slots=True)
class PgBenchLoad:
    """What the logs of `pgbench` have: commits, `load.rejected` for those run again, the seconds
    that it took, and the first latency of each session, which is not among the others: the backend
    starts its Python, and plans its statements.
    """

    load: Load
    seconds: float
    first_ms: Sequence[float]


def _load(folder: Path) -> PgBenchLoad:
    load, first_ms, ends_s = Load(), [], []
    for path in folder.glob("log.*"):
        started: set[str] = set()
        for line in path.read_text().splitlines():
            client, _, taken_us, _, second, us, retries = line.split()
            if client not in started:
                started.add(client)
                first_ms.append(int(taken_us) / 1e3)
                continue
            load.certified += 1
            load.rejected += int(retries)
            load.latencies_ms.append(int(taken_us) / 1e3)
            ends_s.append(int(second) + int(us) / 1e6)
    return PgBenchLoad(load, max(ends_s) - min(ends_s), first_ms)


def _make(server: PostgreSqlServer, database: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as session:
        session.execute(f"CREATE DATABASE {database}".encode())
    with psycopg.connect(server.dsn_of(database)) as session:
        session.execute(SCHEMA.encode())
    with psycopg.connect(server.dsn_of(database), autocommit=True) as session:
        session.execute("VACUUM ANALYZE")


def _wait_writable(server: PostgreSqlServer) -> None:
    """Returns when a transaction commits."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    with closing(psycopg.connect(server.dsn_of(ATTACHED))) as session:
        while True:
            with suppress(psycopg.Error):
                session.execute("UPDATE item SET value = '' WHERE id = 0")
                return session.commit()
            session.rollback()
            assert time.monotonic() < deadline, "the companion does not serve"
            time.sleep(POLL_SECONDS)


def _version(server: PostgreSqlServer) -> int:
    with psycopg.connect(server.dsn_of(ATTACHED)) as session:
        row = session.execute("SELECT coalesce(max(version), 0) FROM groupcert.executed").fetchone()
    assert row is not None, "an aggregate without a row"
    return int(row[0])


def _end(companion: CommandProcess) -> None:
    companion.send_signal(signal.SIGTERM)
    companion.wait()
