"""Events of a binary log file: their bounds, and the check that their bytes are those written.

An event is returned whole and with its checksum verified, or not at all. An incomplete end of a
file is normal, for its server may be writing it or have died: the reader stops there and reports
it. Damage before the end is an error.

Source: MySQL Internals, "Binary Log"; MySQL 8.4 source documentation, Binary_log_event,
Format_description_event; MariaDB Knowledge Base, "Replication Protocol", pages of its events.
"""

import re
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from functools import partial
from typing import BinaryIO, NamedTuple

from ..errors import InvalidBinaryLog

MAGIC = b"\xfebin"
ENCRYPTED_MAGIC = b"\xfdbin"
HEADER_BYTES = 19
CHECKSUM_BYTES = 4
HEADER = struct.Struct("<IBIIIH")
"""Timestamp, type, server id, size with header and checksum, end in the file, flags."""
EVENT_BYTES_MAX = 1 << 30
"""The largest event that is read, in bytes: that is also the largest `max_allowed_packet`."""

FLAG_IN_USE = 0x01
FLAG_IGNORABLE = 0x80


class EventType(IntEnum):
    """The types of events that are read, or known to contain no rows."""

    START_V3 = 1
    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    APPEND_BLOCK = 9
    DELETE_FILE = 11
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    MARIADB_ANNOTATE_ROWS = 160
    MARIADB_BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    MARIADB_GTID_LIST = 163
    MARIADB_START_ENCRYPTION = 164
    MARIADB_QUERY_COMPRESSED = 165
    MARIADB_WRITE_ROWS_COMPRESSED_V1 = 166
    MARIADB_UPDATE_ROWS_COMPRESSED_V1 = 167
    MARIADB_DELETE_ROWS_COMPRESSED_V1 = 168
    MARIADB_WRITE_ROWS_COMPRESSED = 169
    MARIADB_UPDATE_ROWS_COMPRESSED = 170
    MARIADB_DELETE_ROWS_COMPRESSED = 171


class Event(NamedTuple):
    """One event: its header, and its body without checksum.

    `offset` is where it begins in the file; for an event from a compressed payload, where the
    payload does, whose size it then has no share in: its `size_bytes` is 0.
    """

    path: str
    offset: int
    type: int
    flags: int
    timestamp: int
    server_id: int
    size_bytes: int
    body: bytes

    def invalid(self, problem: str, expected: str) -> InvalidBinaryLog:
        """Returns an InvalidBinaryLog for this event, to be raised."""
        return InvalidBinaryLog(
            path=self.path, offset=self.offset, problem=problem, expected=expected
        )


class FormatDescription(NamedTuple):
    """The content of a log's first event, which describes the events after it."""

    server_version: str
    checksum_bytes: int
    post_header_bytes: bytes

    def post_header_of(self, event_type: int) -> int:
        """Returns the number of bytes of the fixed part of a type's bodies; 0 for unknown types."""
        lengths = self.post_header_bytes
        return lengths[event_type - 1] if event_type <= len(lengths) else 0

    @property
    def is_mariadb(self) -> bool:
        """True if a MariaDB server wrote the events."""
        return "mariadb" in self.server_version.lower()


_unpack_header = HEADER.unpack
new_event = partial(tuple.__new__, Event)
"""Makes an event from a tuple of all fields, at half the cost of its own constructor."""
_CHECKED = 0x2144DF1C
"""The CRC-32 of any bytes that their own CRC-32 follows, the least significant byte first."""


