"""The PostgreSQL servers of the compose files: written at each, one killed, equal at all."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.cluster.docker_cluster import MEMBERS, POSTGRESQL_SERVERS, DockerCluster

pytestmark = pytest.mark.slow

AT_COMMIT = (
    "SELECT pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
    " WHERE c.relname = 'ends' AND l.mode = 'RowExclusiveLock'"
)
ROWS = "SELECT id, balance FROM accounts WHERE id > 0 ORDER BY id"


@pytest.fixture(scope="module")
def shop(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerCluster]:
    """Three members, each with a PostgreSQL server that takes commits."""
    folder = tmp_path_factory.mktemp("postgresql")
    with DockerCluster(folder, image, postgresql=True) as cluster:
        for server in POSTGRESQL_SERVERS:
            cluster.wait_for(f"{server} takes commits", partial(commits, cluster, server))
        yield cluster


def query(cluster: DockerCluster, server: str, statement: str) -> list[tuple[Any, ...]]:
    """Runs a statement in a transaction of its own; its rows."""
    with psycopg.connect(cluster.dsn(server)) as session:
        cursor = session.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def commits(cluster: DockerCluster, server: str) -> bool:
    """Whether a server takes a transaction, which leaves nothing."""
    with suppress(psycopg.Error):
        query(cluster, server, "INSERT INTO accounts VALUES (0, 0)")
        query(cluster, server, "DELETE FROM accounts WHERE id = 0")
        return True
    return False


def rows_when_equal(cluster: DockerCluster) -> list[tuple[Any, ...]]:
    """The rows of all servers, once they are the same."""
    found: list[list[tuple[Any, ...]]] = []

    def are_equal() -> bool:
        found[:] = [query(cluster, server, ROWS) for server in POSTGRESQL_SERVERS]
        return all(rows == found[0] for rows in found)

    cluster.wait_for("equal rows", are_equal)
    return found[0]


def test_what_is_written_at_one_server_is_read_at_the_others(shop: DockerCluster) -> None:
    for number, server in enumerate(POSTGRESQL_SERVERS, 1):
        query(shop, server, f"INSERT INTO accounts VALUES ({number}, 100)")
    there = set(rows_when_equal(shop))
    assert {(1, 100), (2, 100), (3, 100)} <= there


def test_who_comes_second_gets_40001(shop: DockerCluster) -> None:
    """The second is at its COMMIT before its server hears of the first."""
    query(shop, "pg1", "INSERT INTO accounts VALUES (10, 100)")
    rows_when_equal(shop)
    with (
        psycopg.connect(shop.dsn("pg1")) as one,
        psycopg.connect(shop.dsn("pg2")) as other,
        ThreadPoolExecutor(1) as client,
    ):
        for session in (one, other):
            session.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 10")
        shop.pause("m2")
        try:
            commit = client.submit(other.commit)
            shop.wait_for("it is at its COMMIT", lambda: query(shop, "pg2", AT_COMMIT))
            one.commit()
        finally:
            shop.unpause("m2")
        with pytest.raises(psycopg.errors.SerializationFailure) as failure:
            commit.result()
    detail = failure.value.diag.message_detail or ""
    assert detail.startswith("public.accounts/10 was written by ")
    assert "at member m1" in detail
    assert (10, 101) in rows_when_equal(shop)


def test_a_server_that_was_killed_has_all_rows_again(shop: DockerCluster) -> None:
    query(shop, "pg3", "INSERT INTO accounts VALUES (20, 100)")
    shop.kill("pg3")
    for number in range(21, 41):
        query(shop, "pg1", f"INSERT INTO accounts VALUES ({number}, 100)")
    shop.start_containers("pg3")
    shop.wait_for("pg3 takes commits", partial(commits, shop, "pg3"))
    assert {(number, 100) for number in range(20, 41)} <= set(rows_when_equal(shop))
    assert all(shop.state(name) == "running" for name in MEMBERS)
