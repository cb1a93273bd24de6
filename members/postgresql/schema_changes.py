"""Schema changes, which all servers of a group execute at the same place of the total order.

A change is a certified transaction with one row under a key of its own; a member runs its
statements when it has its turn. Every transaction of a server reads that key: one that began before
a change and comes behind it conflicts, so that no row of an older shape is ever executed.

Whoever may commit at a member may write that row. So a change runs only where a superuser has
approved it before, in `groupcert.schema_changes` of the server itself.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psycopg

from ...certifier.write_set import store_key_item
from ..errors.postgresql_servers import SchemaChangeFailed, SchemaChangeRefused
from .attachment import (
    add_functions,
    drop_functions,
    name_of,
    patterns_of,
)
from .commit_order import Entry
from .rehearsal import Unfit
from .rows import rows_in
from .sequences import (
    number_sequences,
    numbering_of,
    read_sequences,
    sequences_for,
)
from .tables import Table, literal, quoted, read_tables

KEY = b"groupcert.schema_changes/newest"
ITEM = store_key_item(KEY)
"""The item that each transaction of a server reads."""
STATEMENT_CHARACTERS = 300
_CHANGED_ROWS = (
    "SELECT schemaname || '.' || relname FROM pg_stat_xact_user_tables"
    " WHERE n_tup_ins + n_tup_upd + n_tup_del > 0"
)
_FILES = (
    "SELECT oid::bigint, relfilenode::bigint, oid::regclass::text"
    " FROM groupcert.attached JOIN pg_class ON oid = relation"
)
_DEFAULT = """
SELECT format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = format('%%I.%%I', %s::text, %s::text)::regclass AND a.attname = %s
  AND a.attgenerated = '' AND (d.oid IS NOT NULL OR a.attidentity <> '')"""
_TRANSACTION_COMMANDS = "EXECUTE of transaction commands"
Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """Statements, and how they are run: as which role, with which search path, whether new tables
    are attached that match the patterns of `attach`, and whether tables may be written anew.
    """

    statements: str
    role: str
    search_path: str
    attach: bool
    rewrite: bool

    def encode(self) -> bytes:
        """Returns it as the value of a row."""
        return json.dumps(asdict(self), ensure_ascii=False).encode()

    @property
    def digest(self) -> str:
        """The SHA-256 of its encoding, in hexadecimal, by which it is approved."""
        return hashlib.sha256(self.encode()).hexdigest()


def change_of(entry: Entry) -> SchemaChange | None:
    """Returns the schema change that an entry is; None if it is a transaction with rows."""
    if not _may_be_change(entry):
        return None
    ((key, value), *others) = rows_in(entry.parts)
    if key != KEY or value is None or others:
        return None
    return SchemaChange(**json.loads(value))


def in_turns(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Returns entries in their order, each schema change alone, others together."""
    turns: list[list[Entry]] = []
    is_open = False
    for entry in entries:
        is_change = _may_be_change(entry)
        if is_open and not is_change:
            turns[-1].append(entry)
        else:
            turns.append([entry])
        is_open = not is_change
    return turns


def _may_be_change(entry: Entry) -> bool:
    match entry.parts:
        case [part]:
            return KEY in part
    return False  # A change is no large transaction.


def try_change(connection: Connection, change: SchemaChange) -> None:
    """Runs a change in the transaction of a connection, which the caller rolls back.

    Raises:
        SchemaChangeRefused: A statement fails, cannot be run in a transaction, changes rows, gives
            each server other values, or leaves a table that the group cannot take.
    """
    try:
        _run(connection, change)
    except psycopg.errors.ActiveSqlTransaction as error:
        step = "run it at each server by itself, as an index that is not unique may be"
        raise _refused(connection, f"{_cause(error)}; {step}") from error
    except psycopg.errors.FeatureNotSupported as error:
        step = "leave BEGIN, COMMIT and the like out of the file: all of it is one transaction"
        is_about_them = _TRANSACTION_COMMANDS in (error.diag.message_primary or "")
        problem = step if is_about_them else _cause(error)
        raise _refused(connection, problem) from error
    except psycopg.Error as error:
        raise _refused(connection, _cause(error)) from error


def execute_change(connection: Connection, change: SchemaChange, entry: Entry) -> bool:
    """Runs a change and notes its GTID, in one transaction of the server; False if it was the
    victim of a deadlock, and is to run again.

    Raises:
        SchemaChangeFailed: It is not approved here, or fails: the server is as it was.
        psycopg.OperationalError: The session was ended.
    """
    try:
        with connection.transaction():
            noted = connection.execute(
                "UPDATE groupcert.schema_changes SET version = %s, gtid = %s WHERE digest = %s",
                (entry.version, str(entry.gtid), change.digest),
            )
            if not noted.rowcount:
                problem = "nobody has approved it there: groupcert postgresql ddl FILE --approve"
                raise _refused(connection, problem)
            _run(connection, change)
            connection.execute(
                "INSERT INTO groupcert.executed VALUES (%s, %s, %s, %s)",
                (entry.version, *entry.gtid, entry.position),
            )
        return True
    except psycopg.errors.DeadlockDetected:
        return False
    except (psycopg.Error, SchemaChangeRefused) as error:
        # Somebody has ended the session or the statement, which says nothing of the change.
        if connection.closed or isinstance(error, psycopg.errors.QueryCanceled):
            raise
        raise SchemaChangeFailed(
            gtid=str(entry.gtid),
            server=name_of(connection.info.dsn),
            cause=error.problem if isinstance(error, SchemaChangeRefused) else _cause(error),
            statements=change.statements.strip(),
        ) from error


