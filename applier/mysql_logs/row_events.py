"""Row events: the rows before and after each change, as far as the keys need them, and their items.

Rows are read to the event's last byte, or the event is invalid: a column that is read with a wrong
length is found here, and does not become a wrong key.

Two transactions that wrote rows with equal keys share an item, or one of them has no items, which
stands for all rows. A table has items of its rows until a row comes whose key cannot be compared;
from then on it has one item for the whole table. The transaction where that begins stands for all
rows, so that it is after everything before it and before everything after it. A DDL statement,
which stands for all rows as well, resets its tables to items of rows.

Source: MySQL 8.4 source documentation of Rows_event and of Partial_update_rows_event (WL#2955);
MariaDB Knowledge Base, "Rows Event" and "Compressed Replication Events"; `certifier.write_set`,
whose encoding the items share. Differs: a unique key that the log does not name is not seen
(binlog_row_metadata has the primary key only): the caller may name it.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

from ...certifier.write_set import (
    PART_BYTES_MAX,
    PRIMARY,
    KeyValue,
    encode_key,
    hash_item,
    readable,
    table_item,
)
from .column_types import Column, ColumnType, Opaque, Value, value_of
from .compression import inflated
from .cursor import Cursor
from .events import Event, EventType, FormatDescription
from .row_images import Field, RowImage, Values
from .table_maps import Key, Table

T = TypeVar("T")

_E = EventType
COMPRESSED = frozenset(range(_E.MARIADB_WRITE_ROWS_COMPRESSED_V1, 172))
WRITES = frozenset(
    (
        _E.WRITE_ROWS_V1,
        _E.WRITE_ROWS,
        _E.MARIADB_WRITE_ROWS_COMPRESSED_V1,
        _E.MARIADB_WRITE_ROWS_COMPRESSED,
    )
)
UPDATES = frozenset(
    (
        _E.UPDATE_ROWS_V1,
        _E.UPDATE_ROWS,
        _E.PARTIAL_UPDATE_ROWS,
        _E.MARIADB_UPDATE_ROWS_COMPRESSED_V1,
        _E.MARIADB_UPDATE_ROWS_COMPRESSED,
    )
)
DELETES = frozenset(
    (
        _E.DELETE_ROWS_V1,
        _E.DELETE_ROWS,
        _E.MARIADB_DELETE_ROWS_COMPRESSED_V1,
        _E.MARIADB_DELETE_ROWS_COMPRESSED,
    )
)
ROWS = WRITES | UPDATES | DELETES
KEY_IMAGES_MAX = 10_000
"""Row images of tables whose readers are kept, of all logs together."""
NO_TABLE_ID = 0xFFFFFF
"""The table id of an event that has no rows, and only ends a statement."""
_PARTIAL_JSON = 1
Image: TypeAlias = dict[tuple[int, int], Value]
"""Values of a row by their part of a key: column, and number of characters in the key."""


class RowKind(Enum):
    """The change that a row event makes of each of its rows."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


class Change(NamedTuple):
    """One row's change; `before` is None for an insert, `after` for a delete."""

    before: Image | None
    after: Image | None


def kind_of(event: Event) -> RowKind:
    """Returns the change that a row event makes."""
    if event.type in WRITES:
        return RowKind.INSERT
    return RowKind.UPDATE if event.type in UPDATES else RowKind.DELETE


def table_of(event: Event, format: FormatDescription) -> int:
    """Returns the id of the table of a row event."""
    return Cursor(event).uint(4 if format.post_header_of(event.type) == 6 else 6)


class RowsBody(NamedTuple):
    """A row event without its head: `before`, `after` are bits for the columns that the images of
    an update have; else both are the same. `content`: the rows.
    """

    before: bytes
    after: bytes
    content: bytes


