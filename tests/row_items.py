"""The items of a row's change, by its columns' names: readers of logs are compared with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from groupcert.certifier.errors import InvalidWriteSet
from groupcert.certifier.write_set import (
    PRIMARY,
    KeyValue,
    TableKeys,
    encode_key,
    hash_item,
    table_item,
)

Row: TypeAlias = Mapping[str, KeyValue | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """One row's change; `before` is None for an insert, `after` for a delete."""

    database: str
    table: str
    before: Row | None
    after: Row | None

    def __post_init__(self) -> None:
        if self.before is None and self.after is None:
            raise InvalidWriteSet(
                value=f"a change of {self.database}.{self.table} with neither row",
                expected="the row before, the row after, or both",
            )


def row_items(change: RowChange, keys: TableKeys) -> list[int]:
    """Return the items of a row's change, each once, in an order that the arguments decide.

    A unique key with a NULL part is left out: NULLs are never equal, so it meets no other key. A
    table without a primary key gives one item for the whole table: coarse, and safe.

    Raises:
        InvalidWriteSet: if a key's column is missing, a part of the primary key is NULL, or a
            value cannot be encoded.

    >>> keys = TableKeys(primary=("id",), unique={"email": ("email",)})
    >>> before = {"id": 1, "email": "a@example.com"}
    >>> after = {"id": 1, "email": None}
    >>> change = RowChange(database="shop", table="users", before=before, after=after)
    >>> len(row_items(change, keys))
    2
    """
    if not keys.primary:
        return [table_item(change.database, change.table)]
    images = [row for row in (change.before, change.after) if row is not None]
    encoded: dict[bytes, None] = {}
    for index, columns in ((PRIMARY, keys.primary), *sorted(keys.unique.items())):
        for row in images:
            values = _key_values(change, index, columns, row)
            if values is not None:
                encoded[encode_key(change.database, change.table, index, values)] = None
    return list(dict.fromkeys(map(hash_item, encoded)))


def _key_values(
    change: RowChange, index: str, columns: tuple[str, ...], row: Row
) -> list[KeyValue] | None:
    """Return the values of a key's columns, None if it cannot meet another key."""
    values: list[KeyValue] = []
    for column in columns:
        if column not in row:
            raise InvalidWriteSet(
                value=f"a row of {change.database}.{change.table} without column {column}",
                expected=f"all columns of key {index}",
            )
        value = row[column]
        if value is not None:
            values.append(value)
        elif index == PRIMARY:
            raise InvalidWriteSet(
                value=f"NULL in column {column} of {change.database}.{change.table}",
                expected="a value, as the column is in the primary key",
            )
        else:
            return None
    return values
