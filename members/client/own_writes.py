"""The writes of a transaction so far, and how its own reads see them.

The rule it keeps: a transaction reads its snapshot as if its own writes had been made to it. Pure.
"""

from collections.abc import ItemsView, Iterable, Iterator

from sortedcontainers import SortedDict

KeyAndValue = tuple[bytes, bytes]


class OwnWrites:
    """The last write to each key, in the order of the keys; a deletion is the value None.

    >>> writes = OwnWrites()
    >>> writes.put(b"b", b"mine")
    >>> writes.delete(b"c")
    >>> list(writes.merge(b"a", b"", [(b"a", b"1"), (b"c", b"2")]))
    [(b'a', b'1'), (b'b', b'mine')]
    """

    def __init__(self) -> None:
        self._values: SortedDict[bytes, bytes | None] = SortedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: bytes) -> bool:
        return key in self._values

    def __getitem__(self, key: bytes) -> bytes | None:
        return self._values[key]

    def put(self, key: bytes, value: bytes) -> None:
        """Gives a key a value."""
        self._values[key] = value

    def delete(self, key: bytes) -> None:
        """Removes a key."""
        self._values[key] = None

    def puts(self) -> list[KeyAndValue]:
        """Returns the keys that have a value, with it, ascending."""
        return [(key, value) for key, value in self._values.items() if value is not None]

    def items(self) -> ItemsView[bytes, bytes | None]:
        """Returns the keys with their values, or None, ascending."""
        return self._values.items()

    def deletes(self) -> list[bytes]:
        """Returns the keys that are removed, ascending."""
        return [key for key, value in self._values.items() if value is None]

    def merge(
        self, start: bytes, end: bytes, snapshot_rows: Iterable[KeyAndValue]
    ) -> Iterator[KeyAndValue]:
        """Yields the rows from `start` up to, not including, `end` as the transaction sees them.

        Args:
            end: Empty: to the end.
            snapshot_rows: The snapshot's rows in that range, ascending. They are consumed as the
                caller goes on; writes made meanwhile are not seen.
        """
        stop = end or None
        keys = list(self._values.irange(start, stop, inclusive=(True, False)))
        own = iter([(key, self._values[key]) for key in keys])
        next_own = next(own, None)
        for key, value in snapshot_rows:
            while next_own is not None and next_own[0] < key:
                if next_own[1] is not None:
                    yield next_own[0], next_own[1]
                next_own = next(own, None)
            if next_own is None or next_own[0] != key:
                yield key, value
        while next_own is not None:
            if next_own[1] is not None:
                yield next_own[0], next_own[1]
            next_own = next(own, None)
