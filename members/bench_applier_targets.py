"""What `groupcert bench applier` applies to: each time a new, empty target of one kind.

The rule it keeps: commits are as durable as a replica's are, and the rows are read back by other
means than the target that wrote them, where there are any.
"""

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import psutil

from applier.checkpoint import Checkpoint, Progress
from applier.coordinator import CoordinatorOptions
from applier.job import CommitGroup, Job
from applier.targets import Target
from applier.targets.sql_schema import SqlSchema
from members.convert import decode_changes

DATABASE = "groupcert_bench"
"""On an SQL server; dropped before and after."""
REPLICA = "bench"

Rows = dict[bytes, bytes]


class BenchTarget(Protocol):
    """One kind of target.

    `alone_transactions_max`: how many transactions a replica without workers commits as one there.
    """

    name: str
    alone_transactions_max: int

    def opened(self, workers: int) -> AbstractContextManager[Target[Any]]:
        """A new and empty one."""
        ...

    def rows(self, target: Target[Any]) -> Rows:
        """What is in the one that is open."""
        ...

    def server_cpu_seconds(self) -> float | None:
        """Processor time of the server's processes; None if there is none, or it is elsewhere."""
        ...


class RocksDb:
    """The embedded target in a folder of its own, flushed in the background as a replica's is."""

    name = "rocksdb"
    alone_transactions_max = CoordinatorOptions().group_transactions_max

    @contextmanager
    def opened(self, workers: int) -> Iterator[Target[Any]]:
        """`BenchTarget.opened`."""
        from members.replica_target import EmbeddedTarget

        with (
            tempfile.TemporaryDirectory(prefix="groupcert-bench-") as folder,
            closing(EmbeddedTarget(Path(folder) / "store", REPLICA)) as target,
        ):
            yield target

    def rows(self, target: Any) -> Rows:
        """From a snapshot."""
        return dict(target.open_snapshot().scan())

    def server_cpu_seconds(self) -> float | None:
        """There is no server."""
        return None


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
        """What is visible."""
        return {key: value for key, (value, _) in self._rows.items()}

    def abandon(self, job: Job[SlowExecution]) -> None:
        """Nothing: it is not visible."""

    def checkpoint(self) -> Checkpoint | None:
        """It is new."""
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        """Nothing: it is never opened again."""

    def close(self) -> None:
        """Nothing."""


class Slow:
    """`SlowTarget`."""

    name = "slow"
    alone_transactions_max = 1

    def __init__(self, commit_ms: float) -> None:
        self._commit_ms = commit_ms

    @contextmanager
    def opened(self, workers: int) -> Iterator[Target[Any]]:
        """`BenchTarget.opened`."""
        yield SlowTarget(self._commit_ms)

    def rows(self, target: Any) -> Rows:
        """What is visible."""
        return dict(target.rows())

    def server_cpu_seconds(self) -> float | None:
        """There is no server."""
        return None


class PostgreSql:
    """A database of a PostgreSQL server, with `synchronous_commit` on."""

    name = "postgresql"
    alone_transactions_max = 1

    def __init__(self, dsn: str, tables: Sequence[str], pid: int | None = None) -> None:
        """`pid`: of the server, if it is on this machine."""
        self._dsn, self._tables, self._pid = dsn, tables, pid

    @contextmanager
    def opened(self, workers: int) -> Iterator[Target[Any]]:
        """`BenchTarget.opened`."""
        import psycopg

        from applier.targets.postgresql import open_target

        drop = f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)"
        with psycopg.connect(self._dsn, autocommit=True) as session:
            session.execute(drop)
            session.execute(f"CREATE DATABASE {DATABASE}")
            session.execute("CHECKPOINT")
            try:
                with psycopg.connect(self._dsn, dbname=DATABASE, autocommit=True) as inside:
                    for name in self._names():
                        inside.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, value text)")
                dsn = psycopg.conninfo.make_conninfo(self._dsn, dbname=DATABASE)
                with closing(
                    open_target(
                        dsn,
                        _schema(self._tables),
                        decode_changes,
                        replica=REPLICA,
                        workers=max(workers, 1),
                    )
                ) as target:
                    yield target
            finally:
                session.execute(drop)

    def rows(self, target: Any) -> Rows:
        """In a session of its own."""
        import psycopg

        with psycopg.connect(self._dsn, dbname=DATABASE) as session:
            found = [
                (table, session.execute(f"SELECT id, value FROM {name}").fetchall())
                for table, name in zip(self._tables, self._names(), strict=True)
            ]
        return _rows_of(found)

    def server_cpu_seconds(self) -> float | None:
        """Of all its processes."""
        return cpu_seconds(self._pid)

    def version(self) -> str:
        """What the server says it is."""
        import psycopg

        with psycopg.connect(self._dsn) as session:
            return str(session.execute("SELECT version()").fetchall()[0][0])

    def _names(self) -> Iterator[str]:
        return map(_table_name, self._tables)


