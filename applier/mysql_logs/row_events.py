"""Row events: the rows before and after each change, as far as the keys need them, and their items.

Rows are read to the event's last byte, or the event is invalid: a column that is read with a wrong
length is found here, and does not become a wrong key.

Two transactions that wrote rows with equal keys share an item, or one of them has no items, which
stands for all rows. A table has items of its rows until a row comes whose key cannot be compared;
from then on it has one item for the whole table. The transaction where that begins stands for all
rows, so that it is after everything before it and before everything after it. A DDL statement,
which stands for all rows as well, resets its tables to items of rows.

A row with a foreign key refers to an item of its parent: when it comes, when it goes, when it gets
another parent, and where a change of the parent may change it, with each change. One whose key
cannot be compared refers to the parent's whole table, which has that item by then or gets it with
its first row. Differs: no parent is known of an image without the foreign key's columns
(binlog_row_image=MINIMAL), of a table that has one item, and of rows that a change of the parent's
parent changes; whose order they decide is found when the target refuses a row.

Source: MySQL 8.4 source documentation of Rows_event and of Partial_update_rows_event (WL#2955);
MariaDB Knowledge Base, "Rows Event" and "Compressed Replication Events"; `certifier.write_set`,
whose encoding the items share. Differs: a unique key that the log does not name is not seen
(binlog_row_metadata has the primary key only): the caller may name it.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple, TypeVar, cast

from ...certifier.write_set import (
    PART_BYTES_MAX,
    PRIMARY,
    KeyValue,
    encode_key,
    encode_values,
    hash_item,
    readable,
    readable_values,
    table_item,
)
from .column_types import Column, ColumnType, Opaque, Value, integer_code, value_of
from .compression import inflated
from .cursor import Cursor
from .events import Event, EventType, FormatDescription
from .row_images import Field, RowImage, Values
from .table_maps import Parent, Table

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
KEYED_IMAGES_MAX = 10_000
"""Row images of tables whose readers are kept, of one log."""
NO_TABLE_ID = 0xFFFFFF
"""The table id of an event that has no rows, and only ends a statement."""
_PARTIAL_JSON = 1
_INTEGERS = {int}


class RowKind(Enum):
    """The change that a row event makes of each of its rows."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


def kind_of(event: Event) -> RowKind:
    """Returns the change that a row event makes."""
    if event.type in WRITES:
        return RowKind.INSERT
    return RowKind.UPDATE if event.type in UPDATES else RowKind.DELETE


class RowsHead(NamedTuple):
    """What a row event says before its rows. `before`, `after`: bits for the columns that the
    images of an update have; else both are the same. `end`: where the rows begin in its body.
    """

    before: bytes
    after: bytes
    end: int


