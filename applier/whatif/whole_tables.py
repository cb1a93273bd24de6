"""Tables whose log names no keys: which of their writers follow which, as far as the source knew.

Such a table has one item, as if each transaction wrote the same row. But transactions whose lock
intervals overlap, such as those of one group commit, had all their locks at once: they wrote
different rows. So the writers of a table come in sets of transactions that all overlap, and each
follows the set before its own, and nobody in its own. Rules know shared items only: there is an
item for each writer of a set with each of the next.
"""

from ...certifier.write_set import hash_item

SET_MAX = 16
"""Most writers of a set: each has twice as many items."""
ALL_ROWS = "/*"
"""Follows the table's name in the texts of these items."""


class WholeTables:
    """Makes the items of one log's tables, in its order."""

    def __init__(self) -> None:
        self._sets: dict[int, tuple[int, int, int]] = {}
        """By table: the newest set's number, its first position, and its last writer's place."""

    def items(self, table: int, position: int, interval: int) -> list[int]:
        """Returns the items of the next writer of the table with the item `table`.

        Args:
            position: Of the transaction in the log.
            interval: Its lock interval, in transactions, itself included.
        """
        number, first, place = self._sets.get(table, (1, position, -1))
        if place + 1 < SET_MAX and first > position - interval:
            place += 1
        else:
            number, first, place = number + 1, position, 0
        self._sets[table] = number, first, place
        before = [(number - 1, each, place) for each in range(SET_MAX)]
        after = [(number, place, each) for each in range(SET_MAX)]
        return [hash_item(b"%d %d %d %d" % (table, *pair)) for pair in before + after]