def rows_body(event: Event, format: FormatDescription, table: Table) -> RowsBody:
    """Returns the rows of an event, inflated.

    Raises:
        InvalidBinaryLog: they do not fit the table map.
    """
    assert table.columns is not None, "a table whose rows cannot be read"
    cursor = Cursor(event)
    cursor.take(6 if format.post_header_of(event.type) == 6 else 8)
    if format.post_header_of(event.type) == 10 or _E.WRITE_ROWS <= event.type < _E.MARIADB_GTID:
        cursor.take(max(cursor.uint(2) - 2, 0))
    count = cursor.length()
    if count != len(table.columns):
        raise event.invalid(
            f"rows of {count} columns in {table}", f"{len(table.columns)}, as in its table map"
        )
    before = after = cursor.take((count + 7) // 8)
    if event.type in UPDATES:
        after = cursor.take((count + 7) // 8)
    content = cursor.rest()
    if event.type in COMPRESSED:
        content = inflated(event, content)
    return RowsBody(before, after, content)


def present_columns(bits: bytes, count: int) -> tuple[int, ...]:
    """Returns the columns, of `count` from 0 on, that have their bit.

    >>> present_columns(b"\\xf5", 4)
    (0, 2)
    """
    # Servers set the bits after the last column's, too.
    number = int.from_bytes(bits, "little")
    return tuple(index for index in range(count) if number >> index & 1)


def row_pairs(
    event: Event, table: Table, before: RowImage[T], after: RowImage[T], content: bytes
) -> Iterator[tuple[Values[T] | None, Values[T] | None]]:
    """Yields the values of each row before and after its change.

    Raises:
        InvalidBinaryLog: the rows do not fit the table map.
        UnreadableValue: a reader refuses a value.
    """
    kind = kind_of(event)
    has_before, has_after = kind != RowKind.INSERT, kind != RowKind.DELETE
    is_partial = event.type == EventType.PARTIAL_UPDATE_ROWS
    position, size = 0, len(content)
    while position < size:
        start = position
        old = new = None
        if has_before:
            old, position = before.read(event, content, position)
        if is_partial:
            position += _partial_bits(event, table, content[position:])
        if has_after:
            new, position = after.read(event, content, position)
        if position == start:
            raise event.invalid("rows without columns", "columns in each row")
        yield old, new


def changes(event: Event, format: FormatDescription, table: Table) -> Iterator[Change]:
    """Yields the changes of a row event of a table whose columns are known.

    Raises:
        InvalidBinaryLog: the rows do not fit the table map.
    """
    body = rows_body(event, format, table)
    first, second = _key_image(table, body.before), _key_image(table, body.after)
    for before, after in row_pairs(event, table, first.rows, second.rows, body.content):
        yield Change(
            None if before is None else first.image(before),
            None if after is None else second.image(after),
        )


class _KeyImage(NamedTuple):
    """Reads the key parts of one kind of row image: `parts` are those of each column in a key."""

    rows: RowImage[tuple[Value, ...]]
    parts: tuple[tuple[tuple[int, int], ...], ...]

    def image(self, values: Values[tuple[Value, ...]]) -> Image:
        """Returns the values by their part of a key."""
        return {
            part: None if read is None else read[number]
            for parts, read in zip(self.parts, values, strict=True)
            for number, part in enumerate(parts)
        }


_key_images: dict[tuple[int, bytes], tuple[Table, _KeyImage]] = {}


def _key_image(table: Table, present: bytes) -> _KeyImage:
    key = id(table), present
    found = _key_images.get(key)
    if found is None:
        if len(_key_images) >= KEY_IMAGES_MAX:
            _key_images.clear()
        # The table is kept with it, so that no other one gets its id.
        found = _key_images[key] = table, _made_key_image(table, present)
    return found[1]


def _made_key_image(table: Table, present: bytes) -> _KeyImage:
    assert table.columns is not None, "a table whose rows cannot be read"
    parts = sorted({part for key in table.keys for part in key.parts})
    by_column = {index: tuple(part for part in parts if part[0] == index) for index, _ in parts}
    fields, found = [], present_columns(present, len(table.columns))
    for index in found:
        column, own = table.columns[index], by_column.get(index)
        read = partial(_part_values, column, [prefix for _, prefix in own]) if own else None
        fields.append(Field(column, column.name or f"@{index + 1}", read))
    return _KeyImage(
        RowImage(str(table), fields),
        tuple(by_column[index] for index in found if index in by_column),
    )


def _part_values(column: Column, prefixes: Sequence[int], content: bytes) -> tuple[Value, ...]:
    return tuple(value_of(column, content, prefix) for prefix in prefixes)


def _partial_bits(event: Event, table: Table, content: bytes) -> int:
    """Returns the number of bytes before an image that tell which of its JSON values are
    differences; these have a length like the values that they replace.
    """
    cursor = Cursor(event, content[:9])
    options = cursor.length()
    columns = table.columns or ()
    documents = sum(column.type == ColumnType.JSON for column in columns)
    return cursor.position + ((documents + 7) // 8 if options & _PARTIAL_JSON else 0)


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
