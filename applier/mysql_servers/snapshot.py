"""A consistent snapshot of a MySQL or MariaDB server: its rows at one GTID set, for a first copy.

All sessions see the same state: each begins its transaction while a lock keeps commits away, for
the milliseconds that this takes. Values are those that row events of the same rows have.

Source: MySQL Reference Manual, 15.3.1 "START TRANSACTION", WITH CONSISTENT SNAPSHOT; 15.7.8.3
"FLUSH"; MariaDB Knowledge Base, "gtid_binlog_state".
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from decimal import Decimal
from struct import Struct
from threading import Lock
from time import monotonic, sleep
from typing import Any

import pymysql

from ...certifier.gtid_set import GtidSet
from ..mysql_logs.column_values import RowValue, float_of
from ..mysql_logs.source_catalogue import SourceColumn, SourceTable, read_catalogue
from .server_url import ServerUrl
from .source_errors import SourceRefused

ROWS_PER_FETCH = 1_000
PAUSE_SECONDS_MAX = 86_400
"""Seconds that a server keeps a session whose rows the target does not take yet."""
_FLOAT = Struct("<f")
_FLOATS = ("float", "double")
PREPARED_SECONDS_MAX = 30
"""Seconds in which a snapshot waits for a moment when no XA transaction is prepared."""
PREPARED_PAUSE_SECONDS = 0.1
_NO_XA_RECOVER_RIGHT = 1401
_DEFINED = (1054, 1146, 1412)
"""Numbers of errors: a table is defined in another way than when the snapshot began."""
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "year")


class Snapshot:
    """The rows of a server's tables at one moment, for as many threads as it has sessions."""

    def __init__(
        self, url: ServerUrl, sessions: "Sequence[Any]", looking: Any, gtids: GtidSet
    ) -> None:
        self.gtids = gtids
        """All that is executed in the rows."""
        self._url = url
        self._looking = looking
        self._in_use = Lock()
        self._sessions = list(sessions)

    @property
    def threads(self) -> int:
        """How many may read at once, each by its number."""
        return len(self._sessions)

    def definition(self, table: SourceTable) -> str:
        """Returns the statement that created a table, as the server spells it."""
        with self._failing(), _reading(self._sessions[0]) as cursor:
            cursor.execute(f"SHOW CREATE TABLE {_quoted(table.database)}.{_quoted(table.name)}")
            return str(cursor.fetchone()[1])

    def rows(
        self, table: SourceTable, columns: Sequence[SourceColumn], thread: int
    ) -> Iterator[list[tuple[RowValue, ...]]]:
        """Yields the rows of a table, some at a time, with these of its columns.

        Raises:
            SourceLost: the server has ended the session.
            SourceRefused: it has no such rows any more, or does not show them, or the table was
                defined anew since it was looked up.
        """
        readers = [_reader(column) for column in columns]
        names = ",".join(map(_selected, columns))
        with self._failing(), _reading(self._sessions[thread]) as cursor:
            cursor.execute(f"SELECT {names} FROM {_quoted(table.database)}.{_quoted(table.name)}")
            while rows := cursor.fetchmany(ROWS_PER_FETCH):
                yield [
                    tuple(
                        [
                            None if value is None else read(value)
                            for read, value in zip(readers, row, strict=True)
                        ]
                    )
                    for row in rows
                ]
        # The session's transaction is open, and keeps definitions away from what it has read.
        self._check(table)

    def _check(self, table: SourceTable) -> None:
        """Raises SourceRefused if a table has other columns than when it was looked up."""

        def query(statement: str, values: Sequence[object]) -> Sequence[Sequence[Any]]:
            with self._in_use, _reading(self._looking) as cursor:
                cursor.execute(statement, values)
                return list(cursor.fetchall())

        with self._failing():
            now = read_catalogue(query, table.database, table.name).get(str(table))
        if now is None or now.columns != table.columns:
            raise self._defined(f"{table} has other columns than when it began")

    def _defined(self, what: str) -> SourceRefused:
        return SourceRefused(
            source=str(self._url),
            problem=f"a table was defined during the copy ({what})",
            next_step="start the replica again",
        )

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Raises the block's errors of the driver as errors of the source."""
        try:
            yield
        except (pymysql.err.MySQLError, OSError) as error:
            if error.args and error.args[0] in _DEFINED:
                raise self._defined(str(error.args[1])) from error
            raise self._url.failure(error) from error


