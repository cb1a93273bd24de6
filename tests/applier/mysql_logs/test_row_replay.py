"""Events of a server's own log, executed by BINLOG in another database of it, leave equal rows: all
types at their extremes, images without what did not change, compressed events.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pymysql
import pytest

from groupcert.applier.mysql_logs.row_payload import packed
from groupcert.applier.mysql_logs.row_replay import RowReplay, format_statement, replay_statement
from groupcert.applier.mysql_logs.source_catalogue import SourceTable
from tests import servers
from tests.applier.mysql_logs.column_samples import MARIADB, SHARED
from tests.applier.mysql_logs.logged_rows import (
    Session,
    catalogue_of,
    execute,
    logged,
    logged_events,
    payload_of,
    plain_session,
)
from tests.applier.mysql_logs.written_samples import create_tables

pytestmark = pytest.mark.database
LOGS = Path(__file__).parents[2] / "data" / "server-logs"
SAMPLES = SHARED | MARIADB
NO_SUCH_ROW = 1032


class Replayed(NamedTuple):
    """A server: a session that writes in its database `shop`, one that replays in `copy`, and the
    folder of its logs.
    """

    session: Session
    copy: Session
    folder: Path

    def log_of(self, *work: str) -> Path:
        """The log of statements."""
        return logged(self.session, self.folder, lambda: execute(self.session, *work))

    def replay(self, path: Path, catalogue: dict[str, SourceTable] | None = None) -> None:
        """Executes a log's rows in `copy`."""
        events = self.replay_of(catalogue).events(payload_of(path))
        assert events is not None
        execute(self.copy, replay_statement(events))

    def replay_of(self, catalogue: dict[str, SourceTable] | None = None) -> RowReplay:
        """What replays into tables of the same names."""
        tables = catalogue or catalogue_of(self.session, "shop")
        return RowReplay(tables, {name: ("copy", each.name) for name, each in tables.items()})

    def rows(self, database: str, table: str = "t") -> list[tuple[object, ...]]:
        """The rows of a table."""
        return execute(self.session, f"SELECT * FROM {database}.{table} ORDER BY 1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.MariaDbServer]:
    """A MariaDB that logs rows."""
    options = ("--log-bin=binlog", "--server-id=3", "--binlog-format=ROW")
    folder = tmp_path_factory.mktemp("replay")
    with servers.where_installed(), servers.MariaDbServer(folder, *options) as running:
        yield running


@pytest.fixture
def databases(server: servers.MariaDbServer) -> Iterator[Replayed]:
    """The server, with two empty databases."""
    with plain_session(server.port, "shop") as session, plain_session(server.port, "copy") as copy:
        execute(copy, format_statement())
        yield Replayed(session, copy, server.data)
        execute(session, "DROP DATABASE shop", "DROP DATABASE copy")


@pytest.mark.parametrize("image", ["FULL", "MINIMAL", "NOBLOB"])
def test_rows_of_all_types_are_those_of_the_source(databases: Replayed, image: str) -> None:
    session = databases.session
    create_tables(session, SAMPLES)
    for name in SAMPLES:
        execute(session, f"CREATE TABLE copy.{name} LIKE shop.{name}")
    execute(
        session,
        f"SET binlog_row_image = {image}",
        f"SET GLOBAL log_bin_compress = {'ON' if image == 'FULL' else 'OFF'}",
        "SET GLOBAL log_bin_compress_min_len = 10",
    )
    writes: list[str] = []
    for name, sample in SAMPLES.items():
        values = ", ".join(f"({number}, {each})" for number, each in enumerate(sample.values, 1))
        writes.append(f"INSERT INTO {name} VALUES {values}")
        for number, value in enumerate((*sample.values[1:], sample.values[0]), 1):
            writes.append(f"UPDATE {name} SET v = {value} WHERE id = {number}")
    catalogue = catalogue_of(session, "shop")
    databases.replay(databases.log_of(*writes), catalogue)
    for name in SAMPLES:
        rows = databases.rows("copy", name)
        assert rows and rows == databases.rows("shop", name), name
    databases.replay(databases.log_of(*(f"DELETE FROM {name}" for name in SAMPLES)), catalogue)
    assert not any(databases.rows("copy", name) for name in SAMPLES)


def test_a_statement_ends_without_the_rows_of_another_database(databases: Replayed) -> None:
    execute(
        databases.session,
        "CREATE DATABASE aside",
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE copy.t LIKE t",
        "CREATE TABLE aside.t LIKE t",
    )
    path = databases.log_of(
        "INSERT INTO t VALUES (1, 1), (2, 2)",
        "INSERT INTO aside.t VALUES (1, 1), (2, 2)",
        "UPDATE t JOIN aside.t AS other USING (id) SET t.v = 7, other.v = 8",
        "INSERT INTO t VALUES (3, 3)",
    )
    execute(databases.session, "DROP DATABASE aside")
    # As a reader leaves them out: maps and rows of a table, by the id that both have.
    ours = {event.body[:6] for event, _ in logged_events(path) if b"\4shop\0" in event.body}
    payload = b"".join(packed(*each) for each in logged_events(path) if each[0].body[:6] in ours)
    events = databases.replay_of().events(payload)
    assert events is not None
    execute(databases.copy, replay_statement(events))
    assert databases.rows("copy") == databases.rows("shop")
    # A table that were still open could not be changed.
    execute(databases.copy, "ALTER TABLE copy.t ADD COLUMN w INT")


def test_a_row_that_is_not_there_is_refused_and_nothing_of_it_stays(databases: Replayed) -> None:
    execute(
        databases.session,
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        "INSERT INTO t VALUES (1, 1)",
        "CREATE TABLE copy.t LIKE t",
    )
    path = databases.log_of(
        "BEGIN", "INSERT INTO t VALUES (2, 2)", "UPDATE t SET v = 9 WHERE id = 1", "COMMIT"
    )
    execute(databases.copy, "BEGIN")
    with pytest.raises(pymysql.err.MySQLError, check=lambda error: error.args[0] == NO_SUCH_ROW):
        databases.replay(path)
    execute(databases.copy, "ROLLBACK")
    assert not databases.rows("copy")
    execute(databases.copy, "INSERT INTO copy.t VALUES (1, 1)", "BEGIN")
    databases.replay(path)
    execute(databases.copy, "COMMIT")
    assert databases.rows("copy") == databases.rows("shop")


@pytest.mark.parametrize(
    "alter",
    ["ADD COLUMN w INT", "MODIFY v BIGINT", "DROP COLUMN v", "RENAME TO gone"],
)
def test_a_table_that_is_another_one_now_is_not_replayed(databases: Replayed, alter: str) -> None:
    execute(databases.session, "CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    path = databases.log_of("INSERT INTO t VALUES (1, 1)")
    execute(databases.session, f"ALTER TABLE t {alter}")
    assert databases.replay_of().events(payload_of(path)) is None


def test_a_column_that_is_not_shown_is_not_replayed(databases: Replayed) -> None:
    execute(databases.session, "CREATE TABLE t (id INT PRIMARY KEY, v TEXT UNIQUE)")
    path = databases.log_of("INSERT INTO t VALUES (1, 'a')")
    assert databases.replay_of().events(payload_of(path)) is None


def test_a_log_of_mysql_is_not_replayed(tmp_path: Path) -> None:
    path = tmp_path / "binlog"
    path.write_bytes(gzip.decompress((LOGS / "mysql-9-values-full-image.binlog.gz").read_bytes()))
    assert RowReplay({}, {}).events(payload_of(path)) is None
