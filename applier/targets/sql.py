"""The SQL target: rows, and the GTIDs that wrote them, in the tables of a server.

A GTID is in `groupcert_executed` if and only if its rows are in the tables, because one transaction
of the server writes both. GTIDs are only inserted there, so that no two workers write one row;
`save` folds them into the one set of `groupcert_checkpoint`.

A worker has a session of its own, from its first job on. A transaction is two round trips, one to
execute and one to commit. The servers' different SQL is in a `SqlServer`.

Source: WL#5569, "Recovery" (low-water mark and each worker's groups, kept with the data); WL#4648,
P3 (two phases) and C0 (the newest change of a row wins).
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import chain, groupby
from typing import Any, NamedTuple, TypeVar

from ...certifier.errors import InvalidSetting
from ...certifier.gtid import Gtid
from ...certifier.gtid_set import GtidSet
from ..errors import TABLE_CHANGED, TransientFailure, UnsuitableTarget
from ..mysql_logs.statement_payload import has_statements
from ..queue.job import CommitGroup, Job
from ..queue.relay_group import RelayEntry
from ..queue.target_progress import Checkpoint, TargetProgress
from .logged_tables import (
    FIRST_START,
    KeptTables,
    Place,
    decode_kept,
    defined_anew,
    encode_kept,
)
from .sql_definitions import DefinedOnce
from .sql_prepared import PreparedRows
from .sql_server import ROWS_PER_STATEMENT, Alone, Branch, Session, SqlServer
from .sql_tables import (
    BoundTables,
    ChangeKind,
    Column,
    ColumnType,
    Definition,
    Row,
    RowChange,
    SourceTables,
    SqlValue,
    TableChanges,
    TableMapping,
    runs,
)

COMMIT_PAUSES_MS = (0, 50, 100, 200, 400, 800, 1_600)
"""Pauses before each attempt to commit again after the server lost or undid a commit."""
OWN_SESSIONS = 3
"""The target's own, one spare while a server does not notice a lost one, one at commit."""
_AT_COMMIT = -1
_REPLICA = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PART = "part "
CHECKPOINTS = TableMapping(
    source="",
    table="groupcert_checkpoint",
    key=(Column("replica", ColumnType.TEXT),),
    values=(Column("checkpoint", ColumnType.TEXT),),
)
KEPT = "table "
"""Stands before the names under which the tables that a target keeps are among the checkpoints."""
OWN_TABLES = (CHECKPOINTS.table, "groupcert_executed")

Result = TypeVar("Result")


class SqlExecution(NamedTuple):
    """An open transaction: the worker whose session has it, and its branch, if it is one. Or what
    is executed at the commit only, because no transaction takes it back: `definitions`.
    """

    worker: int
    branch: Branch | None
    definitions: Sequence[Definition] = ()


