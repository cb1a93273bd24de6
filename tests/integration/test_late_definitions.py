"""A replica that comes late: its source has executed definitions since that are behind rows in the
log, of which the log does not say what they were (binlog_row_metadata=NO_LOG, MariaDB's default).
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pymysql
import pytest

from tests.integration.followed_targets import BINARY_LOG
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


def rows(cursor: "pymysql.cursors.Cursor") -> Rows:
    """The rows of table t, with their columns' names before them."""
    cursor.execute("SELECT * FROM t ORDER BY id")
    found = tuple(cursor.fetchall())
    return (tuple(column[0] for column in cursor.description), *found)


@pytest.fixture(scope="module")
def late_source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbServer]:
    """A MariaDB with a binary log, of this module alone."""
    folder = tmp_path_factory.mktemp("late")
    with where_installed(), MariaDbServer(folder, *BINARY_LOG) as server:
        yield server


@pytest.mark.parametrize("scheme", ["logical-clock", ALONE])
@pytest.mark.parametrize("change", CHANGES)
def test_rows_of_before_a_definition_are_read_as_they_were(
    change: str, scheme: str, late_source: MariaDbServer, mariadb_url: str, tmp_path: Path
) -> None:
    columns, alter, values = CHANGES[change]
    with session(late_source.url) as cursor:
        for statement in ("DROP DATABASE IF EXISTS late", "CREATE DATABASE late", "USE late"):
            cursor.execute(statement)
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
        url = late_source.url_of("late")
        with ReplicaProcess(tmp_path, [url], mariadb_url, scheme) as replica:
            until = ("--until-after-gtids", executed(late_source))
            assert replica.run("--copy", *until) == FINE, replica.last_line()
            cursor.execute(f"INSERT INTO t VALUES (1, {values})")
            cursor.execute(f"ALTER TABLE t {alter}")
            cursor.execute(f"INSERT INTO t VALUES (2, {values})")
            cursor.execute("UPDATE t SET id = id + 10 WHERE id = 1")
            until = ("--until-after-gtids", executed(late_source))
            assert replica.run(*until) == FINE, replica.last_line()
        expected = rows(cursor)
    with session(mariadb_url) as cursor:
        assert rows(cursor) == expected


def test_a_target_of_other_types_keeps_them_and_gets_the_rows(
    late_source: MariaDbServer, mariadb_url: str, tmp_path: Path
) -> None:
    with session(late_source.url) as cursor:
        for statement in ("DROP DATABASE IF EXISTS late", "CREATE DATABASE late", "USE late"):
            cursor.execute(statement)
        text = "VARCHAR(9) CHARACTER SET"
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, v {text} latin1)")
        url = late_source.url_of("late")
        with ReplicaProcess(tmp_path, [url], mariadb_url, "logical-clock") as replica:
            until = ("--until-after-gtids", executed(late_source))
            assert replica.run("--copy", *until) == FINE, replica.last_line()
            with session(mariadb_url) as target:
                # As somebody would have made them who copies by hand.
                target.execute("DROP TABLE t")
                target.execute(f"CREATE TABLE t (id BIGINT PRIMARY KEY, v {text} utf8mb4)")
                target.execute("DELETE FROM groupcert_checkpoint WHERE replica LIKE 'unlike %'")
            for number in (1, 2):
                cursor.execute(f"INSERT INTO t VALUES ({number}, 'é')")
                until = ("--until-after-gtids", executed(late_source))
                assert replica.run(*until) == FINE, replica.last_line()
        expected = rows(cursor)
    with session(mariadb_url) as target:
        assert rows(target) == expected
