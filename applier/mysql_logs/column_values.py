"""Values of a row's columns as any SQL server takes them as literals.

A value is what its server's SELECT shows: TIMESTAMP in UTC, JSON, ENUM, SET, UUID, INET4, INET6 and
all dates and times as text, GEOMETRY and VECTOR as their bytes. What the log does not say (with the
servers' defaults: labels, sign, character set, MariaDB's types over BINARY) the catalogue does.

Source: MySQL 8.4 source documentation of Table_map_event, "column types"; MariaDB Knowledge Base,
"Storage-Engine Independent Column Compression", "UUID Data Type", "INET6".
"""

import re
import zlib
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from ipaddress import IPv4Address
from struct import Struct
from typing import TypeAlias
from uuid import UUID

from .charsets import BINARY, charset_of, text_decoder
from .column_types import FRACTIONAL, INTEGERS, Column, ColumnType, decimal_of, value_of
from .events import EVENT_BYTES_MAX
from .json_binary import json_text
from .source_catalogue import SourceColumn
from .temporal_values import datetime_text, packed, time_text, timestamp_text

RowValue: TypeAlias = int | float | Decimal | str | bytes | None
Reader: TypeAlias = Callable[[bytes], RowValue]

T = ColumnType
_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_AS_KEYS = {T.BIT, T.YEAR, T.DATE, T.NEWDATE}
_WITHOUT_FRACTION = {T.TIME, T.DATETIME, T.TIMESTAMP}
_COMPRESSED = {T.MARIADB_BLOB_COMPRESSED, T.MARIADB_VARCHAR_COMPRESSED}
_COMPRESSION_NONE, _COMPRESSION_ZLIB = 0, 8
_ZLIB_WITHOUT_HEADER = 8
_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPE = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPED = {"0": "\0", "n": "\n", "r": "\r"}


def is_unsigned(column: Column, described: SourceColumn | None) -> bool:
    """Returns whether a number has no sign, which logs of MariaDB's default do not say."""
    return column.unsigned or (described is not None and "unsigned" in described.column_type)


def value_reader(column: Column, described: SourceColumn | None, mariadb: bool) -> Reader:
    """Returns the function that reads a value's bytes, given without their length. It raises
    ValueError or LookupError for bytes that are no value of the column.

    Args:
        described: the column in the source's catalogue, if it was asked.
        mariadb: whether the log is a MariaDB server's.

    Raises:
        ValueError: no value of such a column can be read, as of an unknown character set.
    """
    kind = ColumnType(column.type)
    if kind in INTEGERS:
        signed = not is_unsigned(column, described)
        return partial(int.from_bytes, byteorder="little", signed=signed)
    if kind == T.FLOAT:
        return float_of
    if kind == T.DOUBLE:
        return lambda content: float(_DOUBLE.unpack(content)[0])
    if kind == T.NEWDECIMAL:
        return partial(decimal_of, precision=column.metadata[0], scale=column.metadata[1])
    if kind in FRACTIONAL:
        return _fractional(kind, column.metadata[0])
    if kind in _WITHOUT_FRACTION:
        return _without_fraction(column, described)
    if kind == T.ENUM:
        names = ("", *_labels(column, described))
        return lambda content: names[int.from_bytes(content, "little")]
    if kind == T.SET:
        return partial(_set, _labels(column, described))
    if kind == T.JSON:
        return json_text
    if kind in (T.GEOMETRY, T.VECTOR):
        return bytes
    if kind == T.NULL:
        return _null
    if kind in _AS_KEYS:
        return partial(_key_value, column)
    read = _fixed(column, described) if mariadb and described else None
    return read or _text(column, described)


def _null(content: bytes) -> None:
    """Returns the one value of a column of type NULL."""


def _key_value(column: Column, content: bytes) -> RowValue:
    value = value_of(column, content)
    assert isinstance(value, int | str), "a number or a date"
    return value


def float_of(content: bytes) -> float:
    """Returns the double of the fewest digits that is stored as this float: 0.1 for 0.1."""
    (value,) = _FLOAT.unpack(content)
    for digits in (6, 7, 8):
        shorter = float(f"{value:.{digits}g}")
        if _FLOAT.pack(shorter) == content:
            return shorter
    return float(f"{value:.9g}")


def _fractional(kind: ColumnType, digits: int) -> Reader:
    whole_bytes = FRACTIONAL[kind]
    if kind == T.TIME2:
        return lambda content: time_text(packed(content, whole_bytes), digits)
    if kind == T.DATETIME2:
        return lambda content: datetime_text(packed(content, whole_bytes), digits)
    return lambda content: timestamp_text(
        int.from_bytes(content[:whole_bytes], "big"), content[whole_bytes:], digits
    )


def _without_fraction(column: Column, described: SourceColumn | None) -> Reader:
    if described is not None and "(" in described.column_type:
        # Their width is not in the log, so that the columns after them cannot be found.
        raise ValueError("fractions in MariaDB's old format (mysql56_temporal_format=OFF)")
    if column.type == T.TIMESTAMP:
        return lambda content: timestamp_text(int.from_bytes(content, "little"))
    return partial(_key_value, column)


def _labels(column: Column, described: SourceColumn | None) -> tuple[str, ...]:
    decode = text_decoder(_charset(column, described) or "")
    if column.labels and decode:
        return tuple(decode(label) for label in column.labels)
    if described is None:
        raise ValueError("labels that neither the log nor a catalogue has")
    return labels_of(described.column_type)


