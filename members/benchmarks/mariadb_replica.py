"""MariaDB's own parallel replica, measured over the same stream: the mark to compare with.

The rule it keeps: the replica is as durable as the server that `groupcert bench applier` applies
to: the same settings, no binary log of its own. Its source takes the stream's rows from as many
sessions as the simulated one had, so that its group commits are real ones. For each run the replica
first fetches everything, then the clock runs while it executes that.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.members.benchmarks.applier_run import Clocks, Run
from groupcert.members.benchmarks.applier_targets import MariaDb, cpu_seconds, mariadb_session
from groupcert.members.host.database_servers import (
    MariaDbServer,
    connect_mariadb,
    mariadb_server,
)
from groupcert.members.wire.row_changes import decode_changes

MODES = ("conservative", "optimistic")
CATCH_UP_SECONDS_MAX = 600
_POLL_SECONDS = 0.05
_DEADLOCK = 1213


class MariaDbReplica:
    """A source and a replica on loopback, in a folder; to be entered."""

    name = "mariadb replica"

    def __init__(self, folder: Path, tables: Sequence[str], sessions: int) -> None:
        self._folder = folder
        self._tables = [table.split(".") for table in tables]
        self._sessions = sessions
        self._stack = ExitStack()
        self._transactions = 0
        self._empty_position = self._position = ""

    def __enter__(self) -> Self:
        binary_log = ("--log-bin=binlog", "--server-id=1", "--binlog-format=ROW", "--sync-binlog=1")
        with ExitStack() as stack:
            source = mariadb_server(self._folder / "source", *binary_log)
            replica = mariadb_server(self._folder / "replica", "--server-id=2")
            self._source = stack.enter_context(source)
            self._replica = stack.enter_context(replica)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def version(self) -> str:
        """Returns the version that the servers report."""
        with mariadb_session(self._replica.url) as run:
            return str(run("SELECT version()")[0][0])

    def load(self, entries: Sequence[RelayEntry]) -> None:
        """Commits the stream at the source, from all sessions, and connects the replica."""
        self._transactions = len(entries)
        databases = sorted({database for database, _ in self._tables})
        for server in (self._source, self._replica):
            with mariadb_session(server.url) as run:
                for database in databases:
                    run(f"CREATE DATABASE {database}")
                for database, table in self._tables:
                    run(f"CREATE TABLE {database}.{table} ({MariaDb.columns})")
        with mariadb_session(self._source.url) as run:
            run("CREATE USER replica@'127.0.0.1'")
            run("GRANT REPLICATION SLAVE ON *.* TO replica@'127.0.0.1'")
            self._empty_position = self._binlog_position(run)
        _commit_all(self._source, entries, self._sessions)
        with mariadb_session(self._source.url) as run:
            self._position = self._binlog_position(run)
        with mariadb_session(self._replica.url) as run:
            run(
                f"CHANGE MASTER TO master_host='127.0.0.1', master_port={self._source.port},"
                " master_user='replica', master_use_gtid=slave_pos"
            )

    def measure(self, mode: str, workers: int) -> Run:
        """Has the replica execute everything, with so many threads."""
        with mariadb_session(self._replica.url) as run:
            run("STOP SLAVE")
            for database, table in self._tables:
                run(f"TRUNCATE {database}.{table}")
            run(f"SET GLOBAL gtid_slave_pos='{self._empty_position}'")
            run(f"SET GLOBAL slave_parallel_threads={workers}")
            run(f"SET GLOBAL slave_parallel_mode='{mode}'")
            self._fetch(run)
            retried = _status(run, "Slave_retried_transactions")
            before = Clocks.read(cpu_seconds(self._replica.pid))
            run("START SLAVE SQL_THREAD")
            ((waited,),) = run(
                f"SELECT MASTER_GTID_WAIT('{self._position}', {CATCH_UP_SECONDS_MAX})"
            )
            ended = Clocks.read(cpu_seconds(self._replica.pid))
            assert waited == 0, "the replica did not catch up"
            retries = _status(run, "Slave_retried_transactions") - retried
        is_correct = self._rows(self._source) == self._rows(self._replica)
        return ended.run(before, self._transactions, is_correct=is_correct, retries=retries)

    def _fetch(self, run: Any) -> None:
        """Returns when the replica has everything in its relay log."""
        run("START SLAVE IO_THREAD")
        deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
        while _fetched_position(self._replica) != self._position:
            assert time.monotonic() < deadline, "the replica did not fetch the binary log"
            time.sleep(_POLL_SECONDS)

    def _binlog_position(self, run: Any) -> str:
        return str(run("SELECT @@gtid_binlog_pos")[0][0])

    def _rows(self, server: MariaDbServer) -> list[Sequence[tuple[Any, ...]]]:
        with mariadb_session(server.url) as run:
            return [
                run(f"SELECT id, value FROM {database}.{table} ORDER BY id")
                for database, table in self._tables
            ]


def _commit_all(server: MariaDbServer, entries: Sequence[RelayEntry], sessions: int) -> None:
    """Commits each entry in whichever session is free, and again where the server says so."""
    import pymysql

    left: SimpleQueue[RelayEntry] = SimpleQueue()
    for entry in entries:
        left.put(entry)
    errors: list[Exception] = []

    def commit(run: Any, entry: RelayEntry) -> None:
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
                if error.args[0] != _DEADLOCK:
                    raise

    def work() -> None:
        try:
            with mariadb_session(server.url) as run:
                while not errors:
                    commit(run, left.get_nowait())
        except Empty:
            return
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _fetched_position(server: MariaDbServer) -> str:
    """Returns up to where the replica has the source's binary log."""
    import pymysql

    session = connect_mariadb(server.url)
    with closing(session), session.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute("SHOW SLAVE STATUS")
        return str(cursor.fetchall()[0]["Gtid_IO_Pos"])


def _status(run: Any, name: str) -> int:
    return int(run(f"SHOW GLOBAL STATUS LIKE '{name}'")[0][1])
