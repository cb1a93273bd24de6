"""What executes transactions of others: few statements, which leave the same rows."""

import json

from groupcert.certifier.gtid import Gtid
from groupcert.members.postgresql.commit_order import Entry
from groupcert.members.postgresql.statements import (
    Statement,
    delete,
    put,
    put_all,
    statements_of,
    update,
)
from groupcert.members.postgresql.tables import Column, Table, UniqueKey
from groupcert.v1 import transaction_pb2
from tests.members.postgresql.tables import table

PLAIN = table("plain", {"id": "integer", "note": "text"}, ("id",))
OTHER = table("other", {"id": "integer"}, ("id",))
UNIQUE = table(
    "unique",
    {"id": "integer", "email": "text"},
    ("id",),
    unique_keys=(UniqueKey("unique_email_key", ("email",), True),),
)
DOCUMENTS = Table(
    schema="public",
    name="documents",
    columns=(Column("id", "integer", True, False), Column("body", "jsonb", True, False, True)),
    key=("id",),
    unique_keys=(),
    parents=(),
    children=(),
    is_attached=True,
)
TABLES = {each.full_name: each for each in (PLAIN, OTHER, UNIQUE, DOCUMENTS)}


def table_of(key: bytes) -> Table | None:
    """The table of a row; of others none."""
    return TABLES.get(key.partition(b"/")[0].decode())


def entry(version: int, puts: dict[str, dict[str, object]], *deleted: str) -> Entry:
    """A transaction that puts rows, by their keys, and deletes others."""
    changes = transaction_pb2.Changes(
        put_keys=[key.encode() for key in puts],
        put_values=[json.dumps(row).encode() for row in puts.values()],
        delete_keys=[key.encode() for key in deleted],
    )
    return Entry(version, Gtid("s", version), changes.SerializeToString())


def statements(*entries: Entry, values_move: bool = False) -> list[Statement]:
    """The statements, without the last one's GTIDs."""
    *others, (query, values) = statements_of(entries, table_of, values_move=values_move)
    versions = [each.version for each in entries]
    assert [*values][-3:] == [versions, ["s"] * len(entries), versions]
    return [*others, (query, [*values][:-3])]


def test_rows_of_several_transactions_are_one_statement_with_the_last_of_each() -> None:
    ((query, rows),) = statements(
        entry(1, {"public.plain/1": {"id": 1, "note": "a"}, "public.other/5": {"id": 5}}),
        entry(2, {"public.plain/1": {"id": 1, "note": "b"}}),
        entry(3, {"public.plain/2": {"id": 2, "note": None}}),
    )
    assert put_all(PLAIN) in query and put_all(OTHER) in query
    assert [json.loads(str(each)) for each in rows] == [
        [{"id": 1, "note": "b"}, {"id": 2, "note": None}],
        [{"id": 5}],
    ]


def test_of_a_row_that_is_put_and_deleted_the_last_counts() -> None:
    first, last = statements(
        entry(1, {"public.plain/1": {"id": 1, "note": "a"}}),
        entry(2, {"public.plain/2": {"id": 2, "note": "b"}}, "public.plain/1"),
        entry(3, {}, "public.plain/2"),
        entry(4, {"public.plain/2": {"id": 2, "note": "c"}}),
    )
    assert first == (delete(PLAIN), ("1",))
    assert [json.loads(str(each)) for each in last[1]] == [[{"id": 2, "note": "c"}]]


def test_transactions_of_a_table_with_another_unique_index_are_executed_in_order() -> None:
    """A value may have moved from row to row meanwhile."""
    row, other = {"id": 1, "email": "x"}, {"id": 2, "email": "x"}
    found = statements(
        entry(1, {"public.unique/1": row}), entry(2, {"public.unique/2": other}, "public.unique/1")
    )
    assert [query for query, _ in found[:-1]] == [
        *(update(UNIQUE), put(UNIQUE)),
        *(delete(UNIQUE), update(UNIQUE), put(UNIQUE)),
    ]


def test_rows_whose_values_may_have_moved_are_deleted_before_they_are_put() -> None:
    rows = {"public.unique/1": {"id": 1, "email": "y"}, "public.unique/2": {"id": 2, "email": "x"}}
    found = statements(entry(1, rows), values_move=True)
    put_both = [update(UNIQUE), put(UNIQUE)] * 2
    assert [query for query, _ in found[:-1]] == [delete(UNIQUE), delete(UNIQUE), *put_both]


def test_json_is_put_as_its_text() -> None:
    first, _ = statements(entry(1, {"public.documents/1": {"id": 1, "body": "[null, 1]"}}))
    assert first == (put(DOCUMENTS), ["1", "[null, 1]"])


def test_rows_of_tables_that_are_not_attached_leave_their_gtid_alone() -> None:
    ((_, rows),) = statements(entry(1, {"public.unknown/1": {"id": 1}}))
    assert rows == []
