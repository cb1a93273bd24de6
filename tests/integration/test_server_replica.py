"""Replicas of a live MariaDB server, as real processes: its tables are copied and followed into
each kind of target, by each scheme.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from groupcert.certifier.gtid_set import GtidSet
from tests.integration.replicas import SCHEMES, ReplicaProcess
from tests.integration.shop_load import DATABASE, ShopLoad, rows_of
from tests.servers import (
    MariaDbServer,
    PostgreSqlServer,
    connect_mariadb,
    postgresql_database,
    where_installed,
)

pytestmark = pytest.mark.database
FINE = 0
BINARY_LOG = ("--log-bin=binlog", "--server-id=1", "--binlog-format=ROW")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbServer]:
    """A MariaDB with a binary log."""
    with where_installed(), MariaDbServer(tmp_path_factory.mktemp("source"), *BINARY_LOG) as server:
        yield server


@pytest.fixture(scope="module")
def load(source: MariaDbServer) -> ShopLoad:
    """The shop at the source."""
    return ShopLoad(source.url)


class Target:
    """A database of a server that a replica fills."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Its rows."""
        session: Any
        if self.kind == "postgresql":
            session = psycopg.connect(self.url)
        else:
            session = connect_mariadb(self.url)
        with closing(session):
            return rows_of(session)


@pytest.fixture(params=["mariadb", "postgresql"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """An empty database, of each kind."""
    if request.param == "mariadb":
        url = request.getfixturevalue("mariadb_url")
        yield Target("mariadb", url)
    else:
        yield Target("postgresql", request.getfixturevalue("target_dsn"))


def executed(source: MariaDbServer) -> str:
    """What the source has executed, as a GTID set."""
    with closing(connect_mariadb(source.url)) as session, session.cursor() as cursor:
        cursor.execute("SELECT @@gtid_binlog_pos")
        ((text,),) = cursor.fetchall()
    gtids = GtidSet()
    for gtid in text.split(","):
        origin, _, number = gtid.rpartition("-")
        gtids.add_interval(origin, 1, int(number))
    return str(gtids)


@pytest.mark.parametrize("scheme", [each for each in SCHEMES if each != "jobs --conflicts ignore"])
def test_each_scheme_ends_with_the_rows_of_the_source(
    source: MariaDbServer, load: ShopLoad, target: Target, tmp_path: Path, scheme: str
) -> None:
    url = source.url_of(DATABASE)
    with ReplicaProcess(tmp_path, [url], target.url, scheme, "--copy") as replica:
        with load.running():
            replica.start()
            replica.wait_for_start()
            load.run(60)
        assert replica.run("--until-after-gtids", executed(source)) == FINE, replica.last_line()
    with closing(connect_mariadb(url)) as session:
        assert target.rows() == rows_of(session)