def _run(connection: Connection, change: SchemaChange) -> None:
    """Runs the statements, and has the triggers fit what they leave."""
    connection.execute("SET LOCAL session_replication_role TO replica")
    before = {table.full_name: table for table in read_tables(connection, ["*"])}
    files = {oid: file for oid, file, _ in connection.execute(_FILES).fetchall()}
    connection.execute("SELECT set_config('search_path', %s, true)", (change.search_path,))
    _run_as(connection, change)
    # The statements may have made, or put on the path, names that hide those of the catalogue.
    connection.execute("SET LOCAL search_path TO pg_catalog, pg_temp")
    changed = {name for (name,) in connection.execute(_CHANGED_ROWS).fetchall()}
    after = _attached(connection, change, before)
    for name in sorted(changed & after.keys()):
        problem = f"it changes rows of {name}: change them by SQL, before or after it"
        raise _refused(connection, problem)
    _check_defaults(connection, before, after)
    if not change.rewrite:
        _check_files(connection, files)


def _run_as(connection: Connection, change: SchemaChange) -> None:
    """Runs the statements with the rights of the change's role, in a way that none of them, nor a
    function that they call, can leave: SET LOCAL ROLE could be reset. COMMIT and the like are
    refused. What they would leave for the end of the transaction is run, or ends, with them.
    """
    body = literal(
        f"BEGIN EXECUTE {literal(change.statements)}; SET CONSTRAINTS ALL IMMEDIATE; END"
    )
    for statement in (
        "CREATE FUNCTION groupcert.schema_change() RETURNS void LANGUAGE plpgsql SECURITY DEFINER"
        f" AS {body}",
        f"ALTER FUNCTION groupcert.schema_change() OWNER TO {quoted(change.role)}",
        "SELECT groupcert.schema_change()",
        "CLOSE ALL; SET LOCAL session_replication_role TO replica",
        "DROP FUNCTION groupcert.schema_change()",
    ):
        connection.execute(statement.encode())


def _attached(
    connection: Connection, change: SchemaChange, before: Mapping[str, Table]
) -> dict[str, Table]:
    """Returns the attached tables after a change, their functions renewed, new ones among them."""
    patterns = patterns_of(connection) if change.attach else []
    matching = {table.full_name for table in read_tables(connection, patterns)}
    tables = {}
    for table in read_tables(connection, ["*"]):
        is_new = table.full_name in matching - before.keys()
        if not table.is_attached and not is_new:
            continue
        if table.problem:
            raise _refused(connection, f"it leaves {table.full_name} so that {table.problem}")
        tables[table.full_name] = table
        if is_new or table != before[table.full_name]:
            try:
                add_functions(connection, table)
            except Unfit as unfit:
                problem = f"it leaves {table.full_name} so that {unfit}"
                raise _refused(connection, problem) from unfit
    for name in before.keys() - tables.keys():
        if before[name].is_attached:
            drop_functions(connection, name)
    numbering = numbering_of(connection)
    if numbering:
        sequences = sequences_for(read_sequences(connection), tables, patterns)
        new = [sequence for sequence in sequences if not sequence.is_numbered]
        number_sequences(connection, new, numbering)
    return tables


def _check_defaults(
    connection: Connection, before: Mapping[str, Table], after: Mapping[str, Table]
) -> None:
    """Raises SchemaChangeRefused where rows get a new column whose value differs from server to
    server. PostgreSQL says so of a generated column.
    """
    for name, table in after.items():
        former = before[name].column_names if name in before else table.column_names
        for column in sorted(table.column_names - former):
            default = connection.execute(_DEFAULT, (table.schema, table.name, column)).fetchone()
            if default is None:
                continue
            kind, expression = default
            if expression is None or not _is_immutable(connection, kind, expression):
                problem = (
                    f"column {column} of {name} gets other values at each server: add it without a"
                    " default, fill it by SQL, then set the default"
                )
                raise _refused(connection, problem)


def _check_files(connection: Connection, before: Mapping[int, int]) -> None:
    """Raises SchemaChangeRefused if a table was written anew, which older snapshots do not see."""
    for oid, file, name in connection.execute(_FILES).fetchall():
        if before.get(oid, file) != file:
            problem = (
                f"it writes {name} anew, and transactions that began before it see an empty table"
                " then: add a column, fill it by SQL and drop the other one, or give --rewrite"
                " while nobody uses it"
            )
            raise _refused(connection, problem)


def _is_immutable(connection: Connection, kind: str, expression: str) -> bool:
    try:
        # PostgreSQL takes only an immutable expression for a generated column.
        with connection.transaction(force_rollback=True):
            connection.execute(
                f"CREATE TEMPORARY TABLE groupcert_probe (value {kind}"
                f" GENERATED ALWAYS AS ({expression}) STORED)".encode()
            )
    except psycopg.errors.InvalidObjectDefinition:
        return False
    return True


def _cause(error: psycopg.Error) -> str:
    """Returns the text of a server's error, and that of the statement which it is about."""
    said = (error.diag.message_primary, error.diag.message_detail)
    statement = (error.diag.context or "").partition("\n")[0][:STATEMENT_CHARACTERS]
    return "; ".join(part for part in (*said, statement) if part) or str(error).strip()


def _refused(connection: Connection, problem: str) -> SchemaChangeRefused:
    return SchemaChangeRefused(server=name_of(connection.info.dsn), problem=problem)
