"""Tables of a log, from their table maps: columns, and the keys that name a row.

A table has keys only if the log or the caller names their columns, and all of them are found; else
`problem` is the reason, and its rows have no names.

Source: MySQL 8.4 source documentation of Table_map_event, "optional metadata"; MySQL Reference
Manual, binlog_row_metadata: only FULL has the names of columns and the primary key, and nothing has
the unique keys. MariaDB writes the same layout, and counts geometry among the texts.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ...certifier.errors import InvalidSetting
from ...certifier.write_set import PRIMARY, ParentKey, TableKeys
from .column_types import NUMERIC, Column, ColumnType, column_of, is_text, metadata_bytes_of
from .cursor import Cursor
from .events import Event, FormatDescription
from .source_catalogue import SourceTable

COLUMNS_MAX = 4_096
TABLE_ID_BYTES = 6
T = ColumnType
_SIGNEDNESS = 1
_DEFAULT_CHARSET = 2
_COLUMN_CHARSET = 3
_COLUMN_NAME = 4
_SET_LABELS = 5
_ENUM_LABELS = 6
_SIMPLE_PRIMARY_KEY = 8
_PRIMARY_KEY_WITH_PREFIX = 9
_LABELS_DEFAULT_CHARSET = 10
_LABELS_CHARSET = 11


class Key(NamedTuple):
    """One key: its index's name, and for each part the column and how many characters it has."""

    name: str
    parts: tuple[tuple[int, int], ...]


class Parent(NamedTuple):
    """The key of a parent's row, and for each part the column of the child that refers to it."""

    key: ParentKey
    columns: tuple[int, ...]


class Table(NamedTuple):
    """A table; `columns` is None if one has an unknown type: its rows are not read."""

    database: str
    name: str
    columns: tuple[Column, ...] | None
    keys: tuple[Key, ...]
    problem: str
    parents: tuple[Parent, ...] = ()

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


def keys_from(catalogue: Mapping[str, SourceTable]) -> Mapping[str, TableKeys]:
    """Returns the keys of the catalogue's tables, with columns by number, as `read_table` takes
    them: the log may have no names.

    A table without a primary key has the first unique key without NULL in its place; one without
    either is left out. Differs: a unique key over an expression, or over the beginnings of texts,
    gives no items, nor does a foreign key to columns that are no unique key; whose order it decides
    is found when the target refuses a row.
    """
    return {
        name: keys
        for name, table in catalogue.items()
        if (keys := _keys_of(table, catalogue)).primary
    }


def _keys_of(table: SourceTable, catalogue: Mapping[str, SourceTable]) -> TableKeys:
    numbers = {column.name: f"@{place}" for place, column in enumerate(table.columns, 1)}
    primary = () if PRIMARY in table.inexact_keys else table.row_key
    unique = {index: names for index, names in table.unique_keys.items() if names != primary}
    return TableKeys(
        primary=tuple(numbers[name] for name in primary),
        unique={index: tuple(numbers[name] for name in names) for index, names in unique.items()},
        parents=tuple(_parent_keys(table, catalogue, numbers)),
    )


def _parent_keys(
    table: SourceTable, catalogue: Mapping[str, SourceTable], numbers: Mapping[str, str]
) -> Iterator[ParentKey]:
    """Yields the keys of parents in the catalogue that a table's foreign keys refer to."""
    for foreign in table.foreign_keys:
        parent = catalogue.get(foreign.parent)
        if parent is None:
            continue
        for index, names in ((PRIMARY, parent.row_key), *parent.unique_keys.items()):
            # InnoDB takes the columns in the order of the parent's index alone.
            if names == foreign.parent_columns:
                yield ParentKey(
                    database=parent.database,
                    table=parent.name,
                    index=index,
                    columns=tuple(numbers[name] for name in foreign.columns),
                    changes_children=foreign.changes_children,
                )
                break


def table_id_of(event: Event, format: FormatDescription) -> tuple[int, int]:
    """Returns the id of the table of a table map or row event, and the offset of what follows."""
    count = id_bytes_of(format, event.type)
    if len(event.body) < count:
        Cursor(event).take(count)
    return int.from_bytes(event.body[:count], "little"), count


def id_bytes_of(format: FormatDescription, event_type: int) -> int:
    """Returns the number of bytes of a table's id, with which a type's events begin."""
    # Before MySQL 5.1.4 ids had four bytes.
    return 4 if format.post_header_of(event_type) == 6 else TABLE_ID_BYTES


def read_table(
    event: Event, format: FormatDescription, keys_by_table: Mapping[str, TableKeys]
) -> Table:
    """Returns the table that a table map describes.

    Raises:
        InvalidBinaryLog: it is no table map.
        InvalidSetting: `keys_by_table` names a column that the log does not have.
    """
    cursor = Cursor(event)
    cursor.take(table_id_of(event, format)[1] + 2)
    database = cursor.text(cursor.uint(1))
    cursor.take(1)
    name = cursor.text(cursor.uint(1))
    cursor.take(1)
    columns = _read_columns(event, cursor)
    if columns is None:
        return Table(database, name, None, (), "a column of a type that is not known here")
    fields = _optional_metadata(cursor)
    columns = _described(event, columns, fields, mariadb=format.is_mariadb)
    given = keys_by_table.get(f"{database}.{name}")
    if given is not None:
        places = _places(columns)
        keys = tuple(_given_keys(f"{database}.{name}", given, places))
        parents = tuple(
            Parent(parent, tuple(places[each] for each in parent.columns))
            for parent in given.parents
        )
        return Table(database, name, tuple(columns), keys, "", parents)
    parts = _primary_key(event, fields, len(columns))
    problem = ""
    if not parts and _COLUMN_NAME in fields:
        problem = "no primary key"
    elif not parts:
        problem = "no key in the log: it was written with another binlog_row_metadata than FULL"
    keys = (Key(PRIMARY, parts),) if parts else ()
    return Table(database, name, tuple(columns), keys, problem)


