"""Attaches a server's tables to a group and detaches them: triggers, and the schema `groupcert`.

The rule it keeps: each call is one transaction of the server, which is as it was if it fails; and
`detach` undoes all that `attach` did.
"""

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from ...applier.errors import UnsuitableTarget
from ...certifier.errors import NotServing
from .functions import (
    APPLIER_ROLE,
    OPERATIONS,
    digest_of,
    function_of,
    statements_for,
)
from .rehearsal import Unfit, rehearse
from .sequences import (
    Numbering,
    number_sequences,
    numbering_of,
    read_sequences,
    reset_sequences,
    sequences_for,
)
from .tables import Table, attached_tables, quoted, read_tables

SCRIPTS = ("triggers.sql", "place.sql", "standing.sql", "schema_changes.sql", "consistency.sql")
_FUNCTION = re.compile(
    rb"^CREATE ((?:FUNCTION|PROCEDURE) .*?^[^\n]*\$\$;)$", re.MULTILINE | re.DOTALL
)
_CLIENT_ROUTINE = re.compile(
    rb"^CREATE (?:FUNCTION|PROCEDURE) (groupcert_client\.\w+)", re.MULTILINE
)
APPLICATION = "groupcert operator"
"""Names a session that a member ends for nobody, unlike those of clients."""
UNWATCHED = "SET LOCAL session_replication_role TO replica"
"""Has the event triggers of the schema `groupcert` let a superuser's statements pass."""
VERSION_MIN = 150_000
SETTINGS = {
    "session_replication_role": "replica",
    "synchronous_commit": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "lock_timeout": "0",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "jit": "off",
}
"""Of the sessions that execute rows of others."""
ISOLATION = {"name": "default_transaction_isolation", "level": "repeatable read"}
"""That of the database's sessions, where `attach` sets it."""
COPY = "its database is a copy of an attached one"
"""triggers.sql says the same."""
TOKEN_BYTES = 16
_LANGUAGE = "plpython3u"
_ROLE_COMMENT = "made by groupcert postgresql attach"
_MAY_REPLICATE = f"SET ON PARAMETER session_replication_role {{}} {APPLIER_ROLE}"


class Attachment(NamedTuple):
    """The result of `attach`: tables attached now or before, and those kept out; the next number of
    each sequence that gives the server's own, and those that give the same as at other servers;
    whether it was attached at another place, or with another socket.
    """

    attached: list[str]
    kept_out: dict[str, str]
    sequences: dict[str, int]
    sequences_alike: list[str]
    is_moved: bool


def attach(
    dsn: str,
    patterns: Sequence[str],
    *,
    socket: Path | None = None,
    set_isolation: bool = False,
    numbering: Numbering | None = None,
    new_tables: str = "",
) -> Attachment:
    """Attaches the tables that match the patterns, if nothing keeps them out. Called again, it
    renews what an earlier release has installed.

    Args:
        dsn: Of a superuser, as libpq takes it.
        patterns: Such as `public.*`.
        socket: Path of the member's socket; None: in the server's data directory.
        set_isolation: Have sessions of the database begin in REPEATABLE READ from now on.
        numbering: The numbers that sequences give here from now on; None: what an earlier call
            has said, or all.
        new_tables: `warn` or `refuse`: what happens where somebody makes a table here that matches
            a pattern; "": what an earlier call has said, or `warn`. Where they are refused, all
            tables may come later, by `ddl`.

    Raises:
        UnsuitableTarget: The server is older than 15, has no PL/Python, no table matches, others
            may write to the folder of the socket, or its functions are another release's and its
            member runs.
        InvalidSetting: A sequence cannot have the numbering.
        NotServing: It does not answer.
    """
    with opened(dsn) as connection:
        check_server(connection, dsn)
        connection.execute(UNWATCHED)
        is_new, had_language = not is_attached(connection), has_language(connection)
        is_moved = not is_new and _is_elsewhere(connection, socket)
        if is_new:
            connection.execute("CREATE EXTENSION IF NOT EXISTS plpython3u")
            _install(connection, _scripts().values())
        elif is_moved:
            _note_move(connection, dsn, socket)
        _renew_functions(connection, dsn)
        tables = read_tables(connection, patterns)
        if not tables and new_tables != "refuse":
            expected = "tables to attach; or --new-tables refuse, and tables by ddl"
            raise unsuitable(dsn, f"no table matches {', '.join(patterns)}", expected)
        if is_new:
            write_settings(
                connection,
                dsn,
                socket,
                created_language=not had_language,
                set_isolation=set_isolation,
                patterns=patterns,
            )
        make_role(connection)
        grant_rights(connection)
        _note_patterns(connection, patterns)
        if new_tables:
            connection.execute("UPDATE groupcert.settings SET new_tables = %s", (new_tables,))
        problems = _attach_tables(connection, tables)
        attached = [table.full_name for table in tables if table.full_name not in problems]
        sequences = sequences_for(read_sequences(connection), attached, patterns)
        known = numbering or numbering_of(connection)
        return Attachment(
            attached,
            problems,
            number_sequences(connection, sequences, known) if known else {},
            [] if known else [sequence.full_name for sequence in sequences],
            is_moved,
        )


