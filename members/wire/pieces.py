"""Splits row changes into pieces, and joins pieces to rows again.

The rule it keeps: each piece is a `Changes` message of its own, so that a reader of one piece has
whole rows; only a value that is longer than a piece continues in the next one. No piece is larger
than requested, except for its last key.
"""

from collections.abc import Iterable, Iterator, Sequence

from google.protobuf.message import DecodeError

from groupcert.v1.transaction_pb2 import Changes

from ...certifier.errors import InvalidWriteSet

ROW_BYTES = 16
"""Most bytes of a row in a message, beside key and value."""

VALUE_BYTES_MAX = 32 << 20
"""Bytes of one row; an answer of a member, which may be twice as large, must have room for it."""

Rows = tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]
"""Keys put, their values, and keys deleted."""


def split(
    puts: Iterable[tuple[bytes, bytes]], delete_keys: Iterable[bytes], piece_bytes: int
) -> Iterator[bytes]:
    """Yields pieces of about `piece_bytes`, at least one."""
    changes, size = Changes(), 0
    for key, value in puts:
        start = 0
        while True:
            if size and size + len(key) + ROW_BYTES + len(value) - start > piece_bytes:
                changes.continued = start > 0
                yield changes.SerializeToString()
                changes, size = Changes(), 0
            room = max(piece_bytes - len(key) - ROW_BYTES, piece_bytes // 2, 1)
            end = min(start + room, len(value)) if not size else len(value)
            changes.put_keys.append(key)
            changes.put_values.append(value[start:end])
            size += len(key) + end - start + ROW_BYTES
            start = end
            if end == len(value):
                break
    for key in delete_keys:
        if size and size + len(key) + ROW_BYTES > piece_bytes:
            yield changes.SerializeToString()
            changes, size = Changes(), 0
        changes.delete_keys.append(key)
        size += len(key) + ROW_BYTES
    yield changes.SerializeToString()


def split_payload(payload: bytes, piece_bytes: int) -> Iterator[bytes]:
    """Yields the pieces of changes that are in memory as a whole."""
    changes = Changes.FromString(payload)
    puts = zip(changes.put_keys, changes.put_values, strict=True)
    return split(puts, changes.delete_keys, piece_bytes)


class RowReader:
    """Takes pieces, returns whole rows; keeps a value that continues until it ends."""

    def __init__(self) -> None:
        self._key: bytes | None = None
        self._value: list[bytes] = []

    def read(self, piece: bytes) -> Rows:
        """Returns the rows that end in a piece.

        Raises InvalidWriteSet if it is no piece, or none that may follow the one before.
        """
        try:
            changes = Changes.FromString(piece)
        except DecodeError:
            raise _invalid(piece[:32].hex(), "a serialized groupcert.v1.Changes") from None
        keys, values = list(changes.put_keys), list(changes.put_values)
        if len(keys) != len(values):
            raise _invalid(f"{len(keys)} put_keys and {len(values)} put_values", "as many")
        if self._key is not None:
            if not keys or keys[0] != self._key:
                raise _invalid("a value without its end", "the same key first in the next part")
            self._value.append(values[0])
            if sum(map(len, self._value)) > VALUE_BYTES_MAX:
                expected = f"values of at most {VALUE_BYTES_MAX} bytes: divide it among rows"
                raise _invalid(f"a longer value of {self._key[:32]!r}", expected)
            if changes.continued and len(keys) == 1:
                return (), (), list(changes.delete_keys)
            values[0] = b"".join(self._value)
            self._key, self._value = None, []
        if changes.continued:
            if not keys:
                raise _invalid("continued without a put", "a value that goes on")
            self._key, self._value = keys.pop(), [values.pop()]
        return keys, values, list(changes.delete_keys)

    @property
    def is_open(self) -> bool:
        """True if the next piece has to continue a value."""
        return self._key is not None

    def end(self) -> None:
        """Raises InvalidWriteSet if a value has not ended."""
        if self._key is not None:
            raise _invalid("a value without its end", "the same key first in the next part")


def joined(pieces: Sequence[bytes]) -> bytes:
    """Returns all pieces as one `Changes` message."""
    if not any(Changes.FromString(piece).continued for piece in pieces):
        return b"".join(pieces)  # Messages, one after the other, are one message of their rows.
    reader, changes = RowReader(), Changes()
    for piece in pieces:
        put_keys, put_values, delete_keys = reader.read(piece)
        changes.put_keys.extend(put_keys)
        changes.put_values.extend(put_values)
        changes.delete_keys.extend(delete_keys)
    reader.end()
    return changes.SerializeToString()


def _invalid(value: str, expected: str) -> InvalidWriteSet:
    return InvalidWriteSet(value=value, expected=expected)
