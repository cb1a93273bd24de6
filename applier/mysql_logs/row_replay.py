"""Row events of a source for a server of its kind, which executes them as its own replica does.

No value is read, and none becomes SQL: the statement BINLOG takes events as they are, but for the
names of their tables. The server finds the rows, and refuses one that is not as the source's was.

Each statement of the source is ended by its last event here: the one that ended it there may be of
a database that is not followed, and tables stay locked until one does.

Source: MariaDB Knowledge Base, "BINLOG", "Table_map_event", "Rows_event_v1"; MariaDB Server,
sql/sql_binlog.cc: a session executes a format description first, in a statement of its own.
"""

from binascii import b2a_base64
from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from .events import HEADER, HEADER_BYTES, Event, EventType, FormatDescription
from .row_errors import SourceTableChanged, UnknownSourceTable
from .row_events import rows_content, rows_head
from .row_payload import fitting_table, records
from .source_catalogue import SourceTable
from .table_maps import TABLE_ID_BYTES, Table

MAPS_MAX = 10_000
"""Table maps of which is kept what they become."""

_FORMAT = Struct("<H50sIB")
_SERVER = b"10.2.0-MariaDB"
_E = EventType
_INFLATED = {
    _E.MARIADB_WRITE_ROWS_COMPRESSED_V1: _E.WRITE_ROWS_V1,
    _E.MARIADB_UPDATE_ROWS_COMPRESSED_V1: _E.UPDATE_ROWS_V1,
    _E.MARIADB_DELETE_ROWS_COMPRESSED_V1: _E.DELETE_ROWS_V1,
}
"""The events that BINLOG takes in place of those that it does not."""
_POST_HEADER_BYTES = 8
"""A table's id and flags, which all events of rows begin with; MySQL's row events have more."""
_TAKEN = (_E.TABLE_MAP, *_INFLATED.values())
_WITHOUT_CHECKSUM = bytes(5)
"""The kind of the events' checksum, and the format description's own, at which nobody looks."""
_ENDS_STATEMENT = 1


def format_statement() -> str:
    """Returns the statement that lets a session execute those of `RowReplay`."""
    kinds = range(1, _E.MARIADB_DELETE_ROWS_COMPRESSED + 1)
    post_headers = bytes(_POST_HEADER_BYTES * (kind in _TAKEN) for kind in kinds)
    body = _FORMAT.pack(4, _SERVER, 0, HEADER_BYTES) + post_headers + _WITHOUT_CHECKSUM
    return replay_statement(_written(_E.FORMAT_DESCRIPTION, body))


def replay_statement(events: bytes) -> str:
    """Returns the statement that executes events."""
    return f"BINLOG '{b2a_base64(events, newline=False).decode()}'"


class RowReplay:
    """Makes payloads the events of a target.

    Args:
        tables: those of the target that are as the source's, by their names there.
        places: of each, its database and name at the target.
    """

    def __init__(
        self, tables: Mapping[str, SourceTable], places: Mapping[str, tuple[str, str]]
    ) -> None:
        self._tables = tables
        self._places = places
        self._maps: dict[bytes, _Map | None] = {}

    def events(self, payload: bytes) -> bytes | None:
        """Returns the events of a payload; None if the target cannot execute them as they are.

        Raises:
            InvalidBinaryLog: these are no records of `row_payload`.

        Cost: O(bytes).
        """
        found: list[tuple[int, bytes]] = []
        tables: dict[bytes, Table] = {}
        for event, format in records(payload):
            kind, body = event.type, event.body
            if not format.is_mariadb or format.post_header_of(kind) != _POST_HEADER_BYTES:
                return None
            table_id = body[:TABLE_ID_BYTES]
            if kind == _E.TABLE_MAP:
                _end_statement(found)
                known = self._map(event, format)
                if known is None:
                    return None
                tables[table_id], body = known.table, table_id + known.body
            elif kind in _INFLATED and table_id in tables:
                head = rows_head(event, format, tables[table_id])
                kind, body = _INFLATED[_E(kind)], body[: head.end] + rows_content(event, head)
            elif kind not in _TAKEN:
                return None
            found.append((kind, body))
        _end_statement(found)
        return b"".join([_written(kind, body) for kind, body in found])

    def _map(self, event: Event, format: FormatDescription) -> "_Map | None":
        """Returns the table map of the target; None if its table is not as the source's."""
        described = event.body[TABLE_ID_BYTES:]
        if described not in self._maps:
            if len(self._maps) >= MAPS_MAX:
                self._maps.clear()
            self._maps[described] = self._made_map(event, format)
        return self._maps[described]

    def _made_map(self, event: Event, format: FormatDescription) -> "_Map | None":
        try:
            table, source = fitting_table(event, format, self._tables)
        except (SourceTableChanged, UnknownSourceTable):
            return None
        # Columns that MariaDB does not show are made by the target for itself.
        if len(table.columns or ()) != len(source.columns):
            return None
        flags, rest = event.body[TABLE_ID_BYTES:_POST_HEADER_BYTES], event.body[_POST_HEADER_BYTES:]
        old = _names((table.database, table.name))
        return _Map(table, flags + _names(self._places[str(table)]) + rest[len(old) :])


class _Map(NamedTuple):
    """A table map: its table, and its body at the target behind the table's id."""

    table: Table
    body: bytes


def _names(names: tuple[str, str]) -> bytes:
    """Returns a database's and a table's name as a table map has them."""
    encoded = [name.encode() for name in names]
    return b"".join(bytes([len(name)]) + name + b"\0" for name in encoded)


def _end_statement(found: list[tuple[int, bytes]]) -> None:
    """Has the last of these events end its statement, if it is one of rows."""
    if found and found[-1][0] != _E.TABLE_MAP:
        kind, body = found[-1]
        flags = bytes([body[TABLE_ID_BYTES] | _ENDS_STATEMENT])
        found[-1] = kind, body[:TABLE_ID_BYTES] + flags + body[TABLE_ID_BYTES + 1 :]


def _written(kind: int, body: bytes) -> bytes:
    """Returns an event of no time and no server."""
    return HEADER.pack(0, kind, 0, HEADER_BYTES + len(body), 0, 0) + body