def _scripts() -> dict[str, bytes]:
    return {script: Path(__file__).with_name(script).read_bytes() for script in SCRIPTS}


def _digest_of(scripts: dict[str, bytes]) -> str:
    return sha256(b"".join(scripts.values())).hexdigest()


def _install(connection: "psycopg.Connection[Any]", statements: Iterable[bytes]) -> None:
    """Runs statements of the scripts, and notes the digest of these."""
    for statement in statements:
        connection.execute(statement)
    connection.execute(f"COMMENT ON SCHEMA groupcert IS '{_digest_of(_scripts())}'".encode())


def _renew_functions(connection: "psycopg.Connection[Any]", dsn: str) -> None:
    """Renews the functions of the scripts if they are another release's; tables stay as they are.

    Raises:
        UnsuitableTarget: The member runs: sessions keep connections to it, which the new functions
            do not know, until it ends.
    """
    scripts = _scripts()
    installed = connection.execute(
        "SELECT obj_description('groupcert'::regnamespace, 'pg_namespace')"
    ).fetchone()
    if installed == (_digest_of(scripts),):
        return
    locked = connection.execute("SELECT groupcert.is_locked(socket_path) FROM groupcert.settings")
    if locked.fetchone() == (True,):
        problem = "its functions are another release's, and its member runs"
        raise unsuitable(dsn, problem, "a member that is stopped before, and started after attach")
    functions = _FUNCTION.findall(b"".join(scripts.values()))
    _install(connection, [b"CREATE OR REPLACE " + function for function in functions])


def _attach_tables(
    connection: "psycopg.Connection[Any]", tables: Sequence[Table]
) -> dict[str, str]:
    """Attaches the tables that are not, renews those that need other functions since another table
    refers to them, and returns why others are kept out.
    """
    problems = {table.full_name: table.problem for table in tables if table.problem}
    for table in tables:
        if not table.problem and not _is_current(connection, table):
            try:
                with connection.transaction():
                    add_functions(connection, table)
            except Unfit as unfit:
                problems[table.full_name] = str(unfit)
    return problems


def _is_current(connection: "psycopg.Connection[Any]", table: Table) -> bool:
    function = function_of("changes", table.full_name)
    row = connection.execute(
        "SELECT obj_description(to_regprocedure(%s), 'pg_proc')", (f"{function}(json, json)",)
    ).fetchone()
    return bool(row and row[0] == digest_of(table))


