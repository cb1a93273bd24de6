"""The member's own sessions at its server: what it executes, asks and ends there.

The rule it keeps: rows of others and the GTID that wrote them are one transaction of the server;
one that stands in the way of them is ended, since it has lost: its snapshot does not have them.
"""

import asyncio
import json
import os
import secrets
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import psycopg
import structlog
from psycopg.conninfo import make_conninfo

from groupcert.v1.postgresql_pb2 import PostgresqlStatus

from ...applier.errors import UnsuitableTarget
from ...applier.queue.target_progress import Checkpoint
from ...certifier.errors import InvalidGtidSet
from ...certifier.gtid_set import GtidSet
from ..errors.postgresql_servers import ServerLost
from .attachment import (
    SETTINGS,
    check_attached,
    copy_unsuitable,
    folder_unsuitable,
    name_of,
    unsuitable,
)
from .backend_socket import BackendSocket
from .commit_order import Entry
from .functions import APPLIER_ROLE
from .rows import rows_in
from .schema_changes import SchemaChange, execute_change
from .statements import Batch, batch_of, statement_of
from .tables import Table, attached_tables

APPLICATION = "groupcert postgresql"
JOINING = "groupcert join"
"""The sessions that copy a server."""
TRYING = "groupcert ddl"
"""The sessions of a superuser that try a schema change: these are waited for."""
CONNECT_SECONDS = 10
READER = f"{APPLICATION} reader"
"""The session that reads rows to compare them."""
READER_LOCK_TIMEOUT_MS = 10_000
"""For which it waits for a table that somebody has locked."""
CANCEL_SECONDS = 5.0
POLL_SECONDS = 0.01
"""Between two looks for those that stand in the way."""
GRACE_SECONDS = 0.1
"""Time that others may stand in the way: mostly they come to their COMMIT by then, lose there, and
their clients get 40001; one that is cancelled before cannot be told why."""
TURN_SECONDS = 5.0
"""For which a backend may hold up the commits of its server; then it is ended."""
SESSIONS_WITHOUT_RESERVE = 2
"""Of a member: those of the role that is no superuser."""
SILENT_SECONDS = 10.0
"""For which a member may stand still; then its server takes no new sessions that write."""
SEQUENCES_LOCK_TIMEOUT_MS = 20
"""For which the look at sequences may hold up the look for those that stand in the way."""
FLUSH_POLL_SECONDS = 0.05
START_POLLS_MAX = 500
LOGINS_MAX = 5
LEAVE_SECONDS = 3.0
"""For a server that stands still: the backend of the guard tells it later that it has left."""
LARGE_BYTES = 256 << 10
"""Bytes of rows that are converted beside the event loop: it waits for none for over 10 ms."""
_STATUS = """
SELECT CASE WHEN coalesce(pg_xact_status(id::xid8), 'committed') <> 'committed'
    THEN pg_xact_status(id::xid8) WHEN groupcert.is_executed(version) THEN 'committed'
    ELSE 'aborted' END
FROM unnest(%s::text[], %s::bigint[]) granted (id, version)"""
"""A transaction that has committed without the row that notes it has not committed that."""
_AT_COMMIT = "SELECT pid FROM groupcert.at_commit"
_SKIPPED = "SELECT count(*) FROM groupcert.skipped WHERE verified_at IS NULL"
_SETTLE = (
    "UPDATE groupcert.skipped SET verified_at = clock_timestamp()"
    " WHERE verified_at IS NULL AND version <= %s RETURNING version"
)
_BLOCKING = (
    "SELECT pid, state LIKE 'idle%%',"
    f" application_name = '{TRYING}' AND usesysid IN (SELECT oid FROM pg_roles WHERE rolsuper)"
    " AND (state = 'active' OR clock_timestamp() - state_change < '5 s')"
    " FROM pg_stat_activity"
    " WHERE pid = ANY(pg_blocking_pids(%s)) AND backend_type = 'client backend'"
)
_END = (
    "SELECT pg_terminate_backend(pid), groupcert.continue_backend(pid)"
    " FROM pg_stat_activity activity WHERE pid = %s AND backend_type = 'client backend'"
)
_END_COMMIT = (
    f"{_END} AND EXISTS (SELECT FROM pg_locks WHERE pg_locks.pid = activity.pid AND granted"
    " AND locktype = 'transactionid' AND mode = 'ExclusiveLock'"
    " AND transactionid::text::bigint = %s::bigint & 4294967295)"
)
_OLDEST = """
SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8,
    format('session %%s of %%s (%%s), %%s', pid, usename, application_name, state)
FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL
    AND application_name <> 'pg_dump' AND application_name NOT LIKE 'groupcert %%'
ORDER BY xact_start LIMIT 1"""
"""The group need not remember for `pg_dump` and our own sessions what was committed since they
began: nothing of theirs is certified."""
_FOLD = (
    "DELETE FROM groupcert.executed WHERE version < %s AND"
    " version < (SELECT max(version) FROM groupcert.executed) RETURNING source, number"
)
log: structlog.stdlib.BoundLogger = structlog.get_logger()
Connection = psycopg.AsyncConnection[Any]
Done = TypeVar("Done")


