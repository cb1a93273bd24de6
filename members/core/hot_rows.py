"""Counts conflicts by row with bounded memory, so that an operator sees which rows are fought over.

A member that counted every row would grow with what clients write. This keeps `ROWS_MAX` of them: a
new row takes the place of the one with the fewest conflicts, and inherits its count as what it may
be counted too high. So a row with more than 1 / ROWS_MAX of all conflicts is always there. Pure.

Source: A. Metwally, D. Agrawal, A. El Abbadi, "Efficient computation of frequent and top-k elements
in data streams", ICDT 2005 (Space-Saving).
"""

from collections.abc import Iterable
from dataclasses import dataclass

ROWS_MAX = 64


@dataclass(slots=True)
class HotRow:
    """The conflicts over one row."""

    item: int
    conflicts: int = 0
    overcount: int = 0
    """How many of `conflicts` may be of other rows; 0: the count is exact."""
    decided_us: int = 0
    """When the last of them was decided, in microseconds since 1970."""
    payload: bytes = b""
    """The changes of the transaction that lost last, in which the row's key is; empty: not kept."""


class HotRows:
    """The rows with the most conflicts since this was made."""

    def __init__(self) -> None:
        self._rows: dict[int, HotRow] = {}

    def count(self, item: int, decided_us: int, payload: bytes) -> None:
        """Counts a conflict over a row. Cost: O(ROWS_MAX), 6 us, for a row that is not among them
        while all places are taken; else O(1).
        """
        row = self._rows.get(item)
        if row is None:
            row = self._rows[item] = self._new(item)
        row.conflicts += 1
        row.decided_us = decided_us
        row.payload = payload or row.payload

    def rows(self) -> list[HotRow]:
        """Returns copies of the rows, in no order."""
        return [
            HotRow(row.item, row.conflicts, row.overcount, row.decided_us, row.payload)
            for row in self._rows.values()
        ]

    def _new(self, item: int) -> HotRow:
        if len(self._rows) < ROWS_MAX:
            return HotRow(item)
        coldest = min(self._rows.values(), key=_conflicts)
        del self._rows[coldest.item]
        return HotRow(item, coldest.conflicts, coldest.conflicts)


def hottest(rows: Iterable[HotRow], count: int) -> list[HotRow]:
    """Returns the rows with the most conflicts, the worst first; those of one item are added up."""
    merged: dict[int, HotRow] = {}
    for row in sorted(rows, key=lambda row: row.decided_us):
        before = merged.get(row.item, HotRow(row.item))
        merged[row.item] = HotRow(
            row.item,
            before.conflicts + row.conflicts,
            before.overcount + row.overcount,
            row.decided_us,
            row.payload or before.payload,
        )
    return sorted(merged.values(), key=lambda row: (-row.conflicts, -row.decided_us))[:count]


def _conflicts(row: HotRow) -> int:
    return row.conflicts
