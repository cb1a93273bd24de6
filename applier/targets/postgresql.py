"""PostgreSQL as a target.

Executing a job is one simple query, and so is committing it: a single round trip each, and the
least work that libpq can be asked for. The tables' single-row statements are prepared.

The commits of a group except its last do not wait for the disk (`synchronous_commit` is off for
them alone): the last one's flush of the write-ahead log makes all of them durable, in their order.
Source: MDEV-4506, "group commit" that keeps the order.
"""

import re
import select
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from typing import Any

import psycopg
from psycopg import pq

from ...certifier.gtid import Gtid
from ..errors import TransientFailure, UnsuitableTarget, note_statement
from ..mysql_logs.source_catalogue import SourceTable
from .sql_server import (
    ACCESS,
    Branch,
    Exactly,
    Session,
    check_changed,
    chunks,
    listed,
    plain_statements,
    quoted,
    quoted_table,
    requests,
)
from .sql_tables import (
    ChangeKind,
    ColumnType,
    FoundColumn,
    FoundTable,
    Row,
    SqlValue,
    TableChanges,
    TableMapping,
)
from .table_definitions import create_table, foreign_keys

QUOTE = '"'
LOCK_TIMEOUT_MS = 50
"""Longest wait for a row's lock."""
NAME_LOCK_MS = 1_000
"""Longest wait for the lock of a replica's name: a server needs a moment to notice a crash."""
_TRANSIENT = {
    "40P01": "deadlock",
    "55P03": "lock_timeout",
    "40001": "serialization_failure",
    "23505": "duplicate_key",
    "23503": "foreign_key",
}
_LOST = ("08", "57P01", "57P02", "57P03")
_REFUSED = re.compile(r"password|does not exist|pg_hba\.conf|permission denied")
"""Texts with which a server refuses a session for good; libpq has no code for it."""
_INTEGER_BITS = {"smallint": 16, "integer": 32, "bigint": 64}
_TYPE = re.compile(r"([a-z ]+)(?:\(([\d,]+)\))?([a-z ]*)")
_ANY_DIGITS = 1_000
_T = ColumnType
_TAKES = {
    "bytea": (_T.BYTES, _T.BINARY, _T.GEOMETRY),
    **dict.fromkeys(("json", "jsonb"), (_T.JSON,)),
    "boolean": (_T.BOOLEAN, _T.INTEGER),
    "real": (_T.REAL,),
    "double precision": (_T.REAL, _T.DOUBLE),
    "date": (_T.DATE,),
    "timestamp without time zone": (_T.DATE, _T.DATETIME),
    "timestamp with time zone": (_T.TIMESTAMP,),
    "interval": (_T.TIME,),
    "uuid": (_T.UUID,),
    "inet": (_T.INET,),
}
_quoted = partial(quoted, quote=QUOTE)
_table = partial(quoted_table, quote=QUOTE)
_listed = partial(listed, quote=QUOTE)
_BRANCH = re.compile(r"groupcert/([0-9a-f]{16})/(.+):(\d+)/(\d+)")
_READERS: dict[int, Callable[[bytes], Any]] = {
    psycopg.adapters.types["bool"].oid: b"t".__eq__,
    psycopg.adapters.types["bytea"].oid: lambda value: bytes.fromhex(value[2:].decode()),
    **{psycopg.adapters.types[name].oid: int for name in ("int4", "int8", "oid")},
}
_CREATE = (
    "CREATE TABLE IF NOT EXISTS groupcert_checkpoint ("
    "replica text PRIMARY KEY, checkpoint text NOT NULL)",
    "CREATE TABLE IF NOT EXISTS groupcert_executed ("
    "replica text, source text, number bigint, part text, worker integer NOT NULL,"
    " version bigint NOT NULL, PRIMARY KEY (replica, source, number, part))",
    "CREATE TABLE IF NOT EXISTS groupcert_row_versions ("
    "replica text, row_key bytea, version bigint NOT NULL, PRIMARY KEY (replica, row_key))",
    "CREATE TABLE IF NOT EXISTS groupcert_prepared ("
    "replica text, xid text, piece integer, payload bytea NOT NULL,"
    " PRIMARY KEY (replica, xid, piece))",
)
_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), NOT attnotnull,
       attnotnull AND NOT atthasdef AND attidentity = '',
       attgenerated <> '', coalesce(collisdeterministic, true)
