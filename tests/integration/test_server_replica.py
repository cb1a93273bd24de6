"""Replicas of a live MariaDB server, as real processes: its tables are copied and followed into
each kind of target, by each scheme.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from groupcert.certifier.gtid_set import GtidSet
from tests.integration.replicas import SCHEMES, ReplicaProcess, embedded_state
from tests.integration.shop_load import FLAT, ShopLoad, rows_of
from tests.servers import (
    MariaDbServer,
    connect_mariadb,
    where_installed,
)

pytestmark = pytest.mark.database
FINE, _, USAGE = range(3)
WITHOUT_ORDER = ("table", "rows", "jobs --conflicts ignore")
FLAT_TABLES = (b"flat.plain", b"flat.item")
BINARY_LOG = ("--log-bin=binlog", "--server-id=1", "--binlog-format=ROW")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbServer]:
    """A MariaDB with a binary log."""
    with where_installed(), MariaDbServer(tmp_path_factory.mktemp("source"), *BINARY_LOG) as server:
        yield server


@pytest.fixture(scope="module")
def shop(source: MariaDbServer) -> ShopLoad:
    """The shop at the source."""
    return ShopLoad(source.url)


@pytest.fixture(scope="module")
def flat(source: MariaDbServer) -> ShopLoad:
    """The shop without foreign keys and second unique keys."""
    return ShopLoad(source.url, is_flat=True)


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


def followed(
    source: MariaDbServer, load: ShopLoad, target: str, folder: Path, *arguments: str
) -> None:
    """Copies and follows while clients are at work, is killed, and comes to the source's end."""
    with ReplicaProcess(folder, [source.url_of(load.database)], target, *arguments) as replica:
        with load.running():
            replica.start("--copy")
            replica.wait_for_start()
            load.run(40, seed=2)
        replica.kill()
        load.run(40, seed=3)
        assert replica.run("--until-after-gtids", executed(source)) == FINE, replica.last_line()


def rows_at(source: MariaDbServer, load: ShopLoad) -> dict[str, list[tuple[Any, ...]]]:
    """The source's rows."""
    with closing(connect_mariadb(source.url_of(load.database))) as session:
        return rows_of(session)


@pytest.mark.in_turns
@pytest.mark.parametrize("scheme", [each for each in SCHEMES if each not in WITHOUT_ORDER])
def test_each_scheme_ends_with_the_rows_of_the_source(
    source: MariaDbServer, shop: ShopLoad, target: Target, tmp_path: Path, scheme: str
) -> None:
    followed(source, shop, target.url, tmp_path, scheme)
    assert target.rows() == rows_at(source, shop)


@pytest.mark.in_turns
@pytest.mark.parametrize("scheme", WITHOUT_ORDER)
def test_schemes_without_order_take_tables_without_keys_that_need_one(
    source: MariaDbServer, flat: ShopLoad, target: Target, tmp_path: Path, scheme: str
) -> None:
    followed(source, flat, target.url, tmp_path, scheme)
    assert target.rows() == rows_at(source, flat)


@pytest.mark.parametrize("scheme", WITHOUT_ORDER)
def test_schemes_without_order_refuse_tables_with_keys_that_need_one(
    source: MariaDbServer, shop: ShopLoad, target_dsn: str, tmp_path: Path, scheme: str
) -> None:
    url = source.url_of(shop.database)
    with ReplicaProcess(tmp_path, [url], target_dsn, scheme, "--copy") as replica:
        assert replica.run() == USAGE
    assert "table shop.orders has the foreign key orders_ibfk_1, which" in replica.last_line()


@pytest.mark.in_turns
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_embedded_store_has_documents(
    source: MariaDbServer, flat: ShopLoad, tmp_path: Path, scheme: str
) -> None:
    folder = tmp_path / "store"
    followed(source, flat, f"rocksdb:{folder}", tmp_path, scheme)
    rows, _ = embedded_state(folder)
    expected = {}
    with closing(connect_mariadb(source.url_of(FLAT))) as session, session.cursor() as cursor:
        cursor.execute("SELECT id, value, bits + 0, year FROM plain")
        for number, value, bits, year in cursor.fetchall():
            document = {"id": number, "value": value, "bits": bits, "year": year}
            expected[f"flat.plain/{number}".encode()] = document
        cursor.execute("SELECT orders, line, hex(sku), amount, hex(picture), tags, took FROM item")
        for order, line, sku, amount, picture, tags, _ in cursor.fetchall():
            expected[f"flat.item/{order}/{line}".encode()] = {
                "orders": order,
                "line": line,
                "sku": sku.lower(),
                "amount": amount,
                "picture": picture and picture.lower(),
                "tags": tags,
            }
    documents = {key: json.loads(value) for key, value in rows.items()}
    for document in documents.values():
        document.pop("took", None)
    found = {key: each for key, each in documents.items() if key.split(b"/")[0] in FLAT_TABLES}
    assert found == expected
    assert len(rows) == sum(map(len, rows_at(source, flat).values()))
