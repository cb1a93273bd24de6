"""A cursor over an event's bytes, which reads the formats' integers and texts.

Reading beyond the end raises InvalidBinaryLog: the event is too short.

Source: MySQL 8.4 source documentation, "Protocol::LengthEncodedInteger" and "MySQL Serialization
Library, Variable-length integers".
"""

from struct import Struct
from typing import Any

from .events import Event

_LENGTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}


class Cursor:
    """Reads an event's body, or bytes from one, from the beginning to the end."""

    __slots__ = ("_bytes", "_event", "position")

    def __init__(self, event: Event, content: bytes | None = None) -> None:
        self.position = 0
        self._event = event
        self._bytes = event.body if content is None else content

    @property
    def remaining(self) -> int:
        """Bytes that were not read yet."""
        return len(self._bytes) - self.position

    def take(self, count: int) -> bytes:
        """Returns the next bytes."""
        start, end = self.position, self.position + count
        if end > len(self._bytes):
            raise self._event.invalid(
                f"an event of type {self._event.type} ends {end - len(self._bytes)} bytes early",
                f"{count} more bytes in its body at byte {start}",
            )
        self.position = end
        return self._bytes[start:end]

    def unpack(self, layout: Struct) -> tuple[Any, ...]:
        """Returns the next fields of fixed widths."""
        if self.remaining < layout.size:
            self.take(layout.size)
        self.position += layout.size
        return layout.unpack_from(self._bytes, self.position - layout.size)

    def rest(self) -> bytes:
        """Returns all bytes that are left."""
        return self.take(self.remaining)

    def uint(self, count: int) -> int:
        """Returns an unsigned integer of `count` bytes, the least significant first."""
        return int.from_bytes(self.take(count), "little")

    def length(self) -> int:
        """Returns a length-encoded integer: one byte, or a mark and two, three or eight."""
        if self.remaining <= 0:
            self.take(1)
        first = self._bytes[self.position]
        self.position += 1
        if first < 0xFB:
            return first
        if first not in _LENGTHS:
            raise self._event.invalid(f"a length that begins with {first:#x}", "at most 0xfe")
        return self.uint(_LENGTHS[first])

    def text(self, count: int) -> str:
        """Returns a name in UTF-8."""
        return self.take(count).decode("utf-8", "replace")

    def varint(self) -> int:
        """Returns an unsigned integer of the serialization library: the first byte's trailing one
        bits are the number of further bytes.
        """
        first = self.uint(1)
        extra = 0
        while extra < 8 and first >> extra & 1:
            extra += 1
        low_bits = max(7 - extra, 0)
        return self.uint(extra) << low_bits | first >> (extra + 1)

    def signed_varint(self) -> int:
        """Returns a signed integer of the serialization library: its sign is the lowest bit."""
        value = self.varint()
        return ~(value >> 1) if value & 1 else value >> 1