FROM pg_attribute LEFT JOIN pg_collation ON pg_collation.oid = attcollation
WHERE attrelid = to_regclass({table}) AND attnum > 0 AND NOT attisdropped"""
_TRIGGERS = """
SELECT tgname FROM pg_trigger
WHERE tgrelid = to_regclass({table}) AND NOT tgisinternal AND tgenabled IN ('O', 'A')"""
_PARENTS = """
SELECT confrelid FROM pg_constraint WHERE conrelid = to_regclass({table}) AND contype = 'f'"""
_UNIQUE_KEYS = """
SELECT indexrelid, indpred IS NULL AND indexprs IS NULL AND indimmediate AND indisvalid, attname
FROM pg_index JOIN pg_attribute ON attrelid = indexrelid AND attnum <= indnkeyatts
WHERE indrelid = to_regclass({table}) AND indisunique"""


class PostgreSqlSession:
    """A connection on which only simple queries run."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._socket = self._pgconn.socket
        self._events = select.poll()
        self._events.register(self._socket)

    def run(self, *statements: str) -> Sequence[tuple[Any, ...]]:
        """Runs statements and returns the rows of the last: integers and bytes, else text."""
        rows: Sequence[tuple[Any, ...]] = ()
        for request in requests(statements):
            rows = self._run(request)
        return rows

    def _run(self, request: Sequence[str]) -> Sequence[tuple[Any, ...]]:
        text = ";".join(request).encode()
        is_counted = any(isinstance(statement, Exactly) for statement in request)
        try:
            # Who waits for each result by itself wakes for each: a third fewer transactions a
            # second where 64 are one request.
            results = self._each(text) if is_counted else [self._pgconn.exec_(text)]
        except psycopg.OperationalError as error:
            raise TransientFailure(kind="connection_lost", text=str(error)) from error
        result = results[-1]
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            failure = self._failure(result)
            if is_counted or len(request) == 1:
                note_statement(failure, request[min(len(results), len(request)) - 1])
            raise failure
        if is_counted:
            check_changed(request, [each.command_tuples or 0 for each in results])
        if result.status == pq.ExecStatus.COMMAND_OK:
            return ()
        columns = range(result.nfields)
        readers = [_READERS.get(result.ftype(column), bytes.decode) for column in columns]
        return [
            tuple(readers[column](result.get_value(row, column) or b"") for column in columns)
            for row in range(result.ntuples)
        ]

    def _each(self, text: bytes) -> "list[pq.abc.PGresult]":
        """Returns the results of all statements of a request."""
        pgconn = self._pgconn
        results: list[pq.abc.PGresult] = []
        pgconn.send_query(text)
        while pgconn.flush():
            self._take(select.POLLIN | select.POLLOUT)
        while True:
            # `get_result` would wait with the interpreter lock held: no other worker could commit,
            # and one may have the row lock that this statement waits for.
            while pgconn.is_busy():
                self._take(select.POLLIN)
            if not (result := pgconn.get_result()):
                return results
            results.append(result)

    def _take(self, events: int) -> None:
        """Waits until the server can be read or, with POLLOUT, written to; reads what has come."""
        self._events.modify(self._socket, events)
        self._events.poll()
        self._pgconn.consume_input()

    def _failure(self, result: "pq.abc.PGresult") -> Exception:
        failure = psycopg.errors.error_from_result(result)
        state = failure.sqlstate or ""
        kind = _TRANSIENT.get(state)
        if self._pgconn.status == pq.ConnStatus.BAD or state.startswith(_LOST):
            kind = "connection_lost"
        if not kind:
            return failure
        transient = TransientFailure(kind=kind, text=str(failure))
        transient.__cause__ = failure
        return transient

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()


