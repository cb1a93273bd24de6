"""MySQL's JSON documents as rows have them, in the text that the server prints.

A container is its count and size, then the places of its keys and the types and places of its
values, then these; places count from its beginning. Numbers have two bytes, or four in a large
container, and a value that fits stands in the place of its place.

Source: MySQL 8.4 source documentation, json_binary.h; json_dom.cc, "wrapper_to_string"; dtoa.cc,
"my_gcvt". MariaDB's JSON is a text.
"""

import json
from base64 import b64encode
from decimal import Decimal
from struct import Struct
from struct import error as StructError
from typing import Final

from .column_types import ColumnType, decimal_of
from .temporal_values import datetime_text, time_text

DEPTH_MAX: Final = 100
"""Containers within one another: the server's limit."""
_LARGE = 1
_ARRAY = 2
_LITERAL, _STRING, _OPAQUE = 4, 12, 15
_LITERALS = ("null", "true", "false")
_DOUBLE = 11
_NUMBERS = {
    kind: Struct(f"<{code}")
    for kind, code in {5: "h", 6: "H", 7: "i", 8: "I", 9: "q", 10: "Q", _DOUBLE: "d"}.items()
}
_INLINED = {_LITERAL, 5, 6}
_INLINED_LARGE = {*_INLINED, 7, 8}
_U16, _U32 = Struct("<H"), Struct("<I")
_PLAIN_EXPONENTS = range(-14, 16)
"""Places of the decimal point of a double that is printed without exponent."""


def json_text(content: bytes) -> str:
    """Returns the text of a document.

    Raises:
        ValueError: it is damaged, or has a type that is not known here.

    >>> json_text(bytes.fromhex("00 0100 0c00 0b00 0100 05feff 61"))
    '{"a": -2}'
    """
    # INSERT IGNORE of a NULL into a column without NULL.
    if not content:
        return "null"
    try:
        return _value(content[0], content, 1, len(content), 0)[0]
    except (StructError, IndexError) as error:
        raise ValueError(f"a JSON document that ends early: {error}") from None


def _value(kind: int, content: bytes, start: int, limit: int, depth: int) -> tuple[str, int]:
    """Returns the text of a value before `limit`, and a position that no value after it is before:
    in a damaged document no value is read twice, else a few bytes could be read for ever.
    """
    if kind < _LITERAL:
        if depth == DEPTH_MAX:
            raise ValueError(f"a JSON document with more than {DEPTH_MAX} levels")
        return _container(kind, content, start, limit, depth + 1)
    return _scalar(kind, content, start), start + 1


def _scalar(kind: int, content: bytes, start: int) -> str:
    if kind == _LITERAL:
        return _LITERALS[content[start]]
    if kind in _NUMBERS:
        (number,) = _NUMBERS[kind].unpack_from(content, start)
        return double_text(number) if kind == _DOUBLE else str(number)
    if kind == _STRING:
        return _quoted(_variable(content, start).decode())
    if kind == _OPAQUE:
        return _opaque(content[start], _variable(content, start + 1))
    raise ValueError(f"a JSON value of type {kind}")


def _container(kind: int, content: bytes, start: int, limit: int, depth: int) -> tuple[str, int]:
    number, inlined = (_U32, _INLINED_LARGE) if kind & _LARGE else (_U16, _INLINED)
    (count,) = number.unpack_from(content, start)
    end = start + number.unpack_from(content, start + number.size)[0]
    place = start + 2 * number.size
    keys: list[str] = []
    if not kind & _ARRAY:
        for _ in range(count):
            key = start + number.unpack_from(content, place)[0]
            (key_bytes,) = _U16.unpack_from(content, place + number.size)
            keys.append(_quoted(content[key : key + key_bytes].decode()))
            place += number.size + _U16.size
    values: list[str] = []
    free = place + count * (1 + number.size)
    if max(end, free) > limit or free > end:
        raise ValueError(f"a JSON container of {count} values in {end - start} bytes")
    for _ in range(count):
        value_kind, value_start = content[place], place + 1
        if value_kind in inlined:
            values.append(_scalar(value_kind, content, value_start))
        else:
            value_start = start + number.unpack_from(content, value_start)[0]
            if value_start < free:
                raise ValueError("JSON values that overlap")
            text, free = _value(value_kind, content, value_start, end, depth)
            values.append(text)
        place += 1 + number.size
    if kind & _ARRAY:
        return f"[{', '.join(values)}]", end
    pairs = (f"{key}: {value}" for key, value in zip(keys, values, strict=True))
    return f"{{{', '.join(pairs)}}}", end


def _variable(content: bytes, start: int) -> bytes:
    """Returns bytes whose length is before them, seven bits a byte, the lowest first."""
    size = shift = 0
    while True:
        byte = content[start]
        size |= (byte & 0x7F) << shift
        start += 1
        shift += 7
        if not byte & 0x80:
            break
    if start + size > len(content):
        raise IndexError(f"{start + size - len(content)} bytes are missing")
    return content[start : start + size]


def _opaque(kind: int, content: bytes) -> str:
    """Returns a value of a SQL type that JSON does not have."""
    if kind == ColumnType.NEWDECIMAL:
        return f"{decimal_of(content[2:], content[0], content[1]):f}"
    if kind in (ColumnType.DATE, ColumnType.DATETIME, ColumnType.TIMESTAMP):
        text = datetime_text(int.from_bytes(content, "little", signed=True), 6)
        return f'"{text[:10] if kind == ColumnType.DATE else text}"'
    if kind == ColumnType.TIME:
        return f'"{time_text(int.from_bytes(content, "little", signed=True), 6)}"'
    digits = b64encode(content).decode()
    text = "\n".join(digits[place : place + 76] for place in range(0, len(digits), 76))
    return _quoted(f"base64:type{kind}:{text}")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def double_text(value: float) -> str:
    """Returns a double as the servers print it: the shortest digits that read back as the same.

    >>> double_text(0.1), double_text(2.0), double_text(-1.5e300), double_text(1e15)
    ('0.1', '2.0', '-1.5e300', '1e15')
    """
    if value == 0:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} in a JSON document")
    point = len(digits) + exponent
    if point in _PLAIN_EXPONENTS:
        text = f"{Decimal((sign, digits, exponent)):f}"
        return text if "." in text else f"{text}.0"
    first, *others = map(str, digits)
    return f"{'-' * sign}{first}{'.' * bool(others)}{''.join(others)}e{point - 1}"
