"""Replicas of a live MariaDB server, as real processes: its tables are copied and followed into
each kind of target, by each scheme.
"""

import json
import os
import random
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from groupcert.certifier.gtid_set import GtidSet
from tests.integration.followed_targets import BINARY_LOG, SqlDatabase, followed_target
from tests.integration.replicas import SCHEMES, STOP_SECONDS, ReplicaProcess, embedded_state
from tests.integration.shop_load import DATABASE, FLAT, ShopLoad, rows_of
from tests.integration.waiting import wait_for
from tests.servers import (
    MariaDbServer,
    connect_mariadb,
    where_installed,
)

pytestmark = pytest.mark.database
FINE, FINDING, USAGE = range(3)
KILLS = 10
ALONE = "logical-clock --workers 0"
WITHOUT_ORDER = ("table", "rows", "jobs --conflicts ignore")
FLAT_TABLES = (b"flat.plain", b"flat.item")


@pytest.fixture(scope="module")
def shop(source: MariaDbServer) -> ShopLoad:
    """The shop at the source."""
    return ShopLoad(source.url)


@pytest.fixture(scope="module")
def flat(source: MariaDbServer) -> ShopLoad:
    """The shop without foreign keys and second unique keys."""
    return ShopLoad(source.url, is_flat=True)


class MySqlSource:
    """A MySQL server, which `MYSQL_URL` names; its user is `root`, without a password."""

    url = os.environ.get("MYSQL_URL", "")

    def url_of(self, database: str) -> str:
        """The URL of one of its databases."""
        return f"{self.url.rstrip('/')}/{database}"


@pytest.fixture(scope="module")
def mysql() -> MySqlSource:
    """A MySQL with a binary log, where there is one."""
    if not MySqlSource.url:
        pytest.skip("needs a MySQL server at MYSQL_URL")
    return MySqlSource()


@pytest.fixture(scope="module")
def mysql_shop(mysql: MySqlSource) -> ShopLoad:
    """The shop at that server."""
    with closing(connect_mariadb(mysql.url)) as session, session.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
    return ShopLoad(f"{mysql.url.rstrip('/')}/")


