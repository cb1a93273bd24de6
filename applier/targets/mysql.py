"""MariaDB and MySQL as a target.

Executing a job is one request of several statements, and so is committing it: a single round trip
each. Values are written as hexadecimal, whatever the server's SQL mode.

Commits are durable one by one: these servers cannot defer a session's flush. A branch that commits
in two phases is an XA transaction from its beginning.

Differs: PostgreSQL waits 50 ms for a row's lock; MariaDB waits whole seconds or not at all. Not
at all is the default: the job is executed again when its turn has come.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql
from pymysql.constants import CLIENT

from ...certifier.errors import InvalidSetting
from ...certifier.gtid import Gtid, parse_uuid
from ..errors import TransientFailure, UnsuitableTarget, note_statement
from ..mysql_logs.row_replay import format_statement, replay_statement
from ..mysql_logs.source_catalogue import SourceTable, read_catalogue
from .sql_server import (
    ACCESS,
    REQUEST_CHARACTERS_MAX,
    Alone,
    Branch,
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
    Definition,
    FoundColumn,
    FoundTable,
    Row,
    SqlValue,
    TableChanges,
    TableMapping,
)

PORT = 3306
NAME_LOCK_SECONDS = 1
"""Longest wait for the lock of a replica's name: a server needs a moment to notice a crash."""
PACKET_BYTES_MIN = 1_024
"""Lower bound of `max_allowed_packet`, whatever the server's setting."""
UUID_CHARACTERS = 36
IDLE_SECONDS_MAX = 31_536_000
SQL_MODE = "STRICT_ALL_TABLES,ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION"
"""Nothing is cut or rounded; a source may have dates that are none."""
_TRANSIENT = {
    1205: "lock_timeout",
    1213: "deadlock",
    1020: "serialization_failure",
    1032: "no_row",
    1062: "duplicate_key",
    **dict.fromkeys((1216, 1217, 1451, 1452), "foreign_key"),
    1397: "lock_timeout",  # XAER_NOTA: the session that prepared the branch has not ended yet.
    1440: "lock_timeout",  # XAER_DUPID: the session that had begun the branch has not ended yet.
    1613: "lock_timeout",
    1614: "deadlock",
    **dict.fromkeys((0, 1040, 1053, 1080, 1152, 1153, 1317, 1927), "connection_lost"),
    **dict.fromkeys((2002, 2003, 2006, 2013, 2055), "connection_lost"),
}
_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_TEXTS = ("varchar", "tinytext", "text", "mediumtext", "longtext")
_T = ColumnType
_TAKES = {
    **dict.fromkeys(
        ("varbinary", "tinyblob", "blob", "mediumblob", "longblob"), (_T.BYTES, _T.BINARY)
    ),
    "json": (_T.JSON,),
    "char": (_T.CHAR,),
    "decimal": (_T.INTEGER, _T.DECIMAL),
    "float": (_T.REAL,),
    "double": (_T.REAL, _T.DOUBLE),
    "date": (_T.DATE,),
    "datetime": (_T.DATE, _T.DATETIME),
    "timestamp": (_T.TIMESTAMP,),
    "time": (_T.TIME,),
    "uuid": (_T.UUID,),
    "inet6": (_T.INET,),
}
_EXACT = ("_nopad_bin", "_0900_bin")
_COLLATE = r"(?i)(\bcollate[ =]+)"
_OF_MYSQL = re.compile(rf"{_COLLATE}utf8mb4_0900_(ai_ci|as_ci|as_cs)\b")
_BINARY_OF_MYSQL = re.compile(rf"{_COLLATE}utf8mb4_0900_bin\b")
_COLLECTION_OF_MYSQL = re.compile(r"(?i)(?<![`\w])geomcollection(?![`\w])")
_BINARY_OF_MARIADB = re.compile(rf"{_COLLATE}utf8mb4_nopad_bin\b")
_OF_MARIADB = re.compile(rf"{_COLLATE}utf8mb4_uca1400_(?:nopad_)?(ai_ci|as_ci|as_cs)\b")
_SYSTEM = "('information_schema', 'mysql', 'performance_schema', 'sys')"
_AUTO_INCREMENT = re.compile(r" AUTO_INCREMENT=\d+")
_QUALIFIED = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?<![\w$.`])(?:{0}|`{0}`)\s*\.\s*"""
"""Texts, which stay as they are, and names of a database before one of a table."""
_quoted = partial(quoted, quote="`")
_table = partial(quoted_table, quote="`")
_listed = partial(listed, quote="`")
_BRANCH = re.compile(
    r"(?:(?P<uuid>[0-9a-f]{32})(?P<tag>\w{0,32})|(?P<domain>\d+-\d+))"
    r"groupcert/(?P<owner>[0-9a-f]{16})/(?P<number>\d+)/(?P<branch>\d+)"
)
_REPLICA = "replica VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS groupcert_checkpoint ({_REPLICA} PRIMARY KEY,"
    " checkpoint LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL) ENGINE=InnoDB",
    f"CREATE TABLE IF NOT EXISTS groupcert_executed ({_REPLICA},"
    " source VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, number BIGINT NOT NULL,"
    " part VARCHAR(500) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, worker INT NOT NULL,"
    " version BIGINT NOT NULL, PRIMARY KEY (replica, source, number, part)) ENGINE=InnoDB",
    f"CREATE TABLE IF NOT EXISTS groupcert_row_versions ({_REPLICA},"
    " row_key VARBINARY(3000) NOT NULL, version BIGINT NOT NULL,"
    " PRIMARY KEY (replica, row_key)) ENGINE=InnoDB",
    f"CREATE TABLE IF NOT EXISTS groupcert_definitions ({_REPLICA} PRIMARY KEY,"
    " gtid VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, number INT NOT NULL,"
    " named CHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL) ENGINE=InnoDB",
    f"CREATE TABLE IF NOT EXISTS groupcert_prepared ({_REPLICA},"
    " xid VARCHAR(300) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, piece INT NOT NULL,"
    " payload LONGBLOB NOT NULL, PRIMARY KEY (replica, xid, piece)) ENGINE=InnoDB",
)
_TABLES = """
SELECT table_type, engine FROM information_schema.tables
WHERE table_schema = {schema} AND table_name = {table}"""
_COLUMNS = """
SELECT column_name, data_type, column_type, is_nullable = 'YES', column_default IS NOT NULL,
       extra, character_maximum_length, collation_name, numeric_precision, numeric_scale,
       datetime_precision
FROM information_schema.columns WHERE table_schema = {schema} AND table_name = {table}"""
_TRIGGERS = """
SELECT trigger_name FROM information_schema.triggers
WHERE event_object_schema = {schema} AND event_object_table = {table}"""
_PARENTS = """
SELECT DISTINCT referenced_table_schema, referenced_table_name
FROM information_schema.key_column_usage
WHERE table_schema = {schema} AND table_name = {table} AND referenced_table_name IS NOT NULL"""
_UNIQUE_KEYS = """
SELECT index_name, column_name, sub_part FROM information_schema.statistics
WHERE table_schema = {schema} AND table_name = {table} AND non_unique = 0"""


