"""Tables whose log names no keys: which of their writers follow which, as far as the source knew.

Such a table has one item, as if each transaction wrote the same row. But transactions whose lock
intervals overlap, such as those of one group commit, had all their locks at once: they wrote
different rows. A writer follows those that were committed when its interval began, and no others.

Schemes know shared items only. For them the writers of a table come in sets of transactions that
all overlap, and each follows the set before its own, and nobody in its own: there is an item for
each writer of a set with each of the next. They have as many as writers overlap in this log: a set
that was full lets those behind it be twice as large.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ...certifier.write_set import hash_item

SET_MIN, SET_MAX = 4, 32
"""Limits of the number of writers of a set: each writer has twice as many items."""
ALL_ROWS = "/*"
"""Follows the table's name in the texts of these items."""


class _Set(NamedTuple):
    """Writers of a table: the set's number, its first entry, its newest writer's place; the
    sizes of the set before it, its own and that of the one behind it, at most.
    """

    number: int
    first: int
    place: int
    size_before: int = SET_MIN
    size: int = SET_MIN
    size_behind: int = SET_MIN

    def next(self, entry: int, interval: int) -> "_Set":
        """Returns the set of the next writer: this one, if it overlaps with all of it."""
        overlaps, place = self.first > entry - interval, self.place + 1
        if overlaps and place < self.size:
            return self._replace(place=place)
        grown = min(self.size_behind << overlaps, SET_MAX)
        return _Set(self.number + 1, entry, 0, self.size, self.size_behind, grown)


class WholeTables:
    """Takes the writers of one log's tables, in its order. An entry is its place in the log."""

    def __init__(self) -> None:
        self._sets: dict[int, _Set] = {}
        self._writers: dict[int, array[int]] = {}
        self._committed: dict[int, array[int]] = {}
        """By table: the entry of each writer, and the newest one that was committed before it."""

    def items(self, table: int, entry: int, interval: int) -> tuple[int, ...]:
        """Returns the items of the next writer of the table with the item `table`.

        Args:
            interval: Its lock interval, in transactions, itself included.
        """
        newest = self._sets.get(table, _Set(0, entry, -1)).next(entry, interval)
        self._sets[table] = newest
        # Whoever writes an item once more two sets later follows all of both sets anyway.
        parity = newest.number % 2
        return _items(table, parity, newest.place, newest.size_before, newest.size_behind)

    def followed(self, table: int, entry: int, interval: int) -> Sequence[int]:
        """Returns the entries that the next writer of a table follows, ascending, without those
        that it follows through the last of them. Arguments are those of `items`.
        """
        writers = self._writers.setdefault(table, array("Q"))
        committed = self._committed.setdefault(table, array("q"))
        stop = bisect_right(writers, entry - interval)
        start = bisect_right(writers, committed[stop - 1]) if stop else 0
        found = writers[start:stop]
        writers.append(entry)
        committed.append(entry - interval)
        return found


@lru_cache(maxsize=4_096)
def _items(
    table: int, parity: int, place: int, size_before: int, size_behind: int
) -> tuple[int, ...]:
    pairs = [(1 - parity, each, place) for each in range(size_before)]
    pairs += [(parity, place, each) for each in range(size_behind)]
    return tuple(hash_item(b"%d %d %d %d" % (table, *pair)) for pair in pairs)
