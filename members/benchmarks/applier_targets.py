"""What `groupcert bench applier` applies to: each time a new, empty target of one kind.

The rule it keeps: commits are as durable as a replica's are, and the rows are read back by other
means than the target that wrote them, where there are any.
"""

import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from groupcert.applier.engine.coordinator import CoordinatorOptions
from groupcert.applier.queue.checkpoint import Checkpoint, Progress
from groupcert.applier.queue.job import CommitGroup, Job
from groupcert.applier.targets import Target
from groupcert.applier.targets.sql_schema import SqlSchema
from groupcert.members.wire.row_changes import decode_changes

DATABASE = "groupcert_bench"
"""On an SQL server; dropped before and after."""
REPLICA = "bench"

Rows = dict[bytes, bytes]


class BenchTarget(ABC):
    """One kind of target.

    `alone_transactions_max`: how many transactions a replica without workers commits as one there.
    `pid`: of its server, if there is one on this machine.
    """

    name = ""
    alone_transactions_max = 1
    pid: int | None = None

    @abstractmethod
    def opened(self, workers: int) -> AbstractContextManager[Target[Any]]:
        """Opens a new and empty one."""

    @abstractmethod
    def rows(self, target: Any) -> Rows:
        """Returns what is in the one that is open."""

    def version(self) -> str:
        """Returns what its server says it is; empty if there is none."""
        return ""

    def server_cpu_seconds(self) -> float | None:
        """Returns the processor time of the server's processes; None if they are not here."""
        return cpu_seconds(self.pid)


class RocksDb(BenchTarget):
    """The embedded target in a folder of its own, flushed in the background as a replica's is."""

    name = "rocksdb"
    alone_transactions_max = CoordinatorOptions().group_transactions_max

    @contextmanager
    def opened(self, workers: int) -> Iterator[Target[Any]]:
        from groupcert.members.replica.targets import EmbeddedTarget

        with (
            tempfile.TemporaryDirectory(prefix="groupcert-bench-") as folder,
            closing(EmbeddedTarget(Path(folder) / "store", REPLICA)) as target,
        ):
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
    away. A worker's session asks for its commit as soon as it has executed, which takes no time;
    `commit_ms` later the server has it safe, however many others it makes safe meanwhile. It then
    becomes visible, in the order that `commit` is called in. So a session is occupied for
    `commit_ms` a transaction at least, and no target can do `workers / commit_ms` or more.
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

    name = "slow"

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
    """

    columns = ""
    force = ""
    ready = "SELECT 1"

    def __init__(self, address: str, tables: Sequence[str], pid: int | None = None) -> None:
        """Connects to `address`, which names no database."""
        self.address, self.tables, self.pid = address.rstrip("/"), tables, pid

    @abstractmethod
    def session(self, database: str = "") -> AbstractContextManager[Any]:
        """Yields a function that runs a statement and returns its rows."""

    @abstractmethod
    def target(self, schema: SqlSchema, workers: int) -> Target[Any]:
        """Opens the database as a target."""

    @contextmanager
    def opened(self, workers: int) -> Iterator[Target[Any]]:
        drop = f"DROP DATABASE IF EXISTS {DATABASE}{self.force}"
        with self.session() as run:
            run(drop)
            run(f"CREATE DATABASE {DATABASE}")
            run(self.ready)
            try:
                with self.session(DATABASE) as inside:
                    for table in self.tables:
                        inside(f"CREATE TABLE {_table_name(table)} ({self.columns})")
                with closing(self.target(_schema(self.tables), max(workers, 1))) as target:
                    yield target
            finally:
                run(drop)

    def rows(self, target: Any) -> Rows:
        with self.session(DATABASE) as run:
            return {
                f"{table}/{key}".encode(): value.encode()
                for table in self.tables
                for key, value in run(f"SELECT id, value FROM {_table_name(table)}")
            }

    def version(self) -> str:
        with self.session() as run:
            return str(run("SELECT version()")[0][0])


class PostgreSql(SqlServer):
    """A database of a PostgreSQL server, with `synchronous_commit` on."""

    name = "postgresql"
    columns = "id int PRIMARY KEY, value text"
    force = " WITH (FORCE)"
    ready = "CHECKPOINT"

    @contextmanager
    def session(self, database: str = "") -> Iterator[Any]:
        import psycopg

        address = self.address
        if database:
            address = psycopg.conninfo.make_conninfo(address, dbname=database)
        with psycopg.connect(address, autocommit=True) as session:

            def run(statement: str) -> Sequence[tuple[Any, ...]]:
                found = session.execute(statement)
                return found.fetchall() if found.description else []

            yield run

    def target(self, schema: SqlSchema, workers: int) -> Target[Any]:
        import psycopg

        from groupcert.applier.targets.postgresql import open_target

        dsn = psycopg.conninfo.make_conninfo(self.address, dbname=DATABASE)
        return open_target(dsn, schema, decode_changes, replica=REPLICA, workers=workers)


class MariaDb(SqlServer):
    """A database of a MariaDB server, with `innodb_flush_log_at_trx_commit` 1."""

    name = "mariadb"
    columns = "id INT PRIMARY KEY, value VARCHAR(255) CHARACTER SET utf8mb4"

    def session(self, database: str = "") -> AbstractContextManager[Any]:
        return mariadb_session(f"{self.address}/{database}")

    def target(self, schema: SqlSchema, workers: int) -> Target[Any]:
        from groupcert.applier.targets.mysql import open_target

        url = f"{self.address}/{DATABASE}"
        return open_target(url, schema, decode_changes, replica=REPLICA, workers=workers)


@contextmanager
def mariadb_session(url: str) -> Iterator[Any]:
    """Returns a function that runs a statement and returns its rows."""
    from groupcert.members.host.database_servers import connect_mariadb

    with closing(connect_mariadb(url)) as session, session.cursor() as cursor:

        def run(statement: str) -> Sequence[tuple[Any, ...]]:
            cursor.execute(statement)
            return cursor.fetchall()

        yield run


def cpu_seconds(pid: int | None) -> float | None:
    """Returns the processor time of a process and of its children, ended ones included."""
    if pid is None:
        return None
    root = psutil.Process(pid)
    total = sum(root.cpu_times()[:4])
    for child in root.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return float(total)


def _schema(tables: Sequence[str]) -> SqlSchema:
    """Makes each table of the stream a table of the current database."""
    return SqlSchema.parse(
        "\n".join(
            f'[tables."{table}"]\ntable = "{_table_name(table)}"\n'
            'key = { id = "integer" }\nvalue = { value = "text" }'
            for table in tables
        )
    )


def _table_name(table: str) -> str:
    return table.partition(".")[2]
