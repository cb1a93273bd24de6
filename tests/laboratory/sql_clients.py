"""PostgreSQL servers as the processes of a run have them: sessions in SQL, and rows in the end.

The rule it keeps: a server says nothing of versions, so its transactions have no claims; what their
clients read and were told has to be right by itself.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import psycopg

from tests.laboratory.history import FinalState, Outcome
from tests.laboratory.transactions import (
    Answer,
    Begin,
    Commit,
    Decision,
    Found,
    Get,
    Opened,
    Put,
    Request,
)

Connection: TypeAlias = "psycopg.Connection[Any]"

SCHEMA = "CREATE TABLE workload (id bytea PRIMARY KEY, value bytea NOT NULL);"
OUTCOMES: Mapping[str | None, Outcome] = {
    "40001": Outcome.CONFLICT,
    "40P01": Outcome.CONFLICT,
    "25006": Outcome.REFUSED,
    "57014": Outcome.REFUSED,
}
"""SQLSTATEs by which nothing was committed; others at COMMIT leave it open."""
CONNECT_SECONDS_MAX = 10
_READ = b"SELECT id, value FROM workload WHERE id = ANY(%s)"
_WRITE = (
    b"INSERT INTO workload VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET value = EXCLUDED.value"
)
_DELETE = b"DELETE FROM workload WHERE id = %s"


class SqlSession:
    """A session at one server, which connects again whenever it was ended."""

    def __init__(self, server: str, dsn: str) -> None:
        self.server = server
        self._dsn = dsn
        self._connection: Connection

    def close(self) -> None:
        """Hangs up."""
        if not self._is_closed:
            self._connection.close()

    def answer(self, request: Request) -> Answer:
        """Sends a request as SQL, and says what came of it."""
        match request:
            case Begin():
                return self._attempt(self._begin)
            case Get(keys=keys):
                return self._attempt(lambda: _found(self._connection, list(keys)))
            case Put(key=key, value=None):
                return self.execute(_DELETE, [key])
            case Put(key=key, value=value):
                return self.execute(_WRITE, [key, value])
            case Commit():
                return self.commit()

    def execute(self, statement: bytes, values: Any) -> Answer:
        """Runs a statement in the transaction that has begun."""

        def execute() -> Found:
            self._connection.execute(statement, values)
            return Found({})

        return self._attempt(execute)

    def commit(self) -> Answer:
        """Commits the transaction."""

        def commit() -> Decision:
            self._connection.commit()
            return Decision(Outcome.COMMITTED)

        return self._attempt(commit, otherwise=Outcome.UNKNOWN)

    def _begin(self) -> Opened:
        # Here alone: a transaction whose session has ended does not go on in another one.
        if self._is_closed:
            self._connection = psycopg.connect(self._dsn, connect_timeout=CONNECT_SECONDS_MAX)
        return Opened(self.server, 0, b"")

    def _attempt(
        self, work: Callable[[], Answer], otherwise: Outcome = Outcome.UNAVAILABLE
    ) -> Answer:
        """Does something over the connection; what fails ends the transaction. `otherwise`: what
        an error says that says nothing certain.
        """
        try:
            return work()
        except psycopg.Error as error:
            if not self._is_closed:
                with suppress(psycopg.Error):
                    self._connection.rollback()
            outcome = OUTCOMES.get(error.sqlstate, otherwise)
            return Decision(outcome, cause=error.sqlstate or "")

    @property
    def _is_closed(self) -> bool:
        return not hasattr(self, "_connection") or self._connection.closed


def _found(connection: Connection, keys: list[bytes]) -> Found:
    return Found(dict.fromkeys(keys) | dict(connection.execute(_READ, [keys])))


def final_state(server: str, connection: Connection) -> FinalState:
    """What a server has, which has everything."""
    rows = dict(connection.execute(b"SELECT id, value FROM workload"))
    return FinalState(member=server, version=0, digest="", gtid_executed="", rows=rows)
