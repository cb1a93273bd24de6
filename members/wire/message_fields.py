"""Counts the fields of a serialized protobuf message before it is parsed.

Parsing can make a hundred bytes of two: an empty message in a repeated field. The rule it keeps: a
message from outside with repeated messages is parsed once these are known to be few enough; the
cost of counting follows from the limit, not from what was sent.
"""

from collections.abc import Iterator

from ...certifier.errors import InvalidWriteSet

REPEATED_MAX = 10_000
"""Most messages in a repeated field of a request."""
FIELD_BYTES_MIN = 2
_VARINT, _FIXED_64, _BYTES, _GROUP, _GROUP_END, _FIXED_32 = range(6)


def fields(message: bytes) -> Iterator[tuple[int, int]]:
    """Yields the number of each field, in order, and how many bytes its value has; yields fields of
    groups, which this project does not use, as if they were the message's own. Ends before bytes
    that are no field: the parser says what is wrong with them.

    >>> list(fields(b"\\x08\\x05\\x12\\x03abc\\x12\\x00"))
    [(1, 1), (2, 3), (2, 0)]
    """
    place, end = 0, len(message)
    while place < end:
        tag, place = _varint(message, place)
        kind, start = tag & 7, place
        if kind == _VARINT:
            _, place = _varint(message, place)
        elif kind == _BYTES:
            size, start = _varint(message, place)
            place = start + size
        elif kind in (_FIXED_64, _FIXED_32):
            place += 8 if kind == _FIXED_64 else 4
        elif kind not in (_GROUP, _GROUP_END):
            return
        if place > end:
            return
        yield tag >> 3, place - start


def check_repeated(message: bytes, repeated: str) -> None:
    """Raises InvalidWriteSet if a serialized request has more fields than it may have messages in
    its field `repeated`; an empty name: it has no repeated messages.
    """
    if not repeated or len(message) <= FIELD_BYTES_MIN * REPEATED_MAX:
        return
    if any(number >= REPEATED_MAX for number, _ in enumerate(fields(message))):
        raise InvalidWriteSet(
            value=f"more than {REPEATED_MAX} {repeated} in one message",
            expected=f"at most {REPEATED_MAX}: send them in several messages",
        )


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Returns the number that begins at `place`, and its end: behind the message if cut off."""
    value = shift = 0
    while place < len(message):
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            break
    return value, len(message) + 1
