"""Snapshots of a live MariaDB: when one can be had, and what ends one."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

import pytest
from pymysql.cursors import SSCursor

from groupcert.applier.mysql_logs.source_catalogue import SourceColumn, SourceTable
from groupcert.applier.mysql_servers import snapshot
from groupcert.applier.mysql_servers.server_url import ServerUrl
from groupcert.applier.mysql_servers.snapshot import opened_snapshot
from groupcert.applier.mysql_servers.source_errors import SourceLost, SourceRefused
from tests import servers
from tests.applier.mysql_servers import server_streams as live

pytestmark = pytest.mark.database
COLUMNS = (SourceColumn(name="id", data_type="int", column_type="int(11)", nullable=False),)
TABLE = SourceTable(database="taken", name="t", columns=COLUMNS, primary_key=("id",))
MANY = 150_000
"""Rows that no buffer between server and client holds."""
XID = "'x','y',7"
Connect = Callable[[], Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.MariaDbServer]:
    """A server with a binary log, and a table."""
    folder = tmp_path_factory.mktemp("snapshots")
    with servers.where_installed(), servers.MariaDbServer(folder, *live.LOGGING) as running:
        live.execute(running, "CREATE DATABASE taken", "CREATE TABLE taken.t (id int PRIMARY KEY)")
        live.execute(running, "INSERT INTO taken.t VALUES (1)")
        yield running


@pytest.fixture
def url(server: servers.MariaDbServer) -> ServerUrl:
    """Its address."""
    return ServerUrl.parse(server.url)


@pytest.fixture
def connect(url: ServerUrl) -> Connect:
    """How a copy connects."""

    def connect() -> Any:
        session = url.connect()
        session.cursorclass, session.decoders = SSCursor, {}
        return session

    return connect


@pytest.fixture
def prepared(server: servers.MariaDbServer) -> Iterator[Callable[[object], None]]:
    """An XA transaction is prepared; returns what commits it."""
    changes = (f"XA START {XID}", "DELETE FROM taken.t", f"XA END {XID}")
    live.execute(server, *changes, f"XA PREPARE {XID}")
    is_open = True

    def commit(_: object) -> None:
        nonlocal is_open
        live.execute(server, f"XA COMMIT {XID}", "INSERT INTO taken.t VALUES (2)")
        is_open = False

    yield commit
    if is_open:
        live.execute(server, f"XA ROLLBACK {XID}")


def test_it_waits_until_nothing_is_prepared(
    url: ServerUrl,
    connect: Connect,
    prepared: Callable[[object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot, "sleep", prepared)
    with opened_snapshot(url, connect, 2) as taken:
        assert [list(taken.rows(TABLE, COLUMNS, thread)) for thread in range(2)] == [[[(2,)]]] * 2


@pytest.mark.usefixtures("prepared")
def test_what_stays_prepared_is_named_with_the_way_on(
    server: servers.MariaDbServer,
    url: ServerUrl,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot, "PREPARED_SECONDS_MAX", -1)
    with pytest.raises(SourceRefused, match=r"by now X'78',X'79',7, .*; commit them"):
        opened_snapshot(url, connect, 1).__enter__()
    live.execute(server, "CREATE TABLE taken.unlocked (id int)")


def test_a_table_that_is_altered_meanwhile_ends_it_by_name(
    server: servers.MariaDbServer, url: ServerUrl, connect: Connect
) -> None:
    with opened_snapshot(url, connect, 1) as taken:
        live.execute(server, "ALTER TABLE taken.t FORCE")
        with pytest.raises(SourceRefused, match="a table was defined during the copy"):
            list(taken.rows(TABLE, COLUMNS, 0))


def test_a_table_whose_columns_were_renamed_before_it_is_read_is_no_part_of_it(
    server: servers.MariaDbServer, url: ServerUrl, connect: Connect
) -> None:
    """The server shows the old rows under the new names, and refuses nothing."""
    live.execute(server, "CREATE TABLE taken.pairs (id int PRIMARY KEY, a int, b int)")
    live.execute(server, "INSERT INTO taken.pairs VALUES (1, 2, 3)")
    names = ("a", "b")
    table = replace(
        TABLE,
        name="pairs",
        columns=(
            *COLUMNS,
            *(
                SourceColumn(name=name, data_type="int", column_type="int(11)", default="NULL")
                for name in names
            ),
        ),
    )
    with opened_snapshot(url, connect, 1) as taken:
        assert list(taken.rows(table, table.columns, 0)) == [[(1, 2, 3)]]
    with opened_snapshot(url, connect, 1) as taken:
        swap = "RENAME COLUMN a TO b, RENAME COLUMN b TO a"
        live.execute(server, f"ALTER TABLE taken.pairs {swap}, ALGORITHM=INSTANT")
        with pytest.raises(
            SourceRefused, match=r"taken\.pairs has other columns than when it began"
        ):
            list(taken.rows(table, table.columns, 0))


def kill_others(server: servers.MariaDbServer) -> None:
    """Ends all sessions but its own."""
    ids = live.execute(
        server, "SELECT id FROM information_schema.processlist WHERE id != connection_id()"
    )
    live.execute(server, *(f"KILL {number}" for (number,) in ids))


def test_a_session_that_is_gone_is_a_source_that_is_lost(
    server: servers.MariaDbServer, url: ServerUrl, connect: Connect
) -> None:
    with opened_snapshot(url, connect, 1) as taken:
        kill_others(server)
        with pytest.raises(SourceLost):
            taken.definition(TABLE)


def test_rows_that_were_begun_end_with_their_session(
    server: servers.MariaDbServer, url: ServerUrl, connect: Connect
) -> None:
    note = SourceColumn(name="note", data_type="varchar", column_type="varchar(200)")
    many = replace(TABLE, name="many", columns=(note,))
    live.execute(
        server,
        "USE taken",
        "CREATE TABLE many (id int PRIMARY KEY, note varchar(200))",
        f"INSERT INTO many SELECT seq, repeat('x', 200) FROM seq_1_to_{MANY}",
    )
    with opened_snapshot(url, connect, 1) as taken:
        rows = taken.rows(many, many.columns, 0)
        assert len(next(rows)) < MANY
        kill_others(server)
        with pytest.raises(SourceLost):
            list(rows)


def test_rows_may_be_left_before_their_end(url: ServerUrl, connect: Connect) -> None:
    with opened_snapshot(url, connect, 1) as taken:
        rows = taken.rows(TABLE, COLUMNS, 0)
        next(rows)
        assert isinstance(rows, Generator)
        rows.close()
