"""Compressed parts of binary logs: MySQL's transaction payloads, MariaDB's statements and rows.

No content is inflated beyond the size in its header, nor beyond a limit: a damaged log cannot fill
the memory.

Source: MySQL 8.4 source documentation of Transaction_payload_event; MariaDB Knowledge Base,
"Compressed Replication Events".
"""

import zlib
from collections.abc import Iterator

from zstandard import ZstdDecompressor, ZstdError

from .cursor import Cursor
from .events import EVENT_BYTES_MAX, HEADER_BYTES, Event, parse_header

_FIELD_END = 0
_FIELD_PAYLOAD_BYTES = 1
_FIELD_COMPRESSION = 2
_COMPRESSION_ZSTD = 0
_COMPRESSION_NONE = 255
_BLOCK_BYTES = 1 << 18


def payload_events(event: Event) -> Iterator[Event]:
    """Returns the events of a transaction payload; they have no checksums of their own.

    Raises:
        InvalidBinaryLog: it is damaged, too large, or compressed in another way than zstd.
    """
    cursor = Cursor(event)
    size_bytes, compression = None, None
    while field := cursor.length():
        value = Cursor(event, cursor.take(cursor.length()))
        if field == _FIELD_PAYLOAD_BYTES:
            size_bytes = value.length()
        elif field == _FIELD_COMPRESSION:
            compression = value.length()
    if size_bytes is None or compression not in (_COMPRESSION_ZSTD, _COMPRESSION_NONE):
        raise event.invalid(
            f"a payload of {size_bytes} bytes in compression {compression}",
            f"a size, and {_COMPRESSION_ZSTD} (zstd) or {_COMPRESSION_NONE} (none)",
        )
    content = cursor.take(size_bytes)
    blocks = _unzstd(event, content) if compression == _COMPRESSION_ZSTD else iter((content,))
    return _events(event, blocks)


def inflated(event: Event, content: bytes) -> bytes:
    """Returns MariaDB's compressed bytes inflated: a byte for the method and the length's length,
    the length, zlib.

    Raises:
        InvalidBinaryLog: it is damaged, too large, or compressed in another way than zlib.
    """
    cursor = Cursor(event, content)
    head = cursor.uint(1)
    size_bytes = int.from_bytes(cursor.take(head & 7), "big")
    if head & 0xF8 != 0x80 or size_bytes > EVENT_BYTES_MAX:
        raise event.invalid(
            f"{size_bytes} bytes compressed by method {head:#x}",
            f"zlib, 0x80, and at most {EVENT_BYTES_MAX} bytes",
        )
    inflater = zlib.decompressobj()
    try:
        # One byte more than there should be shows a content that is longer, and no more is
        # inflated.
        plain = inflater.decompress(cursor.rest(), size_bytes + 1)
    except zlib.error as error:
        raise event.invalid(f"compressed data that zlib refuses: {error}", "zlib") from None
    if len(plain) != size_bytes or not inflater.eof:
        raise event.invalid("compressed data of another length", f"{size_bytes} bytes")
    return plain


def _unzstd(event: Event, content: bytes) -> Iterator[bytes]:
    with ZstdDecompressor().stream_reader(content, read_across_frames=True) as stream:
        while True:
            try:
                block = stream.read(_BLOCK_BYTES)
            except ZstdError as error:
                raise event.invalid(f"a payload that zstd refuses: {error}", "zstd") from None
            if not block:
                return
            yield block


def _events(outer: Event, blocks: Iterator[bytes]) -> Iterator[Event]:
    """Splits a payload into events, holding at most one event and one block."""
    held = bytearray()
    for block in blocks:
        held += block
        start = 0
        while len(held) - start >= HEADER_BYTES:
            header = bytes(held[start : start + HEADER_BYTES])
            event = parse_header(outer.path, outer.offset, header)
            end = start + event.size_bytes
            if not HEADER_BYTES <= event.size_bytes <= EVENT_BYTES_MAX:
                raise outer.invalid(
                    f"an event of {event.size_bytes} bytes within a payload",
                    f"{HEADER_BYTES} to {EVENT_BYTES_MAX} bytes",
                )
            if end > len(held):
                break
            yield event._replace(body=bytes(held[start + HEADER_BYTES : end]), size_bytes=0)
            start = end
        del held[:start]
    if held:
        raise outer.invalid(f"{len(held)} bytes after a payload's last event", "whole events")