class MariaDb:
    """A database of a MariaDB server, with `innodb_flush_log_at_trx_commit` 1."""

    name = "mariadb"
    alone_transactions_max = 1

    def __init__(self, url: str, tables: Sequence[str], pid: int | None = None) -> None:
        """`url`: without a database. `pid`: of the server, if it is on this machine."""
        self._url, self._tables, self._pid = url.rstrip("/"), tables, pid

    @contextmanager
    def opened(self, workers: int) -> Iterator[Target[Any]]:
        """`BenchTarget.opened`."""
        from applier.targets.mysql import open_target

        drop = f"DROP DATABASE IF EXISTS {DATABASE}"
        with mariadb_session(self._url) as run:
            run(drop)
            run(f"CREATE DATABASE {DATABASE}")
            try:
                for name in map(_table_name, self._tables):
                    run(mariadb_table(DATABASE, name))
                with closing(
                    open_target(
                        f"{self._url}/{DATABASE}",
                        _schema(self._tables),
                        decode_changes,
                        replica=REPLICA,
                        workers=max(workers, 1),
                    )
                ) as target:
                    yield target
            finally:
                run(drop)

    def rows(self, target: Any) -> Rows:
        """In a session of its own."""
        with mariadb_session(self._url) as run:
            found = [
                (table, run(f"SELECT id, value FROM {DATABASE}.{_table_name(table)}"))
                for table in self._tables
            ]
        return _rows_of(found)

    def server_cpu_seconds(self) -> float | None:
        """Of its process."""
        return cpu_seconds(self._pid)

    def version(self) -> str:
        """What the server says it is."""
        with mariadb_session(self._url) as run:
            return str(run("SELECT version()")[0][0])


def mariadb_table(database: str, name: str) -> str:
    """Makes a table of the stream."""
    columns = "id INT PRIMARY KEY, value VARCHAR(255) CHARACTER SET utf8mb4"
    return f"CREATE TABLE {database}.{name} ({columns}) ENGINE=InnoDB"


@contextmanager
def mariadb_session(url: str) -> Iterator[Any]:
    """A function that runs a statement and returns its rows."""
    from members.database_servers import connect_mariadb

    with closing(connect_mariadb(url)) as session, session.cursor() as cursor:

        def run(statement: str) -> Sequence[tuple[Any, ...]]:
            cursor.execute(statement)
            return cursor.fetchall()

        yield run


def cpu_seconds(pid: int | None) -> float | None:
    """Processor time of a process and of its children, those that have ended among them."""
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
    """Each table of the stream as a table of the current database."""
    return SqlSchema.parse(
        "\n".join(
            f'[tables."{table}"]\ntable = "{_table_name(table)}"\n'
            'key = { id = "integer" }\nvalue = { value = "text" }'
            for table in tables
        )
    )


def _table_name(table: str) -> str:
    return table.partition(".")[2]


def _rows_of(found: Sequence[tuple[str, Sequence[tuple[Any, ...]]]]) -> Rows:
    return {
        f"{table}/{key}".encode(): value.encode() for table, rows in found for key, value in rows
    }