class EventReader:
    """Reads the events of one file from its beginning, once.

    `format` changes within relay logs: it is that of the last event read. `offset` is where the
    next event begins, as is the file's own: who moves both passes over events. `cut_short` is
    None, or says where and why the file ends in the midst of an event.
    """

    def __init__(self, file: BinaryIO, path: str, size_bytes: int) -> None:
        self.format = FormatDescription("", 0, b"")
        self.offset = len(MAGIC)
        self.cut_short: str | None = None
        self._file = file
        self._path = path
        self._size = size_bytes

    def __iter__(self) -> Iterator[Event]:
        """Yields the events.

        Raises:
            InvalidBinaryLog: this is no binary log, or one that is damaged or cannot be read.
        """
        self._check_magic(self._file.read(len(MAGIC)))
        while self.offset < self._size:
            event = self._next_event(self.offset)
            if event is None:
                return
            if event.type == EventType.FORMAT_DESCRIPTION:
                self.format = format_description(event)
            elif not self.format.server_version:
                raise self._not_described(event)
            self.offset += event.size_bytes
            yield event

    def _check_magic(self, magic: bytes) -> None:
        expected = "a binary log or relay log of MySQL or MariaDB, which begins with fe 62 69 6e"
        if magic == ENCRYPTED_MAGIC:
            problem = "the file is encrypted"
            expected = "a log written with binlog_encryption=OFF"
        elif magic == MAGIC:
            return
        else:
            problem = f"the file begins with {magic.hex(' ') or 'nothing'}"
        raise InvalidBinaryLog(path=self._path, offset=0, problem=problem, expected=expected)

    def _next_event(self, offset: int) -> Event | None:
        header = self._file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            self._cut(f"{len(header)} bytes of an event's header at byte {offset}")
            return None
        timestamp, kind, server_id, size_bytes, _, flags = _unpack_header(header)
        held = self._size - offset
        if size_bytes < HEADER_BYTES or size_bytes > held or size_bytes > EVENT_BYTES_MAX:
            self._check_size(parse_header(self._path, offset, header), header)
            return None
        body = self._file.read(size_bytes - HEADER_BYTES)
        if len(body) < size_bytes - HEADER_BYTES:
            self._cut(f"less of the event at byte {offset} than before: the file shrank")
            return None
        checksum_bytes = self.format.checksum_bytes
        if kind == EventType.FORMAT_DESCRIPTION:
            checksum_bytes = described_checksum_bytes(body)
        if checksum_bytes:
            if not checksum_matches(header, body):
                self._check_is_last(parse_header(self._path, offset, header))
                return None
            body = body[:-CHECKSUM_BYTES]
        event = self._path, offset, kind, flags, timestamp, server_id, size_bytes, body
        return new_event(event)

    def _check_size(self, event: Event, header: bytes) -> None:
        """Notes why the file ends with an event of this size, or raises InvalidBinaryLog."""
        offset, held = event.offset, self._size - event.offset
        if event.size_bytes < HEADER_BYTES:
            if any(header) or not self._is_zero_to_the_end():
                raise event.invalid(f"an event of {event.size_bytes} bytes", "19 bytes or more")
            self._cut(f"zeros in place of an event from byte {offset} on")
        elif event.size_bytes > held:
            self._cut(f"{held} of the {event.size_bytes} bytes of the event at byte {offset}")
        else:
            raise event.invalid(
                f"an event of {event.size_bytes} bytes", f"at most {EVENT_BYTES_MAX} bytes"
            )

    def _check_is_last(self, event: Event) -> None:
        """Notes that the last event's checksum does not match; raises InvalidBinaryLog for others:
        a server may have died within the last one; whatever is before it was written whole.
        """
        if event.offset + event.size_bytes < self._size:
            raise event.invalid("the checksum of the event does not match", "what the server wrote")
        self._cut(f"an event at byte {event.offset} whose checksum does not match")

    def _is_zero_to_the_end(self) -> bool:
        while block := self._file.read(1 << 20):
            if any(block):
                return False
        return True

    def _cut(self, what: str) -> None:
        self.cut_short = f"{self._path} ends with {what}"

    def _not_described(self, event: Event) -> InvalidBinaryLog:
        if event.type == EventType.START_V3:
            return event.invalid(
                "the format before MySQL 5.0, version 1 or 3", "version 4 (MySQL 5.0 and newer)"
            )
        return event.invalid(
            f"the first event is of type {event.type}", "a format description, type 15"
        )


def parse_header(path: str, offset: int, header: bytes) -> Event:
    """Returns the event that a header announces, with an empty body."""
    timestamp, kind, server_id, size_bytes, _, flags = HEADER.unpack(header)
    return Event(path, offset, kind, flags, timestamp, server_id, size_bytes, b"")


def checksum_matches(header: bytes, body: bytes | memoryview) -> bool:
    """Returns whether an event's body ends with the checksum of all before it."""
    if header[4] == EventType.FORMAT_DESCRIPTION:
        # A server clears the flag when it closes the log, and does not renew the checksum.
        header = header[:17] + bytes([header[17] & ~FLAG_IN_USE]) + header[18:]
    return zlib.crc32(body, zlib.crc32(header)) == _CHECKED


def is_as_written(event: memoryview) -> bool:
    """Returns whether a whole event ends with the checksum of all before it; of one that is no
    format description, which `checksum_matches` is for.
    """
    return zlib.crc32(event) == _CHECKED


def described_checksum_bytes(body: bytes) -> int:
    """Returns the bytes of the checksum at the end of a format description event, which has one
    where the others have none, too.
    """
    return CHECKSUM_BYTES if _has_checksum(_server_version(body)) else 0


def format_description(event: Event) -> FormatDescription:
    """Returns the content of a format description event.

    Raises:
        InvalidBinaryLog: another format or another checksum than this release knows.
    """
    body = event.body
    if len(body) < 57:
        raise event.invalid(f"a format description of {len(body)} bytes", "57 bytes or more")
    version = int.from_bytes(body[:2], "little")
    if version != 4:
        raise event.invalid(f"format version {version}", "version 4 (MySQL 5.0 and newer)")
    if body[56] != HEADER_BYTES:
        raise event.invalid(f"event headers of {body[56]} bytes", f"{HEADER_BYTES} bytes")
    server_version = _server_version(body)
    if not _has_checksum(server_version):
        return FormatDescription(server_version, 0, body[57:])
    algorithm = body[-1] if len(body) > 57 else 0xFF
    if algorithm not in (0, 1):
        raise event.invalid(f"checksum algorithm {algorithm}", "0 (NONE) or 1 (CRC32)")
    return FormatDescription(server_version, CHECKSUM_BYTES * algorithm, body[57:-1])


def _server_version(body: bytes) -> str:
    return body[2:52].partition(b"\0")[0].decode("ascii", "replace") or "unknown"


def _has_checksum(server_version: str) -> bool:
    """Returns whether servers of a version write the checksum's algorithm.

    >>> _has_checksum("5.5.27-log"), _has_checksum("5.6.1"), _has_checksum("5.3.12-MariaDB-log")
    (False, True, True)
    """
    numbers = tuple(map(int, re.findall(r"\d+", server_version)[:3]))
    first = (5, 3, 0) if "mariadb" in server_version.lower() else (5, 6, 1)
    return numbers >= first
