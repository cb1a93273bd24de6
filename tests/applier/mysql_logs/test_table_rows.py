"""Rows of hand-made events: every pattern of NULLs, lengths of every width, and what is refused."""

import random
import struct
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from groupcert.applier.errors import InvalidBinaryLog
from groupcert.applier.mysql_logs.events import HEADER_BYTES, FormatDescription, parse_header
from groupcert.applier.mysql_logs.row_errors import (
    SourceTableChanged,
    UnknownSourceTable,
    UnreadableValue,
)
from groupcert.applier.mysql_logs.row_payload import (
    RowKind,
    TableRows,
    packed,
    table_rows,
    unreadable_columns,
)
from groupcert.applier.mysql_logs.source_catalogue import ForeignKey, SourceColumn, SourceTable
from groupcert.applier.mysql_logs.table_maps import keys_from
from groupcert.certifier.errors import GroupcertError
from groupcert.certifier.write_set import ParentKey, TableKeys
from tests.applier.mysql_logs import log_writer as w

FORMAT = FormatDescription("9.7.4", 4, w.POST_HEADERS)
COLUMNS = (
    (w.INT, b"", "int", "int"),
    (252, b"\1", "tinyblob", "tinyblob"),
    (2, b"", "smallint", "smallint unsigned"),
    (252, b"\2", "text", "text"),
    (9, b"", "mediumint", "mediumint"),
    (5, b"\x08", "double", "double"),
    (252, b"\3", "mediumblob", "mediumblob"),
    (252, b"\4", "longblob", "longblob"),
    (w.VARCHAR, b"\x78\0", "varchar", "varchar(30)"),
    (8, b"", "bigint", "bigint"),
)
NAMES = tuple("abcdefghij")
TABLE = SourceTable(
    database="shop",
    name="orders",
    columns=tuple(
        SourceColumn(
            name=name,
            data_type=data_type,
            column_type=column_type,
            charset="utf8mb4" if data_type in ("text", "varchar") else None,
        )
        for name, (_, _, data_type, column_type) in zip(NAMES, COLUMNS, strict=True)
    ),
    primary_key=("a",),
    unique_keys={"g": ("g", "i")},
)
MAP = w.table_map("orders", [(kind, metadata) for kind, metadata, *_ in COLUMNS])
ROWS = [
    (-5, b"x", 65_535, "Größe", -8_388_608, 0.1, b"m" * 70_000, b"", "🐬", -(1 << 63)),
    (7, b"", 0, "", 8_388_607, -2.5, b"", b"l" * 300, "", (1 << 63) - 1),
]
CODES = ("i", 1, "H", 2, None, "d", 3, 4, 1, "q")


def payload(*events: bytes) -> bytes:
    """Events as a source passes them on."""
    return b"".join(
        packed(parse_header("", 0, event[:HEADER_BYTES])._replace(body=event[19:]), FORMAT)
        for event in events
    )


def image(row: tuple[object, ...]) -> bytes:
    """A row as servers write it."""
    nulls = sum(1 << place for place, value in enumerate(row) if value is None)
    content = (nulls | 0b111111 << 10).to_bytes(2, "little")
    for code, value in zip(CODES, row, strict=True):
        if value is None:
            continue
        if isinstance(code, str):
            content += struct.pack(f"<{code}", value)
        elif isinstance(value, int):
            content += value.to_bytes(3, "little", signed=True)
        else:
            stored = value.encode() if isinstance(value, str) else value
            assert isinstance(code, int) and isinstance(stored, bytes)
            content += len(stored).to_bytes(code, "little") + stored
    return content


def read(*events: bytes, table: SourceTable = TABLE) -> list[TableRows]:
    """The rows of some events."""
    return list(table_rows(payload(*events), {str(table): table}))


def with_column(name: str, **changes: Any) -> SourceTable:
    """The table with one column that is described in another way."""
    columns = [replace(each, **changes) if each.name == name else each for each in TABLE.columns]
    return replace(TABLE, columns=tuple(columns))


def test_any_columns_may_be_null() -> None:
    chance = random.Random(38)
    rows: list[tuple[object, ...]] = [
        tuple(None if chance.random() < share else value for value in chance.choice(ROWS))
        for share in (0, 0.2, 0.5, 0.9, 1)
        for _ in range(40)
    ]
    (found,) = read(MAP, w.rows(30, 10, b"".join(map(image, rows))))
    assert (found.table, found.kind, found.before, found.after) == (
        TABLE,
        RowKind.INSERT,
        None,
        tuple(range(10)),
    )
    assert found.rows == [(None, row) for row in rows]


def test_updates_and_deletes_have_rows_before_in_the_order_of_the_log() -> None:
    first, second = map(image, ROWS)
    events = [w.rows(31, 10, first + second), w.rows(32, 10, second), w.rows(30, 10, first)]
    updated, deleted, inserted = read(MAP, *events)
    assert (updated.kind, updated.rows) == (RowKind.UPDATE, [tuple(ROWS)])
    assert (deleted.kind, deleted.after, deleted.rows) == (RowKind.DELETE, None, [(ROWS[1], None)])
    assert (inserted.kind, inserted.rows) == (RowKind.INSERT, [(None, ROWS[0])])


def test_a_table_that_is_not_in_the_catalogue_is_named() -> None:
    with pytest.raises(UnknownSourceTable, match=r"shop\.orders"):
        list(table_rows(payload(MAP), {}))


