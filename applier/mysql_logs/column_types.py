"""Columns of a logged table: how many bytes a value takes in a row, and which value they are.

Two values of a column that its server holds equal are read as equal values. If that cannot be
ensured for a value, it is `Opaque`, with the reason: floats, texts in an unknown collation, texts
outside ASCII in a collation that ignores case.

Texts are compared without trailing spaces, and without case unless the collation is a binary one;
two texts may so be equal here that are different to the server, never the opposite. Differs: if the
log has no collations (before MySQL 8.0; MariaDB with binlog_row_metadata=NO_LOG), all bytes outside
ASCII are taken as they are, for the column may be VARBINARY.

Source: MySQL 8.4 source documentation of Table_map_event, "column types"; MySQL Reference Manual,
14.23.2 "DECIMAL Data Type Characteristics".
"""

from collections.abc import Mapping
from decimal import Decimal
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from ...certifier.write_set import KeyValue
from .temporal_values import (
    date_text,
    datetime_text,
    old_datetime_text,
    old_time_text,
    packed,
    time_text,
)


class ColumnType(IntEnum):
    """The types of columns in a table map, or in a column's metadata."""

    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    MARIADB_BLOB_COMPRESSED = 140
    MARIADB_VARCHAR_COMPRESSED = 141
    VECTOR = 242
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


T = ColumnType
_KNOWN = frozenset(ColumnType)
INTEGERS = {T.TINY: 1, T.SHORT: 2, T.INT24: 3, T.LONG: 4, T.LONGLONG: 8}
_INTEGER_CODES: Mapping[int, str] = {T.TINY: "b", T.SHORT: "h", T.LONG: "i", T.LONGLONG: "q"}
NUMERIC = {*INTEGERS, T.YEAR, T.FLOAT, T.DOUBLE, T.NEWDECIMAL}
_FIXED = {
    **INTEGERS,
    T.NULL: 0,
    T.YEAR: 1,
    **dict.fromkeys((T.DATE, T.NEWDATE, T.TIME), 3),
    T.TIMESTAMP: 4,
    T.DATETIME: 8,
}
FRACTIONAL = {T.TIMESTAMP2: 4, T.DATETIME2: 5, T.TIME2: 3}
_BLOBS = {
    T.BLOB,
    T.TINY_BLOB,
    T.MEDIUM_BLOB,
    T.LONG_BLOB,
    T.JSON,
    T.GEOMETRY,
    T.VECTOR,
    T.MARIADB_BLOB_COMPRESSED,
}
_BLOB_LENGTH_BYTES = range(1, 5)
_VARCHARS = {T.VARCHAR, T.VAR_STRING, T.MARIADB_VARCHAR_COMPRESSED}
_TEXTS = {T.VARCHAR, T.VAR_STRING, T.STRING, T.TINY_BLOB, T.MEDIUM_BLOB, T.LONG_BLOB, T.BLOB}
_METADATA_BYTES = {
    **dict.fromkeys((T.FLOAT, T.DOUBLE, *FRACTIONAL, *_BLOBS), 1),
    **dict.fromkeys((*_VARCHARS, T.BIT, T.NEWDECIMAL, T.ENUM, T.SET, T.STRING), 2),
}
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)

BINARY_COLLATION = 63
_NOPAD = 1024
_CASE_SENSITIVE = {46, 47, 65, 83, 309}
"""utf8mb4_bin, latin1_bin, ascii_bin, utf8mb3_bin, utf8mb4_0900_bin."""
_CASE_IGNORED = {8, 11, 33, 45, 192, 224, 246, 255, 278, 305}
"""latin1_swedish_ci, ascii_general_ci; utf8mb3_general_ci and utf8mb4_general_ci; utf8mb3, utf8mb4
unicode_ci; utf8mb4_unicode_520_ci; utf8mb4_0900_ai_ci, as_cs and as_ci."""
_IGNORABLE = bytes([*range(0x20), 0x7F])


class Opaque(NamedTuple):
    """A value that cannot be compared for equality."""

    why: str


Value: TypeAlias = KeyValue | Opaque | None


class Column(NamedTuple):
    """One column: its values take `width` bytes, or `length_bytes` bytes of length and as many.

    `metadata`: two bytes whose meaning depends on the type. `collation` is None if not known.
    `labels`: of an ENUM or SET, in the bytes of its collation; empty if the log does not have them.
    """

    type: int
    metadata: bytes
    width: int
    length_bytes: int
    name: str | None = None
    unsigned: bool = False
    collation: int | None = None
    labels: tuple[bytes, ...] = ()

    @property
    def length_max(self) -> int:
        """Bytes that a CHAR or BINARY takes at most."""
        # Lengths over 255 have their upper bits, inverted, in the byte of the type within.
        return self.metadata[1] | ((self.metadata[0] & 0x30) ^ 0x30) << 4


def metadata_bytes_of(column_type: int) -> int:
    """Returns the number of bytes of metadata that a table map has for a column."""
    return _METADATA_BYTES.get(ColumnType(column_type), 0) if column_type in _KNOWN else 0


