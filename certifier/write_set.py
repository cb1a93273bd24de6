"""Write-set items: what a transaction wrote, as 64-bit numbers that certification compares.

A row's change gives one item for its primary key and one for each unique key, of the row before and
of the row after. The rule: keys that compare equal have equal items, always, or a conflict would be
missed; keys that differ have different encodings, so that only a collision of the hash, 2^-64 for a
pair, can abort a transaction for nothing.

An encoded key is one byte for its kind, then parts; a part is one byte for its type, its length in
two bytes (most significant first), its bytes:

    kind 1  a key of a row       database, table, index, then the values
    kind 2  a text of a trace    the text in UTF-8, no parts
    kind 3  a store's key        the key, no parts
    kind 4  a whole table        database, table

    type 1  integer              two's complement; booleans, and decimals that are integers, too
    type 2  decimal              digits and exponent without trailing zeros, in ASCII, as 125e-1
    type 3  text                 UTF-8
    type 4  bytes                as they are

Items of different kinds never meet: a group describes a table's rows by one of them. To change any
line above needs a new version of the log's records.

Collations are the caller's: texts that their column holds equal (case, accents, padding) must
arrive in one spelling, and so must names where a server ignores their case. Dates and times are
given as text or integers. Floats are refused: which of them are equal differs between databases.

Source: WL#8440, "write set". What ambiguous encodings cost: MySQL bugs 89194, 89141, 88120.
Differs: the server hashes texts joined by a separator, which the values themselves may contain.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeAlias

from xxhash import xxh3_64_intdigest

from .errors import InvalidWriteSet, WriteSetTooLarge

PART_BYTES_MAX = 65_535
DECIMAL_DIGITS_MAX = 1_000
PRIMARY = "PRIMARY"

KeyValue: TypeAlias = int | str | bytes | bool | Decimal

_KIND_ROW = b"\x01"
_KIND_TEXT = b"\x02"
_KIND_STORE = b"\x03"
_KIND_TABLE = b"\x04"
_TYPE_INTEGER = b"\x01"
_TYPE_DECIMAL = b"\x02"
_TYPE_TEXT = b"\x03"
_TYPE_BYTES = b"\x04"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentKey:
    """The key of a parent's row that a foreign key refers to: index `index` of a table. `columns`:
    those of the child. `changes_children`: a change of the parent's row may change the child's.
    """

    database: str
    table: str
    index: str
    columns: tuple[str, ...]
    changes_children: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKeys:
    """The keys of a table: columns of the primary key, columns of each unique key by its name, and
    the keys of its parents.
    """

    primary: tuple[str, ...] = ()
    unique: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parents: tuple[ParentKey, ...] = ()


def check_write_set(items: Collection[int], items_max: int) -> None:
    """Raises WriteSetTooLarge for a write set with more than `items_max` items.

    Raises:
        WriteSetTooLarge: with both numbers.

    >>> check_write_set([1, 2, 3], items_max=3)
    """
    if len(items) > items_max:
        raise WriteSetTooLarge(items=len(items), items_max=items_max)


def encode_key(database: str, table: str, index: str, values: Sequence[KeyValue]) -> bytes:
    """Returns the bytes that stand for a key: equal for equal keys, different for different keys.

    Raises:
        InvalidWriteSet: if a value is of another type, or its bytes are over `PART_BYTES_MAX`.

    >>> encode_key("s", "t", "PRIMARY", [7]).hex(" ", -4)
    '01030001 73030001 74030007 5052494d 41525901 000107'
    """
    parts = [_KIND_ROW, _encode_part(database), _encode_part(table), _encode_part(index)]
    return b"".join(parts) + encode_values(values)


def encode_values(values: Sequence[KeyValue]) -> bytes:
    """Returns the end of an encoded key, after what `encode_key` gives for no values.

    Raises:
        InvalidWriteSet: as for `encode_key`.
    """
    return b"".join(map(_encode_part, values))


def hash_item(encoded: bytes) -> int:
    """Returns the item of an encoded key, from 0 to 2^64 - 1. Cost: O(bytes).

    >>> hash_item(encode_key("shop", "orders", "PRIMARY", [42]))
    4807106885549460836
    """
    return xxh3_64_intdigest(encoded)


def table_item(database: str, table: str) -> int:
    """Returns the item that stands for all rows of a table."""
    return hash_item(_KIND_TABLE + _encode_part(database) + _encode_part(table))


def store_key_item(key: bytes) -> int:
    """Returns the item of a key of the embedded store. Cost: O(bytes)."""
    return xxh3_64_intdigest(_KIND_STORE + key)


def store_key_items(keys: Iterable[bytes]) -> list[int]:
    """Returns the items of keys of the embedded store: `store_key_item`, at half the cost."""
    return [xxh3_64_intdigest(_KIND_STORE + key) for key in keys]


def item_from_text(text: str) -> int:
    """Returns the item of a text such as `shop.orders/PRIMARY/42`, as traces write items.

    Raises:
        InvalidWriteSet: if the text has no UTF-8.
    """
    return hash_item(_KIND_TEXT + _utf8(text))


def items_from_texts(texts: Iterable[str]) -> list[int]:
    """Returns the items of texts that are known to be UTF-8: `item_from_text`, at half the cost."""
    return [xxh3_64_intdigest(_KIND_TEXT + text.encode()) for text in texts]


def readable(database: str, table: str, index: str, values: Sequence[KeyValue]) -> str:
    """Returns a key as text for explanations; no code parses it.

    >>> readable("shop", "orders", "PRIMARY", [42, b"\\x00a"])
    'shop.orders/PRIMARY/42,0x0061'
    """
    return f"{database}.{table}/{index}/{readable_values(values)}"


def readable_values(values: Sequence[KeyValue]) -> str:
    """Returns the end of a key's text, after what `readable` gives for no values."""
    return ",".join(
        [f"0x{value.hex()}" if isinstance(value, bytes) else str(value) for value in values]
    )


