"""The port to SQL servers: what the SQL target asks of one, in the server's own words.

The rule it keeps: statements are text, and a request of several is one round trip; what is too
large for one is several. Who asks knows no driver, and no dialect.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from applier.targets.sql_schema import FoundTable, Row, SqlValue, TableChanges, TableMapping
from certifier.gtid import Gtid

ROWS_PER_STATEMENT = 1_000
STATEMENT_BYTES = 256 << 10
"""Of its rows, after which another statement begins; written as hexadecimal they are twice that."""
REQUEST_CHARACTERS_MAX = 4 << 20
"""Of several statements in one request; a larger one goes alone."""
ACCESS = "a user, a password and a database of that server"


class Branch(NamedTuple):
    """One part of a transaction that commits in two phases; `owner` is short for the replica."""

    owner: str
    gtid: Gtid
    number: int


class Session(Protocol):
    """One connection; one thread at a time has it."""

    def run(self, *statements: str) -> Sequence[tuple[Any, ...]]:
        """Runs statements in one round trip, several where they are large; the rows of the last.

        Raises:
            TransientFailure: with `connection_lost`, whether the last one took effect is unknown.
        """
        ...

    def close(self) -> None:
        """Ends it; the server undoes what is neither committed nor prepared."""
        ...


def chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows in order, as many together as one statement takes."""
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
) -> Iterator[str]:
    """Statements in order, as many together as one request takes."""
    request: list[str] = []
    size = 0
    for statement in statements:
        if request and size + len(statement) >= characters_max:
            yield ";".join(request)
            request, size = [], 0
        request.append(statement)
        size += len(statement) + 1
    yield ";".join(request)


class SqlServer(Protocol):
    """What a server says in its own words."""

    name: str
    """As it is named in errors: without a password."""

    def connect(self, mappings: Sequence[TableMapping] = ()) -> Session:
        """A session, ready for `put` into these tables.

        Raises:
            TransientFailure: the server cannot be reached.
            UnsuitableTarget: it takes no session with this user, password or database.
        """
        ...

    def lock(self, session: Session, owner: str) -> bool:
        """Takes the lock of a replica's name for as long as the session lives, if it is free."""
        ...

    def problems(self, session: Session, *, sessions: int, branches: int) -> Iterable[str]:
        """Which settings do not allow so many sessions, and branches prepared at once; or a commit
        that is lost without an error.
        """
        ...

    def find(self, session: Session, tables: Sequence[str]) -> Mapping[str, FoundTable]:
        """Those of the tables that exist."""
        ...

    def create(self, others: TableMapping | None) -> Sequence[str]:
        """Makes the replica's own tables, where they are missing, and the one for other rows."""
        ...

    def literal(self, value: SqlValue) -> str:
        """A value as it stands in a statement."""
        ...

    def put(self, changes: TableChanges) -> Iterable[str]:
        """Writes rows whole, whether or not their keys are there."""
        ...

    def delete(self, changes: TableChanges) -> Iterable[str]:
        """Deletes keys, whether or not they are there."""
        ...

    def newest(self, replica: str, versions: Sequence[tuple[bytes, int]]) -> Sequence[str]:
        """Notes versions of rows where they are newer; the last statement gives those rows."""
        ...

    def begin(self, branch: Branch | None) -> str: ...

    def commit(self, branch: Branch | None, *, is_durable: bool) -> Sequence[str]:
        """Commits in one phase; if it need not be durable, the next durable commit makes it so."""
        ...

    def prepare(self, branch: Branch) -> Sequence[str]: ...

    def commit_prepared(self, branch: Branch) -> str: ...

    def roll_back_prepared(self, branch: Branch) -> str: ...

    def prepared(self, session: Session, owner: str) -> Sequence[Branch]:
        """An owner's branches that are prepared and not settled."""
        ...
