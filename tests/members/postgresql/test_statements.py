"""What executes transactions of others: one statement, which leaves the same rows."""

import json

import pytest

from groupcert.certifier.gtid import Gtid
from groupcert.members.postgresql.commit_order import Entry
from groupcert.members.postgresql.rows import key_of
from groupcert.members.postgresql.statements import batch_of, statement_of
from groupcert.members.postgresql.tables import Column, Table
from groupcert.members.wire.row_changes import encode_changes
from groupcert.v1 import transaction_pb2


def table(name: str, *key: str) -> Table:
    """An attached table of the schema `public`."""
    columns = tuple(Column(column, "text", "text") for column in (*key, "note"))
    return Table(schema="public", name=name, owner="o", columns=columns, key=key, is_attached=True)


NOTHING: dict[str, dict[str, object]] = {
    "public.plain": {"id": None, "note": None},
    "public.pairs": {"a": None, "b": None, "note": None},
}
"""Values of all columns, by their tables."""
TABLES = {each.full_name: each for each in (table("plain", "id"), table("pairs", "a", "b"))}


def entry(version: int, puts: dict[str, dict[str, object]], *deleted: str) -> Entry:
    """A transaction that puts rows, by their keys, and deletes others."""
    changes = transaction_pb2.Changes(
        put_keys=[key.encode() for key in puts],
        put_values=[json.dumps({**NOTHING[key[:12]], **row}).encode() for key, row in puts.items()],
        delete_keys=[key.encode() for key in deleted],
    )
    return Entry(version, Gtid("s", version), [changes.SerializeToString()])


def test_of_each_row_of_several_transactions_the_last_change_counts() -> None:
    entries = [
        entry(1, {"public.plain/1": {"id": "1", "note": "a"}, "public.pairs/x/1": {"a": "x"}}),
        entry(2, {"public.plain/2": {"id": "2"}}, "public.plain/1"),
        entry(3, {"public.plain/1": {"id": "1", "note": "b"}}, "public.pairs/x/1"),
    ]
    query, values = statement_of(batch_of(entries), TABLES.get, None)
    assert query == (
        b'SELECT "groupcert"."put public.plain"(%s, %s), "groupcert"."put public.pairs"(%s, %s),'
        b" groupcert.note_executed(%s, %s, %s, %s)"
    )
    rows, none, nothing, deleted = values[:4]
    assert json.loads(str(rows)) == [{"id": "1", "note": "b"}, {"id": "2", "note": None}]
    assert none is nothing is None
    assert json.loads(str(deleted)) == [{"a": "x", "b": "1"}]
    assert values[4:] == [[1, 2, 3], ["s", "s", "s"], [1, 2, 3], [-1, -1, -1]]


@pytest.mark.parametrize("column", ["other", "note"])
def test_a_row_with_other_columns_is_not_executed_in_part(column: str) -> None:
    """A column that is only there would be left out, one that is only here NULL."""
    row = {"id": "1", "note": "a", column: "b"}
    if column == "note":
        del row["note"]
    payload = encode_changes([b"public.plain/1"], [json.dumps(row).encode()])
    batch = batch_of([Entry(1, Gtid("s", 1), [payload])])
    with pytest.raises(KeyError, match=r"table public\.plain has other columns here"):
        statement_of(batch, TABLES.get, None)


def test_it_waits_for_the_transaction_before_it_first() -> None:
    query, values = statement_of(batch_of([entry(1, {})]), TABLES.get, "77")
    assert query == b"SELECT groupcert.wait_for(%s), groupcert.note_executed(%s, %s, %s, %s)"
    assert values == ["77", [1], ["s"], [1], [-1]]


def test_rows_of_names_that_no_table_has_leave_their_gtid_alone() -> None:
    payload = encode_changes([b"account/1"], [b"{}"])
    query, _ = statement_of(batch_of([Entry(1, Gtid("s", 1), [payload])]), TABLES.get, None)
    assert query == b"SELECT groupcert.note_executed(%s, %s, %s, %s)"


def test_a_slash_in_a_key_of_several_columns_is_not_its_end() -> None:
    pairs = TABLES["public.pairs"]
    assert key_of(pairs, b"public.pairs/a%2Fb%25/c") == {"a": "a/b%", "b": "c"}
    assert key_of(TABLES["public.plain"], b"public.plain/a/b%2F") == {"id": "a/b%2F"}
    with pytest.raises(ValueError, match="zip"):
        key_of(pairs, b"public.pairs/a")
