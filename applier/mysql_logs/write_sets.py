"""Write sets from a log's row changes: the items of each transaction, and their readable names.

Two transactions that wrote rows with equal keys share an item, or one of them has no items, which
stands for all rows. A table has items of its rows until a row comes whose key cannot be compared;
from then on it has one item for the whole table. The transaction where that begins stands for all
rows, so that it is after everything before it and before everything after it. A DDL statement,
which stands for all rows as well, resets its tables to items of rows.

Source: `certifier.write_set`, whose encoding this shares. Differs: a unique key that the log does
not name is not seen (binlog_row_metadata has the primary key only): the caller may name it.
"""

from ...certifier.write_set import (
    PART_BYTES_MAX,
    PRIMARY,
    KeyValue,
    encode_key,
    hash_item,
    readable,
    table_item,
)
from .columns import Opaque
from .rows import Change, Image
from .tables import Key, Table


class WriteSets:
    """Makes the items of one log's transactions, in its order.

    `tables_without_keys`: each table that had one item as a whole, and why.
    """

    def __init__(self) -> None:
        self.tables_without_keys: dict[str, str] = {}
        self._keyed: set[str] = set()
        self._whole: set[str] = set()
        self._stands_for_all = False

    def add(self, table: Table, change: Change | None, items: dict[int, str]) -> None:
        """Adds a change's items to a transaction's; None for a change that could not be read."""
        name = str(table)
        if name not in self._whole:
            why = self._add_keys(table, change, items)
            if not why:
                self._keyed.add(name)
                return
            self.tables_without_keys.setdefault(name, why)
            self._whole.add(name)
            # Transactions before have items of single rows, which the table's one item does not
            # meet.
            self._stands_for_all |= name in self._keyed
        items[table_item(table.database, table.name)] = name

    def finish(self, *, is_ddl: bool, all_rows: bool) -> bool:
        """Ends a transaction; returns whether it stands for all rows."""
        all_rows |= self._stands_for_all or is_ddl
        self._stands_for_all = False
        # All later ones wait for it, so that items from before it need not be met any more.
        if all_rows:
            self._keyed.clear()
        if is_ddl:
            self._whole.clear()
        return all_rows

    def _add_keys(self, table: Table, change: Change | None, items: dict[int, str]) -> str:
        """Adds the items of a row's keys; returns the reason if they cannot be compared."""
        if table.problem or change is None or not table.keys:
            return table.problem or "a table whose rows cannot be read"
        found: dict[int, str] = {}
        for key in table.keys:
            for image in _images(key, change):
                values: list[KeyValue] = []
                for part in key.parts:
                    value = image.get(part, Opaque("rows without a key's columns"))
                    if isinstance(value, Opaque):
                        return f"{value.why} (index {key.name})"
                    if value is not None:
                        values.append(value)
                if len(values) < len(key.parts):
                    if key.name == PRIMARY:
                        return "NULL in the primary key"
                    # A unique key takes any number of rows with a NULL.
                    continue
                # A character has four bytes at most, which spares the encoding of each.
                if any(isinstance(v, str | bytes) and 4 * len(v) > PART_BYTES_MAX for v in values):
                    return f"a key of more than {PART_BYTES_MAX} bytes"
                item = hash_item(encode_key(table.database, table.name, key.name, values))
                found[item] = readable(table.database, table.name, key.name, values)
        items |= found
        return ""


def _images(key: Key, change: Change) -> list[Image]:
    """Returns the rows before and after; columns that the row after lacks are as before.

    A row image without the unchanged columns (binlog_row_image=MINIMAL) has no part of a
    unique key that did not change: that key then gives no item.
    """
    before, after = change.before, change.after
    if before is None or after is None:
        return [image for image in (before, after) if image is not None]
    parts = key.parts
    if key.name != PRIMARY and not any(part in before or part in after for part in parts):
        return []
    return [before, {**before, **after}]
