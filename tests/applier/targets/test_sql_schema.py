"""The schema mapping: read whole, checked whole, and no two rows become one."""

import pytest

from groupcert.applier.errors import UnsuitableTarget
from groupcert.applier.targets.sql_schema import BoundSchema, SqlSchema
from groupcert.applier.targets.sql_tables import (
    ChangeKind,
    ColumnType,
    FoundColumn,
    FoundTable,
    RowChange,
)
from tests.applier.sql_databases import decode, entry

INTEGER = FoundColumn(
    type="smallint", takes=frozenset({ColumnType.INTEGER}), low=-9, high=99, nullable=False
)
TEXT = FoundColumn(
    type="varchar(5)", takes=frozenset({ColumnType.TEXT}), characters_max=5, bytes_max=8
)
BYTES = FoundColumn(type="blob", takes=frozenset({ColumnType.BYTES}), bytes_max=4)
JSON = FoundColumn(type="jsonb", takes=frozenset({ColumnType.JSON}))

ITEMS = """
[tables."shop.items"]
table = "items"
key = { tenant = "text", id = "integer" }
columns = { amount = "integer", note = "text", extra = "json" }
"""
ITEMS_FOUND = FoundTable(
    columns={"tenant": TEXT, "id": INTEGER, "amount": INTEGER, "note": TEXT, "extra": JSON},
    unique_keys=[("id", "tenant")],
)
NAMES = """
[tables.""]
table = "names"
key = { name = "text" }
value = { content = "bytes" }
"""
NAMES_FOUND = FoundTable(columns={"name": TEXT, "content": BYTES}, unique_keys=[("name",)])


def bound(text: str, **found: FoundTable) -> BoundSchema:
    return SqlSchema.parse(text, decode).bind(found, "server")


def changes_of(schema: BoundSchema, rows: dict[bytes, bytes | None]) -> list[RowChange]:
    puts = [(key, value) for key, value in rows.items() if value is not None]
    deletes = [key for key, value in rows.items() if value is None]
    bytes_of = ([key for key, _ in puts], [value for _, value in puts], deletes)
    schema._decode = lambda _: bytes_of
    return schema.changes([entry(1, {"": ""})])


def shown(
    schema: BoundSchema, rows: dict[bytes, bytes | None]
) -> list[tuple[str, ChangeKind, tuple[object, ...]]]:
    return [(each.mapping.table, each.kind, each.row) for each in changes_of(schema, rows)]


def problems_of(text: str) -> str:
    with pytest.raises(UnsuitableTarget) as raised:
        SqlSchema.parse(text, decode, "mapping.toml")
    assert raised.value.target == "mapping.toml"
    return raised.value.problem


def test_a_mapping_names_tables_keys_and_values() -> None:
    schema = SqlSchema.parse(ITEMS + '[tables."*"]', decode)
    items, others = schema.mappings["shop.items"], schema.mappings["*"]
    assert [column.name for column in items.key] == ["tenant", "id"]
    assert items.has_fields and not others.has_fields
    assert (items.table, others.table) == ("items", "groupcert_rows")
    plain = SqlSchema.parse('[tables."a.b"]\nkey = { k = "bytes" }\nvalue = { v = "json" }', decode)
    assert plain.mappings["a.b"].table == "a.b"


def test_all_problems_of_a_mapping_are_said_at_once() -> None:
    problem = problems_of(
        """
        version = 1
        [tables."a.b"]
        key = { id = "number" }
        value = { one = "bytes", two = "bytes" }
        [tables."a.c"]
        table = "a.b"
        key = {}
        index = 3
        [tables."a.d"]
        table = "groupcert_executed"
        key = { id = "json" }
        columns = { id = "bytes", "a b" = "text" }
        [tables."*"]
        key = { id = "text" }
        """
    )
    for expected in (
        "version is unknown, expected tables",
        """tables."a.b".key.id is 'number', expected one of integer, text, bytes""",
        'tables."a.b".value names 2 columns, expected one',
        """tables."a.c".key is {}, expected { column = "type" }""",
        'tables."a.c".index is unknown, expected columns, key, table, value',
        'tables."a.c" has both value and columns, or neither',
        """tables."a.d".table is 'groupcert_executed': names groupcert_""",
        """tables."a.d".key.id is 'json', expected one of integer, text, bytes""",
        """tables."a.d".columns.id is 'bytes', expected one of integer, text, json""",
        """tables."a.d".columns: 'a b' is no name of a column""",
        'tables."*".key is unknown, expected table',
        "table a.b is the target of several",
    ):
        assert expected in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tables = [", "Invalid value"),
        ("", "there is no [tables."),
        ("tables = 3", "there is no [tables."),
        ('[tables]\n"a.b" = 3', "is 3, expected a table"),
        ('[tables."a.b"]\ntable = "x.y.z"', "'x.y.z', expected a name, or two"),
        ('[tables."a/b"]', "is no name of a table of the source"),
        (ITEMS.replace("amount", "id"), "has id in key and value, expected one"),
    ],
)
def test_a_mapping_that_is_none_is_refused(text: str, expected: str) -> None:
    assert expected in problems_of(text)