def detach(dsn: str) -> list[str]:
    """Removes everything that `attach` installed, and returns the tables that were attached.

    Raises:
        UnsuitableTarget: Nothing is attached, or somebody's view or function needs one of the
            schema `groupcert_client`.
        NotServing: The server does not answer.
    """
    with opened_attached(dsn) as connection:
        connection.execute(UNWATCHED)
        names = [*attached_tables(connection)]
        row = connection.execute(
            "SELECT created_language, groupcert.copied() FROM groupcert.settings"
        ).fetchone()
        if row is None:
            expected = "a new one: drop it, create it, and join again"
            raise unsuitable(dsn, "the database has a copy that was never finished", expected)
        created_language, copied = row
        reset_sequences(connection)
        # A database that is out of its group is read-only by default, and would stay so with nobody
        # left to end that.
        connection.execute("SELECT groupcert.enter_group()")
        # Where somebody has set another level since, that one stays.
        connection.execute(
            "SELECT groupcert.set_default(%(name)s, isolation_before) FROM groupcert.settings"
            " WHERE sets_isolation AND groupcert.default_of(%(name)s) = %(level)s",
            ISOLATION,
        )
        # What others have built upon these stays theirs: it is named, and nothing is dropped.
        for routine in _CLIENT_ROUTINE.findall(_scripts()["consistency.sql"]):
            connection.execute(b"DROP ROUTINE " + routine)
        connection.execute("DROP SCHEMA groupcert_client")
        if not copied:  # The socket of a copy is the other database's.
            connection.execute(
                "SELECT groupcert.remove_socket(socket_path, data_directory)"
                " FROM groupcert.settings"
            )
        connection.execute("DROP SCHEMA groupcert CASCADE")
        _drop_role(connection)
        if created_language:
            connection.execute("DROP EXTENSION plpython3u")
        return names


@contextmanager
def opened(dsn: str) -> "Iterator[psycopg.Connection[Any]]":
    """Yields a connection with a transaction, which commits at the end of the block.

    Raises:
        NotServing: The server does not answer.
        UnsuitableTarget: A statement of the block fails.
    """
    try:
        connection = psycopg.connect(
            dsn, prepare_threshold=None, application_name=APPLICATION, client_encoding="UTF8"
        )
    except psycopg.OperationalError as error:
        state = f"UNREACHABLE ({str(error).strip()})"
        raise NotServing(member=name_of(dsn), state=state) from error
    connection.read_only = False  # The database may be, while it is out of its group.
    connection.isolation_level = (
        psycopg.IsolationLevel.READ_COMMITTED
    )  # Others may write meanwhile.
    try:
        with connection:
            yield connection
    except psycopg.Error as error:
        expected = "a server that takes the change; it is as it was"
        raise unsuitable(dsn, str(error).strip(), expected) from error


@contextmanager
def opened_attached(dsn: str) -> "Iterator[psycopg.Connection[Any]]":
    """Yields a connection as `opened` does. Raises UnsuitableTarget if nothing is attached, too."""
    with opened(dsn) as connection:
        check_attached(connection, dsn)
        yield connection


def is_attached(connection: "psycopg.Connection[Any]") -> bool:
    """Returns whether the schema `groupcert` is there."""
    row = connection.execute("SELECT to_regclass('groupcert.settings') IS NOT NULL").fetchone()
    return bool(row and row[0])


def check_attached(
    connection: "psycopg.Connection[Any]",
    dsn: str,
    expected: str = "groupcert postgresql attach before",
) -> None:
    """Raises UnsuitableTarget unless the schema `groupcert` is there."""
    if not is_attached(connection):
        raise unsuitable(dsn, "nothing is attached", expected)


def check_server(connection: "psycopg.Connection[Any]", dsn: str) -> None:
    """Raises UnsuitableTarget unless the server takes the triggers."""
    if connection.info.server_version < VERSION_MIN:
        version = connection.info.parameter_status("server_version")
        raise unsuitable(dsn, f"it is PostgreSQL {version}", "PostgreSQL 15 or newer")
    ((prepared,),) = connection.execute(
        "SELECT current_setting('max_prepared_transactions')::int"
    ).fetchall()
    if prepared:
        problem = f"it has max_prepared_transactions = {prepared}"
        expected = "0, and a restart: PREPARE TRANSACTION would keep what the group has certified"
        raise unsuitable(dsn, problem, expected)
    row = connection.execute(
        "SELECT rolsuper, EXISTS (SELECT FROM pg_available_extensions WHERE name = %s)"
        " FROM pg_roles WHERE rolname = current_user",
        (_LANGUAGE,),
    ).fetchone()
    assert row is not None, "a role that is not in pg_roles"
    if not row[0]:
        raise unsuitable(dsn, "the role is no superuser", "a superuser, for PL/Python")
    if not row[1]:
        package = f"postgresql-plpython3-{connection.info.server_version // 10_000}"
        install = f"sudo apt-get install {package}"
        raise unsuitable(dsn, f"it has no {_LANGUAGE}", f"that of Debian's package: {install}")