@pytest.mark.parametrize(
    ("table", "match"),
    [
        (replace(TABLE, columns=TABLE.columns[1:]), "10 columns in the log and 9 in"),
        (
            with_column("c", data_type="int", column_type="int(9)"),
            r"SHORT as column 3, c in the log and int\(9\) as c in",
        ),
    ],
)
def test_columns_that_changed_since_the_catalogue_was_read_are_named(
    table: SourceTable, match: str
) -> None:
    with pytest.raises(SourceTableChanged, match=match):
        read(MAP, table=table)


def test_a_renamed_column_is_named_where_the_log_has_names() -> None:
    names = b"".join(bytes([len(name)]) + name.encode() for name in "abxdefghij")
    described = w.table_map("orders", [(each[0], each[1]) for each in COLUMNS], [(4, names)])
    with pytest.raises(SourceTableChanged, match="SHORT as column 3, x in the log"):
        read(described)


@pytest.mark.parametrize(
    ("charset", "row", "match"),
    [
        ("geostd8", ROWS[0], "character set geostd8, which is not known here"),
        ("ascii", ROWS[0], "'ascii' codec can't decode byte 0xc3"),
    ],
)
def test_a_text_that_cannot_be_read_names_table_and_column(
    charset: str, row: tuple[object, ...], match: str
) -> None:
    table = with_column("d", charset=charset)
    with pytest.raises(UnreadableValue, match=match) as found:
        read(MAP, w.rows(30, 10, image((None, *row[1:]))), table=table)
    assert (found.value.table, found.value.column) == ("shop.orders", "d")


def test_columns_that_cannot_be_read_are_known_from_the_catalogue_alone() -> None:
    assert not [*unreadable_columns(TABLE)]
    for changes, why in (({"charset": "swe7"}, "set swe7"), ({"data_type": "xml"}, "type xml")):
        ((column, reason),) = unreadable_columns(with_column("d", **changes))
        assert column.name == "d" and why in reason


def test_parts_of_json_documents_are_refused_by_the_name_of_the_setting() -> None:
    with pytest.raises(InvalidBinaryLog, match="binlog_row_value_options=''"):
        read(MAP, w.rows(39, 10, image(ROWS[0])))


def test_rows_that_end_early_are_refused_wherever_they_end() -> None:
    content = image((-5, b"xy", 65_535, "Größe", 8, 0.1, b"m", b"l", "n", 9))
    for size in range(1, len(content)):
        with pytest.raises(InvalidBinaryLog, match="ends beyond its event"):
            read(MAP, w.rows(30, 10, content[:size]))


def test_a_changed_byte_gives_rows_or_an_error_by_name() -> None:
    chance = random.Random(38)
    content = image((-5, b"xy", 65_535, "Größe", 8, 0.1, b"m", b"l", "n", 9))
    events = [MAP, w.rows(31, 10, content * 4)]
    outcomes: Counter[str] = Counter()
    for _ in range(20_000):
        damaged = [bytearray(event) for event in events]
        body = chance.choice(damaged)
        body[chance.randrange(HEADER_BYTES, len(body))] = chance.randrange(256)
        try:
            read(*map(bytes, damaged))
            outcomes["rows"] += 1
        except GroupcertError as error:
            outcomes[error.reason] += 1
    assert min(outcomes.values()) > 10 and len(outcomes) == 5, outcomes


def test_rows_need_their_table_map() -> None:
    with pytest.raises(InvalidBinaryLog, match="a table map with this id"):
        read(w.rows(30, 10, image(ROWS[0])))


def test_keys_of_the_catalogue_are_by_number() -> None:
    columns = tuple(
        SourceColumn(name=name, data_type="int", column_type="int", nullable=name == "n")
        for name in "abn"
    )
    table = partial(SourceTable, database="shop", name="t", columns=columns)
    catalogue = {
        "both": table(primary_key=("b", "a"), unique_keys={"u": ("n",)}),
        "unique": table(unique_keys={"n": ("n",), "u": ("a", "b")}),
        "inexact": table(inexact_keys=("PRIMARY",), unique_keys={"u": ("a",)}),
        "none": table(unique_keys={"n": ("n", "a")}),
    }
    assert keys_from(catalogue) == {
        "both": TableKeys(primary=("@2", "@1"), unique={"u": ("@3",)}),
        "unique": TableKeys(primary=("@1", "@2"), unique={"n": ("@3",)}),
    }


def test_parents_of_the_catalogue_have_the_name_of_their_unique_key() -> None:
    columns = tuple(
        SourceColumn(name=name, data_type="int", column_type="int", nullable=name == "n")
        for name in "abn"
    )
    table = partial(SourceTable, database="shop", columns=columns)
    refers = partial(ForeignKey, name="f", parent="shop.p")
    foreign_keys = (
        refers(columns=("a", "n"), parent_columns=("b", "a")),
        refers(columns=("b",), parent_columns=("n",), on_delete="SET NULL"),
        refers(columns=("a",), parent_columns=("a",)),
        refers(columns=("a",), parent_columns=("a",), parent="other.t"),
    )
    catalogue = {
        "shop.p": table(name="p", primary_key=("b", "a"), unique_keys={"u": ("n",)}),
        "shop.t": table(name="t", primary_key=("a",), foreign_keys=foreign_keys),
    }
    parent = partial(ParentKey, database="shop", table="p")
    assert keys_from(catalogue)["shop.t"].parents == (
        parent(index="PRIMARY", columns=("@1", "@3")),
        parent(index="u", columns=("@2",), changes_children=True),
    )