class SqlTarget:
    """A `Target` over a server."""

    def __init__(
        self,
        server: SqlServer,
        tables: SourceTables,
        *,
        replica: str,
        workers: int,
        two_phase: bool = False,
    ) -> None:
        """Checks the server, then creates the replica's own tables.

        Raises:
            InvalidSetting: `replica` is not a valid name.
            UnsuitableTarget: tables or settings do not fit, or another replica has the name; with
                all problems at once, and nothing was written.
        """
        if not _REPLICA.fullmatch(replica):
            expected = "1 to 64 letters, digits, underscores, dots, dashes"
            raise InvalidSetting(name="replica", value=replica, expected=expected)
        self._server = server
        self._replica = replica
        self._owner = sha256(replica.encode()).hexdigest()[:16]
        self._two_phase = two_phase
        self._source_tables = tables
        self._sessions: dict[int, _WorkerSession] = {}
        self._translated: dict[tuple[int, int], Sequence[str]] = {}
        """Statements of the jobs that come next, by the positions of their entries."""
        self._own: Session | None = None
        self._own_lock = threading.RLock()
        self._closed = False
        self._prepared = PreparedRows(server, replica)
        self._saved = GtidSet()
        self._deleted = GtidSet()
        try:
            self._tables = self._suitable(tables, workers)
        except BaseException:
            self.close()
            raise

    def translate(self, entries: Sequence[RelayEntry]) -> None:
        """Makes the statements of entries that are all rows. An error comes again in their turn, if
        it is one by then: what is before them may define their tables.
        """
        if any(has_statements(entry.payload) for entry in entries):
            return
        with suppress(Exception):
            writes = self._replay(entries)
            if writes is None:
                writes = self._writes(self._tables.changes(entries))
            self._translated[_span(entries)] = writes

    def execute(self, job: Job[SqlExecution]) -> SqlExecution:
        """Writes the job's rows and GTIDs in a transaction that stays open.

        Raises:
            TransientFailure: nothing of the job was written.
            UnsuitableTarget: a row does not fit its table; nothing was written.
        """
        return self._execute(job, self._translated.pop(_span(job.entries), None), by_events=True)

    def _execute(
        self, job: Job[SqlExecution], writes: Sequence[str] | None, *, by_events: bool
    ) -> SqlExecution:
        worker = _AT_COMMIT if job.at_commit else job.worker
        changes: list[RowChange] = []
        kept: list[str] = []
        if writes is None:
            if definitions := self._tables.statements(job.entries):
                return SqlExecution(worker, None, definitions)
            entries, kept = self._prepared.steps(job, self._ask)
            if by_events and job.part is None and not job.keeps_newest:
                writes = self._replay(entries)
            if writes is None:
                changes = self._tables.changes(entries)
            if (part := job.part) is not None:
                changes = [change for change in changes if part.takes(change.name)]
        gtid = job.entries[0].gtid
        branch = None
        if self._two_phase and job.parts > 1 and gtid:
            assert job.part is not None, "a divided transaction without its part"
            branch = Branch(self._owner, gtid, job.part.slot)
        begin = self._server.begin(branch)
        # Which rows to write is known only from the answer, which also takes the locks of their
        # versions.
        begins_first = job.keeps_newest and bool(changes)
        try:
            if begins_first:
                self._run(worker, begin)
                changes = self._newest(worker, changes)
            if writes is None:
                writes = self._writes(changes)
            # Events, which go alone, come last: they are not between two other requests then.
            statements = [*kept, *self._marks(job), *writes]
            if not begins_first:
                statements.insert(0, begin)
            self._run(worker, *statements, is_open=begins_first)
        except BaseException as error:
            self._undo(worker, branch)
            if _are_refused_events(error, writes):
                # In words: what stops a replica names its table and its row.
                return self._execute(job, None, by_events=False)
            error.add_note(f"executing {gtid} at position {job.entries[0].position}")
            raise
        return SqlExecution(worker, branch)

    def commit(self, group: CommitGroup[SqlExecution], progress: TargetProgress) -> None:
        """Commits one job after the other, the last one durably, which makes all of them durable.

        A job that the server lost or undid at its commit is executed again here, in its turn. But
        with a lost server, visible commits that were not durable may be lost, and others that built
        on them: then only the server's checkpoint has the point from which to continue.

        Raises:
            TransientFailure: the server was lost; some commits of this target may be lost too.
        """
        units = list(self._units(group))
        finished = 0
        try:
            for unit in units[:-1]:
                self._finish(unit, is_durable=False)
                finished += 1
                group.visible(len(unit))
            self._finish(units[-1], is_durable=True)
        except TransientFailure as failure:
            is_lost = finished and failure.kind == "connection_lost"
            if is_lost or failure.kind == TABLE_CHANGED:
                raise
            # One behind it may hold the lock that the failed one waits for, in this group, too.
            for job in chain.from_iterable(units[finished + 1 :]):
                if job.execution is not None:
                    self._undo(job.execution.worker, job.execution.branch)
            for unit in units[finished:]:
                self._retrying(partial(self._finish_again, unit, group.make_way))
        progress.advance(group)

    def abandon(self, job: Job[SqlExecution]) -> None:
        """Rolls back an execution that was not committed."""
        if job.execution is not None:
            self._undo(job.execution.worker, job.execution.branch)
            job.execution = None

    def checkpoint(self) -> Checkpoint | None:
        """Returns the saved checkpoint and the GTIDs executed since; settles a crash's branches."""
        with self._own_lock:
            self._retrying(lambda: self._settle(None))
            replica = self._literal(self._replica)
            saved = self._ask(
                f"SELECT checkpoint FROM groupcert_checkpoint WHERE replica = {replica}"
            )
            rows = self._ask(
                "SELECT source, number, part, version FROM groupcert_executed"
                f" WHERE replica = {replica}"
            )
        if not saved and not rows:
            return None
        checkpoint = Checkpoint.decode(saved[0][0].encode()) if saved else Checkpoint()
        self._saved = checkpoint.gtid_executed
        executed = checkpoint.gtid_executed.copy()
        for source, number, part, _ in rows:
            if not part:
                executed.add_number(source, number)
        parts: dict[Gtid, frozenset[str]] = {}
        for source, number, part, _ in rows:
            gtid = Gtid(source, number)
            if part and gtid not in executed:
                parts[gtid] = parts.get(gtid, frozenset()) | {part.removeprefix(_PART)}
        version = max((version for *_, version in rows), default=0)
        version = max(version, checkpoint.version)
        return replace(checkpoint, version=version, gtid_executed=executed, parts=parts)

    def save(self, checkpoint: Checkpoint) -> None:
        """Writes the checkpoint, and deletes the GTIDs of the previous one: those after them are
        committed, so that a range of them meets no lock of a worker. If it does, it is left for the
        next time.
        """
        old = self._saved.difference(self._deleted)
        # Parts stay in the rows of `groupcert_executed`, and are read from there.
        encoded = replace(checkpoint, parts={}).encode().decode()
        row = TableChanges(ChangeKind.PUT, CHECKPOINTS, (), [(self._replica, encoded)])
        deletes = [
            f"DELETE FROM groupcert_executed WHERE replica = {self._literal(self._replica)}"
            f" AND source = {self._literal(source)} AND number BETWEEN {first} AND {last}"
            for source in old.sources()
            for first, last in old.intervals(source)
        ]
        begin, commit = self._server.begin(None), self._server.commit(None, is_durable=True)
        statements = [begin, *self._server.write(row), *deletes, *commit]
        try:
            self._ask(*statements)
        except TransientFailure as failure:
            if failure.kind == "lock_timeout":
                return
            self._retrying(lambda: self._ask(*statements))
        self._deleted, self._saved = self._saved, checkpoint.gtid_executed

    def close(self) -> None:
        """Closes all sessions; a worker that is still active gets no other."""
        with self._own_lock:
            self._closed = True
            own, self._own = self._own, None
        for worker in list(self._sessions):
            self._drop(worker)
        if own:
            own.close()

    def _suitable(self, tables: SourceTables, workers: int) -> BoundTables:
        """Returns the tables as the server has them, after checking its settings, too."""
        server = self._server
        session = self._own_session()
        branches = workers if self._two_phase else 0
        sessions = workers + OWN_SESSIONS
        if wrong := list(server.problems(session, sessions=sessions, branches=branches)):
            raise UnsuitableTarget(
                target=server.name, problem="; ".join(wrong), expected="settings as named"
            )
        place = self._place(session)
        self._source_tables = tables = tables.at(place, partial(server.definitions, session))
        names = [mapping.table for mapping in tables.tables]
        found = server.find(session, names)
        tables.bind(found, server.name)
        others = tables.others
        is_missing = others is not None and others.table not in found
        self._ask(*server.create(others if is_missing else None))
        bound = tables.bind(server.find(session, names), server.name)
        before = place.kept or {}
        new = {name: table for name, table in tables.kept.items() if table != before.get(name, "")}
        if new:
            self._ask(*self._keeping(new))
        return bound

    def _place(self, session: Session) -> Place:
        """Returns where the target is, with the tables that it has kept."""
        if len(self._server.find(session, OWN_TABLES)) < len(OWN_TABLES):
            return FIRST_START
        checkpoint = self.checkpoint()
        if checkpoint is None:
            return FIRST_START
        like = self._literal(f"{KEPT}{self._owner} %")
        rows = self._ask(f"SELECT checkpoint FROM groupcert_checkpoint WHERE replica LIKE {like}")
        return Place(checkpoint.gtid_executed, dict(decode_kept(text) for (text,) in rows))

    def _keeping(self, kept: KeptTables) -> list[str]:
        """Returns the statements that keep tables."""
        return [*self._server.write(kept_changes(self._owner, kept))] if kept else []

    def _replay(self, entries: Sequence[RelayEntry]) -> Sequence[str] | None:
        """Returns the statements that execute the source's own events, if the server does."""
        server = self._server.replaying
        if server is None:
            return None
        events = self._tables.row_events(entries, server.database)
        return None if events is None else server.replay(events)

    def _writes(self, changes: Iterable[RowChange]) -> list[str]:
        """Returns the statements that make changes."""
        return [each for run in runs(changes) for each in self._server.write(run)]

    def _newest(self, worker: int, changes: Sequence[RowChange]) -> list[RowChange]:
        """Returns the changes of rows that are newer than the server's, and stores their versions
        there; a deleted row keeps its version.
        """
        # Sorted, so that transactions that share rows lock them in one order.
        versions = sorted({change.name: change.version for change in changes}.items())
        newest: set[bytes] = set()
        for start in range(0, len(versions), ROWS_PER_STATEMENT):
            chunk = versions[start : start + ROWS_PER_STATEMENT]
            newer = self._server.newest(self._replica, chunk)
            found = self._run(worker, *newer, is_open=True)
            newest.update(name for (name,) in found)
        return [change for change in changes if change.name in newest]

    def _marks(self, job: Job[SqlExecution]) -> list[str]:
        """Returns the statements that note the job's GTIDs, or its part of one, as executed."""
        part = "" if job.part is None else f"{_PART}{job.part}"
        return self._inserts(job.entries, part, job.worker)

    def _inserts(self, entries: Iterable[RelayEntry], part: str, worker: int) -> list[str]:
        literal = self._literal
        rows = [
            f"({literal(self._replica)},{literal(entry.gtid.source)},{entry.gtid.number},"
            f"{literal(part)},{worker},{entry.version})"
            for entry in entries
            if entry.gtid
        ]
        columns = "replica, source, number, part, worker, version"
        # No statement where no entry has a GTID.
        return [f"INSERT INTO groupcert_executed ({columns}) VALUES {','.join(rows)}"][: len(rows)]

    def _units(self, group: CommitGroup[SqlExecution]) -> Iterator[list[Job[SqlExecution]]]:
        """Yields the jobs that this process executed; together those that commit in two phases."""
        jobs = [job for job in group.jobs if job.execution is not None]
        for _, run in groupby(jobs, key=lambda job: job.entries[0].position):
            unit = list(run)
            if self._two_phase and len(unit) == unit[0].parts:
                yield unit
            else:
                yield from ([job] for job in unit)

    def _finish(self, unit: list[Job[SqlExecution]], *, is_durable: bool) -> None:
        """Commits one job, or all the jobs of one transaction."""
        server = self._server
        executions = [job.execution for job in unit if job.execution is not None]
        assert len(executions) == len(unit), "committed before it was executed"
        if executions[0].definitions:
            self._define(unit[0], executions[0])
            return
        if len(unit) == 1:
            worker, branch, _ = executions[0]
            self._run(worker, *server.commit(branch, is_durable=is_durable), is_open=True)
            return
        branches = [(worker, branch) for worker, branch, _ in executions if branch]
        for worker, branch in branches:
            self._run(worker, *server.prepare(branch), is_open=True)
        self._decide(unit[0].entries)
        for worker, branch in branches:
            self._run(worker, server.commit_prepared(branch))

    def _define(self, job: Job[SqlExecution], execution: SqlExecution) -> None:
        """Executes definitions of tables, then notes them, and that their tables are others now."""
        worker, server = execution.worker, self._server
        statements = [each.statement for each in execution.definitions]
        notes = self._keeping(dict.fromkeys(defined_anew(self._source_tables.kept, statements)))
        wanted = [each for each in execution.definitions if not each.statement.is_skipped]
        if wanted:
            assert server.defining, "definitions at a server of another kind"
            once = DefinedOnce(server.defining, self._replica, self._owner)
            once.execute(partial(self._run, worker), str(job.entries[0].gtid), wanted)
            notes.append(once.forget())
        begin, commit = server.begin(None), server.commit(None, is_durable=True)
        self._run(worker, begin, *notes, *self._marks(job), *commit)
        if notes:
            raise TransientFailure(kind=TABLE_CHANGED, text="its tables are looked up again")

    def _finish_again(self, unit: list[Job[SqlExecution]], make_way: Callable[[], None]) -> None:
        """Checks whether a unit was committed, and executes and commits it if not."""
        for job in unit:
            assert job.execution is not None, "committed before it was executed"
            # It may be lost, or in a transaction that the server has undone. A new session is in
            # none.
            self._drop(job.execution.worker)
        gtid = unit[0].entries[0].gtid
        with self._own_lock:
            if len(unit) > 1:
                self._settle(gtid)
            if gtid is None or self._is_executed(unit[0], gtid, is_whole=len(unit) > 1):
                return
            # A deferred foreign key takes its lock at the commit, and a younger job may hold it
            # that waits for this one to be visible.
            make_way()
            for job in unit:
                job.execution = self.execute(job)
            self._finish(unit, is_durable=True)

    def _decide(self, entries: Sequence[RelayEntry]) -> None:
        """Notes the whole transaction as executed: its branches must be committed from now on."""
        begin, commit = self._server.begin(None), self._server.commit(None, is_durable=True)
        self._ask(begin, *self._inserts(entries, "", _AT_COMMIT), *commit)

    def _settle(self, gtid: Gtid | None) -> None:
        """Commits the prepared branches that were decided on and rolls the others back, of the
        transaction `gtid` or, if None, of all.
        """
        server = self._server
        with self._owning() as session:
            branches = server.prepared(session, self._owner)
        for branch in branches:
            if gtid is None or branch.gtid == gtid:
                is_decided = self._is_decided(branch.gtid)
                settle = server.commit_prepared if is_decided else server.roll_back_prepared
                self._ask(settle(branch))

    def _is_decided(self, gtid: Gtid) -> bool:
        """Returns whether the whole transaction is noted as executed, in either table."""
        if self._count(gtid, ""):
            return True
        replica = self._literal(self._replica)
        saved = self._ask(f"SELECT checkpoint FROM groupcert_checkpoint WHERE replica = {replica}")
        return bool(saved) and gtid in Checkpoint.decode(saved[0][0].encode()).gtid_executed

    def _is_executed(self, job: Job[SqlExecution], gtid: Gtid, *, is_whole: bool) -> bool:
        """Returns whether a job is committed; of its GTIDs, all are or none is."""
        part = "" if is_whole or job.part is None else f"{_PART}{job.part}"
        return bool(self._count(gtid, part))

    def _count(self, gtid: Gtid, part: str) -> int:
        ((count,),) = self._ask(
            "SELECT count(*) FROM groupcert_executed"
            f" WHERE replica = {self._literal(self._replica)}"
            f" AND source = {self._literal(gtid.source)} AND number = {gtid.number}"
            f" AND part = {self._literal(part)}"
        )
        return int(count)

    def _run(
        self, worker: int, *statements: str, is_open: bool = False
    ) -> Sequence[tuple[Any, ...]]:
        """Runs statements in a worker's session. A lost session is renewed, but not while a
        transaction `is_open`: a new session would commit nothing, without an error.
        """
        session = self._sessions.get(worker)
        if session is None:
            if is_open:
                raise TransientFailure(kind="connection_lost", text="the session has ended")
            session = _WorkerSession(self._server.connect(self._source_tables.tables))
            self._sessions[worker] = session
        if self._closed:
            self._drop(worker)
            raise TransientFailure(kind="connection_lost", text="the target is closed")
        try:
            return session.run(*statements)
        except TransientFailure as failure:
            if failure.kind == "connection_lost":
                self._drop(worker)
            raise

    def _ask(self, *statements: str) -> Sequence[tuple[Any, ...]]:
        """Runs statements in the target's own session."""
        with self._owning() as session:
            return session.run(*statements)

    @contextmanager
    def _owning(self) -> Iterator[Session]:
        """Yields the target's own session; renews it after a failure, as a transaction may be
        open.
        """
        with self._own_lock:
            session = self._own_session()
            try:
                yield session
            except BaseException:
                self._own = None
                session.close()
                raise

    def _own_session(self) -> Session:
        if self._own is None:
            if self._closed:
                raise TransientFailure(kind="connection_lost", text="the target is closed")
            session = self._server.connect()
            # The lock of the name ends with the session that took it: meanwhile another process may
            # have it.
            if not self._server.lock(session, self._owner):
                session.close()
                raise UnsuitableTarget(
                    target=self._server.name,
                    problem=f"another process writes here as replica {self._replica}",
                    expected="a name of its own for each replica, or the other one stopped",
                )
            self._own = session
        return self._own

    def _undo(self, worker: int, branch: Branch | None) -> None:
        """Rolls back the open transaction of a worker's session."""
        if branch is not None:
            self._drop(worker)
        elif session := self._sessions.get(worker):
            try:
                session.run("ROLLBACK")
            except TransientFailure:
                self._drop(worker)

    def _drop(self, worker: int) -> None:
        if session := self._sessions.pop(worker, None):
            session.close()

    def _retrying(self, action: Callable[[], Result]) -> Result:
        """Calls `action` until it succeeds, at most once for each of COMMIT_PAUSES_MS."""
        *pauses_ms, last_ms = COMMIT_PAUSES_MS
        for pause_ms in pauses_ms:
            time.sleep(pause_ms / 1000)
            try:
                return action()
            except TransientFailure:
                continue
        time.sleep(last_ms / 1000)
        return action()

    def _literal(self, value: SqlValue) -> str:
        return self._server.literal(value)


