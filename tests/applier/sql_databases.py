"""The two servers to tests that hold for both: a fresh database each, targets in it, a look at it.

Payloads are JSON: `{"put": {row: value}, "delete": [row]}`.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import psycopg

from groupcert.applier.queue.job import CommitGroup, Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.row_parts import Part
from groupcert.applier.queue.target_progress import Checkpoint, TargetProgress
from groupcert.applier.targets import mysql, postgresql
from groupcert.applier.targets.sql import SqlExecution, SqlTarget
from groupcert.applier.targets.sql_schema import SqlSchema
from groupcert.applier.targets.sql_server import Session, SqlServer
from groupcert.applier.targets.sql_tables import TableMapping
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet
from tests.servers import connect_mariadb

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
SCHEMA = """
[tables."shop.orders"]
table = "orders"
key = { id = "integer" }
value = { content = "bytes" }

[tables."shop.items"]
table = "items"
key = { tenant = "text", id = "bytes" }
columns = { amount = "integer", note = "text", extra = "json" }

[tables."*"]
"""

SqlJob = Job[SqlExecution]


def entry(number: int, put: dict[str, str] | None = None, *delete: str) -> RelayEntry:
    """A transaction; number, version and position are the same."""
    payload = json.dumps({"put": put or {}, "delete": delete}).encode()
    return RelayEntry(
        number, number, Gtid(SOURCE, number), number - 1, number, local=False, payload=payload
    )


def gtids(*numbers: int) -> GtidSet:
    """What is executed once these transactions are."""
    return GtidSet.of(*(Gtid(SOURCE, number) for number in numbers))


def job(*entries: RelayEntry, worker: int = 0, keeps_newest: bool = False) -> SqlJob:
    """A job of whole transactions."""
    return Job(entries, worker=worker, keeps_newest=keeps_newest)


def divided(whole: RelayEntry, parts: int) -> list[SqlJob]:
    """A transaction in parts, each with a worker of its own."""
    return [
        Job([whole], worker=slot, part=Part(slot=slot, slots=parts), parts=parts)
        for slot in range(parts)
    ]


def decode(payload: bytes) -> tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]:
    """Reads a payload."""
    changes = json.loads(payload)
    return (
        [key.encode() for key in changes["put"]],
        [value.encode("latin-1") for value in changes["put"].values()],
        [key.encode() for key in changes["delete"]],
    )


def apply(target: SqlTarget, *jobs: SqlJob) -> None:
    """Executes jobs and commits them as one group."""
    for each in jobs:
        each.execution = target.execute(each)
    commit(target, *jobs)


def commit(target: SqlTarget, *jobs: SqlJob) -> Checkpoint:
    """Commits jobs as one group; what the target then says is executed if nothing was before."""
    progress = TargetProgress(Checkpoint())
    target.commit(CommitGroup(1, list(jobs)), progress)
    return progress.checkpoint


class _InterruptedServer:
    """A real server whose sessions call before each round trip."""

    def __init__(self, server: SqlServer, before_request: Callable[[], None]) -> None:
        self._server = server
        self._before_request = before_request

    def connect(self, mappings: Sequence[TableMapping] = ()) -> Session:
        return _InterruptedSession(self._server.connect(mappings), self._before_request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


class _InterruptedSession:
    def __init__(self, session: Session, before_request: Callable[[], None]) -> None:
        self._session = session
        self._before_request = before_request

    def run(self, *statements: str) -> Sequence[tuple[Any, ...]]:
        self._before_request()
        return self._session.run(*statements)

    def close(self) -> None:
        self._session.close()


class Database:
    """A database of one of the servers."""

    def __init__(self, kind: str, address: str) -> None:
        self.kind = kind
        self.address = address
        self.is_postgresql = kind == "postgresql"
        bytes_type, json_type = ("bytea", "jsonb") if self.is_postgresql else ("longblob", "json")
        key_bytes, key_text = (
            ("bytea", "text")
            if self.is_postgresql
            else (
                "varbinary(100)",
                "varchar(50) character set utf8mb4 collate utf8mb4_nopad_bin",
            )
        )
        note = "text" if self.is_postgresql else "text character set utf8mb4"
        self.query(f"CREATE TABLE orders (id bigint PRIMARY KEY, content {bytes_type} NOT NULL)")
        self.query(
            f"CREATE TABLE items (tenant {key_text}, id {key_bytes}, amount smallint NOT NULL,"
            f" note {note}, extra {json_type}, seen integer DEFAULT 0, PRIMARY KEY (tenant, id))"
        )

    def open(
        self,
        *,
        schema: str = SCHEMA,
        replica: str = "r1",
        workers: int = 4,
        two_phase: bool = False,
        before_request: Callable[[], None] | None = None,
    ) -> SqlTarget:
        """A target in the database; `before_request` is called before each round trip."""
        server: SqlServer = (
            postgresql.PostgreSqlServer(self.address)
            if self.is_postgresql
            else mysql.MySqlServer(self.address)
        )
        if before_request:
            server = cast(SqlServer, _InterruptedServer(server, before_request))
        mapping = SqlSchema.parse(schema, decode)
        return SqlTarget(server, mapping, replica=replica, workers=workers, two_phase=two_phase)

    def connect(self) -> Any:
        """A session of the test's own; each statement commits."""
        if self.is_postgresql:
            return psycopg.connect(self.address, autocommit=True)
        return connect_mariadb(self.address)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Runs a statement in a new session; its rows."""
        with self.connect() as session, session.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def orders(self) -> dict[int, bytes]:
        """The rows of the table `orders`."""
        return dict(self.query("SELECT id, content FROM orders"))

    def executed(self) -> list[tuple[int, str]]:
        """Numbers and parts in `groupcert_executed`."""
        return self.query("SELECT number, part FROM groupcert_executed ORDER BY number, part")

    def prepared(self) -> int:
        """How many branches are prepared in it and not settled."""
        if self.is_postgresql:
            return len(
                self.query("SELECT 1 FROM pg_prepared_xacts WHERE database = current_database()")
            )
        return len(self.query("XA RECOVER"))

    def tables(self) -> set[str]:
        """The names of its tables."""
        schema = "current_schema()" if self.is_postgresql else "DATABASE()"
        rows = self.query(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = {schema}"
        )
        return {name for (name,) in rows}

    def others(self, statement: str = "") -> int:
        """How many other sessions are in it, or are at a statement."""
        if self.is_postgresql:
            where = f"AND state = 'active' AND query = '{statement}'" if statement else ""
            return len(
                self.query(
                    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
                    f" AND pid <> pg_backend_pid() {where}"
                )
            )
        where = f"AND info = '{statement}'" if statement else ""
        return len(
            self.query(
                "SELECT 1 FROM information_schema.processlist WHERE db = DATABASE()"
                f" AND id <> CONNECTION_ID() {where}"
            )
        )

    def kill_sessions(self) -> None:
        """Ends every other session in the database, as the server's operator would."""
        if self.is_postgresql:
            self.query(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return
        with self.connect() as session, session.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM information_schema.processlist"
                " WHERE db = DATABASE() AND id <> CONNECTION_ID()"
            )
            for (number,) in cursor.fetchall():
                cursor.execute(f"KILL CONNECTION {number}")