@pytest.fixture(params=["mariadb", "postgresql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> SqlDatabase:
    """An empty database, of each kind."""
    found = followed_target(request, request.param, tmp_path)
    assert isinstance(found, SqlDatabase)
    return found


def rows_in(target: SqlDatabase) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of the shop at a target."""
    with closing(target.connect()) as session:
        return rows_of(session)


def executed(source: MariaDbServer | MySqlSource) -> str:
    """What the source has executed, as a GTID set."""
    is_mysql = isinstance(source, MySqlSource)
    with closing(connect_mariadb(source.url)) as session, session.cursor() as cursor:
        cursor.execute(f"SELECT {'@@gtid_executed' if is_mysql else '@@gtid_binlog_pos'}")
        ((text,),) = cursor.fetchall()
    if is_mysql:
        return str(GtidSet.parse(text))
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


def rows_at(
    source: MariaDbServer | MySqlSource, load: ShopLoad
) -> dict[str, list[tuple[Any, ...]]]:
    """The source's rows."""
    with closing(connect_mariadb(source.url_of(load.database))) as session:
        return rows_of(session)


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "scheme", [*(each for each in SCHEMES if each not in WITHOUT_ORDER), ALONE]
)
def test_each_scheme_ends_with_the_rows_of_the_source(
    source: MariaDbServer, shop: ShopLoad, target: SqlDatabase, tmp_path: Path, scheme: str
) -> None:
    followed(source, shop, target.url, tmp_path, scheme)
    assert rows_in(target) == rows_at(source, shop)


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", [each for each in SCHEMES if each not in WITHOUT_ORDER])
def test_kills_at_random_moments_leave_the_rows_of_the_source(
    source: MariaDbServer, shop: ShopLoad, target: SqlDatabase, tmp_path: Path, scheme: str
) -> None:
    killed_at_random(source, shop, target, tmp_path, scheme)


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", [each for each in SCHEMES if each not in WITHOUT_ORDER])
def test_kills_of_replicas_of_mysql_leave_its_rows(
    mysql: MySqlSource, mysql_shop: ShopLoad, target: SqlDatabase, tmp_path: Path, scheme: str
) -> None:
    """From MySQL 9.6 on, cascades are in its log, children before their parents."""
    killed_at_random(mysql, mysql_shop, target, tmp_path, scheme)


def killed_at_random(
    source: MariaDbServer | MySqlSource,
    shop: ShopLoad,
    target: SqlDatabase,
    folder: Path,
    scheme: str,
) -> None:
    """A replica that is killed while clients are at work comes to the source's rows."""
    chance = random.Random(scheme)
    url = source.url_of(shop.database)
    with ReplicaProcess(folder, [url], target.url, scheme) as replica:
        replica.start("--copy")
        replica.wait_for_start()
        with shop.running():
            for run in range(1, KILLS + 1):
                replica.wait_for_start(run)
                shop.wait_for_commits(chance.randrange(1, 60))
                replica.start()
        assert replica.run("--until-after-gtids", executed(source)) == FINE, replica.last_line()
    assert rows_in(target) == rows_at(source, shop)


def test_a_source_that_is_killed_is_followed_again(
    source: MariaDbServer, shop: ShopLoad, target_dsn: str, tmp_path: Path
) -> None:
    url = source.url_of(shop.database)
    with ReplicaProcess(tmp_path, [url], target_dsn, "logical-clock") as replica:
        replica.start("--copy")
        replica.wait_for_start()
        shop.run(20, seed=5)
        source.kill()
        source.start()
        source.wait_ready()
        shop.run(20, seed=6)
        assert replica.run("--until-after-gtids", executed(source)) == FINE, replica.last_line()
    assert rows_in(SqlDatabase(target_dsn)) == rows_at(source, shop)


def test_a_source_that_has_lost_its_disk_is_named_and_the_rows_stay(
    target_dsn: str, tmp_path: Path
) -> None:
    with where_installed(), MariaDbServer(tmp_path / "source", *BINARY_LOG) as source:
        shop = ShopLoad(source.url)
        url = source.url_of(shop.database)
        with ReplicaProcess(tmp_path, [url], target_dsn, "logical-clock") as replica:
            assert replica.run("--copy", "--until-after-gtids", executed(source)) == FINE
            shop.run(40, seed=7)
            gtids, rows = executed(source), rows_at(source, shop)
            assert replica.run("--until-after-gtids", gtids) == FINE, replica.last_line()
            source.kill()
            shutil.rmtree(source.data)
            source.start()
            source.wait_ready()
            ShopLoad(source.url)
            assert replica.run() != FINE
            assert "if it was made anew, copy its rows" in replica.last_line()
    assert rows_in(SqlDatabase(target_dsn)) == rows


@pytest.mark.in_turns
@pytest.mark.parametrize("scheme", WITHOUT_ORDER)
def test_schemes_without_order_take_tables_without_keys_that_need_one(
    source: MariaDbServer, flat: ShopLoad, target: SqlDatabase, tmp_path: Path, scheme: str
) -> None:
    followed(source, flat, target.url, tmp_path, scheme)
    assert rows_in(target) == rows_at(source, flat)


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


def execute(source: MariaDbServer, *statements: str) -> str:
    """Executes statements at the source; returns the last one's GTID."""
    with closing(connect_mariadb(source.url)) as session, session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        cursor.execute("SELECT @@last_gtid")
        ((gtid,),) = cursor.fetchall()
        origin, _, number = gtid.rpartition("-")
        return f"{origin}:{number}"


@pytest.fixture
def altered(source: MariaDbServer) -> Iterator[str]:
    """A database with a table that a test alters."""
    execute(source, "CREATE DATABASE altered", "CREATE TABLE altered.t (id int PRIMARY KEY)")
    execute(source, "INSERT INTO altered.t VALUES (1)")
    yield source.url_of("altered")
    execute(source, "DROP DATABASE altered")


@pytest.mark.parametrize("scheme", ["logical-clock", ALONE])
def test_definitions_of_tables_are_executed_at_mariadb(
    source: MariaDbServer,
    altered: str,
    mariadb_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
) -> None:
    """Each has the target opened again, which is no retry of a transaction."""
    monkeypatch.setenv("GROUPCERT_TRANSACTION_RETRIES", "0")
    with ReplicaProcess(tmp_path, [altered], mariadb_url, scheme) as replica:
        replica.start("--copy")
        replica.wait_for_start()
        execute(
            source,
            "USE altered",
            "ALTER TABLE t ADD COLUMN note int",
            "ALTER TABLE t DROP COLUMN note",
            "ALTER TABLE t ADD COLUMN name varchar(9) NOT NULL DEFAULT 'old'",
            "INSERT INTO t VALUES (2, 'new')",
            "CREATE TABLE u (id int PRIMARY KEY, t int, FOREIGN KEY (t) REFERENCES t (id))",
            "INSERT INTO u VALUES (1, 2)",
            "/* why */ TRUNCATE TABLE altered.u",
            "INSERT INTO u VALUES (2, 1)",
            "CREATE VIEW v AS SELECT 1",
            "GRANT SELECT ON altered.* TO somebody IDENTIFIED BY 'x'",
            "RENAME TABLE t TO w",
        )
        end = execute(source, "UPDATE altered.w SET name = 'last' WHERE id = 1")
        assert replica.run("--until-after-gtids", end) == FINE, replica.last_line()
    with closing(connect_mariadb(mariadb_url)) as session, session.cursor() as cursor:
        cursor.execute("SELECT * FROM w ORDER BY id")
        assert cursor.fetchall() == ((1, "last"), (2, "new"))
        cursor.execute("SELECT * FROM u")
        assert cursor.fetchall() == ((2, 1),)


def last_error(replica: ReplicaProcess) -> dict[str, Any]:
    """What its status says of it."""
    error: dict[str, Any] = replica.status().get("coordinator", {}).get("last_error", {})
    return error


def test_the_last_error_outlives_the_process_until_its_transaction_is_executed(
    source: MariaDbServer, altered: str, target: SqlDatabase, tmp_path: Path
) -> None:
    arguments = ("logical-clock", "--workers", "2")
    with ReplicaProcess(tmp_path, [altered], target.url, *arguments) as replica:
        replica.start("--copy")
        replica.wait_for_start()
        target.execute("DELETE FROM t")
        gtid = execute(source, "DELETE FROM altered.t")
        assert replica.wait(STOP_SECONDS) == FINDING
        replica.start("--delay-s", "3600")
        error = wait_for("its last error", lambda: last_error(replica))
        assert (error["stage"], error["gtid"]) == ("executing", gtid)
        assert re.match(r"(DELETE FROM `t`|EXECUTE delete_t_).*\(1\)", error["statement"])
        assert "no_row" in error["cause"]
        assert replica.status()["coordinator"]["state"] == "running"
        target.execute("INSERT INTO t VALUES (1)")
        replica.start()
        wait_for("its execution", lambda: replica.status() and not last_error(replica))
        worker = max(replica.status()["workers"], key=lambda each: each["last_seconds"])
        assert (worker["last_gtid"], worker["queued_transactions"]) == (gtid, "0")
        replica.start("--delay-s", "3600")
        wait_for("its status", replica.status)
        assert not last_error(replica), "it is over in the target, too"


def test_one_that_stays_answers_and_goes_on_once_the_target_is_mended(
    source: MariaDbServer, altered: str, target: SqlDatabase, tmp_path: Path
) -> None:
    stays = ("--on-error", "stay", "--retry-s", "1")
    with ReplicaProcess(tmp_path, [altered], target.url, "logical-clock", *stays) as replica:
        replica.start("--copy")
        replica.wait_for_start()
        target.execute("DELETE FROM t")
        gtid = execute(source, "UPDATE altered.t SET id = 5")
        wait_for("its failure", lambda: replica.events("replica_failed"))
        error = wait_for("its last error", lambda: last_error(replica))
        assert (error["gtid"], error["statement"][:6]) == (gtid, "UPDATE")
        assert "0 of 1 rows are there" in error["cause"]
        target.execute("INSERT INTO t VALUES (1)")
        wait_for("its execution", lambda: replica.status() and not last_error(replica))
        assert replica.status()["coordinator"]["state"] == "running"


def test_definitions_of_tables_stop_at_postgresql_until_they_are_skipped(
    source: MariaDbServer, altered: str, target_dsn: str, tmp_path: Path
) -> None:
    with ReplicaProcess(tmp_path, [altered], target_dsn, "logical-clock") as replica:
        replica.start("--copy")
        replica.wait_for_start()
        execute(source, "INSERT INTO altered.t VALUES (2)")
        gtid = execute(source, "ALTER TABLE altered.t ADD COLUMN name text")
        end = execute(source, "INSERT INTO altered.t VALUES (3, 'x')")
        assert replica.wait(STOP_SECONDS) == FINDING
        assert f"failed at {gtid}" in replica.last_line()
        assert "'ALTER TABLE altered.t ADD COLUMN name text'" in replica.last_line()
        assert "--skip-gtids" in replica.last_line()
        with psycopg.connect(target_dsn) as session:
            assert session.execute("SELECT count(*) FROM t").fetchone() == (2,)
            session.execute("ALTER TABLE t ADD COLUMN name text")
        skipped = f"{gtid},{gtid.rpartition(':')[0]}:999999"
        assert replica.run("--skip-gtids", skipped, "--until-after-gtids", end) == FINE
        (*_, ended) = replica.events("replica_ended")
        assert ended["skipped"] == 1, "one never comes"
        with psycopg.connect(target_dsn) as session:
            assert session.execute("SELECT * FROM t WHERE id = 3").fetchall() == [(3, "x")]


@pytest.mark.parametrize("scheme", ["logical-clock", ALONE])
def test_of_transactions_that_wait_together_the_one_that_fails_is_named(
    source: MariaDbServer, altered: str, target_dsn: str, tmp_path: Path, scheme: str
) -> None:
    """Others of them build on each other, and would fail alone."""
    with ReplicaProcess(tmp_path, [altered], target_dsn, scheme) as replica:
        first = execute(source, "INSERT INTO altered.t VALUES (7)")
        assert replica.run("--copy", "--until-after-gtids", first) == FINE
        with psycopg.connect(target_dsn) as session:
            session.execute("DELETE FROM t WHERE id = 7")
        for number in range(10, 15):
            execute(source, f"INSERT INTO altered.t VALUES ({number})")
            execute(source, f"UPDATE altered.t SET id = {number + 10} WHERE id = {number}")
        gtid = execute(source, "DELETE FROM altered.t WHERE id = 7")
        end = execute(source, "DELETE FROM altered.t WHERE id = 20")
        assert replica.run("--until-after-gtids", end) == FINDING
        assert f"failed at {gtid}" in replica.last_line()
        assert replica.run("--until-after-gtids", end, "--skip-gtids", gtid) == FINE
        with psycopg.connect(target_dsn) as session:
            found = session.execute("SELECT id FROM t ORDER BY id").fetchall()
        assert found == [(1,), *((number,) for number in range(21, 25))]