class PostgreSqlServer:
    """Implements `SqlServer` in PostgreSQL's SQL."""

    copies_children_first = False
    copying = ("SET synchronous_commit TO off",)
    defining = None
    replaying = None

    def __init__(
        self, dsn: str, *, lock_timeout_ms: int = LOCK_TIMEOUT_MS, defers_foreign_keys: bool = False
    ) -> None:
        """Describes a server.

        Args:
            dsn: as libpq takes it: a URI, or `host=... dbname=...`.
            lock_timeout_ms: longest wait for a row's lock; the job is then executed again when
                its turn has come, as a job that waits for its own turn may hold the lock.
            defers_foreign_keys: those that a first copy makes, see
                `table_definitions.foreign_keys`.
        """
        self._deferred = defers_foreign_keys
        self._dsn = dsn
        self._lock_timeout_ms = lock_timeout_ms
        given = psycopg.conninfo.conninfo_to_dict(dsn)
        self.name = f"PostgreSQL {given.get('host', '')}/{given.get('dbname', '')}"

    def connect(self, mappings: Sequence[TableMapping] = ()) -> Session:
        """Returns a session with the settings that this module's statements require."""
        try:
            connection = psycopg.connect(self._dsn, autocommit=True)
        except psycopg.OperationalError as error:
            text = str(error).strip()
            if _REFUSED.search(text):
                raise UnsuitableTarget(target=self.name, problem=text, expected=ACCESS) from error
            raise TransientFailure(kind="connection_lost", text=text) from error
        session = PostgreSqlSession(connection)
        settings = {
            "client_encoding": "UTF8",
            "standard_conforming_strings": "on",
            "bytea_output": "hex",
            "lock_timeout": str(self._lock_timeout_ms),
            # A job waits in its open transaction for its turn: no timeout of the server may end it.
            "statement_timeout": "0",
            "idle_in_transaction_session_timeout": "0",
            "default_transaction_isolation": "read committed",
            "TimeZone": "UTC",
            "DateStyle": "ISO, YMD",
        }
        session.run(*(f"SET {name} TO '{value}'" for name, value in settings.items()))
        if mappings:
            statements = [text for mapping in mappings for text in _prepare(mapping)]
            session.run("SET synchronous_commit TO off", *statements)
        return session

    def lock(self, session: Session, owner: str) -> bool:
        """Takes an advisory lock of the database."""
        key = int.from_bytes(bytes.fromhex(owner), "big", signed=True)
        try:
            session.run(f"SET lock_timeout TO {NAME_LOCK_MS}", f"SELECT pg_advisory_lock({key})")
        except TransientFailure as failure:
            if failure.kind == "lock_timeout":
                return False
            raise
        session.run(f"SET lock_timeout TO {self._lock_timeout_ms}")
        return True

    def problems(self, session: Session, *, sessions: int, branches: int) -> Iterable[str]:
        """Yields problems of `max_connections`, `max_prepared_transactions`,
        `synchronous_commit`.
        """
        for name, least in (("max_connections", sessions), ("max_prepared_transactions", branches)):
            ((value,),) = session.run(f"SELECT current_setting('{name}')::int")
            if value < least:
                yield f"{name} is {value}, expected {least} or more"
        ((value,),) = session.run("SELECT current_setting('synchronous_commit')")
        if value == "off":
            yield "synchronous_commit is off, expected on: what is committed must outlive a crash"

    def find(self, session: Session, tables: Sequence[str]) -> Mapping[str, FoundTable]:
        """Reads the system catalogue."""
        found = {}
        names = {}
        for table in tables:
            ((oid,),) = session.run(
                f"SELECT coalesce(to_regclass({self.literal(_table(table))})::oid, 0)"
            )
            names[oid] = table
        for table in tables:
            name = self.literal(_table(table))
            kinds = session.run(
                f"SELECT relkind::text FROM pg_class WHERE oid = to_regclass({name})"
            )
            if not kinds:
                continue
            columns = {
                column: _found_column(type_name, nullable, required, generated, is_exact)
                for column, type_name, nullable, required, generated, is_exact in session.run(
                    _COLUMNS.format(table=name)
                )
            }
            keys: dict[int, list[str]] = {}
            for index, is_plain, column in session.run(_UNIQUE_KEYS.format(table=name)):
                keys.setdefault(index, []).append(column if is_plain else "")
            triggers = session.run(_TRIGGERS.format(table=name))
            parents = session.run(_PARENTS.format(table=name))
            found[table] = FoundTable(
                columns=columns,
                unique_keys=[() if "" in key else tuple(key) for key in keys.values()],
                problem="" if kinds[0][0] in "rp" else "is no table but another relation",
                triggers=tuple(trigger for (trigger,) in triggers),
                parents=tuple(names[parent] for (parent,) in parents if parent in names),
            )
        return found

    def create(self, others: TableMapping | None) -> Sequence[str]:
        """Returns the statements that create the replica's tables."""
        if others is None:
            return _CREATE
        columns = "row_key bytea PRIMARY KEY, value bytea NOT NULL"
        return (*_CREATE, f"CREATE TABLE IF NOT EXISTS {_table(others.table)} ({columns})")

    def definitions(self, session: Session, database: str) -> Mapping[str, SourceTable]:
        """Returns none: it is no server of MySQL's kind."""
        return {}

    def define(
        self, source: SourceTable, places: Mapping[str, str], definition: str
    ) -> Sequence[str]:
        """Returns CREATE TABLE with the types of `table_definitions`, and its schema's creation."""
        place = places[str(source)]
        schema, dot, _ = place.partition(".")
        schemas = [f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}"] if dot else []
        return [*schemas, create_table(source, place)]

    def constrain(self, source: SourceTable, places: Mapping[str, str]) -> Sequence[str]:
        """Returns ALTER TABLE for each foreign key."""
        return list(foreign_keys(source, places, deferred=self._deferred))

    def table(self, name: str) -> str:
        """Returns the name of a table in quotes."""
        return _table(name)

    def literal(self, value: SqlValue) -> str:
        """Returns a literal without a type: the column's type applies."""
        if isinstance(value, bytes):
            return f"'\\x{value.hex()}'"
        if isinstance(value, str):
            # `connect` has set `standard_conforming_strings`: a backslash is a character like
            # others.
            return "'" + value.replace("'", "''") + "'"
        return "NULL" if value is None else str(value)

    def write(self, changes: TableChanges) -> Iterable[str]:
        """Returns INSERT ... ON CONFLICT, or what all servers do; for one row what is prepared."""
        kind, mapping, _, rows = changes
        is_alone = len(rows) == 1 and bool(mapping.source)
        if kind is ChangeKind.PUT:
            if is_alone:
                return [f"EXECUTE {_prepared_name('put', mapping.table)} {self._tuple(rows[0])}"]
            return [_upsert(mapping, ",".join(map(self._tuple, each))) for each in chunks(rows)]
        if is_alone and kind in (ChangeKind.DELETE, ChangeKind.DELETE_ANY):
            text = f"EXECUTE {_prepared_name('delete', mapping.table)} {self._tuple(rows[0])}"
            return [Exactly.of(1, text) if kind is ChangeKind.DELETE else text]
        return plain_statements(changes, QUOTE, self.literal)

    def newest(self, replica: str, versions: Sequence[tuple[bytes, int]]) -> Sequence[str]:
        """Returns an upsert that compares with the newest committed version, under its lock."""
        rows = ",".join(map(self._tuple, ((replica, key, version) for key, version in versions)))
        return (
            "INSERT INTO groupcert_row_versions AS stored (replica, row_key, version)"
            f" VALUES {rows}"
            " ON CONFLICT (replica, row_key) DO UPDATE SET version = excluded.version"
            " WHERE stored.version < excluded.version RETURNING row_key",
        )

    def begin(self, branch: Branch | None) -> str:
        """Returns BEGIN, also for a branch, which only PREPARE TRANSACTION names."""
        return "BEGIN"

    def commit(self, branch: Branch | None, *, is_durable: bool) -> Sequence[str]:
        """Returns COMMIT; if `is_durable`, with the server's setting of `synchronous_commit`."""
        durable = ("SET LOCAL synchronous_commit TO DEFAULT",) if is_durable else ()
        return (*durable, "COMMIT")

    def prepare(self, branch: Branch) -> Sequence[str]:
        """Returns PREPARE TRANSACTION, which is durable."""
        return (f"PREPARE TRANSACTION {self._name_of(branch)}",)

    def commit_prepared(self, branch: Branch) -> str:
        """Returns COMMIT PREPARED, for any session."""
        return f"COMMIT PREPARED {self._name_of(branch)}"

    def roll_back_prepared(self, branch: Branch) -> str:
        """Returns ROLLBACK PREPARED, for any session."""
        return f"ROLLBACK PREPARED {self._name_of(branch)}"

    def prepared(self, session: Session, owner: str) -> Sequence[Branch]:
        """Returns the prepared branches of this database."""
        rows = session.run(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid"
        )
        found = [match for (name,) in rows if (match := _BRANCH.fullmatch(name))]
        return [
            Branch(owner, Gtid(match[2], int(match[3])), int(match[4]))
            for match in found
            if match[1] == owner
        ]

    def _name_of(self, branch: Branch) -> str:
        return self.literal(f"groupcert/{branch.owner}/{branch.gtid}/{branch.number}")

    def _tuple(self, row: Row) -> str:
        return f"({','.join(map(self.literal, row))})"