def test_rows_become_columns_by_table_in_key_order() -> None:
    schema = bound(ITEMS + NAMES, items=ITEMS_FOUND, names=NAMES_FOUND)
    value = b'{"amount": 3, "note": null, "extra": [1], "more": 0}'
    rows = {b"shop.items/b/2": value, b"x": b"y", b"shop.items/a/7": None, b"a": b""}
    assert shown(schema, rows) == [
        ("items", ChangeKind.DELETE_ANY, ("a", 7)),
        ("items", ChangeKind.PUT, ("b", 2, 3, None, "[1]")),
        ("names", ChangeKind.PUT, ("a", b"")),
        ("names", ChangeKind.PUT, ("x", b"y")),
    ]


def test_parents_are_written_before_their_children_and_deleted_after_them() -> None:
    child = FoundTable(
        columns=ITEMS_FOUND.columns, unique_keys=[("id", "tenant")], parents=("names",)
    )
    schema = bound(ITEMS + NAMES, items=child, names=NAMES_FOUND)
    value = b'{"amount": 3, "note": null, "extra": [1]}'
    rows = {b"shop.items/b/2": value, b"x": b"y", b"shop.items/a/7": None, b"a": None}
    assert [(table, kind) for table, kind, _ in shown(schema, rows)] == [
        ("items", ChangeKind.DELETE_ANY),
        ("names", ChangeKind.DELETE_ANY),
        ("names", ChangeKind.PUT),
        ("items", ChangeKind.PUT),
    ]


@pytest.mark.parametrize(
    ("row", "value", "expected"),
    [
        (b"shop.items/a", b"{}", "its key has 1 parts, expected 2"),
        (b"shop.items/a/07", b"{}", "b'07' for column id is no integer"),
        (b"shop.items/a/-0", b"{}", "b'-0' for column id is no integer"),
        (b"shop.items/a/1_0", b"{}", "b'1_0' for column id is no integer"),
        (b"shop.items/a/100", b"{}", "100 for column id is not in -9 to 99"),
        (b"shop.items/\xff/1", b"{}", "for column tenant is no UTF-8"),
        (b"shop.items/a\0/1", b"{}", "for column tenant has a NUL"),
        (b"shop.items/abcdef/1", b"{}", "column tenant takes 5 characters, not 6"),
        ("shop.items/\u20ac\u20ac\u20ac/1".encode(), b"{}", "column tenant takes 8 bytes, not 9"),
        (b"shop.items/a/1", b"[", "its value is no JSON"),
        (b"shop.items/a/1", b"NaN", "NaN is not JSON"),
        (b"shop.items/a/1", b"[]", "its value is no JSON object"),
        (b"shop.items/a/1", b'{"amount": 1}', "its value has no field note"),
        (b"shop.items/a/1", b'{"amount": true}', "field amount is True, expected integer"),
        (b"shop.items/a/1", b'{"amount": null}', "field amount is None, expected integer"),
        (b"shop.items/a/1", b'{"amount": 1, "note": 2}', "field note is 2, expected text"),
        (b"shop.items/a/1", b'{"amount": 1, "note": "\\ud800"}', "column note is no UTF-8"),
        (b"names", b"12345", "column content takes 4 bytes, not 5"),
    ],
)
def test_a_row_that_does_not_fit_is_named(row: bytes, value: bytes, expected: str) -> None:
    schema = bound(ITEMS + NAMES, items=ITEMS_FOUND, names=NAMES_FOUND)
    with pytest.raises(UnsuitableTarget) as raised:
        changes_of(schema, {row: value})
    assert raised.value.problem.startswith(f"row {row!r} does not fit table ")
    assert expected in raised.value.problem


def test_rows_without_a_mapping_are_refused_unless_there_is_one_for_all_others() -> None:
    with pytest.raises(UnsuitableTarget, match="which has no mapping"):
        changes_of(bound(NAMES, names=NAMES_FOUND), {b"shop.items/1": b""})
    both = NAMES + '[tables."*"]'
    found = FoundTable(columns={"row_key": BYTES, "value": BYTES}, unique_keys=[("row_key",)])
    schema = bound(both, names=NAMES_FOUND, groupcert_rows=found)
    assert shown(schema, {b"a/1": b"x"}) == [("groupcert_rows", ChangeKind.PUT, (b"a/1", b"x"))]


def test_tables_that_do_not_fit_are_refused_with_all_problems() -> None:
    loose = FoundColumn(type="varchar, collation ci", takes=TEXT.takes, is_exact=False)
    other = FoundColumn(type="int", takes=INTEGER.takes, required=True)
    found = FoundTable(
        columns={"tenant": loose, "id": TEXT, "amount": INTEGER, "note": TEXT, "other": other},
        unique_keys=[("tenant",), ()],
    )
    with pytest.raises(UnsuitableTarget) as raised:
        SqlSchema.parse(ITEMS + NAMES, decode, scheme="rows").bind({"items": found}, "server")
    assert raised.value.problem.split("; ") == [
        "column items.tenant is varchar, collation ci, "
        "expected a collation in which texts that differ are never equal",
        "column items.id is varchar(5), expected one that takes integer",
        "table items has no column extra, expected one for json",
        "table items has no unique key over (id, tenant), expected one",
        "table items has another unique key over (tenant), "
        "expected none: rows writes rows in another order than the source",
        "table items has another unique key over (expressions), "
        "expected none: rows writes rows in another order than the source",
        "column items.other is not in the mapping, expected a default",
        "table names is missing",
    ]