def kept_changes(owner: str, kept: KeptTables) -> TableChanges:
    """Returns the change of the checkpoints that keeps tables, as a replica's `owner` hash."""
    rows = [
        (
            f"{KEPT}{owner} {sha256(name.encode()).hexdigest()[:16]}",
            encode_kept(name, table).decode(),
        )
        for name, table in kept.items()
    ]
    return TableChanges(ChangeKind.PUT, CHECKPOINTS, (), list[Row](rows))


def _are_refused_events(error: BaseException, writes: Sequence[str] | None) -> bool:
    """Returns whether a server has refused a source's own events, whenever they come."""
    if not any(isinstance(each, Alone) for each in writes or ()):
        return False
    if isinstance(error, TransientFailure):
        return error.kind in ("no_row", "duplicate_key", "foreign_key")
    return isinstance(error, Exception)


def _span(entries: Sequence[RelayEntry]) -> tuple[int, int]:
    return entries[0].position, entries[-1].position


class _WorkerSession:
    """A session that may be closed during a statement, and ends after it; no driver can do so."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._in_use = threading.Lock()
        self._closed = False

    def run(self, *statements: str) -> Sequence[tuple[Any, ...]]:
        """Runs statements as `Session.run` does."""
        try:
            with self._in_use:
                return self._session.run(*statements)
        finally:
            if self._closed:
                self.close()

    def close(self) -> None:
        """Closes the session now, or after its current statement."""
        self._closed = True
        if self._in_use.acquire(blocking=False):
            try:
                self._session.close()
            finally:
                self._in_use.release()