def _read_columns(event: Event, cursor: Cursor) -> list[Column] | None:
    count = cursor.length()
    if not 0 < count <= COLUMNS_MAX:
        raise event.invalid(f"a table of {count} columns", f"1 to {COLUMNS_MAX}")
    types = cursor.take(count)
    metadata = Cursor(event, cursor.take(cursor.length()))
    cursor.take((count + 7) // 8)
    columns = []
    for column_type in types:
        column = column_of(column_type, metadata.take(metadata_bytes_of(column_type)))
        if column is None:
            return None
        columns.append(column)
    return columns


def _optional_metadata(cursor: Cursor) -> dict[int, bytes]:
    fields = {}
    while cursor.remaining:
        field = cursor.uint(1)
        fields[field] = cursor.take(cursor.length())
    return fields


def _described(
    event: Event, columns: list[Column], fields: dict[int, bytes], *, mariadb: bool
) -> list[Column]:
    """Returns the columns with sign, collation, labels and name, if the log has them."""
    columns = list(columns)
    signs = fields.get(_SIGNEDNESS, b"")
    numeric = [i for i, column in enumerate(columns) if column.type in NUMERIC]
    for place, index in enumerate(numeric):
        if place // 8 < len(signs) and signs[place // 8] & 0x80 >> place % 8:
            columns[index] = columns[index]._replace(unsigned=True)
    texts = [i for i, column in enumerate(columns) if is_text(column, mariadb=mariadb)]
    labelled = [i for i, column in enumerate(columns) if column.type in (T.ENUM, T.SET)]
    for indexes, each, default in (
        (texts, _COLUMN_CHARSET, _DEFAULT_CHARSET),
        (labelled, _LABELS_CHARSET, _LABELS_DEFAULT_CHARSET),
    ):
        collations = _collations(event, fields.get(each), fields.get(default), len(indexes))
        for index, collation in zip(indexes, collations, strict=False):
            columns[index] = columns[index]._replace(collation=collation)
    for kind, field in ((T.ENUM, _ENUM_LABELS), (T.SET, _SET_LABELS)):
        lists = Cursor(event, fields.get(field, b""))
        for index in labelled:
            if columns[index].type == kind and lists.remaining:
                count = lists.length()
                labels = tuple(lists.take(lists.length()) for _ in range(count))
                columns[index] = columns[index]._replace(labels=labels)
    if _COLUMN_NAME in fields:
        names = Cursor(event, fields[_COLUMN_NAME])
        for index, column in enumerate(columns):
            columns[index] = column._replace(name=names.text(names.length()))
    return columns


def _collations(
    event: Event, each: bytes | None, by_default: bytes | None, count: int
) -> list[int]:
    """Returns the collation of each of these columns in order, or none at all."""
    if each is not None:
        return list(_lengths(event, each))
    if not by_default:
        return []
    default, *others = _lengths(event, by_default)
    collations = [default] * count
    for place, collation in zip(others[::2], others[1::2], strict=False):
        if place < count:
            collations[place] = collation
    return collations


def _primary_key(event: Event, fields: dict[int, bytes], count: int) -> tuple[tuple[int, int], ...]:
    if _SIMPLE_PRIMARY_KEY in fields:
        parts = [(column, 0) for column in _lengths(event, fields[_SIMPLE_PRIMARY_KEY])]
    else:
        numbers = list(_lengths(event, fields.get(_PRIMARY_KEY_WITH_PREFIX, b"")))
        parts = list(zip(numbers[::2], numbers[1::2], strict=False))
    for column, _ in parts:
        if column >= count:
            raise event.invalid(
                f"a primary key over column {column + 1}", f"one of the {count} columns"
            )
    return tuple(parts)


def _places(columns: Sequence[Column]) -> dict[str, int]:
    """Returns the indexes of columns by number, as `@1`, and by name, if the log has it."""
    places = {f"@{number}": number - 1 for number in range(1, len(columns) + 1)}
    return places | {column.name: index for index, column in enumerate(columns) if column.name}


def _given_keys(table: str, given: TableKeys, places: Mapping[str, int]) -> Iterator[Key]:
    """Yields the caller's keys, whose columns are among `places`."""
    for index, names in ((PRIMARY, given.primary), *sorted(given.unique.items())):
        for name in names:
            if name not in places:
                raise InvalidSetting(
                    name=f"key {index} of {table}",
                    value=name,
                    expected="a column by its number, such as @1, or by its name if the log was "
                    f"written with binlog_row_metadata=FULL; this table has {', '.join(places)}",
                )
        yield Key(index, tuple((places[name], 0) for name in names))


def _lengths(event: Event, content: bytes) -> Iterator[int]:
    cursor = Cursor(event, content)
    while cursor.remaining:
        yield cursor.length()