@contextmanager
def opened_snapshot(url: ServerUrl, connect: Callable[[], Any], threads: int) -> Iterator[Snapshot]:
    """Opens a snapshot of a server for so many threads; `connect` returns a PyMySQL connection to
    it whose cursors hold no more than what is fetched (`SSCursor`), without conversions, in
    `utf8mb4`.

    Raises:
        SourceLost, SourceRefused: it does not answer, or lacks a right.
    """
    with ExitStack() as stack:
        sessions = [stack.enter_context(closing(connect())) for _ in range(threads)]
        looking = stack.enter_context(closing(connect()))
        snapshot = Snapshot(url, sessions, looking, GtidSet())
        with snapshot._failing(), closing(connect()) as locking:
            _run(looking, f"SET SESSION wait_timeout = {PAUSE_SECONDS_MAX}")
            _lock(locking, url)
            for session in sessions:
                _run(session, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                _run(session, "SET SESSION time_zone = '+00:00'")
                for name in ("wait_timeout", "net_write_timeout"):
                    _run(session, f"SET SESSION {name} = {PAUSE_SECONDS_MAX}")
                _run(session, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
            snapshot.gtids = executed_gtids(lambda statement: _run(locking, statement))
        yield snapshot


def _lock(session: Any, url: ServerUrl) -> None:
    """Keeps commits away, at a moment when no XA transaction is prepared: its rows would be neither
    in the snapshot nor in the log behind it.
    """
    deadline = monotonic() + PREPARED_SECONDS_MAX
    _run(session, "FLUSH TABLES WITH READ LOCK")
    while prepared := _prepared(session):
        _run(session, "UNLOCK TABLES")
        if monotonic() > deadline:
            raise SourceRefused(
                source=str(url),
                problem=f"XA transactions are prepared for {PREPARED_SECONDS_MAX} s, by now "
                f"{', '.join(prepared)}, and a copy cannot have their rows",
                next_step="commit them or roll them back (XA RECOVER lists them), and start the "
                "replica again",
            )
        sleep(PREPARED_PAUSE_SECONDS)
        _run(session, "FLUSH TABLES WITH READ LOCK")


def _prepared(session: Any) -> Sequence[str]:
    """Returns the xids that are prepared; none if the server does not show them."""
    try:
        return [_xid(*row) for row in _run(session, "XA RECOVER")]
    except pymysql.err.MySQLError as error:
        if error.args[0] != _NO_XA_RECOVER_RIGHT:
            raise
        return []


def _xid(format_id: object, global_bytes: object, _: object, data: bytes | str) -> str:
    """Returns an xid as XA COMMIT takes it."""
    octets = data if isinstance(data, bytes) else data.encode("latin-1")
    count = int(str(global_bytes))
    return f"X'{octets[:count].hex()}',X'{octets[count:].hex()}',{format_id}"


def executed_gtids(run: Callable[[str], Sequence[Sequence[Any]]]) -> GtidSet:
    """Returns the GTIDs that a server has executed, as its binary log names them.

    MariaDB says the newest number of each domain and server: older ones count as executed.
    """
    ((version,),) = run("SELECT @@version")
    if "mariadb" not in str(version).lower():
        ((text,),) = run("SELECT @@global.gtid_executed")
        return GtidSet.parse(text)
    ((text,),) = run("SELECT @@global.gtid_binlog_state")
    gtids = GtidSet()
    for gtid in filter(None, text.split(",")):
        source, _, number = gtid.rpartition("-")
        gtids.add_interval(source, 1, int(number))
    return gtids


def _run(session: Any, statement: str) -> Sequence[Sequence[Any]]:
    with _reading(session) as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


@contextmanager
def _reading(session: Any) -> Iterator[Any]:
    """Yields a cursor. If the block fails, the rest of its rows is not read: that may take hours,
    or fail again.
    """
    cursor = session.cursor()
    try:
        yield cursor
        cursor.close()
    except BaseException:
        if cursor._result:
            cursor._result.unbuffered_active = False
        cursor.connection = None
        raise


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _selected(column: SourceColumn) -> str:
    # As text, servers round a FLOAT to six digits.
    return _quoted(column.name) + ("+0e0" if column.data_type in _FLOATS else "")


def _reader(column: SourceColumn) -> Callable[[Any], RowValue]:
    """Returns the function that makes a row event's value of a session's text."""
    if column.data_type in _INTEGERS:
        return int
    if column.data_type == "decimal":
        return Decimal
    if column.data_type == "double":
        return float
    if column.data_type == "float":
        return lambda text: float_of(_FLOAT.pack(float(text)))
    if column.data_type == "bit":
        return lambda octets: int.from_bytes(octets, "big")
    return lambda value: value
