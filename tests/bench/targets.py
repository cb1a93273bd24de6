"""What the applier's benchmark applies to: each time a new, empty target of one kind.

The rule it keeps: commits are as durable as a replica's are, and the rows are read back by other
means than the target that wrote them, where there are any.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, NamedTuple

import psycopg

from groupcert.applier.engine.coordinator import CoordinatorOptions
from groupcert.applier.queue.checkpoint import Checkpoint, Progress
from groupcert.applier.queue.job import CommitGroup, Job
from groupcert.applier.targets import Target, mysql, postgresql
from groupcert.applier.targets.sql_schema import SqlSchema
from groupcert.members.replica.targets import EmbeddedTarget
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


class BenchTarget(ABC):
    """One kind of target.

    `alone_transactions_max`: how many transactions a replica without workers commits as one there.
    `pid`: of its server, if there is one. `version`: what that says it is.
    """

    alone_transactions_max = 1
    pid: int | None = None
    version = ""

    def clock(self) -> Clock:
        """Returns a clock that begins now, of its server too if there is one."""
        return Clock(**({} if self.pid is None else {"server": [self.pid]}))

    @abstractmethod
    def opened(self, workers: int) -> AbstractContextManager[Target[Any]]:
        """Opens a new and empty one."""

    @abstractmethod
    def rows(self, target: Any) -> Rows:
        """Returns what is in the one that is open."""


class RocksDb(BenchTarget):
    """The embedded target in a folder of its own, flushed in the background as a replica's is."""

    alone_transactions_max = CoordinatorOptions().group_transactions_max

    @contextmanager
    def opened(self, workers: int) -> Iterator[Target[Any]]:
        with scratch() as folder, closing(EmbeddedTarget(folder / "store", REPLICA)) as target:
            yield target

    def rows(self, target: Any) -> Rows:
        return dict(target.open_snapshot().scan())


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

    def execute(self, job: Job[SlowExecution]) -> SlowExecution:
        """Asks for the commit."""
        rows = {}
        for entry in job.entries:
            keys, values, _ = decode_changes(entry.payload)
            for key, value in zip(keys, values, strict=True):
                if job.part is None or job.part.takes(key):
                    rows[key] = (value, entry.version)
        return SlowExecution(rows, time.monotonic() + self.commit_seconds)

    def commit(self, group: CommitGroup[SlowExecution], progress: Progress) -> None:
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


class Slow(BenchTarget):
    """`SlowTarget`."""

    def __init__(self, commit_ms: float) -> None:
        self._commit_ms = commit_ms

    @contextmanager
    def opened(self, workers: int) -> Iterator[Target[Any]]:
        yield SlowTarget(self._commit_ms)

    def rows(self, target: Any) -> Rows:
        return dict(target.rows())


class SqlServer(BenchTarget):
    """A database of a server, where it is made anew for each run, with a table for each of the
    stream's. Rows are read back in a session of its own.

    `ready`: a statement before each run.
    """

    columns = MARIADB_COLUMNS
    force = ""
    ready = "SELECT 1"

    def __init__(self, tables: Sequence[str], pid: int) -> None:
        """Asks the server for its version."""
        self.tables, self.pid = [table_name(each) for each in tables], pid
        self._schema = SqlSchema.parse(
            "\n".join(
                f'[tables."{table}"]\ntable = "{table_name(table)}"\n'
                'key = { id = "integer" }\nvalue = { value = "text" }'
                for table in tables
            )
        )
        self._full_names = dict(zip(self.tables, tables, strict=True))
        with statements(self.connect()) as run:
            self.version = str(run("SELECT version()")[0][0])

    @abstractmethod
    def connect(self, database: str = "") -> Any:
        """Opens a session, each of whose statements commits."""

    @abstractmethod
    def target(self, schema: SqlSchema, workers: int) -> Target[Any]:
        """Opens the database as a target."""

    @contextmanager
    def opened(self, workers: int) -> Iterator[Target[Any]]:
        drop = f"DROP DATABASE IF EXISTS {DATABASE}{self.force}"
        with statements(self.connect()) as run:
            for statement in (drop, f"CREATE DATABASE {DATABASE}", self.ready):
                run(statement)
            try:
                with statements(self.connect(DATABASE)) as inside:
                    for table in self.tables:
                        inside(f"CREATE TABLE {table} ({self.columns})")
                with closing(self.target(self._schema, max(workers, 1))) as target:
                    yield target
            finally:
                run(drop)

    def rows(self, target: Any) -> Rows:
        with statements(self.connect(DATABASE)) as run:
            return {
                f"{name}/{key}".encode(): value.encode()
                for table, name in self._full_names.items()
                for key, value in run(f"SELECT id, value FROM {table}")
            }


class PostgreSql(SqlServer):
    """A database of a PostgreSQL server, with `synchronous_commit` on."""

    columns = "id int PRIMARY KEY, value text"
    force = " WITH (FORCE)"
    ready = "CHECKPOINT"

    def __init__(self, server: PostgreSqlServer, tables: Sequence[str]) -> None:
        self._server = server
        super().__init__(tables, server.pid)

    def connect(self, database: str = "postgres") -> Any:
        return psycopg.connect(self._server.dsn_of(database), autocommit=True)

    def target(self, schema: SqlSchema, workers: int) -> Target[Any]:
        dsn = self._server.dsn_of(DATABASE)
        return postgresql.open_target(dsn, schema, decode_changes, replica=REPLICA, workers=workers)


class MariaDb(SqlServer):
    """A database of a MariaDB server, with `innodb_flush_log_at_trx_commit` 1."""

    def __init__(self, server: MariaDbServer, tables: Sequence[str]) -> None:
        self._server = server
        super().__init__(tables, server.pid)

    def connect(self, database: str = "") -> Any:
        return connect_mariadb(self._server.url_of(database))

    def target(self, schema: SqlSchema, workers: int) -> Target[Any]:
        url = self._server.url_of(DATABASE)
        return mysql.open_target(url, schema, decode_changes, replica=REPLICA, workers=workers)


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


def table_name(table: str) -> str:
    """Returns the name of a table without its database."""
    return table.partition(".")[2]
