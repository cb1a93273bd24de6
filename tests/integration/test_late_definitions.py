"""A replica that comes late: its source has executed definitions since that are behind rows in the
log, of which the log does not say what they were (binlog_row_metadata=NO_LOG, MariaDB's default).

A target that executes definitions has the tables where the log is; others keep what they were.
"""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.storage.store import Family
from tests.integration.followed_targets import BINARY_LOG, EmbeddedStore
from tests.integration.replicas import ReplicaProcess
from tests.integration.test_server_replica import ALONE, FINE, executed
from tests.servers import MariaDbServer, where_installed

pytestmark = pytest.mark.database
Rows = tuple[tuple[object, ...], ...]
CHANGES = {
    "labels": ("v ENUM('a','b')", "MODIFY v ENUM('b','a')", "'a'"),
    "members of a set": ("v SET('a','b')", "MODIFY v SET('b','a')", "'a'"),
    "wider characters": (
        "v VARCHAR(9) CHARACTER SET latin1",
        "MODIFY v VARCHAR(9) CHARACTER SET utf8mb4",
        "'é'",
    ),
    "narrower characters": (
        "v VARCHAR(9) CHARACTER SET utf8mb4",
        "MODIFY v VARCHAR(9) CHARACTER SET latin1",
        "'é'",
    ),
    "bytes": ("v VARBINARY(9)", "MODIFY v VARCHAR(9)", "'x'"),
    "sign": ("v INT", "MODIFY v INT UNSIGNED", "7"),
    "scale": ("v DECIMAL(9,2)", "MODIFY v DECIMAL(9,4)", "1.25"),
    "names": ("v INT, w INT", "RENAME COLUMN v TO w, RENAME COLUMN w TO v", "1, 2"),
    "keys": ("v INT, w INT", "DROP PRIMARY KEY, ADD PRIMARY KEY (w, id)", "1, 2"),
}
BY_HAND = {
    "bytes": ["ALTER v TYPE varchar(9) USING convert_from(v, 'UTF8')"],
    "sign": ["ALTER v TYPE bigint"],
    "scale": ["ALTER v TYPE numeric(9,4)"],
    "names": ["RENAME v TO x", "RENAME w TO v", "RENAME x TO w"],
    "keys": ["DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (w, id)"],
}
"""What somebody does at PostgreSQL, whose types of the other columns are the same before and
after."""

IN_TURN = list(zip(CHANGES, cycle(("logical-clock", ALONE)), strict=False))


@contextmanager
def session(url: str) -> Iterator["pymysql.cursors.Cursor"]:
    """A session of the server's `root` that speaks UTF-8."""
    address, _, database = url.rpartition("@")[2].partition("/")
    host, _, port = address.partition(":")
    connection = pymysql.connect(
        host=host,
        port=int(port),
        user="root",
        database=database or None,
        charset="utf8mb4",
        autocommit=True,
    )
    with closing(connection), connection.cursor() as cursor:
        yield cursor


def rows(cursor: Any) -> Rows:
    """The rows of table t, with their columns' names before them."""
    cursor.execute("SELECT * FROM t ORDER BY id")
    found = tuple(cursor.fetchall())
    return (tuple(column[0] for column in cursor.description), *found)


@contextmanager
def postgresql(dsn: str) -> Iterator["psycopg.Cursor[Any]"]:
    """A session of a PostgreSQL target."""
    with psycopg.connect(dsn, autocommit=True) as session, session.cursor() as cursor:
        yield cursor


def begin(cursor: Any, columns: str) -> None:
    """Makes table t in an empty database `late`."""
    for statement in ("DROP DATABASE IF EXISTS late", "CREATE DATABASE late", "USE late"):
        cursor.execute(statement)
    cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")


def until(source: MariaDbServer) -> tuple[str, str]:
    """The setting of a replica that ends when it has what its source has executed."""
    return "--until-after-gtids", executed(source)


def definition(source: MariaDbServer, cursor: Any, statement: str) -> str:
    """Executes a statement; returns its GTID."""
    before = GtidSet.parse(executed(source))
    cursor.execute(statement)
    return str(GtidSet.parse(executed(source)) - before)


@pytest.fixture(scope="module")
def late_source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbServer]:
    """A MariaDB with a binary log, of this module alone."""
    folder = tmp_path_factory.mktemp("late")
    with where_installed(), MariaDbServer(folder, *BINARY_LOG) as server:
        yield server


