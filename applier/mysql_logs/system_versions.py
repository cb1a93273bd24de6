"""Changes of current rows in the log of a system-versioned table of MariaDB's.

Such a table has a row's former versions beside it, and its log has them, too: an update writes the
version before as a new row, a delete is an update of the version's end. Other servers, and other
histories, have the current rows: a replica that took the log literally would insert each version.

Source: MariaDB Knowledge Base, "System-Versioned Tables"; measured with MariaDB 10.11.
"""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from .column_values import RowValue
from .row_events import RowKind

Row: TypeAlias = tuple[RowValue, ...]
Pair: TypeAlias = tuple[Row | None, Row | None]

PERIOD = ("row start", "row end")
"""What `SourceColumn.generated` says of a version's begin and end where the table declares them."""
_NEVER = frozenset(
    bytes.fromhex(end) for end in ("7fffffff0f423f", "ffffffff0f423f", "ffffffffffffffff")
)
"""The end of a current version: 2038, 2106 since MariaDB 11.5, or no transaction."""


def is_current(end: bytes) -> bool:
    """Returns whether a version whose end is logged like this is current."""
    return end in _NEVER


def current_changes(
    pairs: Iterable[Pair], before_end: int | None, after_end: int | None
) -> Iterator[tuple[RowKind, Pair]]:
    """Yields the changes of current rows among those of all versions, without `is_current`.

    Args:
        before_end, after_end: the places in the rows that have `is_current`; None if the log left
            it out, as it did not change.
    """
    for before, after in pairs:
        was_current = before is not None and _is_true(before, before_end, default=True)
        becomes_current = after is not None and _is_true(
            after, after_end, default=before is None or was_current
        )
        old, new = _without(before, before_end), _without(after, after_end)
        if was_current and becomes_current:
            yield RowKind.UPDATE, (old, new)
        elif was_current:
            yield RowKind.DELETE, (old, None)
        elif becomes_current:
            yield RowKind.INSERT, (None, new)


def _is_true(row: Row, place: int | None, *, default: bool) -> bool:
    return default if place is None else bool(row[place])


def _without(row: Row | None, place: int | None) -> Row | None:
    return row if row is None or place is None else row[:place] + row[place + 1 :]
