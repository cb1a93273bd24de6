"""First copies of a live MariaDB that are cut off: killed at several moments, or without a server.

The shop has two tables more: a large one, whose copy takes seconds, so that it is not whole when
the others are, and one that nobody changes. In that one a row of the target is marked behind the
copy's back: the mark stays if and only if the table is not copied again.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest
from rocksdict import AccessType

from groupcert.applier.targets.first_copy import CopyRecord
from groupcert.applier.targets.rocksdb import ROW_PREFIX
from groupcert.applier.targets.source_documents import COPY_KEY
from groupcert.certifier.storage.store import Family, open_families
from tests.integration.replicas import ReplicaProcess, embedded_state
from tests.integration.shop_load import ShopLoad, rows_of
from tests.integration.test_server_replica import BINARY_LOG, FINE, executed
from tests.integration.waiting import wait_for
from tests.servers import MariaDbServer, connect_mariadb, where_installed

pytestmark = pytest.mark.database
UNAVAILABLE = 3
KILLS = 8
LARGE_ROWS = 60_000
UNMARKED, MARK = "as it was", "marked"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbServer]:
    """A MariaDB with a binary log."""
    with where_installed(), MariaDbServer(tmp_path_factory.mktemp("source"), *BINARY_LOG) as server:
        yield server


def _shop(source: MariaDbServer, *, is_flat: bool) -> ShopLoad:
    load = ShopLoad(source.url, is_flat=is_flat)
    with closing(connect_mariadb(source.url_of(load.database))) as session:
        with session.cursor() as cursor:
            cursor.execute("CREATE TABLE fixed (id int PRIMARY KEY, value varchar(20))")
            cursor.execute("INSERT INTO fixed VALUES (1, %s)", (UNMARKED,))
            cursor.execute("CREATE TABLE large (id int PRIMARY KEY, value varchar(200))")
            numbers = f"seq_1_to_{LARGE_ROWS}"
            cursor.execute(f"INSERT INTO large SELECT seq, repeat('x', 99) FROM {numbers}")
    return load


@pytest.fixture(scope="module")
def shop(source: MariaDbServer) -> ShopLoad:
    """The shop at the source."""
    return _shop(source, is_flat=False)


@pytest.fixture(scope="module")
def flat(source: MariaDbServer) -> ShopLoad:
    """The shop without foreign keys and second unique keys."""
    return _shop(source, is_flat=True)


class CopyTarget(Protocol):
    """A target while a copy fills it."""

    url: str

    def record(self) -> CopyRecord | None:
        """The copy's record, as the target has it."""
        ...

    def mark(self) -> None:
        """Changes the row that nobody changes."""
        ...

    def check(self, source: Any, mark: str) -> None:
        """Fails unless the mark is so, and all other rows are the source's."""
        ...


class SqlDatabase:
    """A database of a server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def _connect(self) -> Any:
        if self.url.startswith("postgres"):
            return psycopg.connect(self.url, autocommit=True)
        return connect_mariadb(self.url)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Executes a statement; returns its rows."""
        with closing(self._connect()) as session, session.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def record(self) -> CopyRecord | None:
        """The record in the replica's own table."""
        try:
            rows = self.execute(
                "SELECT checkpoint FROM groupcert_checkpoint WHERE replica LIKE 'first copy %'"
            )
        except Exception:  # There is no such table yet; drivers say it in their own ways.
            return None
        return CopyRecord.decode(rows[0][0]) if rows else None

    def mark(self) -> None:
        """Changes the row that nobody changes."""
        self.execute(f"UPDATE fixed SET value = '{MARK}'")

    def check(self, source: Any, mark: str) -> None:
        """Compares all rows."""
        assert self.execute("SELECT value FROM fixed") == [(mark,)]
        with closing(self._connect()) as session:
            assert rows_of(session) == rows_of(source)
        count = "SELECT count(*), min(id), max(id) FROM large"
        assert self.execute(count) == [(LARGE_ROWS, 1, LARGE_ROWS)]


class EmbeddedStore:
    """A store of the replica's own; read beside its process, as far as it is flushed."""

    def __init__(self, folder: Path) -> None:
        self.url = f"rocksdb:{folder}"
        self._folder = folder

    def record(self) -> CopyRecord | None:
        """The record in the store."""
        try:
            rows = open_families(self._folder, AccessType.read_only())
        except Exception:  # There is no store yet.
            return None
        with closing(rows):
            text = rows.get_column_family(Family.META.value).get(COPY_KEY)
        return CopyRecord.decode(text.decode()) if text else None

    def mark(self) -> None:
        """Changes the row that nobody changes."""
        with closing(open_families(self._folder, AccessType.read_write())) as rows:
            family = rows.get_column_family(Family.DATA.value)
            family[ROW_PREFIX + b"flat.fixed/1"] = json.dumps({"id": 1, "value": MARK}).encode()

    def check(self, source: Any, mark: str) -> None:
        """Compares the number of rows of each table, and the values of some."""
        rows, _ = embedded_state(self._folder)
        assert json.loads(rows.pop(b"flat.fixed/1"))["value"] == mark
        found: dict[str, int] = {}
        for key in rows:
            table = key.decode().partition("/")[0].removeprefix("flat.")
            found[table] = found.get(table, 0) + 1
        expected = {table: len(each) for table, each in rows_of(source).items()}
        assert found == {table: count for table, count in expected.items() if count} | {
            "large": LARGE_ROWS
        }
        with source.cursor() as cursor:
            cursor.execute("SELECT id, value FROM plain")
            values = {f"flat.plain/{number}".encode(): value for number, value in cursor.fetchall()}
        plain = {key: row for key, row in rows.items() if key.startswith(b"flat.plain/")}
        assert {key: json.loads(row)["value"] for key, row in plain.items()} == values


