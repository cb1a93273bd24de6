"""The port to SQL servers: the statements that the SQL target needs, in each server's SQL.

Statements are text, and a request of several is one round trip; statements too large for one
request make several. The SQL target knows no driver and no dialect.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ...certifier.gtid import Gtid
from ..errors import TransientFailure, note_statement
from ..mysql_logs.source_catalogue import SourceTable
from .sql_tables import (
    ChangeKind,
    Column,
    Definition,
    FoundTable,
    Row,
    SqlValue,
    TableChanges,
    TableMapping,
)

ROWS_PER_STATEMENT = 1_000
STATEMENT_BYTES = 256 << 10
"""Bytes of a statement's rows, after which another begins; as hexadecimal they are twice that."""
REQUEST_CHARACTERS_MAX = 4 << 20
"""Limit of several statements in one request; a larger statement goes alone."""
ACCESS = "a user, a password and a database of that server"


class Branch(NamedTuple):
    """A part of a transaction that commits in two phases; `owner` is a hash of the replica name."""

    owner: str
    gtid: Gtid
    number: int


class Exactly(str):
    """A statement that changes `rows` rows where the target is as its source was."""

    rows: int

    @classmethod
    def of(cls, rows: int, text: str) -> "Exactly":
        """Returns the statement."""
        statement = cls(text)
        statement.rows = rows
        return statement


class Alone(str):
    """A statement that is a request by itself."""

    __slots__ = ()


class Session(Protocol):
    """One connection; only one thread at a time uses it."""

    def run(self, *statements: str) -> Sequence[tuple[Any, ...]]:
        """Runs statements in one round trip, large ones in several; returns the last one's rows.

        Raises:
            TransientFailure: with `connection_lost`, whether the last one took effect is unknown;
                with `no_row`, one that is `Exactly` changed fewer rows.
        """
        ...

    def close(self) -> None:
        """Closes the session; the server undoes what is neither committed nor prepared."""
        ...


def chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yields rows in order, as many together as one statement takes."""
    chunk: list[Row] = []
    size = 0
    for row in rows:
        if len(chunk) == ROWS_PER_STATEMENT or size > STATEMENT_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += sum(len(value) for value in row if isinstance(value, (bytes, str)))
    if chunk:
        yield chunk


def requests(
    statements: Iterable[str], characters_max: int = REQUEST_CHARACTERS_MAX
) -> Iterator[list[str]]:
    """Yields statements in order, as many together as one request takes, joined by `;`."""
    request: list[str] = []
    size = 0
    for statement in statements:
        is_alone = isinstance(statement, Alone)
        if request and (is_alone or size + len(statement) >= characters_max):
            yield request
            request, size = [], 0
        request.append(statement)
        # Nothing goes with a statement that is alone.
        size += characters_max if is_alone else len(statement) + 1
    yield request


def check_changed(request: Sequence[str], changed: Sequence[int]) -> None:
    """Raises TransientFailure unless each statement that is `Exactly` changed its rows; `changed`:
    rows that each has changed, in order.
    """
    for statement, rows in zip(request, changed, strict=True):
        if isinstance(statement, Exactly) and rows != statement.rows:
            # No verdict before the job's turn: an earlier transaction may be about to write them.
            text = f"{rows} of {statement.rows} rows are there for {statement[:200]}"
            failure = TransientFailure(kind="no_row", text=text)
            note_statement(failure, statement)
            raise failure


def quoted(name: str, quote: str) -> str:
    """Returns a name, such as a column's, in quotes."""
    return f"{quote}{name.replace(quote, 2 * quote)}{quote}"


def quoted_table(table: str, quote: str) -> str:
    """Returns the name of a table, or of one in another schema, in quotes."""
    return ".".join([quoted(part, quote) for part in table.split(".")])


def listed(columns: Sequence[Column], quote: str) -> str:
    """Returns the names of columns in quotes, with commas."""
    return ",".join([quoted(name, quote) for name, _ in columns])


def plain_statements(
    changes: TableChanges, quote: str, literal: Callable[[SqlValue], str]
) -> Iterator[str]:
    """Yields INSERT, UPDATE and DELETE, which all servers write alike."""
    kind, mapping, columns, rows = changes
    table = quoted_table(mapping.table, quote)

    def values(row: Row) -> str:
        return f"({','.join(map(literal, row))})"

    if kind is ChangeKind.INSERT:
        names = listed(mapping.columns, quote)
        for chunk in chunks(rows):
            yield f"INSERT INTO {table} ({names}) VALUES {','.join(map(values, chunk))}"
    elif kind in (ChangeKind.UPDATE, ChangeKind.UPDATE_ANY):
        # One by one, as their source did: rows that swap a unique value cannot go together.
        sets_of = [quoted(name, quote) for name, _ in columns]
        keys = [quoted(name, quote) for name, _ in mapping.key]
        for row in rows:
            texts = [*map(literal, row)]
            sets = ",".join(map("{}={}".format, sets_of, texts[: len(sets_of)]))
            where = " AND ".join(map("{}={}".format, keys, texts[len(sets_of) :]))
            text = f"UPDATE {table} SET {sets} WHERE {where}"
            yield text if kind is ChangeKind.UPDATE_ANY else Exactly.of(1, text)
    else:
        keys_listed = listed(mapping.key, quote)
        for chunk in chunks(rows):
            text = f"DELETE FROM {table} WHERE ({keys_listed}) IN ({','.join(map(values, chunk))})"
            yield text if kind is ChangeKind.DELETE_ANY else Exactly.of(len(chunk), text)


