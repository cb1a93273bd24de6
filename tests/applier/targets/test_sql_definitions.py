"""Definitions of tables at a real MariaDB: executed once, wherever the process ends."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count
from typing import Any

import pymysql
import pytest

from groupcert.applier.mysql_logs.statement_payload import PayloadStatement
from groupcert.applier.targets.mysql import MySqlServer
from groupcert.applier.targets.sql_definitions import DefinedOnce
from groupcert.applier.targets.sql_tables import Definition
from tests.servers import connect_mariadb

pytestmark = pytest.mark.database
REPLICA, OWNER = "r1", "0" * 16
GTID = "0-1:7"
TABLES = """
CREATE TABLE t (id int PRIMARY KEY);
CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)
  (PARTITION low VALUES LESS THAN (10), PARTITION high VALUES LESS THAN (20));
CREATE TABLE one (id int PRIMARY KEY);
CREATE TABLE other (id int PRIMARY KEY);
INSERT INTO t VALUES (1);
INSERT INTO parts VALUES (1);
INSERT INTO one VALUES (2);
INSERT INTO other VALUES (3)
"""
DEFINITIONS = [
    Definition(PayloadStatement(text, "shop", is_table=True), "shop")
    for text in (
        "ALTER TABLE t ADD COLUMN c int",
        "ALTER TABLE shop.parts EXCHANGE PARTITION low WITH TABLE one",
        "RENAME TABLE one TO spare, other TO one, spare TO other",
        "TRUNCATE t",
        "CREATE INDEX c ON t (c)",
    )
]
AFTERWARDS = {"t": [], "parts": [2], "one": [3], "other": [1]}


class DiedError(Exception):
    """The process has ended."""


@pytest.fixture
def server(mariadb_url: str) -> Iterator[MySqlServer]:
    """A server with the tables, and the replica's own."""
    server = MySqlServer(mariadb_url)
    with closing(server.connect()) as session:
        session.run(*server.create(None), *TABLES.split(";"))
        yield server


def run_until(server: MySqlServer, requests: int | None) -> None:
    """One process: executes the definitions and dies before one of its requests."""
    once = DefinedOnce(server, REPLICA, OWNER)
    numbers = count()
    with closing(server.connect()) as session:

        def run(*statements: str) -> Sequence[tuple[Any, ...]]:
            if next(numbers) == requests:
                raise DiedError
            return session.run(*statements)

        once.execute(run, GTID, DEFINITIONS)


def rows_of(url: str) -> dict[str, list[int]]:
    """The rows of each table."""
    found = {}
    with closing(connect_mariadb(url)) as session, session.cursor() as cursor:
        for table in AFTERWARDS:
            cursor.execute(f"SELECT id FROM {table}")
            found[table] = [id for (id,) in cursor.fetchall()]
        cursor.execute("SHOW COLUMNS FROM t")
        assert len(cursor.fetchall()) == 2
    return found


@pytest.mark.parametrize("requests", [*range(0, 33, 2)])
def test_a_process_that_dies_anywhere_leaves_them_executed_once(
    server: MySqlServer, mariadb_url: str, requests: int
) -> None:
    with pytest.raises(DiedError):
        run_until(server, requests)
    run_until(server, None)
    # It dies before it has noted the transaction, too.
    run_until(server, None)
    assert rows_of(mariadb_url) == AFTERWARDS


def test_what_an_operator_mends_after_a_refusal_is_not_taken_for_its_execution(
    server: MySqlServer, mariadb_url: str
) -> None:
    once = DefinedOnce(server, REPLICA, OWNER)
    with closing(server.connect()) as session:
        session.run("ALTER TABLE t ADD COLUMN c text")
        with pytest.raises(pymysql.err.OperationalError, match="Duplicate column"):
            once.execute(session.run, GTID, DEFINITIONS[:1])
        session.run("ALTER TABLE t DROP COLUMN c")
        once.execute(session.run, GTID, DEFINITIONS[:1])
        [_, (name, kind, *_)] = session.run("SHOW COLUMNS FROM t")
        assert (name, kind) == ("c", "int(11)")


def test_a_definition_that_a_dead_process_has_begun_is_waited_for(server: MySqlServer) -> None:
    """Its session goes on at the server; here it stands for that it has the lock."""
    take, give_back = server.definition_lock(OWNER)
    with closing(server.connect()) as dead, closing(server.connect()) as alive:
        ((taken,),) = dead.run(take)
        assert taken
        ((free,),) = alive.run(take.replace("31536000", "0"))
        assert not free
        dead.run(give_back)
        ((taken,),) = alive.run(take)
        assert taken