def column_of(column_type: int, metadata: bytes) -> Column | None:
    """Returns the column that a table map describes; None for an unknown type, or a BLOB whose
    length has no length.
    """
    if column_type not in _KNOWN:
        return None
    kind = ColumnType(column_type)
    width = length_bytes = 0
    if kind == T.STRING and metadata[0] in (T.ENUM, T.SET):
        kind, width = ColumnType(metadata[0]), metadata[1]
    elif kind == T.STRING:
        length_bytes = 1 if Column(kind, metadata, 0, 0).length_max < 256 else 2
    elif kind in _VARCHARS:
        length_bytes = 1 if int.from_bytes(metadata, "little") < 256 else 2
    elif kind in _BLOBS:
        length_bytes = metadata[0]
        if length_bytes not in _BLOB_LENGTH_BYTES:
            return None
    elif kind in FRACTIONAL:
        width = FRACTIONAL[kind] + (metadata[0] + 1) // 2
    elif kind in (T.FLOAT, T.DOUBLE):
        width = metadata[0]
    elif kind in (T.ENUM, T.SET):
        width = metadata[1]
    elif kind == T.BIT:
        width = metadata[1] + (metadata[0] > 0)
    elif kind == T.NEWDECIMAL:
        width = _decimal_bytes(metadata[0] - metadata[1]) + _decimal_bytes(metadata[1])
    else:
        width = _FIXED[kind]
    return Column(kind, metadata, width, length_bytes)


def integer_code(column: Column) -> str:
    """Returns the format in which `struct` reads an integer; empty for other types, and for one of
    three bytes.
    """
    code = _INTEGER_CODES.get(column.type, "")
    return code.upper() if column.unsigned else code


def is_text(column: Column, *, mariadb: bool) -> bool:
    """Returns whether the lists of collations in table maps have an entry for the column."""
    if column.type in (T.GEOMETRY, T.MARIADB_BLOB_COMPRESSED, T.MARIADB_VARCHAR_COMPRESSED):
        return mariadb
    return column.type in _TEXTS


def value_of(column: Column, content: bytes, prefix: int = 0) -> Value:
    """Returns the value of a row's bytes, given without their length.

    Args:
        prefix: characters of a text that the key has, 0 for all.
    """
    kind = column.type
    if kind in INTEGERS:
        return int.from_bytes(content, "little", signed=not column.unsigned)
    if kind in _TEXTS:
        return _text(content, column.collation, prefix)
    if kind == T.NEWDECIMAL:
        return decimal_of(content, column.metadata[0], column.metadata[1])
    if kind in (T.ENUM, T.SET, T.TIMESTAMP):
        return int.from_bytes(content, "little")
    if kind == T.BIT:
        return int.from_bytes(content, "big")
    if kind == T.YEAR:
        return content[0] + 1900 if content[0] else 0
    if kind in (T.DATE, T.NEWDATE):
        return date_text(content)
    if kind == T.DATETIME:
        return old_datetime_text(content)
    if kind == T.TIME:
        return old_time_text(content)
    if kind in FRACTIONAL:
        return _fractional(kind, content)
    return Opaque(f"a key column of type {ColumnType(kind).name}")


def decimal_of(content: bytes, precision: int, scale: int) -> Decimal:
    """Returns a decimal: nine digits are four bytes, most significant first; incomplete groups of
    digits are at both ends.
    """
    # The bit of the sign is set in numbers from 0 on; below, all bits are inverted.
    negative = not content[0] & 0x80
    content = bytes([content[0] ^ 0x80]) + content[1:]
    if negative:
        content = bytes(byte ^ 0xFF for byte in content)
    whole = precision - scale
    digits, position = "", 0
    groups = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
    for count in groups:
        size = _DIGIT_BYTES[count]
        if count:
            number = int.from_bytes(content[position : position + size], "big")
            digits += f"{number:0{count}}"
        position += size
    return Decimal((int(negative), tuple(map(int, digits or "0")), -scale))


def _text(content: bytes, collation: int | None, prefix: int) -> Value:
    if collation == BINARY_COLLATION:
        return content[:prefix] if prefix else content
    if prefix and not content.isascii():
        return Opaque("texts outside ASCII in a key that has only their beginning")
    content = (content[:prefix] if prefix else content).rstrip(b" ")
    family = collation - _NOPAD if collation and _NOPAD <= collation < 2 * _NOPAD else collation
    if family is None:
        content = content.lower()
    elif family in _CASE_IGNORED:
        if not content.isascii():
            return Opaque("texts outside ASCII in a key that ignores case or accents")
        # Such collations ignore control characters: texts that differ in these alone are equal.
        content = content.translate(None, _IGNORABLE).lower()
    elif family not in _CASE_SENSITIVE:
        return Opaque(f"a key of texts in collation {collation}, which is not known here")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content


def _decimal_bytes(digits: int) -> int:
    return digits // 9 * 4 + _DIGIT_BYTES[digits % 9]


def _fractional(kind: int, content: bytes) -> str:
    """Returns a date or time of MySQL 5.6 and newer: six digits of its fraction, or none."""
    whole_bytes = FRACTIONAL[ColumnType(kind)]
    fraction = content[whole_bytes:]
    digits = 6 if fraction else 0
    if kind == T.TIMESTAMP2:
        seconds = int.from_bytes(content[:whole_bytes], "big")
        microseconds = int.from_bytes(fraction, "big") * 100 ** (3 - len(fraction))
        return f"{seconds}.{microseconds:06}" if digits else str(seconds)
    number = packed(content, whole_bytes)
    return time_text(number, digits) if kind == T.TIME2 else datetime_text(number, digits)
