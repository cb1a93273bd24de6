"""What the applier's benchmark applies to: each time a new, empty target of one kind.

The rule it keeps: commits are as durable as a replica's are, and the rows are read back by other
means than the target that wrote them, where there are any.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg

from groupcert.applier.engine.coordinator import CoordinatorOptions
from groupcert.applier.queue.job import CommitGroup, Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.target_progress import Checkpoint, TargetProgress
from groupcert.applier.targets import Target, mysql, postgresql
from groupcert.applier.targets.sql import SqlTarget
from groupcert.applier.targets.sql_schema import SqlSchema
from groupcert.applier.targets.sql_server import SqlServer
from groupcert.members.replica.replica_process import EmbeddedTarget
from groupcert.members.wire.row_changes import decode_changes
from tests.bench.harness import Clock, Document, scratch
from tests.servers import MariaDbServer, PostgreSqlServer, connect_mariadb

DATABASE = "groupcert_bench"
"""On an SQL server; dropped before and after."""
REPLICA = "bench"
MARIADB_COLUMNS = "id INT PRIMARY KEY, value VARCHAR(255) CHARACTER SET utf8mb4"

Rows = dict[bytes, bytes]
Statements = Callable[[str], Sequence[tuple[Any, ...]]]
"""Runs a statement, and returns its rows."""


class Opened(NamedTuple):
    """A new target, which was empty; `rows` reads what is in it."""

    target: Target[Any]
    rows: Callable[[], Rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTarget:
    """One kind of target.

    `opened`: opens a new one, for so many workers. `alone_transactions_max`: how many transactions
    a replica without workers commits as one there. `pid`: of its server, if there is one.
    `version`: what that says it is.
    """

    opened: Callable[[int], AbstractContextManager[Opened]]
    alone_transactions_max: int = 1
    pid: int | None = None
    version: str = ""

    def clock(self) -> Clock:
        """Returns a clock that begins now, of its server too if there is one."""
        return Clock(**({} if self.pid is None else {"server": [self.pid]}))


def rocksdb() -> BenchTarget:
    """Returns the embedded target, in a folder of its own, flushed in the background as a replica's
    is.
    """

    @contextmanager
    def opened(_: int) -> Iterator[Opened]:
        with scratch() as folder, closing(EmbeddedTarget(folder / "store", REPLICA)) as target:
            yield Opened(target, lambda: dict(target.open_snapshot().scan()))

    together_max = CoordinatorOptions().group_transactions_max
    return BenchTarget(opened=opened, alone_transactions_max=together_max)


def slow(commit_ms: float) -> BenchTarget:
    """Returns `SlowTarget`."""

    @contextmanager
    def opened(_: int) -> Iterator[Opened]:
        target = SlowTarget(commit_ms)
        yield Opened(target, target.rows)

    return BenchTarget(opened=opened)


def postgresql_database(server: PostgreSqlServer, tables: Sequence[str]) -> BenchTarget:
    """Returns a database of a PostgreSQL server, with `synchronous_commit` on."""
    return _sql_database(
        lambda database: psycopg.connect(server.dsn_of(database or "postgres"), autocommit=True),
        postgresql.PostgreSqlServer(server.dsn_of(DATABASE)),
        tables,
        server.pid,
        columns="id int PRIMARY KEY, value text",
        drop=f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)",
        ready="CHECKPOINT",
    )


def mariadb_database(server: MariaDbServer, tables: Sequence[str]) -> BenchTarget:
    """Returns a database of a MariaDB server, with `innodb_flush_log_at_trx_commit` 1."""
    return _sql_database(
        lambda database: connect_mariadb(server.url_of(database)),
        mysql.MySqlServer(server.url_of(DATABASE)),
        tables,
        server.pid,
        columns=MARIADB_COLUMNS,
        drop=f"DROP DATABASE IF EXISTS {DATABASE}",
        ready="SELECT 1",
    )


def _sql_database(
    connect: Callable[[str], Any],
    server: SqlServer,
    tables: Sequence[str],
    pid: int,
    *,
    columns: str,
    drop: str,
    ready: str,
) -> BenchTarget:
    """Returns a database of a server, where it is made anew for each run, with a table for each of
    the stream's. Rows are read back in a session of its own.

    Args:
        connect: Opens a session at a database, each of whose statements commits.
        ready: A statement before each run.
    """
    names = {table: table.partition(".")[2] for table in tables}
    schema = SqlSchema.parse(
        "\n".join(
            f'[tables."{table}"]\ntable = "{name}"\n'
            'key = { id = "integer" }\nvalue = { value = "text" }'
            for table, name in names.items()
        ),
        decode_changes,
    )

    def rows() -> Rows:
        with statements(connect(DATABASE)) as run:
            return {
                f"{table}/{key}".encode(): value.encode()
                for table, name in names.items()
                for key, value in run(f"SELECT id, value FROM {name}")
            }

    @contextmanager
    def opened(workers: int) -> Iterator[Opened]:
        with statements(connect("")) as run:
            for statement in (drop, f"CREATE DATABASE {DATABASE}", ready):
                run(statement)
            try:
                with statements(connect(DATABASE)) as inside:
                    for name in names.values():
                        inside(f"CREATE TABLE {name} ({columns})")
                target = SqlTarget(server, schema, replica=REPLICA, workers=max(workers, 1))
                with closing(target):
                    yield Opened(target, rows)
            finally:
                run(drop)

    with statements(connect("")) as run:
        version = str(run("SELECT version()")[0][0])
    return BenchTarget(opened=opened, pid=pid, version=version)


class SlowExecution(NamedTuple):
    """Rows with the version of the transaction that wrote each; when the server has them safe."""

    rows: Mapping[bytes, tuple[bytes, int]]
    safe_at: float


class SlowTarget:
    """Rows in memory, behind a commit that waits.

    The model is a server that makes a commit safe at a distance: on replicas, or on a disk far
    away. Each session has its transaction safe `commit_ms` after it was executed, whatever other
    sessions do, and it becomes visible, in the order that `commit` is called in. So a session is
    occupied for `commit_ms` a transaction at least, and no target can do `workers / commit_ms` or
    more.
    """

    def __init__(self, commit_ms: float) -> None:
        self.commit_seconds = commit_ms / 1e3
        self.commits_total = 0
        self._rows: dict[bytes, tuple[bytes, int]] = {}
        self._lock = threading.Lock()

    def translate(self, entries: Sequence[RelayEntry]) -> None:
        """Does nothing: to execute is to translate."""

    def execute(self, job: Job[SlowExecution]) -> SlowExecution:
        """Asks for the commit."""
        rows = {}
        for entry in job.entries:
            keys, values, _ = decode_changes(entry.payload)
            for key, value in zip(keys, values, strict=True):
                if job.part is None or job.part.takes(key):
                    rows[key] = (value, entry.version)
        return SlowExecution(rows, time.monotonic() + self.commit_seconds)

    def commit(self, group: CommitGroup[SlowExecution], progress: TargetProgress) -> None:
        """Makes one job after the other visible, each when it is safe."""
        for job in group.jobs:
            assert job.execution, "committed before it was executed"
            rows, safe_at = job.execution
            while (wait_seconds := safe_at - time.monotonic()) > 0:
                time.sleep(wait_seconds)
            with self._lock:
                self.commits_total += 1
                for key, new in rows.items():
                    there = self._rows.get(key) if job.keeps_newest else None
                    if there is None or there[1] < new[1]:
                        self._rows[key] = new
        progress.advance(group)

    def rows(self) -> Rows:
        """Returns the rows that are visible."""
        return {key: value for key, (value, _) in self._rows.items()}

    def abandon(self, job: Job[SlowExecution]) -> None:
        """Leaves all as it is: nothing of the job is visible."""

    def checkpoint(self) -> Checkpoint | None:
        """Returns None: the target is new."""
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        """Keeps nothing: the target is never opened again."""

    def close(self) -> None:
        """Leaves all as it is."""


@contextmanager
def statements(session: Any) -> Iterator[Statements]:
    """Yields what runs statements in a session, which is closed with the block."""
    with closing(session), closing(session.cursor()) as cursor:

        def run(statement: str) -> Sequence[tuple[Any, ...]]:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

        yield run


def rates(spent: tuple[float, Mapping[str, float]], transactions: int) -> Document:
    """Returns the rate by a clock, and the microseconds of processors a transaction."""
    seconds, cpu_seconds = spent
    us = {part: round(each / transactions * 1e6, 1) for part, each in cpu_seconds.items()}
    return {
        "transactions_per_second": round(transactions / seconds, 1),
        "client_cpu_us": us["clients"],
        "server_cpu_us": us.get("server"),
    }
