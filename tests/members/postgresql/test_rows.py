"""Rows as the group carries them: keys that tell rows apart, values that PostgreSQL reads again."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.members.postgresql.rows import (
    NotedRow,
    changes_of,
    columns_of,
    fits,
    key_of,
    row_key,
    row_value,
)
from tests.members.postgresql.tables import table

ACCOUNTS = table("accounts", {"id": "integer", "owner": "text"}, ("id",))
LINES = table("lines", {"a": "text", "b": "text"}, ("a", "b"))
TABLES = {each.full_name: each for each in (ACCOUNTS, LINES)}


def test_a_key_has_the_table_and_the_values() -> None:
    assert row_key(ACCOUNTS, {"id": 7}) == b"public.accounts/7"
    assert row_key(LINES, {"a": "x/y%", "b": ""}) == b"public.lines/x%2Fy%25/"


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_keys_that_differ_stay_different_and_are_read_again(a: str, b: str, c: str, d: str) -> None:
    one, other = ({"a": x, "b": y} for x, y in ((a, b), (c, d)))
    assert (row_key(LINES, one) == row_key(LINES, other)) == (one == other)
    assert key_of(LINES, row_key(LINES, one)) == (a, b)


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [("numeric", "1.50", "1.5"), ("numeric", "100", "1E+2"), ("character", "a ", "a")],
)
def test_values_that_postgresql_holds_equal_have_one_key(kind: str, one: str, other: str) -> None:
    prices = table("prices", {"id": kind}, ("id",))
    assert row_key(prices, {"id": one}) == row_key(prices, {"id": other})


def test_the_last_change_of_a_row_counts() -> None:
    noted = [
        NotedRow("public.accounts", None, {"id": 1, "owner": "Ann"}),
        NotedRow("public.accounts", {"id": 1}, {"id": 2, "owner": "Ann"}),
        NotedRow("public.accounts", {"id": 3}, None),
        NotedRow("public.accounts", None, {"id": 3, "owner": None}),
    ]
    changes = changes_of(noted, TABLES)
    assert changes.deletes == [b"public.accounts/1"]
    assert changes.puts == (
        [b"public.accounts/2", b"public.accounts/3"],
        [b'{"id":2,"owner":"Ann"}', b'{"id":3,"owner":null}'],
    )


def test_values_are_numbers_null_or_texts() -> None:
    kinds = dict.fromkeys(("a", "b", "c", "d"), "text")
    things = table("things", kinds, ("a",))
    value = row_value(things, {"a": 1, "b": True, "c": 0.1, "d": [["x"], [None]]})
    assert json.loads(value) == {"a": 1, "b": "true", "c": "0.1", "d": '{{"x"},{NULL}}'}
    assert columns_of(things, value) == ["1", "true", "0.1", '{{"x"},{NULL}}']


def test_a_row_of_other_columns_is_not_taken() -> None:
    with pytest.raises(KeyError, match="other columns"):
        columns_of(ACCOUNTS, b'{"id":1}')
    assert fits([NotedRow("public.accounts", {"id": 1}, None)], TABLES)
    assert not fits([NotedRow("public.accounts", None, {"id": 1})], TABLES)
    assert not fits([NotedRow("public.other", None, {"id": 1})], TABLES)