class MySqlSession:
    """A connection; each statement commits, except those between BEGIN and COMMIT."""

    def __init__(self, connection: "pymysql.Connection[Any]", name: str) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._name = name
        self.packet_bytes_max = PACKET_BYTES_MIN

    def run(self, *statements: str) -> Sequence[tuple[Any, ...]]:
        """Runs statements and returns the rows of the last. Raises UnsuitableTarget for a request
        that is larger than the server takes.
        """
        cursor = self._cursor
        limit = self.packet_bytes_max
        try:
            for parts in requests(statements, min(limit, REQUEST_CHARACTERS_MAX)):
                request = ";".join(parts)
                # The server would cut the connection, which passes for an outage: the job would be
                # tried again in vain.
                if len(request) >= limit:
                    problem = f"max_allowed_packet is {limit}, a row takes {len(request)} bytes"
                    expected = f"max_allowed_packet over {len(request)}, or smaller rows"
                    raise UnsuitableTarget(target=self._name, problem=problem, expected=expected)
                changed = []
                cursor.execute(request)
                changed.append(cursor.rowcount)
                while cursor.nextset():
                    changed.append(cursor.rowcount)
                check_changed(parts, changed)
            return cursor.fetchall() if cursor.description else ()
        except (pymysql.err.InterfaceError, OSError) as error:
            raise TransientFailure(kind="connection_lost", text=str(error)) from error
        except pymysql.err.DatabaseError as error:
            failure = _typed(error)
            note_statement(failure, parts[len(changed)])
            raise failure from error

    def close(self) -> None:
        """Ends the connection."""
        if self._connection.open:
            self._connection.close()