class SqlServer(Protocol):
    """The SQL of one kind of server."""

    name: str
    """Name in errors, without a password."""

    def connect(self, mappings: Sequence[TableMapping] = ()) -> Session:
        """Returns a session, ready for `put` into these tables.

        Raises:
            TransientFailure: the server cannot be reached.
            UnsuitableTarget: it takes no session with this user, password or database.
        """
        ...

    def lock(self, session: Session, owner: str) -> bool:
        """Takes the lock of a replica's name until the session ends; False if it is not free."""
        ...

    def problems(self, session: Session, *, sessions: int, branches: int) -> Iterable[str]:
        """Yields settings that do not allow so many sessions and prepared branches, or that lose
        commits without an error.
        """
        ...

    def find(self, session: Session, tables: Sequence[str]) -> Mapping[str, FoundTable]:
        """Returns the tables of `tables` that exist."""
        ...

    def create(self, others: TableMapping | None) -> Sequence[str]:
        """Returns statements that create the replica's missing tables and that for other rows."""
        ...

    @property
    def copies_children_first(self) -> bool:
        """Whether sessions of a copy may write children before their parents."""
        ...

    @property
    def copying(self) -> Sequence[str]:
        """Settings of a session that fills tables for the first time."""
        ...

    def definitions(self, session: Session, database: str) -> Mapping[str, SourceTable]:
        """Returns the definitions of its tables as `Definitions`; they are what a source's log
        means that was executed up to here.
        """
        ...

    def define(
        self, source: SourceTable, places: Mapping[str, str], definition: str
    ) -> Sequence[str]:
        """Returns statements that create a source's table; `places`: what tables are called here;
        `definition`: the statement by which the source did.
        """
        ...

    def constrain(self, source: SourceTable, places: Mapping[str, str]) -> Sequence[str]:
        """Returns statements that add what `define` has left for when all rows are there."""
        ...

    def table(self, name: str) -> str:
        """Returns the name of a table as a statement has it."""
        ...

    @property
    def replaying(self) -> "ReplayingServer | None":
        """The same server, if it is of the source's kind and executes its row events."""
        ...

    @property
    def defining(self) -> "DefiningServer | None":
        """The same server, if it is of the source's kind and executes its definitions of tables."""
        ...

    def literal(self, value: SqlValue) -> str:
        """Returns a value as a literal of a statement."""
        ...

    def write(self, changes: TableChanges) -> Iterable[str]:
        """Returns statements that make changes of one kind."""
        ...

    def newest(self, replica: str, versions: Sequence[tuple[bytes, int]]) -> Sequence[str]:
        """Returns statements that note newer versions of rows; the last one selects those rows."""
        ...

    def begin(self, branch: Branch | None) -> str: ...

    def commit(self, branch: Branch | None, *, is_durable: bool) -> Sequence[str]:
        """Returns a commit in one phase; unless `is_durable`, the next durable one makes it so."""
        ...

    def prepare(self, branch: Branch) -> Sequence[str]: ...

    def commit_prepared(self, branch: Branch) -> str: ...

    def roll_back_prepared(self, branch: Branch) -> str: ...

    def prepared(self, session: Session, owner: str) -> Sequence[Branch]:
        """Returns an owner's branches that are prepared and not settled."""
        ...


class DefiningServer(SqlServer, Protocol):
    """A server that executes a source's definitions of tables."""

    def defined(self, definition: Definition) -> Sequence[str]:
        """Returns statements that execute a source's definition of tables."""
        ...

    def definition_lock(self, owner: str) -> tuple[str, str]:
        """Returns the statements that take the lock under which definitions are executed, however
        long that takes, and give it back.
        """
        ...

    def named_tables(
        self, run: Callable[..., Sequence[tuple[Any, ...]]], definition: Definition
    ) -> str:
        """Returns a digest of the tables that a definition names, as they are now; it differs once
        the definition has changed one of them, or its rows.
        """
        ...


class ReplayingServer(SqlServer, Protocol):
    """A server that executes a source's own row events."""

    @property
    def database(self) -> str:
        """The database of the replica's tables."""
        ...

    def replay(self, events: Sequence[bytes]) -> Sequence[str] | None:
        """Returns statements that execute the events of transactions; None if one is too large."""
        ...