@pytest.mark.parametrize(("change", "scheme"), IN_TURN)
def test_rows_of_before_a_definition_are_read_as_they_were(
    change: str, scheme: str, late_source: MariaDbServer, mariadb_url: str, tmp_path: Path
) -> None:
    columns, alter, values = CHANGES[change]
    with session(late_source.url) as cursor:
        begin(cursor, columns)
        url = late_source.url_of("late")
        with ReplicaProcess(tmp_path, [url], mariadb_url, scheme) as replica:
            assert replica.run("--copy", *until(late_source)) == FINE, replica.last_line()
            cursor.execute(f"INSERT INTO t VALUES (1, {values})")
            cursor.execute(f"ALTER TABLE t {alter}")
            cursor.execute(f"INSERT INTO t VALUES (2, {values})")
            cursor.execute("UPDATE t SET id = id + 10 WHERE id = 1")
            assert replica.run(*until(late_source)) == FINE, replica.last_line()
        expected = rows(cursor)
    with session(mariadb_url) as cursor:
        assert rows(cursor) == expected


@pytest.mark.parametrize(("change", "scheme"), IN_TURN)
def test_a_target_that_executes_no_definitions_reads_them_as_they_were_too(
    change: str, scheme: str, late_source: MariaDbServer, target_dsn: str, tmp_path: Path
) -> None:
    columns, alter, values = CHANGES[change]
    with session(late_source.url) as cursor, postgresql(target_dsn) as target:
        begin(cursor, columns)
        url = late_source.url_of("late")
        with ReplicaProcess(tmp_path, [url], target_dsn, scheme) as replica:
            assert replica.run("--copy", *until(late_source)) == FINE, replica.last_line()
            cursor.execute(f"INSERT INTO t VALUES (1, {values})")
            cursor.execute("UPDATE t SET id = id + 10")
            before = rows(cursor)
            altered = definition(late_source, cursor, f"ALTER TABLE t {alter}")
            cursor.execute(f"INSERT INTO t VALUES (2, {values})")
            cursor.execute("UPDATE t SET id = id + 10")
            assert replica.run(*until(late_source)) != FINE
            assert "--skip-gtids" in replica.last_line()
            assert rows(target) == before
            for each in BY_HAND.get(change, ()):
                target.execute(f"ALTER TABLE t {each}".encode())
            # Once it has been skipped it is not named again.
            for number, skipping in ((3, ("--skip-gtids", altered)), (4, ())):
                cursor.execute(f"INSERT INTO t VALUES ({number}, {values})")
                assert replica.run(*skipping, *until(late_source)) == FINE, replica.last_line()
                assert rows(target) == rows(cursor)


def test_the_embedded_store_reads_them_as_they_were_too(
    late_source: MariaDbServer, tmp_path: Path
) -> None:
    store = EmbeddedStore(tmp_path / "store")
    with session(late_source.url) as cursor:
        begin(cursor, "v VARCHAR(9) CHARACTER SET latin1, w INT")
        url = late_source.url_of("late")
        with ReplicaProcess(tmp_path, [url], store.url, "logical-clock") as replica:
            assert replica.run("--copy", *until(late_source)) == FINE, replica.last_line()
            cursor.execute("INSERT INTO t VALUES (1, 'é', 7)")
            wider = "MODIFY v VARCHAR(9) CHARACTER SET utf8mb4, RENAME COLUMN w TO x"
            altered = definition(late_source, cursor, f"ALTER TABLE t {wider}")
            cursor.execute("INSERT INTO t VALUES (2, 'é', 7)")
            assert replica.run(*until(late_source)) != FINE
            skipping = ("--skip-gtids", altered)
            assert replica.run(*skipping, *until(late_source)) == FINE, replica.last_line()
    found = [value for key, value in sorted(store.read(Family.DATA).items()) if b"late.t/" in key]
    assert [json.loads(each) for each in found] == [
        {"id": 1, "v": "é", "w": 7},
        {"id": 2, "v": "é", "x": 7},
    ]


