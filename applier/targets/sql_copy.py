"""The first copy of a source's tables into an SQL server."""

import json
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

from ...certifier.gtid_set import GtidSet
from ..errors import UnsuitableTarget
from ..mysql_logs.source_catalogue import SourceColumn, SourceTable
from ..mysql_servers.snapshot import Snapshot
from ..queue.target_progress import Checkpoint
from .source_tables import BoundServerTables, ServerTables
from .sql import CHECKPOINTS
from .sql_server import Session, SqlServer
from .sql_tables import ChangeKind, Row, TableChanges, TableMapping, ranks

_BEGUN = "first copy "
"""Stands before the name under which the tables of an unfinished copy are; no replica has one."""


class SqlCopy:
    """Fills a server's tables. A `CopyTarget`."""

    def __init__(self, server: SqlServer, tables: ServerTables, replica: str) -> None:
        """Copies `tables` for a replica of this name."""
        self._server = server
        self._tables = tables
        self._replica = replica
        self._begun = _BEGUN + sha256(replica.encode()).hexdigest()[:16]
        self._session = server.connect()
        self._session.run(*server.create(None))
        self._sessions: dict[int, Session] = {}
        self._created: list[SourceTable] = []
        self._bound: BoundServerTables | None = None
        self._mappings = {mapping.source: mapping for mapping in tables.tables}

    @property
    def is_needed(self) -> bool:
        """True if nothing is there yet, or a copy was not finished."""
        return self._read(self._replica) is None

    def check_not_begun(self) -> None:
        """Raises UnsuitableTarget if a copy was begun and not finished."""
        if self._read(self._begun) is not None:
            raise UnsuitableTarget(
                target=self._server.name,
                problem=f"the first copy of replica {self._replica} was not finished",
                expected="--copy, which begins it again",
            )

    def begin(self, snapshot: Snapshot) -> tuple[Sequence[SourceTable], bool]:
        """Makes missing tables and empties those that were begun; see `CopyTarget`."""
        session, server = self._session, self._server
        names = [mapping.table for mapping in self._tables.tables]
        found = server.find(session, names)
        begun = set(json.loads(self._read(self._begun) or "[]"))
        filled = [name for name in found if name not in begun and self._has_rows(name)]
        if filled:
            raise UnsuitableTarget(
                target=server.name,
                problem=f"{', '.join(filled)} have rows that no copy wrote",
                expected="empty tables, or none; without --copy a replica takes tables as they are",
            )
        # Before the first row: whoever comes after a crash empties what is named here.
        self._write(self._begun, json.dumps(names))
        missing = [self._tables.source_of(mapping) for mapping in self._tables.tables]
        self._created = [table for table in missing if self._place(table) not in found]
        places = {name: mapping.table for name, mapping in self._mappings.items()}
        for table in self._created:
            text = snapshot.definition(table)
            for statement in server.define(table, places, text):
                session.run(statement)
        session.run(*server.copying)
        order = ranks(found)
        for name in sorted(begun & set(found), key=lambda name: -order.get(name, 0)):
            session.run(f"DELETE FROM {server.table(name)}")
        found = server.find(session, names)
        self._bound = self._tables.bind(found, server.name, with_constraints=False)
        order = ranks(found)
        ordered = sorted(self._tables.tables, key=lambda each: order.get(each.table, 0))
        waits = any(table.parents for table in found.values()) and not server.defers_foreign_keys
        return [self._tables.source_of(mapping) for mapping in ordered], not waits

    def columns(self, table: SourceTable) -> Sequence[SourceColumn]:
        """Returns the columns that are written, key first."""
        columns = {column.name: column for column in table.columns}
        return [columns[name] for name, _ in self._mapping(table).columns]

    def write(self, thread: int, table: SourceTable, rows: Sequence[Row]) -> None:
        """Writes rows in one transaction."""
        session = self._sessions.get(thread)
        if session is None:
            session = self._sessions[thread] = self._server.connect()
            session.run(*self._server.copying)
        mapping = self._mapping(table)
        assert self._bound, "rows before `begin`"
        converted = self._bound.converted(table, rows)
        changes = TableChanges(ChangeKind.INSERT, mapping, mapping.columns, converted)
        begin, commit = self._server.begin(None), self._server.commit(None, is_durable=True)
        session.run(begin, *self._server.write(changes), *commit)

    def finish(self, gtids: GtidSet) -> None:
        """Adds foreign keys, and notes the snapshot as executed, in the place of the begun copy."""
        session, server = self._session, self._server
        places = {name: mapping.table for name, mapping in self._mappings.items()}
        for table in self._created:
            for statement in server.constrain(table, places):
                session.run(statement)
        checkpoint = replace(Checkpoint(), version=gtids.count(), gtid_executed=gtids)
        begun = TableChanges(ChangeKind.DELETE_ANY, CHECKPOINTS, (), [(self._begun,)])
        done = TableChanges(
            ChangeKind.PUT, CHECKPOINTS, (), [(self._replica, checkpoint.encode().decode())]
        )
        begin, commit = server.begin(None), server.commit(None, is_durable=True)
        session.run(begin, *server.write(begun), *server.write(done), *commit)

    def close(self) -> None:
        """Closes all sessions."""
        for session in (self._session, *self._sessions.values()):
            session.close()

    def _mapping(self, table: SourceTable) -> TableMapping:
        return self._mappings[str(table)]

    def _place(self, table: SourceTable) -> str:
        return self._mapping(table).table

    def _has_rows(self, name: str) -> bool:
        return bool(self._session.run(f"SELECT 1 FROM {self._server.table(name)} LIMIT 1"))

    def _read(self, replica: str) -> str | None:
        rows = self._session.run(
            "SELECT checkpoint FROM groupcert_checkpoint"
            f" WHERE replica = {self._server.literal(replica)}"
        )
        return rows[0][0] if rows else None

    def _write(self, replica: str, text: str) -> None:
        row = TableChanges(ChangeKind.PUT, CHECKPOINTS, (), [(replica, text)])
        self._session.run(*self._server.write(row))