class Database:
    """The sessions: they execute, wait for the ends of backends, ask, and guard the server."""

    def __init__(self, dsn: str, turn_seconds: float = TURN_SECONDS) -> None:
        """Prepares; a backend may hold up the commits of its server for `turn_seconds`."""
        self._dsn = make_conninfo(dsn, client_encoding="UTF8")  # Names and rows are sent as that.
        self.turn_seconds = turn_seconds
        self._tables: Mapping[str, Table] = {}
        self._unknown: set[str] = set()
        """Names of rows, of which no attached table was known."""
        self.status = PostgresqlStatus(server=self.name)
        """What the member tells of the server: whoever learns or counts something notes it here."""
        self._changed_outside: int | None = None
        self._applier: Connection
        self._confirmer: Connection
        self._watcher: Connection
        self._guard: Connection
        self.socket: BackendSocket
        """Where backends ask; locked by this member since `open`."""
        self._watching = asyncio.Lock()

    @property
    def name(self) -> str:
        """The server's name in messages."""
        return name_of(self._dsn)

    async def open(self) -> Self:
        """Connects, and ends what an earlier member has left.

        Raises:
            UnsuitableTarget: Nothing is attached, it is a copy, another member runs, or this
                one runs under another account or at another machine than the server.
            psycopg.OperationalError: The server does not answer.
        """
        self._watcher = await self._own_session("watcher")
        prepared = "SELECT current_setting('max_prepared_transactions')::int"
        if await self._ask(prepared) != [(0,)]:
            raise self._unsuitable("it has max_prepared_transactions", "0, as attach has found it")
        await self.read_tables()
        self.socket = await self._own_socket()
        await self._open_appliers()
        await self._look_around()
        await self._become_the_only_one()
        self._guard = await self._own_session("guard")
        return self

    async def close(self) -> None:
        """Ends the sessions."""
        for name in ("_applier", "_confirmer", "_guard", "_watcher"):
            connection: Connection | None = getattr(self, name, None)
            if connection is not None:
                await connection.close()
        if hasattr(self, "socket"):
            self.socket.close()

    async def read_tables(self) -> None:
        """Reads the attached tables anew, and those of which rows have come."""

        def read() -> Mapping[str, Table]:
            with psycopg.connect(self._dsn) as connection:
                check_attached(connection, self._dsn)
                return attached_tables(connection, self._unknown)

        self._tables = await asyncio.to_thread(read)
        self.status.attached_tables[:] = sorted(table.full_name for table in self.attached)

    async def _own_socket(self) -> BackendSocket:
        """Returns the socket, in a folder that the server has made."""
        settings = "SELECT socket_path, token, groupcert.copied() FROM groupcert.settings"
        rows = await self._ask(settings)
        if not rows:
            expected = "a new database, and groupcert postgresql join again"
            raise self._unsuitable("its copy was never finished", expected)
        ((path, token, copied),) = rows
        if copied:
            raise copy_unsuitable(self._dsn, copied)
        ((uid, account, problem),) = await self.run(
            "SELECT uid, account, problem FROM groupcert.prepare_socket(%s)", (path,)
        )
        if problem:
            raise folder_unsuitable(self._dsn, path, account, problem)
        if os.geteuid() not in (0, uid) or uid == 0:  # As root no PostgreSQL runs.
            own = f"the server runs as {account} ({uid}), and its member as uid {os.geteuid()}"
            raise self._unsuitable(own, f"sudo -u {account} groupcert postgresql ..., or root")
        return BackendSocket(Path(path), token, uid)

    def lost(self, error: Exception) -> ServerLost:
        """Returns the error for a server that does not answer any more."""
        return ServerLost(server=self.name, cause=str(error).strip().replace("\n", " "))

    async def executed(self) -> Checkpoint:
        """Returns the executed GTIDs, the newest version, and its position in the total order.

        Raises:
            UnsuitableTarget: Somebody has changed what the server notes of them.
        """
        ((text,),) = await self._ask("SELECT gtid_set FROM groupcert.executed_set")
        rows = await self._ask(
            "SELECT source, number, version, position FROM groupcert.executed ORDER BY version"
        )
        try:
            gtids = gtids_of(text, [row[:2] for row in rows])
        except InvalidGtidSet as error:
            expected = "what it has executed; nobody knows it now: join a new database"
            raise self._unsuitable(f"groupcert.executed_set: {error}", expected) from error
        version, position = rows[-1][2:] if rows else (0, -1)
        return Checkpoint(version=version, position=position, gtid_executed=gtids)

    async def fold(self, below: int) -> None:
        """Moves executed GTIDs into the one set, those of versions below `below`, and removes the
        rows of ended commits.
        """
        async with self._watching, self._watcher.transaction():
            rows = await self._watcher.execute(_FOLD, (below,))
            folded = await rows.fetchall()
            ((text,),) = await self._ask("SELECT gtid_set FROM groupcert.executed_set")
            gtids = gtids_of(text, folded)
            await self._watcher.execute(
                "UPDATE groupcert.executed_set SET gtid_set = %s", (str(gtids),)
            )
            await self._watcher.execute("DELETE FROM groupcert.notes")
            await self._watcher.execute("DELETE FROM groupcert.ends")
            await self._look_around()

    async def _look_around(self) -> None:
        """Reads what the status has of the server itself.

        Raises:
            UnsuitableTarget: Somebody has switched off what notes rows: they go past the group.
        """
        off = await self._ask("SELECT what FROM groupcert.switched_off ORDER BY 1")
        if off:
            problem = f"{', '.join(what for (what,) in off)} is switched off"
            expected = "it on, and rows that groupcert verify finds equal"
            raise self._unsuitable(problem, expected)
        ((self.status.skipped_transactions,),) = await self._ask(_SKIPPED)
        await self._look_at_sequences()
        ((changed,),) = await self._ask("SELECT changed FROM groupcert.rows_outside")
        # The server has counted for longer than this member runs.
        if self._changed_outside is None:
            self._changed_outside = changed
        self.status.rows_outside = max(0, changed - self._changed_outside)

    async def _look_at_sequences(self) -> None:
        """Reads which sequences are astray. To read one is to lock it: where somebody is changing
        or dropping one, what was read before stays.
        """
        with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.InternalError_):
            async with self._watcher.transaction():
                timeout = f"SET LOCAL lock_timeout TO {SEQUENCES_LOCK_TIMEOUT_MS}"
                await self._watcher.execute(timeout.encode())
                rows = await self._ask("SELECT sequence FROM groupcert.astray_sequences ORDER BY 1")
                self.status.astray_sequences[:] = [name for (name,) in rows]

    async def flushed(self) -> None:
        """Returns once all that is committed now is on the server's disk. Backends commit without
        waiting for that; the server's WAL writer does it within some 0.2 s.
        """
        ((written,),) = await self.run("SELECT pg_current_wal_insert_lsn()")
        flushed = "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn"
        while await self.run(flushed, (written,)) != [(True,)]:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(FLUSH_POLL_SECONDS)

    async def statuses(self, granted: Sequence[tuple[str, int]]) -> list[str]:
        """Returns the ends of transactions, by their ids and the versions that they should have:
        `committed`, `aborted`, or not yet, `in progress`.
        """
        ids, versions = zip(*granted, strict=True)
        rows = await self._confirmer.execute(_STATUS, (list(ids), list(versions)))
        return [status for (status,) in await rows.fetchall()]

    async def execute(
        self, batch: Batch, after: str | None, make_way: Callable[[int], None]
    ) -> bool:
        """Executes entries in one transaction; ends backends that stand in the way.

        Args:
            after: A transaction of a backend whose end it waits for; if that did not commit, it
                executes nothing and returns False.
            make_way: Is called with the process of a backend that stands in the way at its COMMIT,
                which ends by itself once it has an answer.

        Raises:
            KeyError: A table is not attached here.
        """
        work = self._execute(self._applier, batch, after)
        return await self._clearing(self._applier.info.backend_pid, work, make_way)

    async def execute_for(self, entry: Entry, make_way: Callable[[int], None]) -> None:
        """Executes an entry in the place of a backend that has died, beside `execute`, which may
        wait for one that comes behind it.
        """
        work = self._execute(self._confirmer, await decoded([entry]), None)
        await self._clearing(self._confirmer.info.backend_pid, work, make_way)

    async def note_stopped(self, entry: Entry) -> None:
        """Keeps a transaction that cannot be executed, for `groupcert postgresql skip`."""

        def rows() -> str:
            return json.dumps(
                {
                    key.decode(): None if value is None else json.loads(value)
                    for key, value in rows_in(entry.parts)
                }
            )

        values = (str(entry.gtid), entry.version, entry.position, await _beside([entry], rows))
        async with self._watching, self._watcher.transaction():
            await self._watcher.execute("DELETE FROM groupcert.stopped")
            await self._watcher.execute(
                "INSERT INTO groupcert.stopped VALUES (%s, %s, %s, %s)", values
            )

    async def failing_row(self, entry: Entry) -> str:
        """Returns the key of the first row that cannot be executed alone; "": each can."""
        batch = await decoded([entry])
        for key, value in batch.rows.items():
            alone = batch._replace(rows={key: value})
            try:
                async with self._applier.transaction(force_rollback=True):
                    await self._applier.execute(*statement_of(alone, self._table_of, None))
            except (psycopg.Error, KeyError, ValueError):
                return key.decode(errors="replace")
        return ""

    async def change_schema(
        self, change: SchemaChange, entry: Entry, make_way: Callable[[int], None]
    ) -> None:
        """Executes a schema change; ends backends that stand in the way, as `execute`.

        Raises:
            SchemaChangeFailed: It fails here.
        """
        connect = partial(
            psycopg.connect,
            self._dsn,
            application_name=f"{APPLICATION} ddl",
            prepare_threshold=None,
        )
        session = await asyncio.to_thread(connect, autocommit=True)
        try:
            await self.check_alive()  # A server that has crashed since may lack versions before it.
            session.read_only = False
            session.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            is_done = False
            while not is_done:
                work = asyncio.to_thread(execute_change, session, change, entry)
                is_done = await self._clearing(session.info.backend_pid, work, make_way)
        except asyncio.CancelledError:
            session.cancel_safe(timeout=CANCEL_SECONDS)
            raise
        finally:
            session.close()
        log.info("schema_changed", gtid=str(entry.gtid), version=entry.version)
        # In its turn: rows behind it are of tables as it has left them, not there before.
        await self.read_tables()

    async def _clearing(
        self, pid: int, work: Coroutine[Any, Any, Done], make_way: Callable[[int], None]
    ) -> Done:
        """Runs work at a session of ours, returns its result, and ends those in its way."""
        task = asyncio.create_task(work)
        try:
            timeout = GRACE_SECONDS
            late = time.monotonic() + self.turn_seconds
            while not (await asyncio.wait({task}, timeout=timeout))[0]:
                is_late = time.monotonic() > late
                await self._clear_way(pid, make_way, is_late=is_late)
                timeout = POLL_SECONDS
                late += self.turn_seconds * is_late
        finally:
            task.cancel()
        return await task

    async def oldest_transaction_seconds(self) -> float:
        """Returns the age of the oldest transaction that is open at the server, and that may come
        to a COMMIT of the group.
        """
        rows = await self.run(_OLDEST)
        seconds, self.status.oldest_transaction = rows[0] if rows else (0.0, "")
        self.status.oldest_transaction_seconds = round(seconds, 3)
        return float(seconds)

    async def watch_member(self) -> None:
        """Has the server leave its group should this process die. Returns when it has left, as the
        process stood still for `SILENT_SECONDS`, without a call of `socket.touch`.
        """
        await self._guard.execute("CALL groupcert.watch_member(%s)", (SILENT_SECONDS,))

    async def check_alive(self) -> None:
        """Returns if the server has not crashed since `open`.

        Raises:
            psycopg.OperationalError: It has, or has ended the session.
        """
        await self.run("SELECT 1")

    async def run(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Runs a statement in a transaction of its own; returns its rows."""
        async with self._watching:
            return await (await self._watcher.execute(query.encode(), values)).fetchall()

    async def _execute(self, session: Connection, batch: Batch, after: str | None) -> bool:
        is_new = False
        while True:
            try:
                convert = partial(statement_of, batch, self._table_of, after)
                await session.execute(*await _beside(batch.entries, convert))
                return True
            except psycopg.errors.DeadlockDetected:
                log.info("deadlock", version=batch.entries[0].version)
            # `groupcert.wait_for` raises it: the transaction before has not committed.
            except psycopg.errors.TransactionRollback:
                return False
            except KeyError:
                if is_new:
                    raise
                # A table may have been attached since they were read, or changed: once more, then
                # it counts. Before its turn nobody can say so: `attach` may come until then. The
                # turn waits for this once a table that was attached while the member runs.
                await self.read_tables()
                is_new = True

    def _table_of(self, name: str) -> Table | None:
        """Returns an attached table; None if a name is no table's: such rows are other clients'.

        Raises:
            KeyError: It is a table's, and not attached here.
        """
        table = self._tables.get(name)
        if table is not None and table.is_attached:
            return table
        if "." not in name:
            self.status.skipped_rows += 1
            return None
        self._unknown.add(name)
        what = (
            f"is kept out here: {table.problem}" if table and table.problem else "is not attached"
        )
        raise KeyError(
            f"table {name} {what}; mend that, groupcert postgresql attach --tables '{name}', and"
            " its member tries again"
        )

    async def end_commit(self, pid: int, transaction_id: str) -> None:
        """Ends a backend, even one that somebody has stopped, unless its transaction has ended."""
        await self.run(_END_COMMIT, (pid, transaction_id))

    async def _clear_way(self, own: int, make_way: Callable[[int], None], *, is_late: bool) -> None:
        """Ends the backends whose rows a session of ours waits for; if they are late, even those
        that somebody has stopped. Which ones are at their COMMIT is read first: one that has
        committed since then stands in nobody's way.
        """
        async with self._watching:
            at_commit = {pid for (pid,) in await self._ask(_AT_COMMIT)}
            await self._clear_way_of(own, at_commit, make_way, is_late=is_late)

    async def _clear_way_of(
        self,
        own: int,
        at_commit: Collection[int],
        make_way: Callable[[int], None],
        *,
        is_late: bool,
    ) -> None:
        rows = await self._watcher.execute(_BLOCKING, (own,))
        for pid, is_idle, is_trial in await rows.fetchall():
            if pid in at_commit:
                make_way(pid)
            elif is_trial:  # Who stands in its way may wait for us.
                await self._clear_way_of(pid, at_commit, make_way, is_late=is_late)
            else:
                # A session that is idle in its transaction has no statement that could be
                # cancelled.
                function = "pg_terminate_backend" if is_idle else "pg_cancel_backend"
                self.status.cancelled_sessions += 1
                log.info("backend_cancelled", pid=pid, idle_in_transaction=is_idle)
                await self._watcher.execute(f"SELECT {function}(%s)".encode(), (pid,))
            if is_late and not is_trial:
                log.warning("backend_ended", pid=pid, held_up_seconds=self.turn_seconds)
                await self._watcher.execute(_END, (pid,))

    async def _become_the_only_one(self) -> None:
        """Takes the lock of the server's member, ends sessions of one that was killed, and waits
        for backends that it had let commit.
        """
        await self._lock_socket()
        own = [each.info.backend_pid for each in (self._applier, self._confirmer, self._watcher)]
        await self._watcher.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE %s AND pid <> ALL(%s)",
            (f"{APPLICATION}%", own),
        )
        late = time.monotonic() + self.turn_seconds
        while pids := await self._ask(_AT_COMMIT):
            await asyncio.sleep(POLL_SECONDS)
            if time.monotonic() > late:  # Somebody has stopped it.
                late += self.turn_seconds
                for (pid,) in pids:
                    log.warning("backend_ended", pid=pid, held_up_seconds=self.turn_seconds)
                    await self.run(_END, (pid,))

    async def _lock_socket(self) -> None:
        """Takes the lock of the server's member. It is a file's, which nobody else may lock, and
        not the server's, where any role may take one.
        """
        path = self.socket.path
        elsewhere = "its member on its machine, or --socket PATH of attach that both see"
        try:
            for _ in range(START_POLLS_MAX):
                if self.socket.lock():
                    break
                await asyncio.sleep(POLL_SECONDS)
            else:
                expected = "one member for each server"
                raise self._unsuitable("another member serves it", expected)
        except OSError as error:
            problem = f"its socket cannot be at {path} here ({error})"
            raise self._unsuitable(problem, elsewhere) from error
        if await self.run("SELECT groupcert.is_locked(%s)", (str(path),)) != [(True,)]:
            raise self._unsuitable(f"{path} is another machine's here", elsewhere)

    @property
    def attached(self) -> list[Table]:
        """The attached tables, as they were read last."""
        return [table for table in self._tables.values() if table.is_attached]

    async def open_reader(self) -> "psycopg.Connection[Any]":
        """Returns a session of the role that executes rows of others, for another thread to read
        rows in.

        Raises:
            UnsuitableTarget: The server does not let the role in.
            psycopg.Error: There is no place for another session.
        """

        def connect(dsn: str) -> "psycopg.Connection[Any]":
            own = make_conninfo(dsn, application_name=READER)
            session = psycopg.connect(own, autocommit=True, prepare_threshold=None)
            session.execute(f"SET lock_timeout TO {READER_LOCK_TIMEOUT_MS}".encode())
            return session

        return await self._as_applier(lambda dsn: asyncio.to_thread(connect, dsn))

    async def settle_skipped(self, version: int) -> None:
        """Notes that the server has the rows of others, as of a version, whatever was left out."""
        await self.run(_SETTLE, (version,))

    async def _open_appliers(self) -> None:
        """Connects as the role that executes rows of others. Raises UnsuitableTarget."""

        async def connect(dsn: str) -> None:
            self._applier = await self._connect("applier", dsn)
            self._confirmer = await self._connect("confirmer", dsn)

        await self._as_applier(connect)

    async def _as_applier(self, connect: Callable[[str], Coroutine[Any, Any, Done]]) -> Done:
        """Calls `connect` with a DSN of the role that executes rows of others, whose password is
        new each time, and returns its result. A member of another database of the server may do the
        same at the moment.

        Raises:
            UnsuitableTarget: The server does not let the role in.
        """
        for attempt in range(LOGINS_MAX):
            password = secrets.token_urlsafe()
            pgconn = self._watcher.pgconn
            verifier = pgconn.encrypt_password(
                password.encode(), APPLIER_ROLE.encode(), b"scram-sha-256"
            )
            async with self._watching:
                await self._watcher.execute(
                    f"ALTER ROLE {APPLIER_ROLE} PASSWORD '{verifier.decode()}'".encode()
                )
            try:
                dsn = make_conninfo(self._dsn, user=APPLIER_ROLE, password=password)
                return await connect(dsn)
            except psycopg.OperationalError as error:
                if attempt + 1 < LOGINS_MAX and await self._made_room():
                    continue
                if "authentication" not in str(error) and "pg_hba" not in str(error):
                    raise
                if attempt + 1 == LOGINS_MAX:
                    expected = (
                        f"that pg_hba.conf lets the role {APPLIER_ROLE} in where --dsn leads to: a"
                        f" line as host all {APPLIER_ROLE} 127.0.0.1/32 scram-sha-256, and --dsn by"
                        " TCP"
                    )
                    raise self._unsuitable(str(error).strip(), expected) from error
        raise AssertionError("the last attempt raises")

    async def _made_room(self) -> bool:
        """Ends sessions that have been idle for longest, if clients have all connections that are
        not reserved to superusers: without a member none of them commits. Returns whether it did.
        """
        make_room = "SELECT pid, client FROM groupcert.make_room(%s)"
        ended = await self.run(make_room, (SESSIONS_WITHOUT_RESERVE,))
        for pid, client in ended:
            log.warning("session_ended_for_member", pid=pid, client=client)
        return bool(ended)

    async def _own_session(self, purpose: str) -> Connection:
        """Connects as the superuser of the DSN."""
        session = await self._connect(purpose, self._dsn)
        for name, value in SETTINGS.items():
            await session.execute(f"SET {name} TO '{value}'".encode())
        return session

    async def _connect(self, purpose: str, dsn: str) -> Connection:
        return await Connection.connect(
            dsn,
            autocommit=True,
            application_name=f"{APPLICATION} {purpose}",
            connect_timeout=CONNECT_SECONDS,
            # Code of a table's owner could put its own statement in the place of a prepared one.
            prepare_threshold=None,
        )

    async def _ask(self, query: str) -> list[tuple[Any, ...]]:
        return await (await self._watcher.execute(query.encode())).fetchall()

    def _unsuitable(self, problem: str, expected: str) -> UnsuitableTarget:
        return unsuitable(self._dsn, problem, expected)


async def decoded(entries: Sequence[Entry]) -> Batch:
    """Returns entries as a batch. Raises InvalidWriteSet as `batch_of`."""
    return await _beside(entries, partial(batch_of, entries))


async def _beside(entries: Sequence[Entry], conversion: Callable[[], Done]) -> Done:
    """Converts entries and returns the result; large ones in a thread beside the event loop."""
    if sum(entry.size for entry in entries) < LARGE_BYTES:
        return conversion()
    return await asyncio.to_thread(conversion)


def gtids_of(text: str, numbers: Iterable[tuple[str, int]]) -> GtidSet:
    """Returns the GTIDs of `groupcert.executed_set` and of rows of `groupcert.executed`.

    Raises:
        InvalidGtidSet: The text is none.
    """
    gtids = GtidSet.parse(text) if text else GtidSet()
    for source, number in numbers:
        gtids.add_number(source, number)
    return gtids