def rows_head(event: Event, format: FormatDescription, table: Table) -> RowsHead:
    """Returns the head of a row event.

    Raises:
        InvalidBinaryLog: it does not fit the table map.
    """
    assert table.columns is not None, "a table whose rows cannot be read"
    cursor, post_header = Cursor(event), format.post_header_of(event.type)
    cursor.position = 6 if post_header == 6 else 8
    if post_header == 10 or _E.WRITE_ROWS <= event.type < _E.MARIADB_GTID:
        extra_bytes = cursor.uint(2)
        cursor.position += max(extra_bytes - 2, 0)
    count = cursor.length()
    if count != len(table.columns):
        raise event.invalid(
            f"rows of {count} columns in {table}", f"{len(table.columns)}, as in its table map"
        )
    before = after = cursor.take((count + 7) // 8)
    if event.type in UPDATES:
        after = cursor.take((count + 7) // 8)
    return RowsHead(before, after, cursor.position)


def rows_content(event: Event, head: RowsHead) -> bytes:
    """Returns the rows of an event, inflated.

    Raises:
        InvalidBinaryLog: they are damaged.
    """
    content = event.body[head.end :]
    return inflated(event, content) if event.type in COMPRESSED else content


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


def _partial_bits(event: Event, table: Table, content: bytes) -> int:
    """Returns the number of bytes before an image that tell which of its JSON values are
    differences; these have a length like the values that they replace.
    """
    cursor = Cursor(event, content[:9])
    options = cursor.length()
    columns = table.columns or ()
    documents = sum(column.type == ColumnType.JSON for column in columns)
    return cursor.position + ((documents + 7) // 8 if options & _PARTIAL_JSON else 0)


class _RowKey(NamedTuple):
    """A key of a table, as the rows of an event have it.

    `places`: of each image, where its parts are among the values of both; None if one is not there.
    `begin`, `text`: the begin of the encoded key, and of its text.
    """

    name: str
    places: tuple[tuple[int, ...] | None, ...]
    begin: bytes
    text: str


class _ParentKey(NamedTuple):
    """A key of a parent, as the rows of an event refer to it.

    `name`: of its index. `table`, `table_item`: the parent's name, and the item that stands for all
    of its rows. `places`: of each image that has them, where the key's parts are among the values
    of both. `begin`: of the encoded key. `always`: a row refers to it with each change.
    """

    name: str
    table: str
    table_item: int
    places: tuple[tuple[int, ...], ...]
    begin: bytes
    always: bool


class _KeyedImages(NamedTuple):
    """Reads the keys' columns of the images before and after of a table's row events."""

    before: RowImage[Value]
    after: RowImage[Value]
    keys: tuple[_RowKey, ...]
    parents: tuple[_ParentKey, ...]


class WriteSets:
    """Makes the items of one log's transactions, in its order.

    `tables_without_keys`: each table that had one item as a whole, and why.
    """

    def __init__(self) -> None:
        self.tables_without_keys: dict[str, str] = {}
        self._keyed: set[str] = set()
        self._whole: set[str] = set()
        self._stands_for_all = False
        self._images: dict[tuple[int, int, bytes, bytes], tuple[Table, _KeyedImages]] = {}

    def add(
        self,
        event: Event,
        format: FormatDescription,
        table: Table,
        items: dict[int, str],
        parents: set[int],
        items_max: int,
    ) -> int:
        """Adds the items of a row event to those of its transaction, and to `parents` those of rows
        that it refers to; returns its number of rows. Of more than `items_max` items only that
        there are more is known.

        Raises:
            InvalidBinaryLog: the rows do not fit the table map.
        """
        name, count = str(table), 0
        if table.columns is None:
            self._add_whole(table, name, table.problem, items)
            return 1
        head = rows_head(event, format, table)
        images, content = self._keyed_images(table, event, head), rows_content(event, head)
        for before, after in row_pairs(event, table, images.before, images.after, content):
            count += 1
            if len(items) > items_max:
                continue
            problem = ""
            if name not in self._whole:
                values = (*(before or ()), *(after or ()))
                if images.parents:
                    self._add_parents(images.parents, values, parents)
                problem = table.problem or _add_keys(images.keys, values, items)
                if not problem:
                    self._keyed.add(name)
                    continue
            self._add_whole(table, name, problem, items)
        return count

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

    def _add_whole(self, table: Table, name: str, problem: str, items: dict[int, str]) -> None:
        """Adds the item that stands for all rows of a table, and from now on no other."""
        if name not in self._whole:
            self.tables_without_keys.setdefault(name, problem)
            self._whole.add(name)
            # Transactions before have items of single rows, which the table's one item does not
            # meet.
            self._stands_for_all |= name in self._keyed
        items[table_item(table.database, table.name)] = name

    def _add_parents(
        self, keys: Sequence[_ParentKey], values: Sequence[Value], parents: set[int]
    ) -> None:
        """Adds the items of the rows that a row refers to."""
        for key in keys:
            found = [[values[place] for place in places] for places in key.places]
            if not key.always and len(found) == 2 and found[0] == found[1]:
                continue
            for parts in found:
                if None in parts:
                    continue  # It has no parent.
                if key.table in self._whole or _problem(key.name, parts):
                    parents.add(key.table_item)
                    continue
                known = cast(list[KeyValue], parts)
                parents.add(hash_item(key.begin + encode_values(known)))
                self._keyed.add(key.table)

    def _keyed_images(self, table: Table, event: Event, head: RowsHead) -> _KeyedImages:
        key = id(table), event.type, head.before, head.after
        found = self._images.get(key)
        if found is None:
            if len(self._images) >= KEYED_IMAGES_MAX:
                self._images.clear()
            # The table is kept with it, so that no other one gets its id.
            found = self._images[key] = table, _made_images(table, kind_of(event), head)
        return found[1]


def _made_images(table: Table, kind: RowKind, head: RowsHead) -> _KeyedImages:
    """Returns the images of a kind of change; columns that the row after lacks are as before.

    A row image without the unchanged columns (binlog_row_image=MINIMAL) has no part of a
    unique key that did not change: that key then gives no item.
    """
    # All keys of a table are the log's, or the caller's: a column has one number of characters.
    prefixes = {column: 0 for parent in table.parents for column in parent.columns}
    prefixes |= {column: prefix for key in table.keys for column, prefix in key.parts}
    before, after = (_key_image(table, bits, prefixes) for bits in (head.before, head.after))
    columns: list[dict[int, int]] = []
    if kind != RowKind.INSERT:
        columns.append(before.places)
    if kind != RowKind.DELETE:
        others = columns[0] if columns else {}
        shift = len(others)
        columns.append({**others, **{each: shift + n for each, n in after.places.items()}})
    keys = []
    for key in table.keys:
        parts = [column for column, _ in key.parts]
        is_changed = kind != RowKind.UPDATE or not columns[-1].keys().isdisjoint(parts)
        if key.name == PRIMARY or is_changed:
            keys.append(
                _RowKey(
                    key.name,
                    tuple(_places(found, parts) for found in columns),
                    encode_key(table.database, table.name, key.name, ()),
                    readable(table.database, table.name, key.name, ()),
                )
            )
    parents = tuple(_made_parent(parent, columns) for parent in table.parents)
    return _KeyedImages(
        before.rows, after.rows, tuple(keys), tuple(parent for parent in parents if parent.places)
    )


def _made_parent(parent: Parent, columns: Sequence[dict[int, int]]) -> _ParentKey:
    key = parent.key
    places = [_places(found, parent.columns) for found in columns]
    return _ParentKey(
        key.index,
        f"{key.database}.{key.table}",
        table_item(key.database, key.table),
        tuple(each for each in places if each is not None),
        encode_key(key.database, key.table, key.index, ()),
        key.changes_children,
    )


class _KeyImage(NamedTuple):
    """Reads the columns of keys in an image; `places`: of each of them among what is read."""

    rows: RowImage[Value]
    places: dict[int, int]


def _key_image(table: Table, present: bytes, prefixes: dict[int, int]) -> _KeyImage:
    assert table.columns is not None, "a table whose rows cannot be read"
    fields, found = [], present_columns(present, len(table.columns))
    for index in found:
        column, prefix = table.columns[index], prefixes.get(index)
        read = None if prefix is None else partial(_value, column, prefix)
        code = "" if prefix is None else integer_code(column)
        fields.append(Field(column, column.name or f"@{index + 1}", read, code))
    read_columns = [index for index in found if index in prefixes]
    return _KeyImage(
        RowImage(str(table), fields), {column: n for n, column in enumerate(read_columns)}
    )


def _value(column: Column, prefix: int, content: bytes) -> Value:
    return value_of(column, content, prefix)


def _places(found: dict[int, int], parts: Sequence[int]) -> tuple[int, ...] | None:
    return tuple(found[part] for part in parts) if found.keys() >= set(parts) else None


def _add_keys(keys: Sequence[_RowKey], values: Sequence[Value], items: dict[int, str]) -> str:
    """Adds the items of a row's keys; returns the reason if they cannot be compared."""
    found: dict[int, str] = {}
    for key in keys:
        earlier = None
        for places in key.places:
            if places is None:
                return f"rows without a key's columns (index {key.name})"
            parts = [values[place] for place in places]
            if parts == earlier:
                continue  # The row has the same key before and after.
            earlier = parts
            if set(map(type, parts)) != _INTEGERS:
                if problem := _problem(key.name, parts):
                    return problem
                if None in parts:
                    continue  # A unique key takes any number of rows with a NULL.
            known = cast(list[KeyValue], parts)
            found[hash_item(key.begin + encode_values(known))] = key.text + readable_values(known)
    items |= found
    return ""


def _problem(name: str, parts: Sequence[Value]) -> str:
    """Returns the reason if the values of a key cannot be compared; else an empty text."""
    for part in parts:
        if isinstance(part, Opaque):
            return f"{part.why} (index {name})"
    if None in parts:
        return "NULL in the primary key" if name == PRIMARY else ""
    # A character has four bytes at most, which spares the encoding of each.
    if any(isinstance(part, str | bytes) and 4 * len(part) > PART_BYTES_MAX for part in parts):
        return f"a key of more than {PART_BYTES_MAX} bytes"
    return ""
