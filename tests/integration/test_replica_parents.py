"""Replicas of a live MariaDB whose tables have foreign keys, under schemes that compare rows: what
is not ready for its parent does not start, so that next to nothing is executed twice.

Method: rows that come, go and get another parent in transactions one after the other, read from the
log at once by eight workers. The status counts what was executed again.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.integration.followed_targets import SqlDatabase, followed_target
from tests.integration.replicas import ReplicaProcess
from tests.integration.waiting import wait_for
from tests.servers import MariaDbServer, connect_mariadb

pytestmark = pytest.mark.database
DATABASE = "family"
FAMILIES = 60
CHILDREN = 3
WORKERS = 8
RETRIED_MAX = 3
"""Of some 500 transactions. Without their parents' items it is 300 and more; 12 and more merged
jobs.
"""
SCHEMES = ("graph", "merge", "barrier")
SCHEMA = (
    "CREATE TABLE parent (id INT PRIMARY KEY, name VARCHAR(20) NOT NULL, UNIQUE (name))",
    "CREATE TABLE child (id INT PRIMARY KEY, parent INT, note VARCHAR(20),"
    " FOREIGN KEY (parent) REFERENCES parent (id))",
    "CREATE TABLE nick (id INT PRIMARY KEY, name VARCHAR(20),"
    " FOREIGN KEY (name) REFERENCES parent (name) ON DELETE SET NULL ON UPDATE CASCADE)",
    "CREATE TABLE pet (id INT PRIMARY KEY, parent INT NOT NULL, note VARCHAR(20),"
    " FOREIGN KEY (parent) REFERENCES parent (id) ON DELETE CASCADE)",
)
TABLES = ("parent", "child", "nick", "pet")


@pytest.fixture
def family(source: MariaDbServer) -> Iterator[SqlDatabase]:
    """The tables at the source, empty."""
    with closing(connect_mariadb(source.url)) as session, session.cursor() as cursor:
        cursor.execute(f"CREATE OR REPLACE DATABASE {DATABASE}")
    database = SqlDatabase(source.url_of(DATABASE))
    for statement in SCHEMA:
        database.execute(statement)
    yield database
    database.execute(f"DROP DATABASE {DATABASE}")


@pytest.fixture(params=["mariadb", "postgresql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> SqlDatabase:
    """An empty database, of each kind."""
    found = followed_target(request, request.param, tmp_path)
    assert isinstance(found, SqlDatabase)
    return found


def rows(database: SqlDatabase) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of each table."""
    return {table: database.execute(f"SELECT * FROM {table} ORDER BY id") for table in TABLES}


def live(database: SqlDatabase) -> None:
    """Lets parents come with their children, these get other parents, and all of a third go."""
    with closing(database.connect()) as session, session.cursor() as cursor:
        for number in range(FAMILIES):
            cursor.execute(f"INSERT INTO parent VALUES ({number}, 'n{number}')")
            for place in range(CHILDREN):
                child = number * CHILDREN + place
                cursor.execute(f"INSERT INTO child VALUES ({child}, {number}, '')")
            cursor.execute(f"INSERT INTO nick VALUES ({number}, 'n{number}')")
            cursor.execute(f"INSERT INTO pet VALUES ({number}, {number}, '')")
        for number in range(FAMILIES):
            first = number * CHILDREN
            if number % 3:
                other = number + 3 - 2 * (number % 3)
                cursor.execute(f"UPDATE child SET parent = {other} WHERE id = {first}")
                cursor.execute(f"UPDATE parent SET name = 'm{number + 1000}' WHERE id = {number}")
                continue
            cursor.execute(f"UPDATE pet SET note = 'last' WHERE id = {number}")
            cursor.execute(f"DELETE FROM child WHERE parent = {number}")
            cursor.execute(f"DELETE FROM parent WHERE id = {number}")


def have_children(database: SqlDatabase) -> None:
    """Lets children of one parent come."""
    database.execute("INSERT INTO parent VALUES (1, 'n1')")
    for number in range(20 * WORKERS):
        database.execute(f"INSERT INTO child VALUES ({number}, 1, '')")


def status_after(
    load: Callable[[SqlDatabase], None],
    source: SqlDatabase,
    target: SqlDatabase,
    folder: Path,
    conflicts: str = "graph",
) -> dict[str, Any]:
    """The status of a replica that found in the log, at once, what the load has committed."""
    scheme = f"jobs --conflicts {conflicts} --workers {WORKERS}"
    with ReplicaProcess(folder, [source.url], target.url, scheme) as replica:
        replica.start("--copy")
        replica.wait_for_start()
        replica.kill()
        load(source)
        replica.start()
        wait_for("the rows of the source", lambda: rows(target) == rows(source))
        return replica.status()


@pytest.mark.parametrize("conflicts", SCHEMES)
def test_next_to_nothing_fails_because_of_its_parent(
    family: SqlDatabase, target: SqlDatabase, tmp_path: Path, conflicts: str
) -> None:
    workers = status_after(live, family, target, tmp_path, conflicts)["workers"]
    retried = [int(worker["retried_transactions"]) for worker in workers]
    assert len(retried) == WORKERS
    assert sum(retried) <= RETRIED_MAX


def test_children_of_one_parent_run_together(
    family: SqlDatabase, target: SqlDatabase, tmp_path: Path
) -> None:
    """It is exactly one where each waits for the one before to be committed."""
    status = status_after(have_children, family, target, tmp_path)
    assert status["coordinator"]["parallelism_mean"] > 1.2
