"""The payload of a replica's transaction: the source's own table maps and row events, which become
values only where they are written.

A record is the event's type, the length of its post-header, whether a MariaDB server wrote it, the
length of its body in four bytes, and its body; what else the log's format description says is not
needed. Whoever follows a source passes the bytes on; the workers of a replica read them, at once.

Source: as of `row_events`, and of `table_maps`.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from .column_types import ColumnType
from .column_values import RowValue, is_unsigned, value_reader
from .events import Event, EventType, FormatDescription
from .row_errors import SourceTableChanged, UnknownSourceTable, UnreadableValue
from .row_events import (
    NO_TABLE_ID,
    UPDATES,
    WRITES,
    present_columns,
    row_pairs,
    rows_body,
    table_of,
)
from .row_images import Field, RowImage
from .source_catalogue import SourceTable
from .table_maps import Table, read_table, table_id_of

LAYOUTS_MAX: Final = 10_000
"""Table maps whose readers are kept, of all sources together."""
_HEAD = Struct("<BBBI")
_NO_PATH = "a transaction's rows"

Row: TypeAlias = tuple[RowValue, ...]

T = ColumnType
_INTEGER_CODES = {T.TINY: "b", T.SHORT: "h", T.LONG: "i", T.LONGLONG: "q"}
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


class RowKind(Enum):
    """The change that a row event makes of each of its rows."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


class TableRows(NamedTuple):
    """The rows of one event. `before`, `after`: the columns, as indexes into the table's, that each
    row's values have, in their order; None for no image. `rows`: values before and after.
    """

    table: SourceTable
    kind: RowKind
    before: Sequence[int] | None
    after: Sequence[int] | None
    rows: list[tuple[Row | None, Row | None]]


class _Layout:
    """A table as one table map and one catalogue describe it, and the readers of its images."""

    def __init__(self, table: Table, source: SourceTable, *, mariadb: bool) -> None:
        self.table = table
        self.source = source
        self._mariadb = mariadb
        self._images: dict[bytes, tuple[tuple[int, ...], RowImage[RowValue]]] = {}

    def image(self, present: bytes) -> tuple[tuple[int, ...], RowImage[RowValue]]:
        """Returns the columns that have their bit, and the reader of images that have these.

        Raises:
            UnreadableValue: no value of one of them can be read.
        """
        if (found := self._images.get(present)) is None:
            columns = present_columns(present, len(self.source.columns))
            fields = [self._field(index) for index in columns]
            found = self._images[present] = columns, RowImage(str(self.source), fields)
        return found

    def _field(self, index: int) -> Field[RowValue]:
        assert self.table.columns is not None, "a table whose rows cannot be read"
        column, described = self.table.columns[index], self.source.columns[index]
        try:
            read = value_reader(column, described, self._mariadb)
        except ValueError as error:
            raise UnreadableValue(
                table=str(self.source),
                column=described.name,
                type=described.column_type,
                cause=str(error),
            ) from None
        code = _INTEGER_CODES.get(T(column.type), "")
        code = code.upper() if is_unsigned(column, described) else code
        return Field(column, described.name, read, code)


_layouts: dict[tuple[bytes, bool], _Layout] = {}


def packed(event: Event, format: FormatDescription) -> bytes:
    """Returns the record of a table map or row event of a log of this format."""
    post_header = format.post_header_of(event.type)
    return _HEAD.pack(event.type, post_header, format.is_mariadb, len(event.body)) + event.body


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
    for event, format in _records(payload):
        if event.type == EventType.TABLE_MAP:
            table_id, end = table_id_of(event, format)
            tables[table_id] = _layout_of(event, format, event.body[end:], catalogue)
        elif (table_id := table_of(event, format)) != NO_TABLE_ID:
            layout = tables.get(table_id)
            if layout is None:
                raise event.invalid(
                    f"rows of table id {table_id}", "a table map with this id before"
                )
            yield _rows(event, format, layout)


def _records(payload: bytes) -> Iterator[tuple[Event, FormatDescription]]:
    position = 0
    while position < len(payload):
        kind, post_header, is_mariadb, size = _HEAD.unpack_from(payload, position)
        start, position = position, position + _HEAD.size + size
        body = payload[position - size : position]
        version = "MariaDB" if is_mariadb else "MySQL"
        yield (
            Event(_NO_PATH, start, kind, 0, 0, 0, size, body),
            FormatDescription(version, 0, bytes([post_header]) * kind),
        )


def _rows(event: Event, format: FormatDescription, layout: _Layout) -> TableRows:
    if event.type == EventType.PARTIAL_UPDATE_ROWS:
        raise event.invalid(
            f"parts of JSON documents in {layout.source}", "binlog_row_value_options='' at it"
        )
    body = rows_body(event, format, layout.table)
    before, old = layout.image(body.before)
    after, new = layout.image(body.after)
    rows = list(row_pairs(event, layout.table, old, new, body.content))
    if event.type in WRITES:
        return TableRows(layout.source, RowKind.INSERT, None, after, rows)
    if event.type in UPDATES:
        return TableRows(layout.source, RowKind.UPDATE, before, after, rows)
    return TableRows(layout.source, RowKind.DELETE, before, None, rows)


def _layout_of(
    event: Event,
    format: FormatDescription,
    description: bytes,
    catalogue: Mapping[str, SourceTable],
) -> _Layout:
    key = description, format.is_mariadb
    layout = _layouts.get(key)
    if layout is None or catalogue.get(str(layout.table)) is not layout.source:
        table = read_table(event, format, {})
        layout = _Layout(table, _fitting(event, table, catalogue), mariadb=format.is_mariadb)
        if len(_layouts) >= LAYOUTS_MAX:
            _layouts.clear()
        _layouts[key] = layout
    return layout


def _fitting(event: Event, table: Table, catalogue: Mapping[str, SourceTable]) -> SourceTable:
    """Returns the table of the catalogue that a table map describes."""
    source = catalogue.get(str(table))
    if source is None:
        raise UnknownSourceTable(table=str(table))
    if table.columns is None:
        raise event.invalid(f"{table} has {table.problem}", "types of MySQL 9 or MariaDB 12")
    if len(table.columns) != len(source.columns):
        raise SourceTableChanged(
            table=str(table),
            logged=f"{len(table.columns)} columns",
            described=f"{len(source.columns)}",
        )
    for number, (column, described) in enumerate(
        zip(table.columns, source.columns, strict=True), 1
    ):
        name = described.name if column.name is None else column.name
        if name != described.name or column.type not in _LOGGED_AS.get(described.data_type, ()):
            raise SourceTableChanged(
                table=str(table),
                logged=f"{T(column.type).name} as column {number}, {name}",
                described=f"{described.column_type} as {described.name}",
            )
    return source