def labels_of(column_type: str) -> tuple[str, ...]:
    r"""Returns the labels of an ENUM or SET, as information_schema quotes them.

    >>> labels_of(r"enum('a','it''s','x,y','\\n\n')")
    ('a', "it's", 'x,y', '\\n\n')
    """
    return tuple(_ESCAPE.sub(_unescaped, label) for label in _LABEL.findall(column_type))


def _unescaped(found: re.Match[str]) -> str:
    return _ESCAPED.get(found[1], found[1]) if found[1] else "'"


def _set(labels: tuple[str, ...], content: bytes) -> str:
    bits = int.from_bytes(content, "little")
    if bits >> len(labels):
        raise ValueError(f"bits {bits:#x} of a SET of {len(labels)} labels")
    return ",".join(label for place, label in enumerate(labels) if bits >> place & 1)


def _fixed(column: Column, described: SourceColumn) -> Reader | None:
    """Returns the reader of a type of MariaDB's that its log has as BINARY."""
    if column.type != T.STRING:
        return None
    if described.data_type == "uuid":
        return partial(_uuid, always_swapped="old" in described.column_type)
    if described.data_type == "inet6":
        return lambda content: inet6_text(content.ljust(16, b"\0"))
    if described.data_type == "inet4":
        return lambda content: str(IPv4Address(content.ljust(4, b"\0")))
    return None


def _uuid(content: bytes, *, always_swapped: bool) -> str:
    content = content.ljust(16, b"\0")
    # Those of versions 1 to 5 have their parts in the opposite order, which sorts them by time;
    # before MariaDB 10.11.5 all of them.
    if always_swapped or (content[6] & 0x80 and 0 < content[8] < 0x60):
        content = content[12:] + content[10:12] + content[8:10] + content[6:8] + content[:6]
    return str(UUID(bytes=content))


def inet6_text(content: bytes) -> str:
    """Returns an address as MariaDB prints it: an IPv4 address within one in decimal.

    >>> inet6_text(bytes(15) + b"\\1"), inet6_text(bytes(10) + b"\\xff\\xff\\1\\2\\3\\4")
    ('::1', '::ffff:1.2.3.4')
    """
    words = [int.from_bytes(content[place : place + 2], "big") for place in range(0, 16, 2)]
    runs = "".join("0" if word == 0 else "1" for word in words)
    longest = max(re.findall("0+", runs), key=len, default="")
    start = runs.index(longest)
    end = start + len(longest)
    texts = [f"{word:x}" for word in words]
    if longest and start == 0 and (end == 6 or (end == 5 and words[5] == 0xFFFF)):
        texts[6:] = [str(IPv4Address(content[12:]))]
    if not longest:
        return ":".join(texts)
    return f"{':'.join(texts[:start])}::{':'.join(texts[end:])}"


def _text(column: Column, described: SourceColumn | None) -> Reader:
    """Returns the reader of a text or of bytes, compressed or not."""
    read: Reader = bytes if _is_binary(column, described) else _decoder(column, described)
    if column.type in _COMPRESSED:
        return lambda content: read(_inflated(content))
    if column.type == T.STRING and read is bytes:
        # The server leaves out zeros at the end of a BINARY.
        return lambda content: content.ljust(column.length_max, b"\0")
    return read


def _charset(column: Column, described: SourceColumn | None) -> str | None:
    """Returns the character set: the log's, which is that of the moment, or the catalogue's."""
    charset = None if column.collation is None else charset_of(column.collation)
    return charset or (described.charset if described else None)


def _is_binary(column: Column, described: SourceColumn | None) -> bool:
    charset = _charset(column, described)
    if charset is None and described and column.collation is None:
        return True
    return charset == BINARY


def _decoder(column: Column, described: SourceColumn | None) -> Callable[[bytes], str]:
    charset = _charset(column, described)
    if charset is None:
        raise ValueError(
            "a character set that the log does not say (binlog_row_metadata=NO_LOG)"
            if column.collation is None
            else f"collation {column.collation}, which is not known here"
        )
    decode = text_decoder(charset)
    if decode is None:
        raise ValueError(f"character set {charset}, which is not known here")
    return decode


def _inflated(content: bytes) -> bytes:
    """Returns a value of MariaDB's COMPRESSED columns: a byte for the method, the flag of a zlib
    without header and the length's length, then the length and zlib; or 0 and the value.
    """
    if not content:
        return content
    method, length_bytes = content[0] >> 4, content[0] & 7
    if method == _COMPRESSION_NONE:
        return content[1:]
    size_bytes = int.from_bytes(content[1 : 1 + length_bytes], "big")
    if method != _COMPRESSION_ZLIB or size_bytes > EVENT_BYTES_MAX:
        raise ValueError(f"{size_bytes} bytes compressed by method {method}")
    window_bits = -zlib.MAX_WBITS if content[0] & _ZLIB_WITHOUT_HEADER else zlib.MAX_WBITS
    inflater = zlib.decompressobj(window_bits)
    try:
        plain = inflater.decompress(content[1 + length_bytes :], size_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"compressed data that zlib refuses: {error}") from None
    if len(plain) != size_bytes:
        raise ValueError(f"compressed data of another length than {size_bytes} bytes")
    return plain
