"""The payload of a replica's transaction: the source's own table maps and row events, which become
values only where they are written.

A record is the event's type, the length of its post-header, whether a MariaDB server wrote it, the
length of its body in four bytes, and its body; what else the log's format description says is not
needed. Whoever follows a source passes the bytes on; the workers of a replica read them, at once.

Source: as of `row_events`, and of `table_maps`.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache, lru_cache
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple

from .charsets import BINARY, text_decoder
from .column_types import Column, ColumnType, integer_code
from .column_values import RowValue, is_unsigned, value_reader
from .events import Event, EventType, FormatDescription, new_event
from .row_errors import SourceTableChanged, UnknownSourceTable, UnreadableValue
from .row_events import (
    NO_TABLE_ID,
    RowKind,
    RowsHead,
    kind_of,
    present_columns,
    row_pairs,
    rows_content,
    rows_head,
)
from .row_images import Field, RowImage
from .source_catalogue import SourceColumn, SourceTable
from .system_versions import PERIOD, Pair, Row, current_changes, is_current
from .table_maps import Table, read_table, table_id_of

__all__ = [
    "Row",
    "RowKind",
    "TableRows",
    "fitting_table",
    "packed",
    "records",
    "table_rows",
    "unreadable_columns",
]

LAYOUTS_MAX: Final = 10_000
"""Table maps whose readers are kept, of all sources together."""
_HEAD = Struct("<BBBI")
_NO_PATH = "a transaction's rows"

T = ColumnType
_TEXTS = frozenset((T.VARCHAR, T.VAR_STRING, T.MARIADB_VARCHAR_COMPRESSED))
_BLOBS = frozenset((T.TINY_BLOB, T.BLOB, T.MEDIUM_BLOB, T.LONG_BLOB, T.MARIADB_BLOB_COMPRESSED))
_STRINGS = frozenset((T.STRING,))
_GEOMETRIES = frozenset((T.GEOMETRY,))
_GEOMETRY_NAMES = (
    "geometry point linestring polygon multipoint multilinestring multipolygon geomcollection "
    "geometrycollection"
)
_LOGGED_AS: Mapping[str, Set[ColumnType]] = {
    "tinyint": {T.TINY},
    "smallint": {T.SHORT},
    "mediumint": {T.INT24},
    "int": {T.LONG},
    "bigint": {T.LONGLONG},
    "float": {T.FLOAT},
    "double": {T.DOUBLE},
    "decimal": {T.NEWDECIMAL},
    "bit": {T.BIT},
    "year": {T.YEAR},
    "date": {T.DATE, T.NEWDATE},
    "time": {T.TIME, T.TIME2},
    "datetime": {T.DATETIME, T.DATETIME2},
    "timestamp": {T.TIMESTAMP, T.TIMESTAMP2},
    "enum": {T.ENUM},
    "set": {T.SET},
    "json": {T.JSON},
    "vector": {T.VECTOR, T.VARCHAR},
    **dict.fromkeys(("char", "binary", "uuid", "inet4", "inet6"), _STRINGS),
    **dict.fromkeys(("varchar", "varbinary"), _TEXTS),
    **dict.fromkeys(("tinytext", "text", "mediumtext", "longtext"), _BLOBS),
    **dict.fromkeys(("tinyblob", "blob", "mediumblob", "longblob"), _BLOBS),
    **dict.fromkeys(_GEOMETRY_NAMES.split(), _GEOMETRIES),
}
"""The types in a table map of a column that the catalogue has as this."""
_LONG = {name for name, types in _LOGGED_AS.items() if types in (_STRINGS, _TEXTS, _BLOBS)}


class TableRows(NamedTuple):
    """The rows of one event. `before`, `after`: the columns, as indexes into the table's, that each
    row's values have, in their order; None for no image. `rows`: values before and after.
    """

    table: SourceTable
    kind: RowKind
    before: Sequence[int] | None
    after: Sequence[int] | None
    rows: list[Pair]


class _Image(NamedTuple):
    """The columns of an image's rows, their reader, and the place in what it returns that has
    `is_current`, in a system-versioned table.
    """

    columns: tuple[int, ...]
    rows: RowImage[RowValue]
    end_place: int | None


class _Head(NamedTuple):
    """What the head of a row event says of its rows."""

    kind: RowKind
    before: _Image
    after: _Image
    read: RowsHead


class _Layout:
    """A table as one table map and one catalogue describe it, and the readers of its images."""

    def __init__(self, table: Table, source: SourceTable, *, mariadb: bool) -> None:
        assert table.columns is not None, "a table whose rows cannot be read"
        self.table = table
        self.source = source
        self._columns = table.columns
        self._mariadb = mariadb
        self._images: dict[bytes, _Image] = {}
        self._heads: dict[int, tuple[bytes, _Head]] = {}
        kinds = [column.generated for column in source.columns]
        hidden = [""] * (len(table.columns) - len(kinds))
        if hidden and table.columns[len(kinds)].type == T.TIMESTAMP2:
            hidden[:2] = PERIOD
        self._kinds = kinds + hidden
        self.is_versioned = PERIOD[1] in self._kinds

    def head(self, event: Event, format: FormatDescription, start: int) -> _Head:
        """Returns the head of a row event of the table, which `start` bytes of its id begin.

        Raises:
            InvalidBinaryLog: it does not fit the table.
            UnreadableValue: no value of a column can be read.
        """
        # Those of a type are mostly alike, byte for byte.
        written, known = self._heads.get(event.type, (b"", None))
        if known and event.body.startswith(written, start):
            return known
        read = rows_head(event, format, self.table)
        head = _Head(kind_of(event), self._image(read.before), self._image(read.after), read)
        written = event.body[start : read.end]
        self._heads[event.type] = written, head
        return head

    def _image(self, present: bytes) -> _Image:
        found = self._images.get(present)
        if found is None:
            found = self._images[present] = self._read(present)
        return found

    def _read(self, present: bytes) -> _Image:
        columns: list[int] = []
        fields: list[Field[RowValue]] = []
        end_place = None
        for index in present_columns(present, len(self._columns)):
            kind = self._kinds[index]
            if kind == PERIOD[1]:
                end_place = len(columns)
                fields.append(Field(self._columns[index], kind, is_current))
            elif kind == PERIOD[0] or index >= len(self.source.columns):
                fields.append(Field(self._columns[index], kind, None))
            else:
                columns.append(index)
                fields.append(self._field(index))
        return _Image(tuple(columns), RowImage(str(self.source), fields), end_place)

    def _field(self, index: int) -> Field[RowValue]:
        column, described = self._columns[index], self.source.columns[index]
        try:
            read = value_reader(column, described, self._mariadb)
        except ValueError as error:
            raise UnreadableValue(
                table=str(self.source),
                column=described.name,
                type=described.column_type,
                cause=str(error),
            ) from None
        unsigned = column._replace(unsigned=is_unsigned(column, described))
        return Field(column, described.name, read, integer_code(unsigned))


_layouts: dict[tuple[bytes, bool], _Layout] = {}


def packed(event: Event, format: FormatDescription) -> bytes:
    """Returns the record of a table map or row event of a log of this format."""
    kind, body = event.type, event.body
    return _HEAD.pack(kind, *_described(format, kind), len(body)) + body


@lru_cache
def _described(format: FormatDescription, kind: int) -> tuple[int, bool]:
    """Returns the length of a post-header, and whether a MariaDB server wrote the log."""
    return format.post_header_of(kind), format.is_mariadb


def unreadable_columns(table: SourceTable) -> Iterator[tuple[SourceColumn, str]]:
    """Yields the columns of which no value can be read, whatever the log has, and why."""
    for column in table.columns:
        # Labels are texts of the catalogue's.
        charset = None if column.data_type in ("enum", "set") else column.charset
        if column.data_type not in _LOGGED_AS:
            yield column, f"type {column.data_type}, which is not known here"
        elif charset not in (None, BINARY) and text_decoder(charset) is None:
            yield column, f"character set {charset}, which is not known here"


def table_rows(payload: bytes, catalogue: Mapping[str, SourceTable]) -> Iterator[TableRows]:
    """Yields the rows of a payload's row events, in their order.

    Args:
        payload: records of `packed`, one behind the other.
        catalogue: the source's tables by `database.table`, as they were when it was written.

    Raises:
        InvalidBinaryLog: these are no such records, or rows that do not fit their table map.
        SourceTableChanged: a table of the catalogue has other columns.
        UnknownSourceTable: a table is not in the catalogue.
        UnreadableValue: a value, or any of its column, cannot be read.

    Cost: O(bytes); what is known of a table map is kept, so that no row asks for it again.
    """
    tables: dict[int, _Layout] = {}
    for event, format in records(payload):
        table_id, end = table_id_of(event, format)
        if event.type == EventType.TABLE_MAP:
            tables[table_id] = _layout_of(event, format, event.body[end:], catalogue)
        elif table_id != NO_TABLE_ID:
            layout = tables.get(table_id)
            if layout is None:
                raise event.invalid(
                    f"rows of table id {table_id}", "a table map with this id before"
                )
            yield from _rows(event, layout, layout.head(event, format, end))


def records(payload: bytes) -> Iterator[tuple[Event, FormatDescription]]:
    """Yields the events of a payload, with what is known of their format."""
    position, end = 0, len(payload)
    while position < end:
        kind, post_header, is_mariadb, size = _HEAD.unpack_from(payload, position)
        start, position = position, position + _HEAD.size + size
        body = payload[position - size : position]
        event = new_event((_NO_PATH, start, kind, 0, 0, 0, size, body))
        yield event, _format(post_header, is_mariadb)


@cache
def _format(post_header: int, is_mariadb: int) -> FormatDescription:
    """Returns the part of a format description that a record has."""
    version = "MariaDB" if is_mariadb else "MySQL"
    return FormatDescription(version, 0, bytes([post_header]) * 255)


def _rows(event: Event, layout: _Layout, head: _Head) -> Iterator[TableRows]:
    if event.type == EventType.PARTIAL_UPDATE_ROWS:
        raise event.invalid(
            f"parts of JSON documents in {layout.source}", "binlog_row_value_options='' at it"
        )
    kind, before, after, read = head
    content = rows_content(event, read)
    pairs = row_pairs(event, layout.table, before.rows, after.rows, content)
    if not layout.is_versioned:
        yield _table_rows(layout, kind, before, after, list(pairs))
        return
    changes = current_changes(pairs, before.end_place, after.end_place)
    for kind, run in groupby(changes, key=itemgetter(0)):
        yield _table_rows(layout, kind, before, after, [pair for _, pair in run])


def _table_rows(
    layout: _Layout, kind: RowKind, before: _Image, after: _Image, rows: list[Pair]
) -> TableRows:
    return TableRows(
        layout.source,
        kind,
        None if kind == RowKind.INSERT else before.columns,
        None if kind == RowKind.DELETE else after.columns,
        rows,
    )


def _layout_of(
    event: Event,
    format: FormatDescription,
    description: bytes,
    catalogue: Mapping[str, SourceTable],
) -> _Layout:
    key = description, format.is_mariadb
    layout = _layouts.get(key)
    if layout is None or catalogue.get(str(layout.table)) is not layout.source:
        table, source = fitting_table(event, format, catalogue)
        layout = _Layout(table, source, mariadb=format.is_mariadb)
        if len(_layouts) >= LAYOUTS_MAX:
            _layouts.clear()
        _layouts[key] = layout
    return layout


def fitting_table(
    event: Event, format: FormatDescription, catalogue: Mapping[str, SourceTable]
) -> tuple[Table, SourceTable]:
    """Returns the table of a table map, and the one of the catalogue that it describes.

    Raises:
        As `table_rows`.
    """
    table, mariadb = read_table(event, format, {}), format.is_mariadb
    source = catalogue.get(str(table))
    if source is None:
        raise UnknownSourceTable(table=str(table))
    if table.columns is None:
        raise event.invalid(f"{table} has {table.problem}", "types of MySQL 9 or MariaDB 12")
    hidden = table.columns[len(source.columns) :]
    is_hidden = not hidden or (mariadb and _are_hidden(hidden, source))
    if len(table.columns) < len(source.columns) or not is_hidden:
        raise SourceTableChanged(
            table=str(table),
            logged=f"{len(table.columns)} columns",
            described=f"{len(source.columns)}",
        )
    for number, (column, described) in enumerate(
        zip(table.columns, source.columns, strict=False), 1
    ):
        name = described.name if column.name is None else column.name
        if name != described.name or column.type not in _LOGGED_AS.get(described.data_type, ()):
            raise SourceTableChanged(
                table=str(table),
                logged=f"{T(column.type).name} as column {number}, {name}",
                described=f"{described.column_type} as {described.name}",
            )
    return table, source


def _are_hidden(columns: Sequence[Column], source: SourceTable) -> bool:
    """Returns whether columns after the catalogue's are those that MariaDB does not show: a
    version's begin and end, then a hash for each unique key that is too long for an index.
    """
    logged = [column.type for column in columns]
    if logged[:2] == [T.TIMESTAMP2] * 2:
        del logged[:2]
    long = [
        names
        for names in source.unique_keys.values()
        if any(each.name in names and each.data_type in _LONG for each in source.columns)
    ]
    return logged == [T.LONGLONG] * len(logged) and len(logged) <= len(long)
