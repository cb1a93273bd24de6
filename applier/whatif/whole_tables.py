"""Tables whose log names no keys: which of their writers follow which, as far as the source knew.

Such a table has one item, as if each transaction wrote the same row. But transactions whose lock
intervals overlap, such as those of one group commit, had all their locks at once: they wrote
different rows. So the writers of a table come in sets of transactions that all overlap, and each
follows the set before its own, and nobody in its own. Rules know shared items only: there is an
item for each writer of a set with each of the next. They have as many as writers overlap in this
log: a set that was full lets those behind it be twice as large.
"""

from functools import lru_cache
from typing import NamedTuple

from ...certifier.write_set import hash_item

SET_MIN, SET_MAX = 4, 32
"""Limits of the number of writers of a set: each writer has twice as many items."""
ALL_ROWS = "/*"
"""Follows the table's name in the texts of these items."""


class _Set(NamedTuple):
    """Writers of a table: the set's number, its first position, its newest writer's place; the
    sizes of the set before it, its own and that of the one behind it, at most.
    """

    number: int
    first: int
    place: int
    size_before: int = SET_MIN
    size: int = SET_MIN
    size_behind: int = SET_MIN

    def next(self, position: int, interval: int) -> "_Set":
        """Returns the set of the writer at a position: this one, if it overlaps with all of it."""
        overlaps, place = self.first > position - interval, self.place + 1
        if overlaps and place < self.size:
            return self._replace(place=place)
        grown = min(self.size_behind << overlaps, SET_MAX)
        return _Set(self.number + 1, position, 0, self.size, self.size_behind, grown)


class WholeTables:
    """Makes the items of one log's tables, in its order."""

    def __init__(self) -> None:
        self._sets: dict[int, _Set] = {}

    def items(self, table: int, position: int, interval: int) -> tuple[int, ...]:
        """Returns the items of the next writer of the table with the item `table`.

        Args:
            position: Of the transaction in the log.
            interval: Its lock interval, in transactions, itself included.
        """
        newest = self._sets.get(table, _Set(0, position, -1)).next(position, interval)
        self._sets[table] = newest
        # Whoever writes an item once more two sets later follows all of both sets anyway.
        parity = newest.number % 2
        return _items(table, parity, newest.place, newest.size_before, newest.size_behind)


@lru_cache(maxsize=4_096)
def _items(
    table: int, parity: int, place: int, size_before: int, size_behind: int
) -> tuple[int, ...]:
    pairs = [(1 - parity, each, place) for each in range(size_before)]
    pairs += [(parity, place, each) for each in range(size_behind)]
    return tuple(hash_item(b"%d %d %d %d" % (table, *pair)) for pair in pairs)
