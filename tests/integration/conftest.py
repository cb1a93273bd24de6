"""Groups of real members, one for each module: a test leaves its group as it found it."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from groupcert import Client
from groupcert.members.demo.group_checks import settle
from groupcert.members.demo.local_group import LocalGroup
from tests import servers
from tests.integration.followed_targets import BINARY_LOG
from tests.integration.postgresql_group import PostgresqlGroup, Primary, postgresql_group

SETTINGS: Mapping[str, object] = {
    "stable_set_period_ms": 200,
    "write_set_items_max": 2_000,
    "transaction_bytes_max": 64 << 10,
    "snapshots_max": 32,
}
"""Limits that a test reaches quickly."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """Three members as processes, with a log server of their own."""
    folder = tmp_path_factory.mktemp("group")
    with LocalGroup(folder, settings=SETTINGS, certification_logs=folder / "logs") as group:
        yield group


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.MariaDbServer]:
    """A MariaDB with a binary log."""
    folder = tmp_path_factory.mktemp("source")
    with servers.where_installed(), servers.MariaDbServer(folder, *BINARY_LOG) as server:
        yield server


@pytest.fixture
def newest(clients: list[Client]) -> Iterator[int]:
    """A version that every member has committed, and behind which nothing is collected during the
    test: a snapshot of it is not too old, however slow the machine is.
    """
    settle(clients)
    held = clients[0].transaction()
    yield held.snapshot_version
    held.rollback()


@pytest.fixture
def clients(group: LocalGroup) -> Iterator[list[Client]]:
    """A client at each member, in the order of their names; each stays with its member."""
    clients = [Client(address) for address in group.addresses.values()]
    yield clients
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def servers3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresqlGroup]:
    """Three PostgreSQL servers that are primaries."""
    folder = tmp_path_factory.mktemp("postgresql")
    with servers.where_installed(), postgresql_group(folder) as group:
        yield group


@pytest.fixture
def empty(servers3: PostgresqlGroup, tmp_path: Path) -> Iterator[Primary]:
    """An empty database beside the last server's."""
    *_, last = servers3.primaries
    with psycopg.connect(last.dsn, autocommit=True) as session:
        session.execute("CREATE DATABASE joined TEMPLATE template0")
        dsn = conninfo.make_conninfo(last.dsn, dbname="joined")
        primary = Primary("empty", tmp_path, dsn=dsn)
        yield primary
        primary.end_member()
        session.execute("DROP DATABASE joined WITH (FORCE)")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a test opens."""
    with ExitStack() as stack:
        yield stack
