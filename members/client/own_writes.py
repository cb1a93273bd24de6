"""The writes of a transaction so far, and how its own reads see them.

The rule it keeps: a transaction reads its snapshot as if its own writes had been made to it. Pure.
"""

from bisect import bisect_left
from collections.abc import ItemsView, Iterable

KeyAndValue = tuple[bytes, bytes]


class OwnWrites:
    """The last write to each key, in the order of the keys; a deletion is the value None.

    >>> writes = OwnWrites()
    >>> writes.put(b"b", b"mine")
    >>> writes.delete(b"c")
    >>> writes.within(b"a", b"").merged([(b"a", b"1"), (b"c", b"2")], next_key=b"")
    [(b'a', b'1'), (b'b', b'mine')]
    """

    def __init__(self) -> None:
        self._values: dict[bytes, bytes | None] = {}
        self._sorted: list[bytes] | None = []
        """The keys, ascending; None once a new one was written."""

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: bytes) -> bool:
        return key in self._values

    def __getitem__(self, key: bytes) -> bytes | None:
        return self._values[key]

    def put(self, key: bytes, value: bytes) -> None:
        """Gives a key a value."""
        self._set(key, value)

    def delete(self, key: bytes) -> None:
        """Removes a key."""
        self._set(key, None)

    def puts(self) -> list[KeyAndValue]:
        """Returns the keys that have a value, with it, ascending."""
        found = ((key, self._values[key]) for key in self._keys())
        return [(key, value) for key, value in found if value is not None]

    def deletes(self) -> list[bytes]:
        """Returns the keys that were removed, ascending."""
        return [key for key in self._keys() if self._values[key] is None]

    def items(self) -> ItemsView[bytes, bytes | None]:
        """Returns the last write to each key, in any order."""
        return self._values.items()

    def within(self, start: bytes, end: bytes) -> "OwnRange":
        """Returns the writes from `start` up to, not including, `end`; empty: to the end. Writes
        that are made later are not in it.
        """
        keys = self._keys()
        first = bisect_left(keys, start)
        last = bisect_left(keys, end) if end else len(keys)
        return OwnRange([(key, self._values[key]) for key in keys[first:last]])

    def _set(self, key: bytes, value: bytes | None) -> None:
        if key not in self._values:
            self._sorted = None
        self._values[key] = value

    def _keys(self) -> list[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self._values)
        return self._sorted


class OwnRange:
    """The writes to a range of keys, which are merged with the pages of a snapshot's rows."""

    def __init__(self, writes: list[tuple[bytes, bytes | None]]) -> None:
        self._writes = writes
        self._merged = 0

    def merged(self, page: Iterable[KeyAndValue], next_key: bytes) -> list[KeyAndValue]:
        """Returns the next page of rows as the transaction sees them.

        Args:
            page: The snapshot's rows up to, not including, `next_key`, ascending.
            next_key: Where the following page begins; empty: there is none.
        """
        rows: dict[bytes, bytes | None] = dict(page)
        while self._merged < len(self._writes):
            key, value = self._writes[self._merged]
            if next_key and key >= next_key:
                break
            rows[key] = value
            self._merged += 1
        return [(key, value) for key, value in sorted(rows.items()) if value is not None]
