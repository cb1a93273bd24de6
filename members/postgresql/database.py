"""The companion's own sessions at its server: what it executes, asks and ends there.

The rule it keeps: rows of others and the GTID that wrote them are one transaction of the server;
one that stands in the way of them is ended, since it has lost: its snapshot does not have them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Self

import psycopg
import structlog
from psycopg import sql

from groupcert.applier.errors import UnsuitableTarget
from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.postgresql.attachment import is_attached, name_of, unsuitable
from groupcert.members.postgresql.commit_order import Entry
from groupcert.members.postgresql.rows import columns_of, key_of
from groupcert.members.postgresql.tables import Table, attached_tables
from groupcert.members.wire.row_changes import decode_changes

LOCK_CLASS = 1_735_156_336
"""The first number of the advisory locks of transactions; triggers.sql has it, too."""
APPLICATION = "groupcert postgresql"
JOINING = "groupcert join"
"""The sessions that copy a server. They commit nothing, so that the group need not remember for
them what was committed since they began; nor for those of `pg_dump`."""
POLL_SECONDS = 0.01
"""Between two looks for those that stand in the way."""
GRACE_SECONDS = 0.1
"""How long others may stand in the way: mostly they come to their COMMIT by then, lose there, and
their clients get 40001; one that is cancelled before cannot be told why."""
START_POLLS_MAX = 500
_SETTINGS = {
    "session_replication_role": "replica",
    "synchronous_commit": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "lock_timeout": "0",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
_ENDED = "SELECT pg_advisory_xact_lock_shared(%s, (%s::bigint & 2147483647)::int)"
_STATUS = "SELECT coalesce(pg_xact_status(id::xid8), 'committed') FROM unnest(%s::text[]) id"
_BLOCKING = (
    "SELECT pid, state LIKE 'idle%%', EXISTS (SELECT FROM pg_locks WHERE pg_locks.pid ="
    f" pg_stat_activity.pid AND classid = {LOCK_CLASS} AND mode = 'ExclusiveLock')"
    " FROM pg_stat_activity"
    " WHERE pid = ANY(pg_blocking_pids(%s)) AND backend_type = 'client backend'"
)
_FOLD = (
    "DELETE FROM groupcert.executed"
    " WHERE version < (SELECT max(version) FROM groupcert.executed) RETURNING source, number"
)
log: structlog.stdlib.BoundLogger = structlog.get_logger()
Connection = psycopg.AsyncConnection[Any]


class Database:
    """The sessions: one executes, one waits for backends to end, one asks."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.tables: Mapping[str, Table] = {}
        self.skipped_total = 0
        """Rows of tables that are not attached here."""
        self._applier: Connection
        self._confirmer: Connection
        self._watcher: Connection
        self._watching = asyncio.Lock()

    @property
    def name(self) -> str:
        """What messages call the server."""
        return name_of(self._dsn)

    async def open(self) -> Self:
        """Connects, and ends what an earlier companion has left.

        Raises:
            UnsuitableTarget: Nothing is attached, or another companion runs.
            psycopg.OperationalError: The server does not answer.
        """
        self._watcher = await self._connect("watcher")
        self._applier = await self._connect("applier")
        self._confirmer = await self._connect("confirmer")
        await self.read_tables()
        await self._become_the_only_one()
        return self

    async def close(self) -> None:
        """Ends the sessions."""
        for name in ("_applier", "_confirmer", "_watcher"):
            connection: Connection | None = getattr(self, name, None)
            if connection is not None:
                await connection.close()

    async def read_tables(self) -> None:
        """Reads the attached tables anew."""

        def read() -> Mapping[str, Table]:
            with psycopg.connect(self._dsn) as connection:
                return attached_tables(connection) if is_attached(connection) else {}

        self.tables = await asyncio.to_thread(read)
        if not self.tables:
            raise self._unsuitable("no table is attached", "groupcert postgresql attach before")

    async def socket(self) -> tuple[str, str]:
        """Returns the path of the socket, and the token that backends show."""
        rows = await self._ask("SELECT socket_path, token FROM groupcert.settings")
        if not rows:
            expected = "a new database, and groupcert postgresql join again"
            raise self._unsuitable("its copy was never finished", expected)
        return str(rows[0][0]), str(rows[0][1])

    async def executed(self) -> tuple[GtidSet, int]:
        """Returns the executed GTIDs, and the newest version."""
        ((text,),) = await self._ask("SELECT gtid_set FROM groupcert.executed_set")
        gtids = GtidSet.parse(text) if text else GtidSet()
        version = 0
        for source, number, at in await self._ask(
            "SELECT source, number, version FROM groupcert.executed ORDER BY version"
        ):
            gtids.add_number(source, number)
            version = at
        return gtids, version

    async def fold(self) -> None:
        """Moves executed GTIDs into the one set, and removes the rows of ended commits."""
        async with self._watching, self._watcher.transaction():
            rows = await self._watcher.execute(_FOLD)
            folded = await rows.fetchall()
            ((text,),) = await self._ask("SELECT gtid_set FROM groupcert.executed_set")
            gtids = GtidSet.parse(text) if text else GtidSet()
            for source, number in folded:
                gtids.add_number(source, number)
            await self._watcher.execute(
                "UPDATE groupcert.executed_set SET gtid_set = %s", (str(gtids),)
            )
            await self._watcher.execute("DELETE FROM groupcert.commits")

    async def statuses(self, transaction_ids: Sequence[str]) -> list[str]:
        """Waits for the end of the first of some transactions, and returns the states of all:
        `committed`, `aborted` or `in progress`.
        """
        await self._confirmer.execute(_ENDED, (LOCK_CLASS, transaction_ids[0]))
        rows = await self._confirmer.execute(_STATUS, (list(transaction_ids),))
        return [status for (status,) in await rows.fetchall()]

    async def execute(self, entries: Sequence[Entry], make_way: Callable[[int], None]) -> None:
        """Executes entries in one transaction; ends backends that stand in the way.

        Args:
            make_way: Is called with the process of a backend that does so at its COMMIT, which ends
                by itself once it has an answer.
        """
        task = asyncio.create_task(self._execute(entries))
        try:
            timeout = GRACE_SECONDS
            while not (await asyncio.wait({task}, timeout=timeout))[0]:
                await self._clear_way(make_way)
                timeout = POLL_SECONDS
        finally:
            task.cancel()
        await task

    async def oldest_transaction_seconds(self) -> float:
        """Returns the age of the oldest transaction that is open at the server."""
        async with self._watching:
            ((age,),) = await self._ask(
                "SELECT"
                " coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8"
                " FROM pg_stat_activity WHERE datname = current_database()"
                f" AND application_name NOT IN ('{JOINING}', 'pg_dump')"
            )
        return float(age)

    async def run(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Runs a statement in a transaction of its own; returns its rows."""
        async with self._watching:
            return await (await self._watcher.execute(query.encode(), values)).fetchall()

    async def _execute(self, entries: Sequence[Entry]) -> None:
        is_new = False
        while True:
            try:
                async with self._applier.pipeline(), self._applier.transaction():
                    await self._run_all(entries)
                return
            except psycopg.errors.DeadlockDetected:
                log.info("deadlock", version=entries[0].version)
            except KeyError:
                if is_new:
                    raise
                await self.read_tables()
                is_new = True

    async def _run_all(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            for query, values in self._statements(entry):
                await self._applier.execute(query, values)
            await self._applier.execute(
                "INSERT INTO groupcert.executed VALUES (%s, %s, %s)",
                (entry.version, entry.gtid.source, entry.gtid.number),
            )

    def _statements(self, entry: Entry) -> list[tuple[sql.Composed, Sequence[str | None]]]:
        """Returns the statements of an entry. Rows of a table that has other unique indexes, too,
        are deleted before others are put: values may have moved between them.
        """
        keys, values, deleted = decode_changes(entry.payload)
        puts = [
            (table, value)
            for key, value in zip(keys, values, strict=True)
            if (table := self._table_of(key))
        ]
        crowded = (
            {table.full_name for table, _ in puts if table.unique_keys} if len(puts) > 1 else ()
        )
        first = [*deleted, *(key for key in keys if key.partition(b"/")[0].decode() in crowded)]
        statements: list[tuple[sql.Composed, Sequence[str | None]]] = [
            (delete(table), key_of(table, key)) for key in first if (table := self._table_of(key))
        ]
        for table, value in puts:
            columns = columns_of(table, value)
            if table.unique_keys:
                statements.append((update(table), [*columns, *_key_of(table, columns)]))
            statements.append((put(table), columns))
        return statements

    def _table_of(self, key: bytes) -> Table | None:
        name = key.partition(b"/")[0].decode(errors="replace")
        table = self.tables.get(name)
        if table is None:
            self.skipped_total += 1
            if self.skipped_total == 1:
                log.warning("rows_skipped", table=name, reason="it is not attached here")
        return table

    async def _clear_way(self, make_way: Callable[[int], None]) -> None:
        """Ends the backends that the applier waits for."""
        async with self._watching:
            rows = await self._watcher.execute(_BLOCKING, (self._applier.info.backend_pid,))
            for pid, is_idle, is_at_commit in await rows.fetchall():
                if is_at_commit:
                    make_way(pid)
                    continue
                function = "pg_terminate_backend" if is_idle else "pg_cancel_backend"
                log.info("backend_cancelled", pid=pid, idle_in_transaction=is_idle)
                await self._watcher.execute(f"SELECT {function}(%s)".encode(), (pid,))

    async def _become_the_only_one(self) -> None:
        """Takes the lock of the server's companion, ends sessions of one that was killed, and waits
        for backends that it had let commit.
        """
        for _ in range(START_POLLS_MAX):
            ((is_mine,),) = await self._ask(f"SELECT pg_try_advisory_lock({LOCK_CLASS}::bigint)")
            if is_mine:
                break
            await asyncio.sleep(POLL_SECONDS)
        else:
            raise self._unsuitable("another companion serves it", "one companion for each server")
        own = [each.info.backend_pid for each in (self._applier, self._confirmer, self._watcher)]
        await self._watcher.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE %s AND pid <> ALL(%s)",
            (f"{APPLICATION}%", own),
        )
        while await self._ask(  # noqa: ASYNC110 - the end of a backend has no event
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"
            f" AND classid = {LOCK_CLASS} AND mode = 'ExclusiveLock'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        ):
            await asyncio.sleep(POLL_SECONDS)

    async def _connect(self, role: str) -> Connection:
        connection = await Connection.connect(
            self._dsn, autocommit=True, application_name=f"{APPLICATION} {role}"
        )
        for name, value in _SETTINGS.items():
            await connection.execute(f"SET {name} TO '{value}'".encode())
        return connection

    async def _ask(self, query: str) -> list[tuple[Any, ...]]:
        return await (await self._watcher.execute(query.encode())).fetchall()

    def _unsuitable(self, problem: str, expected: str) -> UnsuitableTarget:
        return unsuitable(self._dsn, problem, expected)


@cache
def put(table: Table) -> sql.Composed:
    """Returns the statement that puts a row, new or not; if the table has other unique indexes only
    a new one, behind `update`.
    """
    written = [column.name for column in table.columns if column.is_written]
    others = [] if table.unique_keys else [name for name in written if name not in table.key]
    updates = sql.SQL(", ").join(
        sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others
    )
    return sql.SQL(
        "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({}) ON CONFLICT ({}) DO {}"
    ).format(
        sql.Identifier(table.schema, table.name),
        sql.SQL(", ").join(map(sql.Identifier, written)),
        sql.SQL(", ").join(sql.Placeholder() for _ in written),
        sql.SQL(", ").join(map(sql.Identifier, table.key)),
        sql.SQL("UPDATE SET {}").format(updates) if others else sql.SQL("NOTHING"),
    )


@cache
def update(table: Table) -> sql.Composed:
    """Returns the statement that changes a row. Unlike ON CONFLICT DO UPDATE it lets a child keep
    its lock on a parent whose keys stay.
    """
    written = [column.name for column in table.columns if column.is_written]
    places = (
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder()) for name in written
    )
    return sql.SQL("UPDATE {} SET {} WHERE ({}) = ({})").format(
        sql.Identifier(table.schema, table.name),
        sql.SQL(", ").join(places),
        sql.SQL(", ").join(map(sql.Identifier, table.key)),
        sql.SQL(", ").join(sql.Placeholder() for _ in table.key),
    )


@cache
def delete(table: Table) -> sql.Composed:
    """Returns the statement that deletes a row by its key."""
    return sql.SQL("DELETE FROM {} WHERE ({}) = ({})").format(
        sql.Identifier(table.schema, table.name),
        sql.SQL(", ").join(map(sql.Identifier, table.key)),
        sql.SQL(", ").join(sql.Placeholder() for _ in table.key),
    )


def _key_of(table: Table, columns: Sequence[str | None]) -> list[str | None]:
    """Returns the values of the key among those of the columns that are written."""
    written = [column.name for column in table.columns if column.is_written]
    values = dict(zip(written, columns, strict=True))
    return [values[name] for name in table.key]
