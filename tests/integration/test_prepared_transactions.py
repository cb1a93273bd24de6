"""XA transactions of a live MariaDB that are prepared, and settled later: after a kill of the
replica, and of the source. Nobody sees their rows at the target before.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.integration.followed_targets import (
    KINDS,
    EmbeddedStore,
    FollowedTarget,
    SqlDatabase,
    followed_target,
    whole,
)
from tests.integration.replicas import ReplicaProcess, embedded_state
from tests.integration.shop_load import ShopLoad
from tests.integration.test_server_replica import (
    ALONE,
    FINDING,
    FINE,
    execute,
    executed,
)
from tests.integration.waiting import wait_for
from tests.servers import MariaDbServer, connect_mariadb

pytestmark = pytest.mark.database
ONE, TWO = "x'6f6e65',x'6272',7", "x'74776f',x'',1"
NOTE_BYTES = 2_500_000
"""Bytes of a value: it is kept in several pieces."""
SCHEMES = (
    "logical-clock",
    ALONE,
    "commit-parent",
    "group-commit",
    "database",
    "table",
    "rows",
    "jobs --conflicts ignore",
    "jobs --conflicts ordered",
    "jobs --conflicts graph",
    "jobs --conflicts merge",
)


@pytest.fixture(scope="module")
def load(source: MariaDbServer) -> ShopLoad:
    """Traffic beside them; it changes other tables of the same database."""
    return ShopLoad(source.url, is_flat=True)


@pytest.fixture
def paid(source: MariaDbServer, load: ShopLoad) -> Iterator[str]:
    """A table that the XA transactions change; returns the URL of its database."""
    url = source.url_of(load.database)
    execute(
        source,
        "USE flat",
        "CREATE TABLE paid (id int PRIMARY KEY, amount int, note mediumtext)",
        "INSERT INTO paid VALUES (1, 1, ''), (2, 2, ''), (3, 3, ''), (4, 4, '')",
    )
    yield url
    execute(source, "DROP TABLE flat.paid")


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> FollowedTarget:
    """An empty target, of each kind."""
    return followed_target(request, request.param, tmp_path)


def prepare(source: MariaDbServer, xid: str, *changes: str) -> str:
    """Prepares a transaction, whose session ends; returns its GTID."""
    return execute(source, f"XA START {xid}", *changes, f"XA END {xid}", f"XA PREPARE {xid}")


def paid_rows(source: MariaDbServer) -> list[tuple[int, int, int]]:
    """The table at the source, with the length of each note."""
    with closing(connect_mariadb(source.url)) as session, session.cursor() as cursor:
        cursor.execute("SELECT id, amount, length(note) FROM flat.paid ORDER BY id")
        return [(number, amount, length) for number, amount, length in cursor.fetchall()]


def rows_there(target: FollowedTarget) -> list[tuple[int, int, int]]:
    """The table at the target, which no process has open if it is embedded."""
    if isinstance(target, SqlDatabase):
        return sorted(target.execute("SELECT id, amount, length(note) FROM paid"))
    rows, _ = embedded_state(target.folder)
    found = [json.loads(row) for key, row in rows.items() if key.startswith(b"flat.paid/")]
    return sorted((row["id"], row["amount"], len(row["note"])) for row in found)


@pytest.mark.in_turns
@pytest.mark.in_turns
@pytest.mark.parametrize("scheme", SCHEMES)
def test_prepared_rows_wait_for_their_end_through_kills_of_replica_and_source(
    source: MariaDbServer,
    load: ShopLoad,
    paid: str,
    target: FollowedTarget,
    tmp_path: Path,
    scheme: str,
) -> None:
    before = paid_rows(source)
    with ReplicaProcess(tmp_path, [paid], target.url, scheme) as replica:
        replica.start("--copy")
        replica.wait_for_start()
        with load.running():
            prepare(
                source,
                ONE,
                f"UPDATE flat.paid SET amount = 10, note = repeat('n', {NOTE_BYTES}) WHERE id = 1",
                "INSERT INTO flat.paid VALUES (5, 5, '')",
                "DELETE FROM flat.paid WHERE id = 2",
            )
            load.wait_for_commits(10)
            prepare(source, TWO, "UPDATE flat.paid SET id = 30 WHERE id = 3")
            execute(
                source,
                "XA START 'short'",
                "UPDATE flat.paid SET amount = 40 WHERE id = 4",
                "XA END 'short'",
                "XA COMMIT 'short' ONE PHASE",
            )
            load.wait_for_commits(10)
            wait_for("both prepared", lambda: {ONE, TWO} == target.prepared())
        assert replica.run("--until-after-gtids", executed(source)) == FINE, replica.last_line()
        assert rows_there(target) == [*before[:3], (4, 40, 0)], "shown before their commit"
        source.kill()
        source.start()
        source.wait_ready()
        replica.start()
        execute(source, f"XA COMMIT {ONE}")
        load.run(20, seed=7)
        wait_for("one of them settled", lambda: {TWO} == target.prepared())
        replica.kill()
        execute(source, f"XA ROLLBACK {TWO}")
        load.run(20, seed=8)
        assert replica.run("--until-after-gtids", executed(source)) == FINE, replica.last_line()
        (*_, ended) = replica.events("replica_ended")
        assert ended["executed"] == executed(source)
    assert rows_there(target) == paid_rows(source)
    assert not target.prepared()


def test_the_end_of_one_that_is_not_kept_stops_by_name(
    source: MariaDbServer, paid: str, target_dsn: str, tmp_path: Path
) -> None:
    with ReplicaProcess(tmp_path, [paid], target_dsn, "logical-clock") as replica:
        replica.start("--copy")
        replica.wait_for_start()
        replica.kill()
        skipped = prepare(source, TWO, "UPDATE flat.paid SET amount = 9 WHERE id = 1")
        gtid = execute(source, f"XA COMMIT {TWO}")
        end = executed(source)
        wanted = ("--until-after-gtids", end)
        assert replica.run("--skip-gtids", skipped, *wanted) == FINDING
        assert f"failed at {gtid}" in replica.last_line()
        assert f"XA COMMIT {TWO} is {gtid}, and the rows of its" in replica.last_line()
        with psycopg.connect(target_dsn) as session:
            session.execute("UPDATE paid SET amount = 9 WHERE id = 1")
        assert replica.run("--skip-gtids", gtid, *wanted) == FINE, replica.last_line()
    assert rows_there(SqlDatabase(target_dsn)) == paid_rows(source)


def test_a_copy_that_goes_on_past_one_begins_again(
    source: MariaDbServer, paid: str, tmp_path: Path
) -> None:
    target = EmbeddedStore(tmp_path / "store")
    execute(
        source,
        "USE flat",
        "CREATE TABLE large (id int PRIMARY KEY, value varchar(200))",
        "INSERT INTO large SELECT seq, repeat('x', 99) FROM seq_1_to_60000",
    )
    try:
        with ReplicaProcess(tmp_path, [paid], target.url, "logical-clock") as replica:
            replica.start("--copy")
            wait_for("a whole table", lambda: "paid" in whole(target))
            replica.kill()
            prepare(source, TWO, "UPDATE flat.paid SET amount = 9 WHERE id = 1")
            execute(source, f"XA COMMIT {TWO}")
            wanted = ("--until-after-gtids", executed(source))
            assert replica.run("--copy", *wanted) == FINE, replica.last_line()
        (again,) = replica.events("first_copy_begins_again")
        assert "XA PREPARE" in again["text"]
        assert rows_there(target) == paid_rows(source)
    finally:
        execute(source, "DROP TABLE flat.large")