def _prepare(mapping: TableMapping) -> Iterable[str]:
    places = ",".join(f"${number}" for number in range(1, len(mapping.columns) + 1))
    yield f"PREPARE {_prepared_name('put', mapping.table)} AS {_upsert(mapping, f'({places})')}"
    places = ",".join(f"${number}" for number in range(1, len(mapping.key) + 1))
    yield (
        f"PREPARE {_prepared_name('delete', mapping.table)} AS DELETE FROM {_table(mapping.table)}"
        f" WHERE ({_listed(mapping.key)}) = ({places})"
    )


@cache
def _prepared_name(kind: str, table: str) -> str:
    # A statement that fails is shown to people, who know the table's name.
    known = re.sub(r"\W", "_", table, flags=re.ASCII)[:39]
    return f"{kind}_{known}_{sha256(table.encode()).hexdigest()[:16]}"


def _upsert(mapping: TableMapping, rows: str) -> str:
    names = [_quoted(name) for name, _ in mapping.values]
    updates = ",".join(f"{name}=excluded.{name}" for name in names)
    return (
        f"INSERT INTO {_table(mapping.table)} ({_listed(mapping.columns)}) VALUES {rows}"
        f" ON CONFLICT ({_listed(mapping.key)}) DO"
        f" {f'UPDATE SET {updates}' if updates else 'NOTHING'}"
    )