def test_rows_between_two_definitions_are_refused_by_name(
    late_source: MariaDbServer, target_dsn: str, tmp_path: Path
) -> None:
    """Nobody has ever asked the source what its table was then."""
    with session(late_source.url) as cursor, postgresql(target_dsn) as target:
        begin(cursor, "v INT, w INT")
        url = late_source.url_of("late")
        with ReplicaProcess(tmp_path, [url], target_dsn, "logical-clock") as replica:
            assert replica.run("--copy", *until(late_source)) == FINE, replica.last_line()
            swap = "ALTER TABLE t RENAME COLUMN v TO w, RENAME COLUMN w TO v"
            cursor.execute("INSERT INTO t VALUES (1, 1, 2)")
            first = definition(late_source, cursor, swap)
            cursor.execute("INSERT INTO t VALUES (2, 1, 2)")
            second = definition(late_source, cursor, swap)
            cursor.execute("INSERT INTO t VALUES (3, 1, 2)")
            assert replica.run(*until(late_source)) != FINE
            for each in BY_HAND["names"]:
                target.execute(f"ALTER TABLE t {each}".encode())
            before = rows(target)
            both = ("--skip-gtids", f"{first},{second}")
            for skipping in (both, both, ("--skip-gtids", first)):
                assert replica.run(*skipping, *until(late_source)) != FINE
                assert "nothing says what its columns were then" in replica.last_line()
            assert rows(target) == before
            target.execute("DROP TABLE t, groupcert_checkpoint, groupcert_executed")
            assert replica.run("--copy", *until(late_source)) == FINE, replica.last_line()
        assert rows(target) == rows(cursor)


def test_a_first_start_without_a_copy_reads_no_rows_of_before_a_definition(
    late_source: MariaDbServer, target_dsn: str, tmp_path: Path
) -> None:
    with session(late_source.url) as cursor, postgresql(target_dsn) as target:
        begin(cursor, "v INT, w INT")
        made = executed(late_source)
        cursor.execute("INSERT INTO t VALUES (1, 1, 2)")
        definition(late_source, cursor, "ALTER TABLE t RENAME COLUMN v TO w, RENAME COLUMN w TO v")
        cursor.execute("INSERT INTO t VALUES (2, 1, 2)")
        target.execute("CREATE TABLE t (id int PRIMARY KEY, w int, v int)")
        url = late_source.url_of("late")
        with ReplicaProcess(tmp_path, [url], target_dsn, "logical-clock") as replica:
            assert replica.run("--skip-gtids", made, *until(late_source)) != FINE
            assert "nothing says what its columns were then" in replica.last_line()
        assert rows(target) == (("id", "w", "v"),)


def test_a_definition_that_sets_variables_for_itself_is_one(
    late_source: MariaDbServer, mariadb_url: str, tmp_path: Path
) -> None:
    with session(late_source.url) as cursor:
        begin(cursor, "v INT")
        url = late_source.url_of("late")
        with ReplicaProcess(tmp_path, [url], mariadb_url, "logical-clock") as replica:
            assert replica.run("--copy", *until(late_source)) == FINE, replica.last_line()
            cursor.execute("SET STATEMENT lock_wait_timeout = 9 FOR ALTER TABLE t ADD w INT")
            cursor.execute("INSERT INTO t VALUES (1, 2, 3)")
            assert replica.run(*until(late_source)) == FINE, replica.last_line()
        expected = rows(cursor)
    with session(mariadb_url) as target:
        assert rows(target) == expected


def test_a_target_of_other_types_keeps_them_and_gets_the_rows(
    late_source: MariaDbServer, mariadb_url: str, tmp_path: Path
) -> None:
    with session(late_source.url) as cursor:
        text = "VARCHAR(9) CHARACTER SET"
        begin(cursor, f"v {text} latin1")
        url = late_source.url_of("late")
        with ReplicaProcess(tmp_path, [url], mariadb_url, "logical-clock") as replica:
            assert replica.run("--copy", *until(late_source)) == FINE, replica.last_line()
            with session(mariadb_url) as target:
                # As somebody would have made them who copies by hand.
                target.execute("DROP TABLE t")
                target.execute(f"CREATE TABLE t (id BIGINT PRIMARY KEY, v {text} utf8mb4)")
                target.execute("DELETE FROM groupcert_checkpoint")
                target.execute("DELETE FROM groupcert_executed")
            copied = executed(late_source)
            for number in (1, 2):
                cursor.execute(f"INSERT INTO t VALUES ({number}, 'é')")
                skipping = ("--skip-gtids", copied)
                assert replica.run(*skipping, *until(late_source)) == FINE, replica.last_line()
        expected = rows(cursor)
    with session(mariadb_url) as target:
        assert rows(target) == expected
