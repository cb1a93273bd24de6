"""A small writer of binary logs, for formats whose servers are not at hand: MySQL 5.7 to 9.

It writes what the documents say, and shares nothing with the reader. Sources: MySQL 8.4 source
documentation of Binary_log_event, Format_description_event, Gtid_event, Table_map_event,
Rows_event, Query_event, Transaction_payload_event, "MySQL Serialization Library"; MariaDB Knowledge
Base, "GTID_EVENT".
"""

import struct
import zlib
from collections.abc import Sequence

import zstandard

MAGIC = b"\xfebin"
SERVER = 7
UUID = bytes.fromhex("3e11fa4771ca11e19e33c80aa9429562")
UUID_TEXT = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
POST_HEADERS = bytes.fromhex(
    "00 0d 00 08 00 00 00 00 04 00 04 00 00 00 62 00 04 1a 08 00 00 00 08 08 08 02 00 00 00 0a 0a"
    "0a 2a 2a 00 12 34 00 0a 28 00 00"
)
INT, VARCHAR, JSON = 3, 15, 245


def event(kind: int, body: bytes, *, at: int = 1_700_000_000, flags: int = 0) -> bytes:
    """An event without checksum and position."""
    return struct.pack("<IBIIIH", at, kind, SERVER, 19 + len(body), 0, flags) + body


def checked(content: bytes) -> bytes:
    """The event with a checksum, and four bytes more in its header."""
    size = int.from_bytes(content[9:13], "little") + 4
    content = content[:9] + size.to_bytes(4, "little") + content[13:]
    return content + zlib.crc32(content).to_bytes(4, "little")


def log(events: Sequence[bytes], *, version: str = "8.4.3", algorithm: int = 1) -> bytes:
    """A whole file, with checksums for algorithm 1, without for 0."""
    described = struct.pack("<H50sIB", 4, version.encode(), 0, 19) + POST_HEADERS
    first = checked(event(15, described + bytes([algorithm])))
    return MAGIC + first + b"".join(map(checked, events) if algorithm else events)


def query(text: str, *, databases: Sequence[str] = (), seconds: int = 0) -> bytes:
    """A statement, with the names of the databases that it updates."""
    names = b"".join(name.encode() + b"\0" for name in databases)
    status = b"\0\0\0\0\0" + (bytes([12, len(databases)]) + names if databases else b"")
    head = struct.pack("<IIBHH", 1, seconds, 4, 0, len(status))
    return event(2, head + status + b"shop\0" + text.encode())


def xid(number: int = 1) -> bytes:
    """The end of a transaction."""
    return event(16, struct.pack("<Q", number))


def gtid(
    number: int, last_committed: int, sequence_number: int, *, us: int = 0, original_us: int = 0
) -> bytes:
    """MySQL's GTID event; an anonymous one for number 0."""
    body = b"\0" + UUID + struct.pack("<QBQQ", number, 2, last_committed, sequence_number)
    if original_us:
        body += (us | 1 << 55).to_bytes(7, "little") + original_us.to_bytes(7, "little")
    elif us:
        body += us.to_bytes(7, "little")
    return event(33 if number else 34, body + (b"\x2a" + struct.pack("<I", 80403) if us else b""))


def varint(value: int) -> bytes:
    """The serialization library's integer: the first byte's trailing ones count the others."""
    for extra in range(8):
        if value < 1 << 7 * (extra + 1):
            return (value << extra + 1 | (1 << extra) - 1).to_bytes(extra + 1, "little")
    return b"\xff" + value.to_bytes(8, "little")


def tagged_gtid(tag: str, number: int, last_committed: int, sequence_number: int) -> bytes:
    """MySQL 8.4's event for GTIDs with a tag: 1.7e15 us, without an original timestamp."""
    fields = [
        varint(0),
        b"".join(map(varint, UUID)),
        varint(number << 1),
        varint(len(tag)) + tag.encode(),
        varint(last_committed << 1),
        varint(sequence_number << 1),
        varint(1_700_000_000_000_000),
    ]
    message = b"".join(varint(place) + field for place, field in enumerate(fields))
    message += varint(8) + varint(300) + varint(9) + varint(80403)
    return event(42, varint(1) + varint(len(message) + 3) + varint(0) + message)


def length(value: int) -> bytes:
    """A length-encoded integer."""
    if value < 251:
        return bytes([value])
    return b"\xfc" + value.to_bytes(2, "little") if value < 1 << 16 else b"\xfd" + _three(value)


def _three(value: int) -> bytes:
    return value.to_bytes(3, "little")


def table_map(
    table: str,
    columns: Sequence[tuple[int, bytes]],
    optional: Sequence[tuple[int, bytes]] = (),
    *,
    table_id: int = 90,
) -> bytes:
    """A table in database shop: columns as type and metadata, optional metadata as its fields."""
    body = table_id.to_bytes(6, "little") + b"\1\0" + b"\4shop\0"
    body += bytes([len(table)]) + table.encode() + b"\0" + length(len(columns))
    body += bytes(kind for kind, _ in columns)
    metadata = b"".join(extra for _, extra in columns)
    body += length(len(metadata)) + metadata + bytes((len(columns) + 7) // 8)
    for field, content in optional:
        body += bytes([field]) + length(len(content)) + content
    return event(19, body)


def rows(kind: int, columns: int, content: bytes, *, table_id: int = 90) -> bytes:
    """A row event that has all columns; content: null bits and values of each image."""
    present = ((1 << columns) - 1).to_bytes((columns + 7) // 8, "little")
    bitmaps = present * (2 if kind in (31, 39) else 1)
    return event(
        kind, table_id.to_bytes(6, "little") + b"\1\0\2\0" + length(columns) + bitmaps + content
    )


def number_rows(kind: int, numbers: Sequence[int]) -> bytes:
    """A row event of a table with one INT column."""
    return rows(kind, 1, b"".join(b"\0" + struct.pack("<i", number) for number in numbers))


def payload(events: Sequence[bytes], *, compressed: bool = True) -> bytes:
    """A transaction payload."""
    plain = b"".join(events)
    content = zstandard.ZstdCompressor().compress(plain) if compressed else plain
    fields = [(2, length(0 if compressed else 255)), (1, length(len(content)))]
    if compressed:
        fields.insert(1, (3, length(len(plain))))
    head = b"".join(length(kind) + length(len(value)) + value for kind, value in fields)
    return event(40, head + b"\0" + content)


def mariadb_gtid(number: int, *, domain: int = 0, commit_id: int = 0, standalone: bool) -> bytes:
    """MariaDB's GTID event."""
    flags = standalone | (2 if commit_id else 0)
    tail = struct.pack("<Q", commit_id) if commit_id else bytes(6)
    return event(162, struct.pack("<QIB", number, domain, flags) + tail)