def _encode_part(value: KeyValue) -> bytes:
    """Returns type, length and bytes of one part of a key."""
    if isinstance(value, int):
        kind, content = _TYPE_INTEGER, _encode_integer(value)
    elif isinstance(value, str):
        kind, content = _TYPE_TEXT, _utf8(value)
    elif isinstance(value, Decimal):
        kind, content = _encode_decimal(value)
    elif isinstance(value, bytes):
        kind, content = _TYPE_BYTES, value
    else:
        raise InvalidWriteSet(
            value=type(value).__name__, expected="a value of type int, str, bytes, bool or Decimal"
        )
    if len(content) > PART_BYTES_MAX:
        raise InvalidWriteSet(
            value=f"a value of {len(content)} bytes", expected=f"at most {PART_BYTES_MAX} bytes"
        )
    return kind + len(content).to_bytes(2, "big") + content


def _encode_integer(value: int) -> bytes:
    # One bit more than the number has, for its sign; each integer has one length, so one encoding.
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _encode_decimal(value: Decimal) -> tuple[bytes, bytes]:
    """Returns type and bytes of a decimal; if it equals an integer, those of the integer."""
    sign, digits, exponent = value.as_tuple()
    # An integer of the exponent's size is made below: a client's 1e999999999 must not be.
    if not isinstance(exponent, int) or len(digits) + abs(exponent) > DECIMAL_DIGITS_MAX:
        raise InvalidWriteSet(
            value=str(value), expected=f"a finite decimal of at most {DECIMAL_DIGITS_MAX} digits"
        )
    coefficient = int("".join(map(str, digits)))
    while coefficient and coefficient % 10 == 0:
        coefficient //= 10
        exponent += 1
    if sign:
        coefficient = -coefficient
    if not coefficient or exponent >= 0:
        return _TYPE_INTEGER, _encode_integer(coefficient * 10 ** max(exponent, 0))
    return _TYPE_DECIMAL, f"{coefficient}e{exponent}".encode("ascii")


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidWriteSet(value=text, expected="text without unpaired surrogates") from None
