"""MariaDB's own parallel replica, measured over the same stream: the mark to compare with.

The rule it keeps: the replica is as durable as the server that the applier's benchmark applies to:
the same settings, no binary log of its own. Its source takes the stream's rows from as many
sessions as the simulated one had, so that its group commits are real ones. For each run the replica
first fetches everything, then the clock runs while it executes that.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pymysql

from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.members.wire.row_changes import decode_changes
from tests.bench.harness import Clock, Document
from tests.bench.targets import MARIADB_COLUMNS, Statements, rates, statements
from tests.integration.waiting import wait_for
from tests.servers import MariaDbServer, connect_mariadb

MODES = ("conservative", "optimistic")
CATCH_UP_SECONDS_MAX = 600
DEADLOCK = 1213


@contextmanager
def mariadb_replica(
    folder: Path, entries: Sequence[RelayEntry], tables: Sequence[str], sessions: int
) -> Iterator["MariaDbReplica"]:
    """Starts a source that has the stream, and a replica of it, on loopback in a folder."""
    binary_log = ("--log-bin=binlog", "--server-id=1", "--binlog-format=ROW", "--sync-binlog=1")
    with (
        MariaDbServer(folder / "source", *binary_log) as source,
        MariaDbServer(folder / "replica", "--server-id=2") as replica,
    ):
        for server in (source, replica):
            with _at(server) as run:
                for database in sorted({table.partition(".")[0] for table in tables}):
                    run(f"CREATE DATABASE {database}")
                for table in tables:
                    run(f"CREATE TABLE {table} ({MARIADB_COLUMNS})")
        with _at(source) as run:
            run("CREATE USER replica@'127.0.0.1'")
            run("GRANT REPLICATION SLAVE ON *.* TO replica@'127.0.0.1'")
            empty_position = _binlog_position(run)
            _commit_all(source, entries, sessions)
            position = _binlog_position(run)
        with _at(replica) as run:
            run(
                f"CHANGE MASTER TO master_host='127.0.0.1', master_port={source.port},"
                " master_user='replica', master_use_gtid=slave_pos"
            )
            version = str(run("SELECT version()")[0][0])
        positions = empty_position, position
        yield MariaDbReplica(source, replica, tables, len(entries), positions, version)


@dataclass(frozen=True, slots=True)
class MariaDbReplica:
    """Both servers. `_positions`: the source's before the stream, and after it."""

    _source: MariaDbServer
    _replica: MariaDbServer
    _tables: Sequence[str]
    _transactions: int
    _positions: tuple[str, str]
    version: str

    def measure(self, mode: str, workers: int) -> Document:
        """Has the replica execute everything, with so many threads; returns what a line has."""
        empty_position, position = self._positions
        with _at(self._replica) as run:
            run("STOP SLAVE")
            for table in self._tables:
                run(f"TRUNCATE {table}")
            run(f"SET GLOBAL gtid_slave_pos='{empty_position}'")
            run(f"SET GLOBAL slave_parallel_threads={workers}")
            run(f"SET GLOBAL slave_parallel_mode='{mode}'")
            run("START SLAVE IO_THREAD")
            wait_for(
                "the replica has the binary log",
                lambda: _fetched_position(self._replica) == position,
                CATCH_UP_SECONDS_MAX,
            )
            retried = _retried(run)
            clock = Clock(server=[self._replica.pid])
            run("START SLAVE SQL_THREAD")
            wait = f"SELECT MASTER_GTID_WAIT('{position}', {CATCH_UP_SECONDS_MAX})"
            assert run(wait) == [(0,)], "the replica did not catch up"
            spent = clock.spent()
            retries = _retried(run) - retried
        return {
            **rates(spent, self._transactions),
            "is_correct": self._rows(self._source) == self._rows(self._replica),
            "commit_group_mean": None,
            "retries": retries,
            "parallelism_mean": None,
            "bound_share": None,
        }

    def _rows(self, server: MariaDbServer) -> list[Sequence[tuple[Any, ...]]]:
        with _at(server) as run:
            return [run(f"SELECT id, value FROM {table} ORDER BY id") for table in self._tables]


def _commit_all(server: MariaDbServer, entries: Sequence[RelayEntry], sessions: int) -> None:
    """Commits each entry in whichever session is free, and again where the server says so."""
    remaining: SimpleQueue[RelayEntry] = SimpleQueue()
    for entry in entries:
        remaining.put(entry)

    def commit(run: Statements, entry: RelayEntry) -> None:
        (row,), (value,), _ = decode_changes(entry.payload)
        table, _, key = row.decode().partition("/")
        upsert = (
            f"INSERT INTO {table} VALUES ({int(key)}, '{value.decode()}')"
            " ON DUPLICATE KEY UPDATE value = VALUES(value)"
        )
        while True:
            try:
                run(upsert)
                return
            except pymysql.err.OperationalError as error:
                if error.args[0] != DEADLOCK:
                    raise

    def work(_: int) -> None:
        with _at(server) as run:
            while True:
                try:
                    entry = remaining.get_nowait()
                except Empty:
                    return
                commit(run, entry)

    with ThreadPoolExecutor(sessions) as threads:
        list(threads.map(work, range(sessions)))


def _at(server: MariaDbServer) -> Any:
    return statements(connect_mariadb(server.url))


def _binlog_position(run: Statements) -> str:
    return str(run("SELECT @@gtid_binlog_pos")[0][0])


def _fetched_position(server: MariaDbServer) -> str:
    """Returns up to where the replica has the source's binary log."""
    session = connect_mariadb(server.url)
    with closing(session), session.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute("SHOW SLAVE STATUS")
        return str(cursor.fetchall()[0]["Gtid_IO_Pos"])


def _retried(run: Statements) -> int:
    return int(run("SHOW GLOBAL STATUS LIKE 'Slave_retried_transactions'")[0][1])
