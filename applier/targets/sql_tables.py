"""Tables of an SQL server, and changes of their rows, as all sources of a replica give them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple, Protocol

from ..mysql_logs.source_catalogue import SourceTable
from ..mysql_logs.statement_payload import PayloadStatement
from ..queue.relay_group import RelayEntry
from .logged_tables import KeptTables, Place

SqlValue = int | float | Decimal | str | bytes | None
Row = tuple[SqlValue, ...]


Definitions = Callable[[str], Mapping[str, "SourceTable"]]
"""Returns the definitions of a server's tables, if it is of the kind of its source: by the names
that they have in a database of this name or, if that is empty, in their own ones."""


class ColumnType(Enum):
    """The kind of a column's values; a mapping's file names the first four."""

    INTEGER = "integer"
    TEXT = "text"
    BYTES = "bytes"
    JSON = "json"
    CHAR = "char"
    BINARY = "binary"
    BOOLEAN = "boolean"
    DECIMAL = "decimal"
    REAL = "real"
    DOUBLE = "double"
    DATE = "date"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TIME = "time"
    UUID = "uuid"
    INET = "inet"
    GEOMETRY = "geometry"


class Column(NamedTuple):
    """A column that is written."""

    name: str
    type: ColumnType


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMapping:
    """The target of one source table's rows; `source` is `*` for all other tables.

    `has_fields`: `values` are fields of a JSON object, else the one column is the whole value.
    `has_other_keys`: the target's table has unique keys beside this one.
    """

    source: str
    table: str
    key: tuple[Column, ...]
    values: tuple[Column, ...]
    has_fields: bool = False
    has_other_keys: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns that are written."""
        return self.key + self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundColumn:
    """A column of the server: its type in the server's spelling, what it `takes`, its limits.

    `spelled`: the type as a MySQL or MariaDB source would spell it. `low`, `high`: of integers.
    `digits_max`, `scale`: of decimals, before and behind the point; None for any.
    `fraction_digits`: of times. `required`: a new row must name it. `is_exact`: values that differ
    are different in a key. `takes_nul`: texts may have the character 0.
    """

    type: str
    takes: frozenset[ColumnType]
    spelled: str = ""
    low: int = 0
    high: int = 0
    digits_max: int | None = None
    scale: int | None = None
    fraction_digits: int = 6
    characters_max: int | None = None
    bytes_max: int | None = None
    required: bool = False
    nullable: bool = True
    is_exact: bool = True
    takes_nul: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTable:
    """A table of the server; `problem`: why it cannot be written to at all. `triggers`: names of
    those that a replica's write fires. `parents`: tables to which it has foreign keys.
    """

    columns: Mapping[str, FoundColumn]
    unique_keys: Sequence[tuple[str, ...]]
    problem: str = ""
    triggers: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()


class ChangeKind(Enum):
    """The kinds of a row's changes: PUT writes the row whole, whether or not its key exists,
    UPDATE_ANY and DELETE_ANY change it if it does; the others stop at a target that differs from
    its source.
    """

    PUT = "put"
    UPDATE_ANY = "update, if it exists"
    DELETE_ANY = "delete, if it exists"
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


class RowChange(NamedTuple):
    """A change of one row. `name`: of the row at the source. `version`: of the transaction.
    `columns`: those that an UPDATE sets. `row`: the values of all columns, for an UPDATE those that
    it sets and then the key that it looks for, for a deletion the key.
    """

    name: bytes
    version: int
    kind: ChangeKind
    mapping: TableMapping
    columns: tuple[Column, ...]
    row: Row


class TableChanges(NamedTuple):
    """Changes of one kind to one table, no two of them of one row."""

    kind: ChangeKind
    mapping: TableMapping
    columns: tuple[Column, ...]
    rows: list[Row]


def runs(changes: Iterable[RowChange]) -> Iterator[TableChanges]:
    """Yields changes in their order, those together that one statement may make."""
    last: TableChanges | None = None
    names: set[bytes] = set()
    for name, _, kind, mapping, columns, row in changes:
        # By identity: a table has one mapping, and its columns mostly come as one tuple.
        if last is None or last.mapping is not mapping or last[0] is not kind or name in names:
            if last is not None:
                yield last
            last = TableChanges(kind, mapping, columns, [])
            names.clear()
        elif last.columns != columns:
            yield last
            last = TableChanges(kind, mapping, columns, [])
            names.clear()
        last.rows.append(row)
        names.add(name)
    if last is not None:
        yield last


def ranks(found: Mapping[str, FoundTable]) -> dict[str, int]:
    """Returns for each table how many tables come before it, parents first."""
    return ranks_of({name: table.parents for name, table in found.items()})


def ranks_of(parents: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Returns for each table how many tables come before it, if its parents do."""
    known = {
        name: {each for each in others if each in parents and each != name}
        for name, others in parents.items()
    }
    try:
        ordered = list(TopologicalSorter(known).static_order())
    except CycleError:
        # No order of tables serves: the target's constraints have to be deferred.
        return {}
    rank: dict[str, int] = {}
    for name in ordered:
        rank[name] = 1 + max((rank[parent] for parent in known[name]), default=-1)
    return rank


class Definition(NamedTuple):
    """A statement that defines tables. `followed`: the database that is followed at the source,
    which is the target's own, whatever its name; empty if all are.
    """

    statement: PayloadStatement
    followed: str


class BoundTables(Protocol):
    """Tables that fit the server."""

    def statements(self, entries: Sequence[RelayEntry]) -> Sequence[Definition]:
        """Returns the definitions of tables that a transaction is, in place of rows.

        Raises:
            UnsuitableTarget: it has statements that the target does not execute.
        """
        ...

    def changes(self, entries: Sequence[RelayEntry]) -> list[RowChange]:
        """Returns the changes of transactions, in the order in which they are to be made.

        Raises:
            UnsuitableTarget: a row does not fit its columns, or its table is not known.
        """
        ...

    def row_events(self, entries: Sequence[RelayEntry], database: str) -> Sequence[bytes] | None:
        """Returns the source's own events of transactions, each one's together, for a server of its
        kind whose own database is `database`; None if it is to be told the changes.
        """
        ...


class SourceTables(Protocol):
    """What a replica knows of its source's tables before it has seen its target's."""

    @property
    def tables(self) -> Sequence[TableMapping]:
        """All tables, as they are called at the target."""
        ...

    @property
    def others(self) -> TableMapping | None:
        """The table for rows of all other ones, which the target makes if it is missing."""
        ...

    @property
    def kept(self) -> KeptTables:
        """What the target is to keep of them."""
        ...

    def at(self, place: Place, definitions: Definitions) -> "SourceTables":
        """Returns the tables as the source's log has them where the target is, whose own are
        `definitions`.
        """
        ...

    def bind(self, found: Mapping[str, FoundTable], target: str) -> BoundTables:
        """Returns the tables as found at the server.

        Raises:
            UnsuitableTarget: they do not fit; with all problems at once.
        """
        ...
