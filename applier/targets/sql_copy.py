"""The first copy of a source's tables into an SQL server.

Its record is in `groupcert_checkpoint`, under a name of its own. What changes whole tables when a
copy goes on is a session like a replica's: with the foreign keys' checks, and what they cascade.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256

from ...certifier.errors import GroupcertError
from ...certifier.gtid_set import GtidSet
from ..errors import UnsuitableTarget
from ..mysql_logs.source_catalogue import SourceColumn, SourceTable
from ..mysql_servers.snapshot import Snapshot
from ..queue.relay_group import RelayEntry
from ..queue.target_progress import Checkpoint
from .first_copy import CopyRecord, with_parents
from .source_tables import BoundServerTables, ServerTables
from .sql import CHECKPOINTS, kept_changes
from .sql_server import Session, SqlServer
from .sql_tables import (
    ChangeKind,
    FoundTable,
    Row,
    TableChanges,
    TableMapping,
    ranks,
    runs,
)

_BEGUN = "first copy "
"""Stands before the name under which the tables of an unfinished copy are; no replica has one."""


class SqlCopy:
    """Fills a server's tables. A `CopyTarget`."""

    def __init__(self, server: SqlServer, tables: ServerTables, replica: str) -> None:
        """Copies `tables` for a replica of this name."""
        self._server = server
        self._tables = tables
        self._replica = replica
        self._owner = sha256(replica.encode()).hexdigest()[:16]
        self._begun = _BEGUN + self._owner
        self._session = server.connect()
        self._session.run(*server.create(None))
        self._sessions: dict[int, Session] = {}
        self._following: Session | None = None
        self._bound: BoundServerTables | None = None
        self._mappings = {mapping.source: mapping for mapping in tables.tables}
        self._places = {name: mapping.table for name, mapping in self._mappings.items()}
        self.record = CopyRecord(gtids=GtidSet())

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
                expected="--copy, which goes on with it",
            )

    def begin(self, snapshot: Snapshot) -> tuple[Sequence[SourceTable], bool]:
        """Makes missing tables and empties those that are not whole; see `CopyTarget`."""
        session, server = self._session, self._server
        # Only who has the lock writes the record: a process that was killed may still have a
        # session.
        if not server.lock(session, self._owner):
            raise UnsuitableTarget(
                target=server.name,
                problem=f"another process writes here as replica {self._replica}",
                expected="a name of its own for each replica, or the other one stopped",
            )
        found = self._found()
        text = self._read(self._begun)
        begun = CopyRecord.decode(text) if text else CopyRecord(gtids=snapshot.gtids)
        filled = [name for name in found if name not in begun.tables and self._has_rows(name)]
        if filled:
            raise UnsuitableTarget(
                target=server.name,
                problem=f"{', '.join(filled)} have rows that no copy wrote",
                expected="empty tables, or none; without --copy a replica takes tables as they are",
            )
        whole = [name for name in begun.whole if self._places.get(name) in found]
        whole = sorted(with_parents(whole, self._parents(found)))
        missing = [name for name, place in self._places.items() if place not in found]
        # Before the first row: whoever comes after a crash empties what is named here.
        self._write_record(
            CopyRecord(
                gtids=begun.gtids if whole else snapshot.gtids,
                whole=whole,
                created=[*begun.created, *missing],
                tables=[*self._places.values()],
            )
        )
        sources = {name: self._tables.source_of(each) for name, each in self._mappings.items()}
        for name in missing:
            self._define(sources[name], snapshot.definition(sources[name]))
        session.run(*server.copying)
        left = [name for name in sources if name not in whole]
        order = ranks(found)
        emptied = {self._places[name] for name in left} & set(begun.tables) & set(found)
        for place in sorted(emptied, key=lambda place: -order.get(place, 0)):
            session.run(f"DELETE FROM {server.table(place)}")
        self._constrain([sources[name] for name in whole])
        found = self._found()
        self._bound = self._tables.bind(found, server.name, with_constraints=False)
        order = ranks(found)
        left.sort(key=lambda name: order.get(self._places[name], 0))
        has_parents = any(found[self._places[name]].parents for name in left)
        at_once = server.copies_children_first or not has_parents
        return [sources[name] for name in left], at_once

    def forget(self) -> None:
        """Notes that no table is whole; see `CopyTarget`."""
        if self._following:
            self._following.close()
            self._following = None
        self._write_record(replace(self.record, whole=()))

    def follow(self, entries: Sequence[RelayEntry], gtids: GtidSet) -> None:
        """Changes the whole tables; see `CopyTarget`."""
        assert self._bound, "changes before `begin`"
        server, record = self._server, replace(self.record, gtids=gtids)
        if self._following is None:
            self._following = server.connect(self._tables.tables)
        changes = self._bound.changes(entries)
        whole = runs(each for each in changes if each.mapping.source in record.whole)
        statements = [statement for run in whole for statement in server.write(run)]
        statements += server.write(_noted(self._begun, record.encode()))
        begin, commit = server.begin(None), server.commit(None, is_durable=True)
        self._following.run(begin, *statements, *commit)
        self.record = record

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

    def complete(self, table: SourceTable) -> None:
        """Notes that a table is whole; its rows are committed."""
        self._write_record(replace(self.record, whole=[*self.record.whole, str(table)]))

    def finish(self, gtids: GtidSet) -> None:
        """Adds foreign keys, and notes the snapshot as executed, in the place of the record."""
        session, server = self._session, self._server
        self._constrain([self._tables.source_of(mapping) for mapping in self._tables.tables])
        checkpoint = replace(Checkpoint(), version=gtids.count(), gtid_executed=gtids)
        begun = TableChanges(ChangeKind.DELETE_ANY, CHECKPOINTS, (), [(self._begun,)])
        kept = self._tables.as_copied(partial(server.definitions, session))
        changes = [begun, _noted(self._replica, checkpoint.encode().decode())]
        changes += [kept_changes(self._owner, kept)] if kept else []
        begin, commit = server.begin(None), server.commit(None, is_durable=True)
        statements = [statement for each in changes for statement in server.write(each)]
        session.run(begin, *statements, *commit)

    def close(self) -> None:
        """Closes all sessions."""
        sessions = [self._session, *self._sessions.values()]
        for session in [*sessions, self._following] if self._following else sessions:
            session.close()

    def _define(self, table: SourceTable, definition: str) -> None:
        """Makes a table."""
        try:
            for statement in self._server.define(table, self._places, definition):
                self._session.run(statement)
        except GroupcertError:
            raise
        except Exception as error:  # The server's refusal, as its driver has it.
            raise UnsuitableTarget(
                target=self._server.name,
                problem=f"table {table} cannot be made there: {error}",
                expected="the table made by hand, without rows, and --copy again",
            ) from error

    def _constrain(self, tables: Sequence[SourceTable]) -> None:
        """Adds the foreign keys of tables that this copy made, to those that lack them."""
        found, server = self._found(), self._server
        for table in tables:
            place = self._places[str(table)]
            if str(table) in self.record.created and not found[place].parents:
                # Of a table, all or none.
                begin, commit = server.begin(None), server.commit(None, is_durable=True)
                self._session.run(begin, *server.constrain(table, self._places), *commit)

    def _parents(self, found: Mapping[str, FoundTable]) -> Mapping[str, Collection[str]]:
        """Returns the tables that each one's foreign keys refer to, at the source or the target."""
        names = {place: name for name, place in self._places.items()}
        parents = {
            str(table): {foreign.parent for foreign in table.foreign_keys}
            for table in map(self._tables.source_of, self._tables.tables)
        }
        for place, table in found.items():
            parents[names[place]].update(names[each] for each in table.parents if each in names)
        return {name: others & self._places.keys() for name, others in parents.items()}

    def _found(self) -> Mapping[str, FoundTable]:
        return self._server.find(self._session, [*self._places.values()])

    def _mapping(self, table: SourceTable) -> TableMapping:
        return self._mappings[str(table)]

    def _has_rows(self, name: str) -> bool:
        return bool(self._session.run(f"SELECT 1 FROM {self._server.table(name)} LIMIT 1"))

    def _read(self, replica: str) -> str | None:
        rows = self._session.run(
            "SELECT checkpoint FROM groupcert_checkpoint"
            f" WHERE replica = {self._server.literal(replica)}"
        )
        return rows[0][0] if rows else None

    def _write_record(self, record: CopyRecord) -> None:
        self._session.run(*self._server.write(_noted(self._begun, record.encode())))
        self.record = record


def _noted(replica: str, text: str) -> TableChanges:
    """Returns the change of the checkpoint's row that is under a name."""
    return TableChanges(ChangeKind.PUT, CHECKPOINTS, (), [(replica, text)])
