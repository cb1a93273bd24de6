"""Replicas that follow the members of PostgreSQL servers.

Aim: a replica has the rows of the servers, on each target, whatever is killed meanwhile; a member
that keeps no binary log says so.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import servers
from tests.integration.postgresql_group import PostgresqlGroup, increments, postgresql_group
from tests.integration.replicas import ReplicaProcess, embedded_state
from tests.integration.waiting import wait_for
from tests.servers import connect_mariadb

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database, pytest.mark.in_turns]

USAGE = 2
BULK = 1_500
"""Rows of a transaction that goes through the log in fragments."""
MAPPING = """
[tables."public.accounts"]
table = "accounts"
key = { id = "integer" }
columns = { balance = "integer", email = "text" }

[tables."public.bulk"]
table = "bulk"
key = { id = "integer" }
columns = { note = "text" }

[tables."*"]
"""
TABLES = (
    "CREATE TABLE accounts (id int PRIMARY KEY, balance bigint, email text)",
    "CREATE TABLE bulk (id int PRIMARY KEY, note text)",
)
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresqlGroup]:
    """Three servers whose members keep binary logs, of small files."""
    folder = tmp_path_factory.mktemp("followed")
    settings: dict[str, Any] = {"binary_log": True, "binary_log_file_bytes_max": 64 << 10}
    with servers.where_installed(), postgresql_group(folder, **settings) as group:
        group.primaries[0].query("UPDATE accounts SET balance = balance")
        yield group


def query(target: str, statement: str) -> Rows:
    """Runs a statement at an SQL target, and returns its rows."""
    if target.startswith("postgresql"):
        with psycopg.connect(target) as session:
            found = session.execute(statement.encode())
            return found.fetchall() if found.description else []
    with closing(connect_mariadb(target)) as other, other.cursor() as cursor:
        cursor.execute(statement)
        return [*cursor.fetchall()]


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_replica_has_the_rows_of_servers_through_kills(
    followed: PostgresqlGroup, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    target = request.getfixturevalue("target_dsn" if kind == "postgresql" else "mariadb_url")
    first, second, third = followed.primaries
    for statement in TABLES:
        query(target, statement)
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(MAPPING)
    addresses = [primary.address for primary in followed.primaries]
    with ReplicaProcess(
        tmp_path, addresses, target, "logical-clock", "--mapping", str(mapping)
    ) as replica:
        replica.start()
        with increments([second, third], [1, 2, 3]) as load:
            wait_for("some commits", lambda: min(load.done) > 20)
            first.member.kill()  # The replica follows it.
            done = min(load.done)
            wait_for("more commits", lambda: min(load.done) > done + 20)
            first.member.start()
            wait_for("it serves again", first.takes_commits)
            replica.start()  # Kills it before.
        second.query("DELETE FROM bulk")
        values = f"SELECT n, repeat('x', 400), NULL FROM generate_series(1, {BULK}) n"
        second.query(f"INSERT INTO bulk {values}")
        third.server.kill()
        third.server.start()
        third.server.wait_ready()
        wait_for("the server serves again", third.takes_commits)
        accounts = followed.settle()[0]
        counted = [(BULK, 400 * BULK)]

        def is_equal() -> bool:
            return (
                query(target, "SELECT * FROM accounts ORDER BY id") == accounts
                and query(target, "SELECT count(*), sum(length(note)) FROM bulk") == counted
            )

        assert wait_for("the same rows", is_equal), replica.last_line()


def test_a_replica_with_a_store_of_its_own_has_the_rows_of_servers(
    followed: PostgresqlGroup, tmp_path: Path
) -> None:
    first, second, _ = followed.primaries
    folder = tmp_path / "rows"
    for primary in (first, second):
        primary.query("UPDATE accounts SET balance = balance + 1 WHERE id < 10")
    accounts = followed.settle()[0]
    executed = followed.group.status("m2").observer.gtid_executed
    with ReplicaProcess(
        tmp_path, [second.address], f"rocksdb:{folder}", "logical-clock"
    ) as replica:
        assert replica.run("--until-after-gtids", executed) == 0, replica.last_line()
    rows = [
        json.loads(value)
        for key, value in embedded_state(folder)[0].items()
        if key.startswith(b"public.accounts/")
    ]
    found = sorted((row["id"], row["balance"], row["email"]) for row in rows)
    assert found == accounts


def test_a_member_without_a_binary_log_names_the_setting(
    servers3: PostgresqlGroup, tmp_path: Path
) -> None:
    """It keeps none by default."""
    address = servers3.primaries[0].address
    with ReplicaProcess(
        tmp_path, [address], f"rocksdb:{tmp_path / 'rows'}", "logical-clock"
    ) as replica:
        assert replica.run() == USAGE, replica.last_line()
        assert "binary_log" in replica.last_line()