class MySqlServer:
    """Implements `SqlServer` in the SQL of MariaDB and MySQL."""

    copies_children_first = True
    copying = ("SET SESSION foreign_key_checks = 0", "SET SESSION unique_checks = 0")

    def __init__(
        self, url: str, *, lock_timeout_seconds: int = 0, checks_foreign_keys: bool = True
    ) -> None:
        """Describes a server.

        Args:
            url: `mysql://user:password@host:port/database`, percent-encoded.
            lock_timeout_seconds: longest wait for a row's lock, as a job that waits for its own
                turn may hold it. MySQL takes 0 for 1.
            checks_foreign_keys: no, where the source's log has all that its foreign keys do: it
                has children before their parents.
        """
        self._checks_foreign_keys = checks_foreign_keys
        parts = urlsplit(url)
        self._database = unquote(parts.path.removeprefix("/"))
        if parts.scheme not in ("mysql", "mariadb") or not parts.hostname or not self._database:
            shown = f"{parts.scheme}://.../{self._database}"
            expected = "mysql://user:password@host:port/database"
            raise InvalidSetting(name="target", value=shown, expected=expected)
        self._host = parts.hostname
        self._port = parts.port or PORT
        self._user = unquote(parts.username or "")
        self._password = unquote(parts.password or "")
        self._lock_timeout_seconds = lock_timeout_seconds
        self._is_mariadb = False
        """Of the server that was reached last, as what follows."""
        self._replays = False
        self._packet_bytes_max = PACKET_BYTES_MIN
        self.name = f"MySQL {self._host}:{self._port}/{self._database}"

    def connect(self, mappings: Sequence[TableMapping] = ()) -> Session:
        """Returns a session with the settings that this module's statements require."""
        try:
            connection = pymysql.connect(
                host=self._host,
                port=self._port,
                user=self._user,
                password=self._password,
                database=self._database,
                charset="utf8mb4",
                autocommit=True,
                # Rows that a statement found count as changed, also where they were equal before.
                client_flag=CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS,
                sql_mode=SQL_MODE,
            )
        except pymysql.err.OperationalError as error:
            failure = _typed(error)
            if failure is error:
                failure = UnsuitableTarget(target=self.name, problem=str(error), expected=ACCESS)
            raise failure from error
        session = MySqlSession(connection, self.name)
        ((limit, self._is_mariadb),) = session.run(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            # MySQL waits a second at least, and refuses a smaller number.
            "SET SESSION innodb_lock_wait_timeout ="
            f" GREATEST({self._lock_timeout_seconds}, NOT INSTR(VERSION(), 'MariaDB'))",
            f"SET SESSION wait_timeout = {IDLE_SECONDS_MAX}",
            "SET SESSION time_zone = '+00:00'",
            f"SET SESSION foreign_key_checks = {int(self._checks_foreign_keys)}",
            "SELECT @@max_allowed_packet, INSTR(VERSION(), 'MariaDB') > 0",
        )
        session.packet_bytes_max = self._packet_bytes_max = limit
        self._replays = bool(self._is_mariadb) and _may_replay(session)
        return session

    def lock(self, session: Session, owner: str) -> bool:
        """Takes a named lock. Such locks belong to the whole server: the name has the database."""
        name = self.literal(f"groupcert/{self._scoped(owner)}")
        ((taken,),) = session.run(f"SELECT GET_LOCK({name}, {NAME_LOCK_SECONDS})")
        return bool(taken)

    def problems(self, session: Session, *, sessions: int, branches: int) -> Iterable[str]:
        """Yields problems of `max_connections` and `innodb_flush_log_at_trx_commit`."""
        ((value,),) = session.run("SELECT @@max_connections")
        if value < sessions:
            yield f"max_connections is {value}, expected {sessions} or more"
        ((value,),) = session.run("SELECT @@innodb_flush_log_at_trx_commit")
        if not value:
            yield (
                "innodb_flush_log_at_trx_commit is 0, expected 1: what is committed must outlive "
                "a crash"
            )

    def find(self, session: Session, tables: Sequence[str]) -> Mapping[str, FoundTable]:
        """Reads the information schema."""
        found = {}
        for name in tables:
            database, _, table = name.rpartition(".")
            place = {
                "schema": self.literal(database or self._database),
                "table": self.literal(table),
            }
            kinds = session.run(_TABLES.format(**place))
            if not kinds:
                continue
            columns = {
                column: _found_column(*rest)
                for column, *rest in session.run(_COLUMNS.format(**place))
            }
            keys: dict[str, list[str]] = {}
            for index, column, prefix in session.run(_UNIQUE_KEYS.format(**place)):
                # Of a prefix or an expression: no list of columns says which rows such a key holds
                # equal.
                keys.setdefault(index, []).append("" if prefix or not column else column)
            triggers = session.run(_TRIGGERS.format(**place))
            parents = session.run(_PARENTS.format(**place))
            kind, engine = kinds[0]
            is_fit = kind == "BASE TABLE" and engine == "InnoDB"
            found[name] = FoundTable(
                columns=columns,
                unique_keys=[() if "" in key else tuple(key) for key in keys.values()],
                problem="" if is_fit else f"is a {kind} of {engine}, expected one of InnoDB",
                triggers=tuple(trigger for (trigger,) in triggers),
                parents=tuple(
                    parent
                    if schema == self._database and parent in tables
                    else f"{schema}.{parent}"
                    for schema, parent in parents
                ),
            )
        return found

    def create(self, others: TableMapping | None) -> Sequence[str]:
        """Returns the statements that create the replica's tables."""
        if others is None:
            return _CREATE
        columns = "row_key VARBINARY(3072) PRIMARY KEY, value LONGBLOB NOT NULL"
        name = _table(others.table)
        return (*_CREATE, f"CREATE TABLE IF NOT EXISTS {name} ({columns}) ENGINE=InnoDB")

    def definitions(self, session: Session, database: str) -> Mapping[str, SourceTable]:
        """Returns the definitions of its own database's tables, or of all; see `Definitions`."""

        def query(statement: str, values: Sequence[object]) -> Sequence[Sequence[Any]]:
            texts = [self._listed(value) for value in values]
            return session.run(statement % tuple(texts))

        catalogue = read_catalogue(query, self._database if database else "")
        renamed = [self._renamed(each, database) for each in catalogue.values()]
        return {str(table): table for table in renamed}

    def _renamed(self, table: SourceTable, database: str) -> SourceTable:
        """Returns a table with the name that its own database has at the source, if it is given."""
        if not database:
            return table
        own, there = f"{self._database}.", f"{database}."
        foreign_keys = tuple(
            replace(key, parent=there + key.parent.removeprefix(own))
            if key.parent.startswith(own)
            else key
            for key in table.foreign_keys
        )
        return replace(table, database=database, foreign_keys=foreign_keys)

    def _listed(self, value: Any) -> str:
        if isinstance(value, tuple):
            return f"({','.join(map(self.literal, value))})"
        return self.literal(value)

    def define(
        self, source: SourceTable, places: Mapping[str, str], definition: str
    ) -> Sequence[str]:
        """Returns the source's own statement: both servers read each other's, mostly; see
        `_spelled`.
        """
        place = places[str(source)]
        database, dot, _ = place.partition(".")
        schemas = [f"CREATE DATABASE IF NOT EXISTS {_quoted(database)}"] if dot else []
        _, _, rest = definition.partition(f"{_quoted(source.name)} (")
        rest = _spelled(rest, is_mariadb=self._is_mariadb)
        return [*schemas, *self.copying, f"CREATE TABLE {_table(place)} ({rest}"]

    def constrain(self, source: SourceTable, places: Mapping[str, str]) -> Sequence[str]:
        """Returns nothing: tables are created with their foreign keys."""
        return ()

    def table(self, name: str) -> str:
        """Returns the name of a table in quotes."""
        return _table(name)

    @property
    def database(self) -> str:
        """The database of its URL."""
        return self._database

    @property
    def replaying(self) -> "MySqlServer | None":
        """The server itself, if it is a MariaDB whose user may execute events."""
        return self if self._replays else None

    def replay(self, events: Sequence[bytes]) -> Sequence[str] | None:
        """Returns statements BINLOG, which MariaDB takes alone only."""
        limit = min(self._packet_bytes_max, REQUEST_CHARACTERS_MAX)
        statements: list[str] = []
        for run in _joined(events, limit // 2):
            statements.append(Alone(replay_statement(run)))
            if len(statements[-1]) >= limit:
                return None
        return statements

    @property
    def defining(self) -> "MySqlServer":
        """The server itself."""
        return self

    def defined(self, definition: Definition) -> Sequence[str]:
        """Returns the statement as it is, but for the name of the database that is followed, and
        `_spelled`.
        """
        statement, followed = definition
        database, text = statement.database, _spelled(statement.text, is_mariadb=self._is_mariadb)
        own = _quoted(self._database)
        if followed:
            pattern = re.compile(_QUALIFIED.format(re.escape(followed)))
            text = pattern.sub(lambda found: found[1] or f"{own}.", text)
        use = _quoted(database) if database and not followed else own
        return (f"USE {use}", text, f"USE {own}")

    def definition_lock(self, owner: str) -> tuple[str, str]:
        """Returns GET_LOCK and RELEASE_LOCK of a named lock, which ends with its session."""
        name = self.literal(f"groupcert/{self._scoped(owner)}/definitions")
        return f"SELECT GET_LOCK({name}, {IDLE_SECONDS_MAX})", f"DO RELEASE_LOCK({name})"

    def named_tables(
        self, run: Callable[..., Sequence[tuple[Any, ...]]], definition: Definition
    ) -> str:
        """Returns a digest of SHOW CREATE TABLE and, where the user has the privilege PROCESS,
        InnoDB's numbers: they tell of an exchange and of a truncation, too.
        """
        text, own = definition.statement.text.casefold(), self.literal(self._database)
        listed = run(
            "SELECT table_schema, table_name FROM information_schema.tables"
            " WHERE table_type = 'BASE TABLE' AND table_schema"
            + (f" = {own}" if definition.followed else f" NOT IN {_SYSTEM}")
        )
        found = [
            run(f"SHOW CREATE TABLE {_quoted(database)}.{_quoted(name)}")
            for database, name in sorted(listed)
            if name.casefold() in text
        ]
        numbers: list[tuple[Any, ...]] = []
        for view in ("innodb_sys_tables", "innodb_tables"):
            # The one is MariaDB's, the other MySQL's.
            with suppress(pymysql.err.OperationalError, pymysql.err.ProgrammingError):
                numbers += run(f"SELECT name, table_id FROM information_schema.{view}")
        numbers = [
            (name, number)
            for name, number in numbers
            if name.rpartition("/")[2].partition("#")[0].casefold() in text
        ]
        shown = _AUTO_INCREMENT.sub("", repr((found, sorted(numbers))))
        return sha256(shown.encode()).hexdigest()

    def literal(self, value: SqlValue) -> str:
        """Returns a literal that every SQL mode reads alike."""
        if isinstance(value, bytes):
            return f"X'{value.hex()}'"
        if isinstance(value, str):
            return f"_utf8mb4 X'{value.encode().hex()}'"
        return "NULL" if value is None else str(value)

    def write(self, changes: TableChanges) -> Iterable[str]:
        """Returns INSERT ... ON DUPLICATE KEY UPDATE, in the spelling that both servers know, or
        what all servers do.
        """
        kind, mapping, _, puts = changes
        if kind is not ChangeKind.PUT:
            return plain_statements(changes, "`", self.literal)
        if mapping.has_other_keys:
            # ON DUPLICATE KEY would update the row of another key.
            return [each for row in puts for each in self._upsert(mapping, row)]
        # A table of keys alone has nothing to update, but the statement needs something.
        names = [_quoted(name) for name, _ in mapping.values or mapping.key]
        updates = ",".join(f"{name}=VALUES({name})" for name in names)
        return [
            f"INSERT INTO {_table(mapping.table)} ({_listed(mapping.columns)})"
            f" VALUES {self._tuples(rows)} ON DUPLICATE KEY UPDATE {updates}"
            for rows in chunks(puts)
        ]

    def _upsert(self, mapping: TableMapping, row: Row) -> Sequence[str]:
        """Returns UPDATE, and INSERT for the case that there is no such row."""
        texts = [*map(self.literal, row)]
        names = [_quoted(name) for name, _ in mapping.columns]
        pairs = [*map("{}={}".format, names, texts)]
        count, table = len(mapping.key), _table(mapping.table)
        where = " AND ".join(pairs[:count])
        return (
            f"UPDATE {table} SET {','.join(pairs[count:] or pairs)} WHERE {where}",
            f"INSERT INTO {table} ({_listed(mapping.columns)}) SELECT {','.join(texts)} FROM DUAL"
            f" WHERE NOT EXISTS (SELECT 1 FROM {table} WHERE {where})",
        )

    def newest(self, replica: str, versions: Sequence[tuple[bytes, int]]) -> Sequence[str]:
        """Returns statements that raise the rows' versions and select the rows now newest."""
        rows = self._tuples([(replica, key, version) for key, version in versions])
        return (
            f"INSERT INTO groupcert_row_versions (replica, row_key, version) VALUES {rows}"
            " ON DUPLICATE KEY UPDATE version = GREATEST(version, VALUES(version))",
            "SELECT row_key FROM groupcert_row_versions"
            f" WHERE (replica, row_key, version) IN ({rows})",
        )

    def begin(self, branch: Branch | None) -> str:
        """Returns BEGIN, or XA START."""
        return f"XA START {self._xid(branch)}" if branch else "BEGIN"

    def commit(self, branch: Branch | None, *, is_durable: bool) -> Sequence[str]:
        """Returns COMMIT; it is always durable if the server's commits are."""
        if branch is None:
            return ("COMMIT",)
        xid = self._xid(branch)
        return (f"XA END {xid}", f"XA COMMIT {xid} ONE PHASE")

    def prepare(self, branch: Branch) -> Sequence[str]:
        """Returns XA PREPARE; a prepared branch outlives the session."""
        xid = self._xid(branch)
        return (f"XA END {xid}", f"XA PREPARE {xid}")

    def commit_prepared(self, branch: Branch) -> str:
        """Returns XA COMMIT, for the session that prepared it or, once that has ended, for any."""
        return f"XA COMMIT {self._xid(branch)}"

    def roll_back_prepared(self, branch: Branch) -> str:
        """Returns XA ROLLBACK, for the session that prepared it or, once it has ended, for any."""
        return f"XA ROLLBACK {self._xid(branch)}"

    def prepared(self, session: Session, owner: str) -> Sequence[Branch]:
        """Returns the prepared branches of this database, out of the whole server's."""
        branches = []
        for _, _, _, name in session.run("XA RECOVER"):
            match = _BRANCH.fullmatch(name.decode("latin-1") if isinstance(name, bytes) else name)
            if match and match["owner"] == self._scoped(owner):
                source = match["domain"] or parse_uuid(match["uuid"])
                source += f":{match['tag']}" if match["tag"] else ""
                gtid = Gtid(source, int(match["number"]))
                branches.append(Branch(owner, gtid, int(match["branch"])))
        return branches

    def _xid(self, branch: Branch) -> str:
        """Returns a branch's XA name, two parts of 64 bytes at most: GTID source, and the rest."""
        source = branch.gtid.source
        # A UUID with its longest tag would not fit with dashes; MariaDB's sources need theirs.
        if len(source) >= UUID_CHARACTERS:
            source = source.replace("-", "").replace(":", "")
        rest = f"groupcert/{self._scoped(branch.owner)}/{branch.gtid.number}/{branch.number}"
        return f"X'{source.encode().hex()}',X'{rest.encode().hex()}',1"

    def _scoped(self, owner: str) -> str:
        return sha256(f"{self._database}/{owner}".encode()).hexdigest()[:16]

    def _tuples(self, rows: Sequence[Row]) -> str:
        return ",".join(f"({','.join(map(self.literal, row))})" for row in rows)


def _may_replay(session: MySqlSession) -> bool:
    """Returns whether a session of MariaDB, which it prepares, executes events, and refuses those
    of rows that are not there.
    """
    try:
        ((mode,),) = session.run(Alone(format_statement()), "SELECT @@slave_exec_mode")
    except pymysql.err.OperationalError:
        # Its user lacks the privilege BINLOG REPLAY.
        return False
    return bool(mode == "STRICT")


def _joined(parts: Iterable[bytes], bytes_max: int) -> Iterator[bytes]:
    """Yields parts in order, as many together as have `bytes_max` bytes; a larger one is alone."""
    run: list[bytes] = []
    size = 0
    for part in parts:
        if run and size + len(part) > bytes_max:
            yield b"".join(run)
            run, size = [], 0
        run.append(part)
        size += len(part)
    if size:
        yield b"".join(run)


def _spelled(text: str, *, is_mariadb: bool) -> str:
    """Returns a definition in its server's words. MySQL's collations of Unicode 9 become MariaDB's
    of Unicode 14, without padding, and those become MySQL's: a target that pads less than its
    source holds fewer texts equal, so that no unique key refuses a row.

    Source: MariaDB Knowledge Base, "Supported Character Sets and Collations".

    >>> _spelled("a text COLLATE utf8mb4_0900_as_cs", is_mariadb=True)
    'a text COLLATE utf8mb4_uca1400_nopad_as_cs'
    >>> _spelled("t (a int) COLLATE=utf8mb4_uca1400_ai_ci", is_mariadb=False)
    't (a int) COLLATE=utf8mb4_0900_ai_ci'
    """
    if is_mariadb:
        text = _COLLECTION_OF_MYSQL.sub("geometrycollection", text)
        text = _OF_MYSQL.sub(r"\1utf8mb4_uca1400_nopad_\2", text)
        return _BINARY_OF_MYSQL.sub(r"\1utf8mb4_nopad_bin", text)
    text = _OF_MARIADB.sub(r"\1utf8mb4_0900_\2", text)
    return _BINARY_OF_MARIADB.sub(r"\1utf8mb4_0900_bin", text)


def _typed(error: pymysql.err.Error) -> Exception:
    """Returns TransientFailure if the server's error is one, else the error itself."""
    number = error.args[0] if error.args else 0
    kind = _TRANSIENT.get(number)
    return TransientFailure(kind=kind, text=str(error)) if kind else error


def _found_column(
    data_type: str,
    column_type: str,
    nullable: int,
    has_default: int,
    extra: str,
    length_max: int | None,
    collation: str | None,
    precision: int | None,
    scale: int | None,
    fraction_digits: int | None,
) -> FoundColumn:
    """Returns a column of the information schema; a generated one takes no type."""
    kinds: tuple[ColumnType, ...] = ()
    low = high = 0
    shown = column_type
    is_generated = "GENERATED" in extra.upper() and "DEFAULT_GENERATED" not in extra.upper()
    if is_generated:
        shown += ", generated"
    elif bits := _INTEGER_BITS.get(data_type):
        kinds = (_T.INTEGER,)
        is_unsigned = "unsigned" in column_type
        low, high = (0, (1 << bits) - 1) if is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    elif data_type in _TEXTS:
        kinds = (_T.TEXT, _T.CHAR, _T.UUID, _T.INET)
        kinds += (_T.JSON,) if data_type == "longtext" else ()
    else:
        kinds = _TAKES.get(data_type, ())
    digits_max = None
    if data_type == "decimal" and precision is not None:
        digits_max = precision - (scale or 0)
        high = 10**digits_max - 1
        low = -high
    if collation:
        shown += f", collation {collation}"
    is_short = data_type in ("varchar", "char")
    return FoundColumn(
        type=shown,
        takes=frozenset(kinds),
        spelled="" if is_generated else column_type,
        low=low,
        high=high,
        digits_max=digits_max,
        scale=scale,
        fraction_digits=fraction_digits or 0,
        characters_max=length_max if is_short else None,
        bytes_max=None if is_short else length_max,
        required=not (nullable or has_default or is_generated or "auto_increment" in extra),
        nullable=bool(nullable),
        is_exact=collation is None or collation.endswith(_EXACT),
    )
