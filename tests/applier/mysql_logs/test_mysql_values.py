"""Values in MySQL 9.7.4's own logs are those that the server, or its `mysqlbinlog -vv`, showed.

The files with all types are made by `make_server_logs.py`.
"""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from groupcert.applier.mysql_logs.charsets import charset_of
from groupcert.applier.mysql_logs.column_types import ColumnType
from groupcert.applier.mysql_logs.events import EventType
from groupcert.applier.mysql_logs.row_payload import packed, table_rows
from groupcert.applier.mysql_logs.source_catalogue import SourceColumn, SourceTable
from groupcert.applier.mysql_logs.table_maps import read_table
from tests.applier.mysql_logs import make_server_logs
from tests.applier.mysql_logs.logged_rows import logged_events, rows_of, text
from tests.applier.mysql_logs.written_samples import assert_all_same

T = ColumnType
NAMES = {
    T.TINY: "tinyint",
    T.SHORT: "smallint",
    T.INT24: "mediumint",
    T.LONG: "int",
    T.LONGLONG: "bigint",
    T.NEWDECIMAL: "decimal",
    T.TIME2: "time",
    T.DATETIME2: "datetime",
    T.TIMESTAMP2: "timestamp",
    T.STRING: "char",
}

HALF_SHOWN = {("UPDATE", "js"), ("UPDATE", "t_all")}
"""What `mysqlbinlog` shows no row after of: parts of JSON documents, and a geometry."""


@pytest.mark.parametrize("image", make_server_logs.RUNS)
def test_values_are_those_that_mysql_shows(tmp_path: Path, image: str) -> None:
    path = unpacked(make_server_logs.log_path(image), tmp_path)
    catalogue, states = make_server_logs.read()
    rows = rows_of(path, catalogue)
    assert len(rows) > len(make_server_logs.SAMPLES)
    assert_all_same(make_server_logs.SAMPLES, rows, states, image)


def test_values_are_those_that_mysqlbinlog_shows(tmp_path: Path) -> None:
    name = make_server_logs.FOLDER / "mysql-9.7.4-tagged-gtids"
    path = unpacked(name.with_name(f"{name.name}.binlog.gz"), tmp_path)
    content = gzip.decompress(name.with_name(f"{name.name}.mysqlbinlog.txt.gz").read_bytes())
    expected = [*shown_images(content.decode())]
    images = [*read_images(path)]
    assert [table for table, _ in images] == [table for table, _ in expected]
    for (table, values), (_, texts) in zip(images, expected, strict=True):
        # It shows no geometries, and vectors in its own way.
        known = {n: "NULL" if (v := values[n]) is None else text(v) for n in texts}
        assert known == texts, table
    assert len(images) > 40


def unpacked(file: Path, folder: Path) -> Path:
    """A log as its server wrote it."""
    path = folder / "binlog"
    path.write_bytes(gzip.decompress(file.read_bytes()))
    return path


def shown_images(content: str) -> Iterator[tuple[str, dict[int, str]]]:
    """The table, and values by number, of each row image; the values come after it."""
    operation = table = ""
    for line in content.splitlines():
        if found := re.match(r"### ([A-Z]+).* `awk`\.`(\w+)`", line):
            operation, table = found.groups()
        elif re.match(r"### (SET|WHERE)", line):
            values: dict[int, str] = {}
            if (operation, table) not in HALF_SHOWN:
                yield table, values
        elif found := re.match(r"###   @(\d+)=(.*) /\* (\w+)", line):
            number, value, kind = found.groups()
            if kind != "VECTOR":
                values[int(number) - 1] = value.strip("'")


def read_images(path: Path) -> Iterator[tuple[str, dict[int, object]]]:
    """The same of a log's own rows."""
    events = [*logged_events(path)]
    tables = {}
    for event, format in events:
        if event.type == EventType.TABLE_MAP:
            table = read_table(event, format, {})
            columns = tuple(
                SourceColumn(
                    name=column.name or f"@{number}",
                    data_type=name,
                    column_type=name,
                    charset=None if column.collation is None else charset_of(column.collation),
                )
                for number, column in enumerate(table.columns or ())
                for name in (NAMES.get(T(column.type), T(column.type).name.lower()),)
            )
            tables[str(table)] = SourceTable(
                database="awk", name=table.name, columns=columns, unique_keys={}
            )
    payload = b"".join(
        packed(*each) for each in events if each[0].type != EventType.PARTIAL_UPDATE_ROWS
    )
    for rows in table_rows(payload, tables):
        if (rows.kind.name, rows.table.name) in HALF_SHOWN:
            continue
        for pair in rows.rows:
            for columns_of, image in zip((rows.before, rows.after), pair, strict=True):
                if columns_of is not None and image is not None:
                    yield rows.table.name, dict(zip(columns_of, image, strict=True))
