"""GTID sets in MySQL's bytes: what a replica sends to its source, and a log file has at its begin.

Sets with a tag have another layout than those without, which older servers read too.

Source: MySQL 8.4 source documentation of Previous_gtids_event and of COM_BINLOG_DUMP_GTID; the tags
as MySQL 9.7.4 writes them.
"""

from uuid import UUID

from ...certifier.gtid_set import GtidSet
from .cursor import Cursor
from .events import Event

_TAGGED = 1


def encoded(gtids: GtidSet) -> bytes:
    """Returns a set's bytes; its sources are UUIDs, with or without a tag.

    >>> encoded(GtidSet.parse("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-3")).hex(" ", 8)[:50]
    '0100000000000000 3e11fa4771ca11e1 9e33c80aa9429562'
    """
    sources = gtids.sources()
    has_tags = any(":" in source for source in sources)
    head = len(sources) << 8 | _TAGGED << 56 | _TAGGED if has_tags else len(sources)
    parts = [head.to_bytes(8, "little")]
    for source in sources:
        uuid, _, tag = source.partition(":")
        intervals = gtids.intervals(source)
        parts.append(UUID(uuid).bytes)
        if has_tags:
            parts.append(bytes([len(tag) << 1]) + tag.encode())
        parts.append(len(intervals).to_bytes(8, "little"))
        for first, last in intervals:
            parts.append(first.to_bytes(8, "little") + (last + 1).to_bytes(8, "little"))
    return b"".join(parts)


def previous_gtids(event: Event) -> GtidSet:
    """Returns the set in an event of type PREVIOUS_GTIDS: all that is in the log before its file.

    Raises:
        InvalidBinaryLog: it is damaged, or in a layout that is not known here.
    """
    cursor = Cursor(event)
    head = cursor.uint(8)
    layout, count = head >> 56, head
    if layout == _TAGGED:
        count = head >> 8 & (1 << 48) - 1
    elif layout:
        raise event.invalid(f"a GTID set in layout {layout}", f"0, or {_TAGGED} with tags")
    gtids = GtidSet()
    for _ in range(count):
        source = str(UUID(bytes=cursor.take(16)))
        tag = cursor.text(cursor.varint()) if layout == _TAGGED else ""
        for _ in range(cursor.uint(8)):
            first, stop = cursor.uint(8), cursor.uint(8)
            if not 0 < first < stop < 1 << 63:
                raise event.invalid(f"GTIDs from {first} to {stop}", "an interval")
            gtids.add_interval(f"{source}:{tag}" if tag else source, first, stop - 1)
    return gtids