@pytest.fixture(params=["mariadb", "postgresql", "rocksdb"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> CopyTarget:
    """An empty target, of each kind."""
    if request.param == "rocksdb":
        return EmbeddedStore(tmp_path / "store")
    return SqlDatabase(
        request.getfixturevalue("mariadb_url" if request.param == "mariadb" else "target_dsn")
    )


@pytest.fixture
def load(target: CopyTarget, request: pytest.FixtureRequest) -> ShopLoad:
    """The shop that the target takes."""
    is_flat = target.url.startswith("rocksdb")
    load: ShopLoad = request.getfixturevalue("flat" if is_flat else "shop")
    return load


def whole(target: CopyTarget) -> set[str]:
    """The tables that are whole, by their names in the database."""
    record = target.record()
    return {name.partition(".")[2] for name in record.whole} if record else set()


def _is_changed(target: CopyTarget, record: CopyRecord | None) -> bool:
    return target.record() != record


def wait_for_record(what: str, target: CopyTarget, is_met: Callable[[CopyRecord], bool]) -> None:
    """Returns when the record of the target is so."""

    def find() -> bool:
        record = target.record()
        return record is not None and is_met(record)

    wait_for(what, find)


def finished(
    source: MariaDbServer,
    load: ShopLoad,
    target: CopyTarget,
    replica: ReplicaProcess,
    mark: str = MARK,
) -> None:
    """Goes on to the end of the source, and compares the rows."""
    assert replica.run("--copy", "--until-after-gtids", executed(source)) == FINE, (
        replica.last_line()
    )
    with closing(connect_mariadb(source.url_of(load.database))) as session:
        target.check(session, mark)


@pytest.mark.in_turns
def test_a_copy_that_is_killed_keeps_the_tables_that_are_whole(
    source: MariaDbServer, load: ShopLoad, target: CopyTarget, tmp_path: Path
) -> None:
    """Killed once tables are whole; then again, after these were changed up to another snapshot."""
    url = source.url_of(load.database)
    small = {"customer", "orders", "item", "plain", "fixed"}
    with ReplicaProcess(tmp_path, [url], target.url, "logical-clock") as replica:
        with load.running():
            replica.start("--copy")
            wait_for("its first whole tables", lambda: small <= whole(target))
            replica.kill()
            assert "large" not in whole(target), "nothing was cut off"
            first = target.record()
            assert first
            target.mark()
            load.wait_for_commits(30)
            replica.start("--copy")
            wait_for("it goes on", lambda: replica.events("first_copy_goes_on"))
            wait_for_record(
                "changes of whole tables", target, lambda found: found.gtids != first.gtids
            )
            replica.kill()
            assert small <= whole(target) < small | {"large"}
            load.wait_for_commits(30)
        assert replica.run() != FINE
        assert "--copy, which goes on with it" in replica.last_line()
        finished(source, load, target, replica)
    assert len(replica.events("first_copy_goes_on")) == 2
    (ended,) = replica.events("first_copy_ended")
    assert ended["rows"] == LARGE_ROWS


@pytest.mark.nightly
def test_a_copy_that_is_killed_at_each_of_its_steps_ends_with_the_rows_of_the_source(
    source: MariaDbServer, load: ShopLoad, target: CopyTarget, tmp_path: Path
) -> None:
    url = source.url_of(load.database)
    with ReplicaProcess(tmp_path, [url], target.url, "logical-clock") as replica:
        replica.start("--copy")
        wait_for("a whole table", lambda: "fixed" in whole(target))
        replica.kill()
        target.mark()
        with load.running():
            for _ in range(KILLS):
                record = target.record()
                replica.start("--copy")
                wait_for("a step", partial(_is_changed, target, record))
                replica.kill()
        finished(source, load, target, replica)


def test_a_copy_begins_again_after_tables_were_defined(
    source: MariaDbServer, shop: ShopLoad, target_dsn: str, tmp_path: Path
) -> None:
    target = SqlDatabase(target_dsn)
    url = source.url_of(shop.database)
    with ReplicaProcess(tmp_path, [url], target.url, "logical-clock") as replica:
        replica.start("--copy")
        wait_for("a whole table", lambda: "fixed" in whole(target))
        replica.kill()
        target.mark()
        with closing(connect_mariadb(url)) as session, session.cursor() as cursor:
            cursor.execute("CREATE TABLE later (id int PRIMARY KEY)")
            cursor.execute("INSERT INTO later VALUES (1)")
        finished(source, shop, target, replica, UNMARKED)
    (again,) = replica.events("first_copy_begins_again")
    assert "'CREATE TABLE later" in again["text"]
    assert target.execute("SELECT id FROM later") == [(1,)]


def test_a_copy_goes_on_after_either_server_was_away(
    source: MariaDbServer, shop: ShopLoad, target_dsn: str, tmp_path: Path
) -> None:
    target = SqlDatabase(target_dsn)
    url = source.url_of(shop.database)
    with ReplicaProcess(tmp_path, [url], target.url, "logical-clock") as replica:
        replica.start("--copy")
        wait_for("a whole table", lambda: "fixed" in whole(target))
        target.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid != pg_backend_pid()"
        )
        assert replica.wait(60) == UNAVAILABLE
        target.mark()
        replica.start("--copy")
        wait_for("it goes on", lambda: replica.events("first_copy_goes_on"))
        source.kill()
        assert replica.wait(60) == UNAVAILABLE
        assert "does not answer" in replica.last_line()
        source.start()
        source.wait_ready()
        finished(source, shop, target, replica)
    assert len(replica.events("first_copy_goes_on")) == 2
