"""MariaDB's own parallel replica, measured over the same stream: the mark to compare with.

The rule it keeps: the replica is as durable as the server that the applier's benchmark applies to:
the same settings, no binary log of its own. Its source takes the stream's rows from as many
sessions as the simulated one had, so that its group commits are real ones. For each run the replica
first fetches everything, then the clock runs while it executes that.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

import pymysql

from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.members.wire.row_changes import decode_changes
from tests.bench.harness import Clock, Document
from tests.bench.targets import MARIADB_COLUMNS, Statements, rates, statements
from tests.integration.waiting import wait_for
from tests.servers import MariaDbServer, connect_mariadb, mariadb_server

MODES = ("conservative", "optimistic")
CATCH_UP_SECONDS_MAX = 600
DEADLOCK = 1213


class MariaDbReplica:
    """A source and a replica on loopback, in a folder; to be entered."""

    def __init__(self, folder: Path, tables: Sequence[str], sessions: int) -> None:
        self._folder, self._tables, self._sessions = folder, tables, sessions
        self._stack = ExitStack()
        self._transactions = 0
        self._empty_position = self._position = ""
        self.version = ""

    def __enter__(self) -> Self:
        binary_log = ("--log-bin=binlog", "--server-id=1", "--binlog-format=ROW", "--sync-binlog=1")
        with ExitStack() as stack:
            source = mariadb_server(self._folder / "source", *binary_log)
            self._source = stack.enter_context(source)
            replica = mariadb_server(self._folder / "replica", "--server-id=2")
            self._replica = stack.enter_context(replica)
            with _at(self._replica) as run:
                self.version = str(run("SELECT version()")[0][0])
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def load(self, entries: Sequence[RelayEntry]) -> None:
        """Commits the stream at the source, from all sessions, and connects the replica."""
        self._transactions = len(entries)
        for server in (self._source, self._replica):
            with _at(server) as run:
                for database in sorted({table.partition(".")[0] for table in self._tables}):
                    run(f"CREATE DATABASE {database}")
                for table in self._tables:
                    run(f"CREATE TABLE {table} ({MARIADB_COLUMNS})")
        with _at(self._source) as run:
            run("CREATE USER replica@'127.0.0.1'")
            run("GRANT REPLICATION SLAVE ON *.* TO replica@'127.0.0.1'")
            self._empty_position = _binlog_position(run)
            _commit_all(self._source, entries, self._sessions)
            self._position = _binlog_position(run)
        with _at(self._replica) as run:
            run(
                f"CHANGE MASTER TO master_host='127.0.0.1', master_port={self._source.port},"
                " master_user='replica', master_use_gtid=slave_pos"
            )

    def measure(self, mode: str, workers: int) -> Document:
        """Has the replica execute everything, with so many threads; returns what a line has."""
        with _at(self._replica) as run:
            run("STOP SLAVE")
            for table in self._tables:
                run(f"TRUNCATE {table}")
            run(f"SET GLOBAL gtid_slave_pos='{self._empty_position}'")
            run(f"SET GLOBAL slave_parallel_threads={workers}")
            run(f"SET GLOBAL slave_parallel_mode='{mode}'")
            self._fetch(run)
            retried = _retried(run)
            clock = Clock(server=[self._replica.pid])
            run("START SLAVE SQL_THREAD")
            wait = f"SELECT MASTER_GTID_WAIT('{self._position}', {CATCH_UP_SECONDS_MAX})"
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

    def _fetch(self, run: Statements) -> None:
        """Returns when the replica has everything in its relay log."""
        run("START SLAVE IO_THREAD")
        wait_for(
            "the replica has the binary log",
            lambda: _fetched_position(self._replica) == self._position,
            CATCH_UP_SECONDS_MAX,
        )

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
