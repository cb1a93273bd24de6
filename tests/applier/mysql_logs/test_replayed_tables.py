"""Rows of a log, written one after the other, make the tables of its server.

A table here is its rows by their first column, which every image has.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from groupcert.applier.mysql_logs.row_errors import SourceTableChanged, UnreadableValue
from groupcert.applier.mysql_logs.row_payload import RowKind
from tests import servers
from tests.applier.mysql_logs.logged_rows import (
    Session,
    catalogue_of,
    execute,
    logged,
    plain_session,
    rows_of,
    shown,
)

pytestmark = pytest.mark.database


class Source(NamedTuple):
    """A server: a session in its database `shop`, and the folder of its logs."""

    session: Session
    folder: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.MariaDbServer]:
    """A MariaDB that logs rows."""
    folder = tmp_path_factory.mktemp("tables")
    options = ("--log-bin=binlog", "--server-id=3", "--binlog-format=ROW")
    with servers.where_installed(), servers.MariaDbServer(folder, *options) as running:
        yield running


@pytest.fixture
def source(server: servers.MariaDbServer) -> Iterator[Source]:
    """The server, with an empty database."""
    with plain_session(server.port, "shop") as session:
        yield Source(session, server.data)
        execute(session, "DROP DATABASE shop", "SET GLOBAL mysql56_temporal_format = ON")


def replayed(source: Source, *work: str) -> tuple[dict[object, list[object]], list[RowKind]]:
    """The rows of table t that a log makes of an empty one, and the kinds of its events."""
    path = logged(
        source.session, source.folder, lambda: [execute(source.session, each) for each in work]
    )
    catalogue = catalogue_of(source.session, "shop")
    table: dict[object, list[object]] = {}
    kinds: list[RowKind] = []
    for rows in rows_of(path, catalogue):
        kinds.append(rows.kind)
        for before, after in rows.rows:
            old = table.pop(before[0]) if before is not None else []
            if after is None:
                continue
            assert rows.after is not None
            new = dict(zip(rows.after, after, strict=True))
            row = [new.get(n, old[n] if old else None) for n in range(len(rows.table.columns))]
            table[row[0]] = row
    return table, kinds


def expected(source: Source) -> list[list[object]]:
    """The rows of table t as the server shows them, with the columns of its catalogue."""
    table = catalogue_of(source.session, "shop")["shop.t"]
    columns = ", ".join(each.name for each in table.columns)
    return [[*row] for row in execute(source.session, f"SELECT {columns} FROM t ORDER BY 1")]


WORK = (
    "INSERT INTO t (id, a, b) VALUES (1, 10, 'x'), (2, 20, 'yy'), (3, 30, NULL), (4, NULL, 'z')",
    "UPDATE t SET a = a + 1 WHERE id < 3",
    "UPDATE t SET b = 'new' WHERE id = 3",
    "DELETE FROM t WHERE id = 2",
    "REPLACE INTO t (id, a, b) VALUES (1, 11, 'replaced'), (5, 50, 'five')",
    "INSERT INTO t (id, a) VALUES (5, 0), (6, 60) ON DUPLICATE KEY UPDATE a = 55",
    "UPDATE t SET id = 9 WHERE id = 4",
)
TABLES = {
    "virtual, stored": "v INT AS (a + 1) VIRTUAL, s VARCHAR(9) AS (CONCAT(a, 's')) STORED",
    "invisible": "i INT INVISIBLE, j INT INVISIBLE DEFAULT NULL",
    "a hidden hash of a long unique key": "UNIQUE (b), c VARCHAR(4000) UNIQUE",
    "check": "CHECK (a < 1000)",
}


@pytest.mark.parametrize("image", ["FULL", "MINIMAL", "NOBLOB"])
@pytest.mark.parametrize("metadata", ["FULL", "NO_LOG"])
@pytest.mark.parametrize("versioned", ["", "WITH SYSTEM VERSIONING"])
@pytest.mark.parametrize("columns", TABLES.values(), ids=TABLES)
def test_columns_that_nobody_writes_are_no_hindrance(
    source: Source, columns: str, versioned: str, metadata: str, image: str
) -> None:
    execute(
        source.session,
        f"SET GLOBAL binlog_row_metadata = {metadata}",
        f"SET binlog_row_image = {image}",
        f"CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT, {columns}) {versioned}",
    )
    table, _ = replayed(source, *WORK)
    found = [[*map(shown, table[key])] for key in sorted(table, key=str)]
    rows = expected(source)
    if image == "MINIMAL" and "VIRTUAL" in columns:
        # The server computes it anew, and leaves it out.
        for row in (*found, *rows):
            del row[3]
    assert found == rows


@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_former_versions_of_rows_are_left_out(source: Source, image: str) -> None:
    execute(
        source.session,
        f"SET binlog_row_image = {image}",
        "CREATE TABLE t (id INT PRIMARY KEY, begun TIMESTAMP(6) GENERATED ALWAYS AS ROW START, "
        "a INT, ended TIMESTAMP(6) GENERATED ALWAYS AS ROW END, b TEXT, "
        "PERIOD FOR SYSTEM_TIME (begun, ended)) WITH SYSTEM VERSIONING",
    )
    table, kinds = replayed(source, *WORK, "DELETE HISTORY FROM t")
    named = [[row[0], row[2], row[4]] for _, row in sorted(table.items(), key=str)]
    assert [[*map(shown, row)] for row in named] == [
        [row[0], row[2], row[4]] for row in expected(source)
    ]
    assert all(row[1] is row[3] is None for row in table.values())
    assert RowKind.DELETE in kinds


def test_a_column_more_than_the_catalogue_has_is_not_taken_for_a_hidden_one(
    source: Source,
) -> None:
    execute(
        source.session,
        "SET GLOBAL binlog_row_metadata = NO_LOG",
        "CREATE TABLE t (id INT PRIMARY KEY, a INT UNIQUE)",
    )
    catalogue = catalogue_of(source.session, "shop")
    for column in ("b BIGINT UNSIGNED", "c TIMESTAMP(6)"):
        execute(source.session, f"ALTER TABLE t ADD COLUMN {column}")
        path = logged(
            source.session,
            source.folder,
            lambda: execute(source.session, "INSERT INTO t (id) SELECT COUNT(*) FROM t"),
        )
        with pytest.raises(SourceTableChanged, match=r"table shop\.t has \d columns in the log"):
            rows_of(path, catalogue)


def test_dates_and_times_of_tables_from_before_fractions_are_read(source: Source) -> None:
    execute(
        source.session,
        "SET GLOBAL mysql56_temporal_format = OFF",
        "CREATE TABLE t (id INT PRIMARY KEY, t TIME, d DATETIME, s TIMESTAMP NULL)",
        "SET GLOBAL mysql56_temporal_format = ON",
    )
    table, _ = replayed(
        source,
        "INSERT INTO t VALUES (1, '-838:59:58', '9999-12-31 23:59:58', '2038-01-19 03:14:07')",
        "INSERT INTO t VALUES (2, '00:00:01', '0000-00-00', 0), (3, '101:02:03', NULL, NULL)",
    )
    assert [[*map(shown, row)] for row in table.values()] == expected(source)


def test_a_fraction_in_the_old_format_is_refused_by_name(source: Source) -> None:
    execute(
        source.session,
        "SET GLOBAL mysql56_temporal_format = OFF",
        "CREATE TABLE t (id INT PRIMARY KEY, t TIME(3))",
        "SET GLOBAL mysql56_temporal_format = ON",
    )
    with pytest.raises(UnreadableValue, match=r"column t of shop.t, of type time\(3\)"):
        replayed(source, "INSERT INTO t VALUES (1, '00:00:01.5')")