def _found_column(
    type_name: str, nullable: bool, required: bool, generated: bool, is_exact: bool
) -> FoundColumn:
    """Returns a column of the catalogue; a generated one takes no type."""
    kinds: tuple[ColumnType, ...] = ()
    low = high = 0
    digits_max = scale = characters_max = None
    fraction_digits = 6
    match = _TYPE.fullmatch(type_name)
    base, arguments = (match[1] + match[3], match[2] or "") if match else (type_name, "")
    numbers = [int(number) for number in arguments.split(",") if number]
    if generated:
        type_name += ", generated"
    elif bits := _INTEGER_BITS.get(base):
        kinds, low, high = (_T.INTEGER,), -(1 << bits - 1), (1 << bits - 1) - 1
    elif base == "numeric":
        kinds = (_T.INTEGER, _T.DECIMAL)
        digits_max, scale = (numbers[0] - numbers[1], numbers[1]) if numbers else (None, None)
        high = 10 ** (_ANY_DIGITS if digits_max is None else digits_max) - 1
        low = -high
    elif base in ("character varying", "text"):
        kinds = (_T.TEXT, _T.CHAR, _T.UUID, _T.INET)
        characters_max = numbers[0] if numbers else None
    else:
        kinds = _TAKES.get(base, ())
        fraction_digits = numbers[0] if numbers else 6
    return FoundColumn(
        type=type_name,
        takes=frozenset(kinds),
        low=low,
        high=high,
        digits_max=digits_max,
        scale=scale,
        fraction_digits=fraction_digits,
        characters_max=characters_max,
        required=required and not generated,
        nullable=nullable,
        is_exact=is_exact,
        takes_nul=False,
    )
