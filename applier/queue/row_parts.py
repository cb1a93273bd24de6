"""Parts of a transaction: which table a row belongs to, and which rows a worker takes of one.

Each row of a transaction is in exactly one of its parts, and every process computes the same parts:
a restarted replica recognises those that the process before it had executed.

Rows are named `database.table/key`; the table is the text before the first slash. A row without a
slash is in the table without a name.

Source: WL#4648, P2 (a part a table) and P3 (a part a slot of the row hash).
"""

from typing import NamedTuple
from zlib import crc32


def table_of(row: bytes) -> str:
    """Returns the table of a row.

    >>> table_of(b"shop.orders/42"), table_of(b"greeting")
    ('shop.orders', '')
    """
    name, slash, _ = row.partition(b"/")
    return name.decode(errors="replace") if slash else ""


def database_of(table: str) -> str:
    """Returns the database of a table.

    >>> database_of("shop.orders"), database_of("account")
    ('shop', '')
    """
    database, dot, _ = table.partition(".")
    return database if dot else ""


def slot_of(row: bytes, slots: int) -> int:
    """Returns the slot of the row hash that a row falls into, the same in every process."""
    return crc32(row) % slots


class Part(NamedTuple):
    """The rows of one table or, where `slots` is not 0, of one slot of the row hash."""

    table: str = ""
    slot: int = 0
    slots: int = 0

    def takes(self, row: bytes) -> bool:
        """Returns whether a row belongs to this part.

        >>> Part(table="shop.orders").takes(b"shop.orders/42")
        True
        """
        if self.slots:
            return slot_of(row, self.slots) == self.slot
        return table_of(row) == self.table

    def __str__(self) -> str:
        """Returns the part's name, which is stored until all parts are executed."""
        return f"{self.slot}/{self.slots}" if self.slots else self.table
