"""Which keys are reserved: those of rows that a member executes, as it reads them."""

import fnmatch

import pytest

from groupcert.members.core.reserved_keys import check_reserved, reserved_key
from groupcert.members.errors.permissions import KeyReserved
from groupcert.members.postgresql.rows import table_name
from groupcert.members.postgresql.schema_changes import KEY

NAME = "public.things"


@pytest.mark.parametrize(
    "pattern", ["public.*", "public.things", "*.*", "p*.t?ings", "public.[t]*"]
)
def test_each_row_of_a_table_that_matches_is_reserved(pattern: str) -> None:
    assert fnmatch.fnmatchcase(NAME, pattern), "as `attach` matches"
    for text in ("", "a/b", "é", "\n", "%"):
        key = f"{NAME}/{text}".encode()
        assert table_name(key) == NAME
        assert reserved_key((pattern,), [b"other", key]) == key


@pytest.mark.parametrize("pattern", ["public.thing", "shop.*", "public.T*"])
def test_rows_of_other_tables_are_free(pattern: str) -> None:
    keys = [f"{NAME}/a".encode(), b"", b"/public.thing/1", b"x/shop.a/1"]
    assert reserved_key((pattern,), keys) is None


def test_schema_changes_are_reserved_with_any_table() -> None:
    assert reserved_key(("public.*",), [KEY]) == KEY
    assert reserved_key((), [KEY, b"public.t/50"]) is None


def test_a_key_of_any_bytes_is_named() -> None:
    with pytest.raises(KeyReserved) as raised:
        check_reserved(("public.*", "shop.*"), [b"public.t/\xff\n"], "shop")
    assert raised.value.key == "public.t/\\xff\n"
    assert raised.value.tables == "public.*, shop.*"
