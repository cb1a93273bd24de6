"""First copies of a live MariaDB that are cut off: killed at several moments, or without a server.

The shop has two tables more: a large one, whose copy takes seconds, so that it is not whole when
the others are, and one that nobody changes. In that one a row of the target is marked behind the
copy's back: the mark stays if and only if the table is not copied again.
"""

import json
from collections import Counter
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from groupcert.applier.targets.first_copy import CopyRecord
from groupcert.applier.targets.postgresql import PostgreSqlServer
from groupcert.certifier.gtid_set import GtidSet
from tests.integration.followed_targets import (
    KINDS,
    EmbeddedStore,
    FollowedTarget,
    SqlDatabase,
    followed_target,
    whole,
)
from tests.integration.replicas import ReplicaProcess, embedded_state
from tests.integration.shop_load import ShopLoad, rows_of
from tests.integration.test_server_replica import (
    FINE,
    USAGE,
    execute,
    executed,
)
from tests.integration.waiting import wait_for
from tests.servers import MariaDbServer, connect_mariadb

pytestmark = pytest.mark.database
UNAVAILABLE = 3
KILLS = 8
LARGE_ROWS = 60_000
UNMARKED, MARK = "as it was", "marked"


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


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> FollowedTarget:
    """An empty target, of each kind."""
    return followed_target(request, request.param, tmp_path)


@pytest.fixture
def load(target: FollowedTarget, request: pytest.FixtureRequest) -> ShopLoad:
    """The shop that the target takes."""
    is_flat = isinstance(target, EmbeddedStore)
    load: ShopLoad = request.getfixturevalue("flat" if is_flat else "shop")
    return load


def _is_changed(target: FollowedTarget, record: CopyRecord | None) -> bool:
    return target.record() != record


def _gtids(target: FollowedTarget) -> GtidSet | None:
    record = target.record()
    return record.gtids if record else None


def put_mark(target: FollowedTarget) -> None:
    """Changes the row that nobody changes, while the replica does not run."""
    if isinstance(target, EmbeddedStore):
        target.put("flat.fixed/1", json.dumps({"id": 1, "value": MARK}).encode())
    else:
        target.execute(f"UPDATE fixed SET value = '{MARK}'")


def check(target: FollowedTarget, source: Any, mark: str) -> None:
    """Fails unless that row has this mark, and all others are the source's: of documents, as many
    of each table, and those of one with their values.
    """
    expected = rows_of(source)
    if isinstance(target, SqlDatabase):
        assert target.execute("SELECT value FROM fixed") == [(mark,)]
        count = target.execute("SELECT count(*), min(id), max(id) FROM large")
        assert count == [(LARGE_ROWS, 1, LARGE_ROWS)]
        with closing(target.connect()) as session:
            assert rows_of(session) == expected
        return
    rows, _ = embedded_state(target.folder)
    assert json.loads(rows.pop(b"flat.fixed/1"))["value"] == mark
    counts = Counter(key.decode().partition("/")[0].removeprefix("flat.") for key in rows)
    assert counts == Counter({name: len(each) for name, each in expected.items()}) + Counter(
        large=LARGE_ROWS
    )
    plain = [json.loads(row) for key, row in rows.items() if key.startswith(b"flat.plain/")]
    found = sorted((str(row["id"]), str(row["value"])) for row in plain)
    assert found == [row[:2] for row in expected["plain"]]


def finished(
    source: MariaDbServer,
    load: ShopLoad,
    target: FollowedTarget,
    replica: ReplicaProcess,
    mark: str = MARK,
) -> None:
    """Goes on to the end of the source, and compares the rows."""
    assert replica.run("--copy", "--until-after-gtids", executed(source)) == FINE, (
        replica.last_line()
    )
    with closing(connect_mariadb(source.url_of(load.database))) as session:
        check(target, session, mark)


@pytest.mark.in_turns
def test_a_copy_that_is_killed_keeps_the_tables_that_are_whole(
    source: MariaDbServer, load: ShopLoad, target: FollowedTarget, tmp_path: Path
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
            put_mark(target)
            load.wait_for_commits(30)
            replica.start("--copy")
            wait_for("it goes on", lambda: replica.events("first_copy_goes_on"))
            gtids = first.gtids
            wait_for("changes of whole tables", lambda: _gtids(target) not in (None, gtids))
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
    source: MariaDbServer, load: ShopLoad, target: FollowedTarget, tmp_path: Path
) -> None:
    url = source.url_of(load.database)
    with ReplicaProcess(tmp_path, [url], target.url, "logical-clock") as replica:
        replica.start("--copy")
        wait_for("a whole table", lambda: "fixed" in whole(target))
        replica.kill()
        put_mark(target)
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
        put_mark(target)
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
        assert "at the target" in replica.last_line()
        assert "Exception ignored" not in replica.log.read_text()
        put_mark(target)
        replica.start("--copy")
        wait_for("it goes on", lambda: replica.events("first_copy_goes_on"))
        source.kill()
        # Its process stays, and goes on.
        wait_for("it says so", lambda: replica.events("source_unavailable"))
        source.start()
        source.wait_ready()
        wait_for("it goes on", lambda: len(replica.events("first_copy_goes_on")) > 1)
        finished(source, shop, target, replica)


def test_a_replica_may_be_started_before_its_source(
    source: MariaDbServer, flat: ShopLoad, tmp_path: Path
) -> None:
    source.kill()
    target = EmbeddedStore(tmp_path / "store")
    with ReplicaProcess(
        tmp_path, [source.url_of(flat.database)], target.url, "logical-clock"
    ) as replica:
        replica.start("--copy")
        wait_for("it says so", lambda: len(replica.events("source_unavailable")) > 1)
        source.start()
        source.wait_ready()
        wait_for("it follows", lambda: replica.events("replica_started"))
        assert replica.stop() == FINE


def test_a_table_that_cannot_be_made_is_named_with_the_way_on(
    source: MariaDbServer, mariadb_url: str, tmp_path: Path
) -> None:
    target = SqlDatabase(mariadb_url)
    execute(
        source,
        "CREATE DATABASE numbered",
        "USE numbered",
        "CREATE SEQUENCE numbers",
        "CREATE TABLE t (id int PRIMARY KEY DEFAULT nextval(numbers))",
        "INSERT INTO t VALUES ()",
    )
    url = source.url_of("numbered")
    wanted = ("--copy", "--until-after-gtids", executed(source))
    with ReplicaProcess(tmp_path, [url], target.url, "logical-clock") as replica:
        assert replica.run(*wanted) == USAGE
        assert "table numbered.t cannot be made there: " in replica.last_line()
        target.execute("CREATE TABLE t (id int PRIMARY KEY)")
        assert replica.run(*wanted) == FINE, replica.last_line()
    assert target.execute("SELECT id FROM t") == [(1,)]


def test_two_processes_do_not_copy_under_one_name(
    source: MariaDbServer, flat: ShopLoad, target_dsn: str, tmp_path: Path
) -> None:
    other = PostgreSqlServer(target_dsn).connect()
    with closing(other):
        assert PostgreSqlServer(target_dsn).lock(other, sha256(b"replica").hexdigest()[:16])
        url = source.url_of(flat.database)
        with ReplicaProcess(tmp_path, [url], target_dsn, "logical-clock") as replica:
            assert replica.run("--copy") == USAGE
            assert "another process writes here as replica replica" in replica.last_line()
