"""Write-set items: equal keys meet, different keys do not, and the bytes stay what they are."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.certifier.errors import InvalidWriteSet, WriteSetTooLarge
from groupcert.certifier.write_set import (
    DECIMAL_DIGITS_MAX,
    PART_BYTES_MAX,
    KeyValue,
    TableKeys,
    check_write_set,
    encode_key,
    hash_item,
    item_from_text,
    items_from_texts,
    readable,
    store_key_item,
    store_key_items,
    table_item,
)
from tests.row_items import Row, RowChange, row_items

KEYS = TableKeys(primary=("id",), unique={"email": ("email",), "badge": ("site", "badge")})

# Short texts over few letters, so that neighbours which differ only in where a part ends are met.
texts = st.text(alphabet="a/\0é", max_size=3)
decimals = st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-9, max_value=9)
values: st.SearchStrategy[KeyValue] = st.one_of(
    st.integers(-300, 300),
    st.integers(),
    st.booleans(),
    decimals,
    texts,
    texts.map(lambda text: text.encode()),
)
keys = st.tuples(texts, texts, texts, st.lists(values, max_size=3))


def change(before: Row | None, after: Row | None) -> RowChange:
    return RowChange(database="shop", table="users", before=before, after=after)


def user_item(index: str, *key: KeyValue) -> int:
    return hash_item(encode_key("shop", "users", index, key))


@given(keys, keys)
def test_encodings_are_equal_exactly_where_keys_are(
    left: tuple[str, str, str, list[KeyValue]], right: tuple[str, str, str, list[KeyValue]]
) -> None:
    assert (encode_key(*left) == encode_key(*right)) == (left == right)


@given(texts, values, values)
def test_values_are_told_apart_as_python_tells_them(
    index: str, left: KeyValue, right: KeyValue
) -> None:
    equal = encode_key("d", "t", index, [left]) == encode_key("d", "t", index, [right])
    assert equal == (left == right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([True], [1]),
        ([Decimal("12.50")], [Decimal("12.5")]),
        ([Decimal("1E+3")], [1000]),
        ([Decimal("1000")], [1000]),
        ([Decimal("-0.0")], [0]),
        ([Decimal("-7.00")], [-7]),
        ([Decimal("1.10") + Decimal("1.10")], [Decimal("2.2")]),
    ],
)
def test_one_number_in_two_types_is_one_key(left: list[KeyValue], right: list[KeyValue]) -> None:
    assert encode_key("d", "t", "k", left) == encode_key("d", "t", "k", right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (["ab", "c"], ["a", "bc"]),
        (["a\0", "b"], ["a", "\0b"]),
        (["a"], [b"a"]),
        (["1"], [1]),
        (["a", ""], ["a"]),
        ([""], []),
        ([128], [-128]),
        ([255], [-1]),
        ([Decimal("1.5")], ["15e-1"]),
        ([Decimal("0.15")], [Decimal("1.5")]),
        ([Decimal("1.00000000000000000000000000000001")], [1]),
    ],
)
def test_keys_that_look_alike_stay_apart(left: list[KeyValue], right: list[KeyValue]) -> None:
    assert encode_key("d", "t", "k", left) != encode_key("d", "t", "k", right)


def test_encoded_bytes_and_items_never_change_within_a_version() -> None:
    encoded = encode_key("shop", "été", "PRIMARY", [42, -1, "x", b"\xff", Decimal("12.50"), True])
    assert encoded.hex() == (
        "01"
        "030004" + b"shop".hex() + "030005" + "été".encode().hex() + "030007" + b"PRIMARY".hex()
        + "0100012a" + "010001ff" + "03000178" + "040001ff"
        + "020006" + b"125e-1".hex() + "01000101"
    )  # fmt: skip
    assert hash_item(encoded) == 2_355_837_205_388_552_374
    assert item_from_text("shop.orders/PRIMARY/42") == 2_435_579_390_840_550_036
    assert store_key_item(b"account/1") == 12_113_658_453_290_635_960
    assert table_item("shop", "orders") == 3_186_343_564_811_146_175


def test_kinds_of_items_stay_apart() -> None:
    text = "shop.orders/PRIMARY/42"
    items = {
        item_from_text(text),
        store_key_item(text.encode()),
        table_item("shop", "orders"),
        hash_item(encode_key("shop", "orders", "PRIMARY", [42])),
        hash_item(encode_key("shop", "orders", "PRIMARY", [])),
    }
    assert len(items) == 5


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, "type int, str, bytes, bool or Decimal"),
        (None, "type int, str, bytes, bool or Decimal"),
        ("x" * (PART_BYTES_MAX + 1), "at most 65535 bytes"),
        (Decimal("NaN"), "a finite decimal"),
        (Decimal("-Infinity"), "a finite decimal"),
        (Decimal(f"1E+{DECIMAL_DIGITS_MAX}"), "at most 1000 digits"),
        (Decimal(f"1E-{DECIMAL_DIGITS_MAX}"), "at most 1000 digits"),
        ("\ud800", "without unpaired surrogates"),
    ],
)
def test_a_value_without_an_encoding_is_refused(value: object, expected: str) -> None:
    with pytest.raises(InvalidWriteSet) as caught:
        encode_key("d", "t", "k", [value])  # type: ignore[list-item]  # what a caller may do
    assert expected in caught.value.expected


def test_values_at_the_limits_are_encoded() -> None:
    longest = encode_key("d", "t", "k", ["x" * PART_BYTES_MAX])
    assert len(longest) == 13 + 3 + PART_BYTES_MAX
    assert encode_key("d", "t", "k", [Decimal("1E+999")]) == encode_key("d", "t", "k", [10**999])


def test_an_insert_gives_the_keys_of_the_new_row() -> None:
    row: Row = {"id": 1, "email": "a@b", "site": "x", "badge": 7, "name": "Ann"}
    assert row_items(change(None, row), KEYS) == [
        user_item("PRIMARY", 1),
        user_item("badge", "x", 7),
        user_item("email", "a@b"),
    ]
    assert row_items(change(row, None), KEYS) == row_items(change(None, row), KEYS)


def test_an_update_gives_old_and_new_value_of_each_changed_key() -> None:
    before: Row = {"id": 1, "email": "a@b", "site": "x", "badge": 7}
    after: Row = {"id": 1, "email": "c@d", "site": "x", "badge": 7}
    assert row_items(change(before, after), KEYS) == [
        user_item("PRIMARY", 1),
        user_item("badge", "x", 7),
        user_item("email", "a@b"),
        user_item("email", "c@d"),
    ]


def test_a_unique_key_with_a_null_part_is_left_out() -> None:
    before: Row = {"id": 1, "email": None, "site": "x", "badge": None}
    after: Row = {"id": 1, "email": None, "site": "x", "badge": 8}
    assert row_items(change(before, after), KEYS) == [
        user_item("PRIMARY", 1),
        user_item("badge", "x", 8),
    ]


def test_the_order_of_unique_keys_in_the_schema_does_not_matter() -> None:
    row: Row = {"id": 1, "email": "a@b", "site": "x", "badge": 7}
    other = TableKeys(primary=KEYS.primary, unique=dict(reversed([*KEYS.unique.items()])))
    assert row_items(change(None, row), other) == row_items(change(None, row), KEYS)


def test_a_table_without_primary_key_is_one_item() -> None:
    keys = TableKeys(unique={"email": ("email",)})
    items = row_items(change({"email": "a@b"}, {"email": "c@d"}), keys)
    assert items == [table_item("shop", "users")]


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ({"email": "a@b"}, "a row of shop.users without column id"),
        ({"id": None, "email": "a@b"}, "NULL in column id of shop.users"),
        ({"id": 1}, "a row of shop.users without column site"),
    ],
)
def test_a_row_without_its_keys_is_refused(row: Row, value: str) -> None:
    with pytest.raises(InvalidWriteSet) as caught:
        row_items(change(None, row), KEYS)
    assert caught.value.value == value


def test_a_change_without_rows_is_refused() -> None:
    with pytest.raises(InvalidWriteSet, match=r"a change of shop\.users with neither row"):
        change(None, None)


def test_write_sets_up_to_the_limit_are_accepted() -> None:
    check_write_set(range(3), 3)
    with pytest.raises(WriteSetTooLarge) as caught:
        check_write_set(range(4), 3)
    assert (caught.value.items, caught.value.items_max) == (4, 3)


def test_readable_keys_look_like_the_items_of_traces() -> None:
    assert readable("shop", "orders", "PRIMARY", [42]) == "shop.orders/PRIMARY/42"
    assert readable("shop", "t", "uq", ["a", b"\x01", Decimal("1.50")]) == "shop.t/uq/a,0x01,1.50"


@given(st.lists(st.text(max_size=9)), st.lists(st.binary(max_size=9)))
def test_many_items_at_once_are_those_of_each(texts: list[str], keys: list[bytes]) -> None:
    assert items_from_texts(texts) == [item_from_text(text) for text in texts]
    assert store_key_items(keys) == [store_key_item(key) for key in keys]