def has_language(connection: "psycopg.Connection[Any]") -> bool:
    """Returns whether the database has PL/Python."""
    query = "SELECT FROM pg_extension WHERE extname = %s"
    return connection.execute(query, (_LANGUAGE,)).fetchone() is not None


def write_settings(
    connection: "psycopg.Connection[Any]",
    dsn: str,
    socket: Path | None,
    *,
    created_language: bool,
    set_isolation: bool,
    patterns: Sequence[str],
) -> None:
    """Notes what is the server's own: how its backends reach the member, and what `detach` has
    to undo.

    Raises:
        UnsuitableTarget: Others may write to the folder of the socket.
    """
    connection.execute(
        "INSERT INTO groupcert.settings (socket_path, token, created_language, isolation_before,"
        " sets_isolation, patterns, system_identifier, database_oid, data_directory)"
        " SELECT %s, %s, %s, groupcert.default_of(%s), %s, %s, place.* FROM groupcert.place()",
        (
            _prepare_socket(connection, dsn, socket),
            secrets.token_hex(TOKEN_BYTES),
            created_language,
            ISOLATION["name"],
            set_isolation,
            [*patterns],
        ),
    )
    if set_isolation:
        connection.execute("SELECT groupcert.set_default(%(name)s, %(level)s)", ISOLATION)


def patterns_of(connection: "psycopg.Connection[Any]") -> list[str]:
    """Returns the patterns by which tables were attached."""
    row = connection.execute("SELECT patterns FROM groupcert.settings").fetchone()
    return list(row[0]) if row else []


def add_functions(connection: "psycopg.Connection[Any]", table: Table) -> None:
    """Attaches a table, or renews the functions and triggers of one that is, once it has been
    rehearsed.

    Raises:
        Unfit: A row of it cannot be executed elsewhere; the caller takes back what this leaves.
    """
    for statement in statements_for(table):
        connection.execute(statement.encode())
    with connection.transaction(force_rollback=True):
        rehearse(connection, table)


def drop_functions(connection: "psycopg.Connection[Any]", name: str) -> None:
    """Removes the functions of a table that is gone, or has another name now."""
    for operation in OPERATIONS:
        function = function_of(operation, name)
        connection.execute(f"DROP FUNCTION IF EXISTS {function} CASCADE".encode())


def make_role(connection: "psycopg.Connection[Any]") -> None:
    """Makes the role that executes rows of others, unless another database of the server has it.

    It is no superuser, and may nothing but call functions of the schema `groupcert`: whatever code
    of a table's owner runs in its sessions, it finds no rights there to take. Its password is the
    member's, made anew for each run.
    """
    known = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (APPLIER_ROLE,))
    if known.fetchone() is None:
        connection.execute(f"CREATE ROLE {APPLIER_ROLE} LOGIN".encode())
        connection.execute(f"COMMENT ON ROLE {APPLIER_ROLE} IS '{_ROLE_COMMENT}'".encode())
    connection.execute(f"GRANT {_MAY_REPLICATE.format('TO')}".encode())
    for name, value in SETTINGS.items():
        connection.execute(f"ALTER ROLE {APPLIER_ROLE} SET {name} TO '{value}'".encode())


def grant_rights(connection: "psycopg.Connection[Any]") -> None:
    """Lets the role execute rows of others in this database."""
    for right in (
        f"CONNECT ON DATABASE {quoted(connection.info.dbname)}",
        "USAGE ON SCHEMA groupcert",
        "SELECT ON groupcert.attached",
    ):
        connection.execute(f"GRANT {right} TO {APPLIER_ROLE}".encode())


def _drop_role(connection: "psycopg.Connection[Any]") -> None:
    """Removes the role if `attach` has made it, and no other database of the server needs it."""
    connect = f"CONNECT ON DATABASE {quoted(connection.info.dbname)}"
    connection.execute(f"REVOKE {connect} FROM {APPLIER_ROLE}".encode())
    comment = "SELECT shobj_description(%s::regrole, 'pg_authid')"
    if connection.execute(comment, (APPLIER_ROLE,)).fetchone() != (_ROLE_COMMENT,):
        return
    with suppress(psycopg.errors.DependentObjectsStillExist), connection.transaction():
        connection.execute(f"REVOKE {_MAY_REPLICATE.format('FROM')}".encode())
        connection.execute(f"DROP ROLE {APPLIER_ROLE}".encode())


def unsuitable(dsn: str, problem: str, expected: str) -> UnsuitableTarget:
    """Returns the error of a server that cannot take something."""
    return UnsuitableTarget(target=name_of(dsn), problem=problem, expected=expected)


def copy_unsuitable(dsn: str, copied: str) -> UnsuitableTarget:
    """Returns the error of a database that is a copy; `copied` says of which one."""
    expected = (
        "the attached one itself; to make it a database like others: groupcert postgresql detach"
        " --dsn ...; if it is the attached one, and was moved: groupcert postgresql attach again"
    )
    return unsuitable(dsn, f"{COPY}: {copied}", expected)


def folder_unsuitable(dsn: str, path: str, account: str, problem: str) -> UnsuitableTarget:
    """Returns the error of a folder that cannot have the socket."""
    folder = Path(path).parent
    expected = (
        f"a folder of {account} alone (sudo install -d -o {account} -m 700 {folder}), or another"
        " --socket"
    )
    return unsuitable(dsn, f"the folder of the socket, {folder}, {problem}", expected)


def name_of(dsn: str) -> str:
    """Returns the name of a server in messages: its host and database, no password."""
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    port = f":{given['port']}" if "port" in given else ""
    return f"PostgreSQL {given.get('host', '')}{port}/{given.get('dbname', '')}"


def _note_patterns(connection: "psycopg.Connection[Any]", patterns: Sequence[str]) -> None:
    known = dict.fromkeys([*patterns_of(connection), *patterns])
    connection.execute("UPDATE groupcert.settings SET patterns = %s", ([*known],))


def _is_elsewhere(connection: "psycopg.Connection[Any]", socket: Path | None) -> bool:
    """Returns whether an attached database is a copy, was moved, or gets another socket."""
    row = connection.execute(
        "SELECT groupcert.copied(), socket_path FROM groupcert.settings"
    ).fetchone()
    return bool(row and (row[0] or (socket and row[1] != str(socket.absolute()))))


def _note_move(connection: "psycopg.Connection[Any]", dsn: str, socket: Path | None) -> None:
    """Notes the place where an attached database is now. It gets a token of its own: another one
    that is left at the old place has nothing of this one's.
    """
    connection.execute(
        "UPDATE groupcert.settings SET (socket_path, token, system_identifier, database_oid,"
        " data_directory) = (SELECT %s, %s, place.* FROM groupcert.place())",
        (_prepare_socket(connection, dsn, socket), secrets.token_hex(TOKEN_BYTES)),
    )
    connection.execute(  # No dump has what it was set to.
        "UPDATE groupcert.settings SET isolation_before = groupcert.default_of(%(name)s)"
        " WHERE sets_isolation AND groupcert.default_of(%(name)s) IS DISTINCT FROM %(level)s"
        " RETURNING groupcert.set_default(%(name)s, %(level)s)",
        ISOLATION,
    )


def _prepare_socket(connection: "psycopg.Connection[Any]", dsn: str, socket: Path | None) -> str:
    """Has the server make the folder of the socket; returns the path."""
    ((path, account, problem),) = connection.execute(
        "SELECT path, account, problem FROM groupcert.place(), coalesce(%s,"
        " data_directory || '/groupcert/' || database_oid || '.sock') path,"
        " groupcert.prepare_socket(path)",
        (str(socket.absolute()) if socket else None,),
    ).fetchall()
    if problem:
        raise folder_unsuitable(dsn, path, account, problem)
    return str(path)
