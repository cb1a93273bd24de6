"""What takes the place of an `Applier` where a PostgreSQL server keeps a member's rows.

The rule it keeps: what is visible at the server is a prefix of the total order. The server's
backends ask at their COMMIT; the member certifies what they have changed, gives them their turns,
and executes there what others committed. What is executed is noted at the server, by the
transactions that execute it: a run begins behind that, whatever became of server or member.

The relay queue keeps an entry until the server has it on disk. Visible is not enough: after a crash
the server may lack its last commits, which the next run executes again. It keeps an executed one
for a while, without gaps: a member that copies the queue may have a server that lacks it.
"""

import asyncio
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import psycopg
import structlog

from groupcert.v1.postgresql_pb2 import PostgresqlStatus

from ...applier.engine.applier import ApplierState, ApplierStatus
from ...applier.queue.fragment_references import changes_bytes, is_reference
from ...applier.queue.relay_group import RelayEntry, RelayGroup
from ...applier.queue.target_progress import Checkpoint, LastError, Stage
from ...applier.targets.rocksdb import RowsSnapshot
from ...certifier.errors import GroupcertError, NotServing, TransactionTooLarge
from ...certifier.gtid import Gtid
from ...certifier.records import Outcome, Verdict
from ..core.admission import takes_anything, why_not
from ..core.log_records import LoggedTransaction
from ..core.publisher import Submission
from ..core.views import MemberState
from ..errors.postgresql_servers import CopyNeeded, RowsAtServer, RowsNotExecuted
from ..errors.transactions import OutcomeUnknown
from ..large_transactions.fragment_store import FragmentStore, drop, names_of
from ..runtime.runtime import MemberRuntime
from ..services.submitting import submit_uploaded
from ..wire.pieces import joined
from ..wire.requests import check_size
from ..wire.status_documents import fields_of
from .backends import Backend, BackendServer, Refusal, Request, Wait
from .commit_order import CommitOrder, Entry, Execute, Grant, Local, Take
from .database import LEAVE_SECONDS, Database, decoded
from .holds import Holds
from .refusals import (
    SQLSTATES,
    given_up,
    out_of_group,
    refusal_of,
    refusal_of_error,
    truncated_too_late,
)
from .schema_changes import ITEM, change_of, in_turns
from .server_rows import ServerComparison
from .standing import Standing
from .statements import Batch

FOLD_SECONDS = 5.0
CONFIRM_SECONDS = 0.05
"""Between two looks at how granted transactions ended."""
AWAITED_SECONDS = 0.002
"""The same, while a session waits for one of them."""
LATE_SECONDS = 1.0
"""Between two looks for backends that hold up the order."""
DURABLE_SECONDS = 0.2
"""Between two looks at what the server has on disk, about what its WAL writer takes."""
STANDING_SECONDS = 0.25

HELD_UP = (
    "backend {pid} has its turn, has not committed for {seconds:.0f} s and cannot be ended (a"
    " debugger?); all commits wait for it, and kill -9 of it restarts the server"
)
CRASHED = "it has crashed, or ended its member's sessions"

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Pieces:
    """The rows of a large transaction, read from the member's store piece by piece, as often as one
    goes through them.
    """

    def __init__(self, fragments: FragmentStore, payload: bytes) -> None:
        self._fragments = fragments
        self._payload = payload

    def __iter__(self) -> Iterator[bytes]:
        return self._fragments.pieces(self._payload)


class _Received(NamedTuple):
    """What is known of an entry of the total order until the server has it on disk."""

    version: int
    position: int
    gtid: Gtid | None
    payload: bytes
    """A reference to fragments; empty for all others."""


class ServerApplier:
    """One run of a member at its server: the rows of the member."""

    def __init__(
        self,
        database: Database,
        standing: Standing,
        executed: Checkpoint,
        runtime: MemberRuntime,
        fragments: FragmentStore,
    ) -> None:
        """Begins behind what is executed at the server; `start` has it do the work."""
        self._database = database
        self._standing = standing
        self._runtime = runtime
        self._fragments = fragments
        self.comparison = ServerComparison(database, runtime)
        self._compared_position = -1
        self._order = CommitOrder(executed.version)
        self._backends: dict[Local, Backend] = {}
        self._received: deque[_Received] = deque()
        self._visible: deque[_Received] = deque()
        """Executed entries that are not known to be on disk."""
        self._durable: deque[_Received] = deque()
        """Large transactions that are on disk, and that the relay queue still has."""
        self._executed = executed.gtid_executed
        self._position = executed.position
        self._done_version = executed.version
        self._durable_position = executed.position
        self._news = asyncio.Event()
        self._granted = asyncio.Event()
        self._suspected = asyncio.Event()
        """Set when a granted transaction may have ended without its commit."""
        self._settled = asyncio.Event()
        self._awaited = 0
        """Sessions that wait for what has been certified."""
        self._status = database.status
        self._status.refused_transactions.update(dict.fromkeys(SQLSTATES, 0))
        self._certifying: set[Request] = set()
        self._newest: defaultdict[str, int] = defaultdict(lambda: executed.version)
        """By table, the newest version that may have rows of it."""
        self._executing: Entry | None = None
        self._moved = 0.0
        """When the order went on, by `time.monotonic`."""
        self._held_up = ""
        """The backend that has its turn and does not react, in words; "": none."""
        self._holds = Holds(runtime.held, self._database, lambda: self._done_version)
        self._failed = ""
        self._failure: LastError | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def checkpoint(self) -> Checkpoint:
        """Returns the version, the position and the GTIDs that are executed at the server."""
        return Checkpoint(
            version=self._done_version,
            position=self._position,
            gtid_executed=self._executed.copy(),
        )

    def recover(self, groups: Iterable[Sequence[RelayEntry]]) -> None:
        """Takes the entries that an earlier run has stored."""
        for group in groups:
            self.append(group)

    def append(self, entries: Sequence[RelayEntry]) -> None:
        """Takes entries of the total order; those that the server has executed are skipped."""
        group = RelayGroup.of(entries)
        columns = zip(
            group.positions,
            group.versions,
            group.sources,
            group.numbers,
            group.payloads,
            strict=True,
        )
        waiting: list[Entry] = []
        for position, version, source, number, payload in columns:
            is_large = is_reference(payload)
            if position <= self._position and not is_large:
                continue  # Executed; the relay queue keeps it for other servers.
            gtid = Gtid(source, number) if source else None
            self._received.append(_Received(version, position, gtid, payload if is_large else b""))
            if position == self._compared_position:
                self._order.take_after(version, position)
            if gtid and version > self._done_version:
                parts = Pieces(self._fragments, payload) if is_large else [payload]
                waiting.append(Entry(version, gtid, parts, position, changes_bytes(payload)))
        self._order.received(waiting)
        self._news.set()

    def expect_comparison(self, position: int) -> None:
        """Has the rows taken for the comparison at `position`, which comes with the next entries:
        behind all that is before it, before all that is behind it.
        """
        self._compared_position = position
        self.comparison.expect()

    def check_readable(self, _member: str) -> None:
        """Raises RowsAtServer: clients read by SQL, which knows the types of what they read."""
        raise RowsAtServer(server=self._database.name)

    def open_snapshot(self) -> RowsSnapshot:
        """Raises RowsAtServer, as `check_readable`."""
        raise RowsAtServer(server=self._database.name)

    def relay_first_version(self) -> int:
        """Returns the oldest version that the relay queue has, or would have next."""
        window = self._runtime.member.certifier.window
        return self._runtime.relay_queue.first_version or window.newest_version + 1

    def lasting(self, _position: int) -> int:
        """Returns -1: members of other servers may need all that the relay queue keeps."""
        return -1

    def flush_up_to(self, version: int) -> None:
        """Does nothing: `_make_durable` looks what is on the server's disk again and again."""

    def start(self) -> None:
        """Begins to serve the server's backends."""
        self._task = self._loop.create_task(self._run_until_error())

    def stop(self, _seconds: float = 0.0) -> None:
        """Serves no longer; any thread may call."""
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def close(self) -> None:
        """Ends the comparison; `RowsServer.close` ends the sessions."""
        self.comparison.stop()

    async def ended(self) -> None:
        """Returns once it serves nobody any more; `stop` comes before."""
        if self._task is not None:
            # psycopg cancels queries for the first cancellation, and closes sessions for a second
            # one, which may have to say that the server has left: for one that stands still.
            await asyncio.wait({self._task}, timeout=LEAVE_SECONDS)
            self._task.cancel()
            await asyncio.wait({self._task})

    def status(self) -> ApplierStatus:
        """Returns the status of what executes entries at the server."""
        order = self._order
        waiting = order.entries_count + order.waiting_count + len(order.granted)
        return ApplierStatus(
            state=ApplierState.FAILED if self._failure else ApplierState.RUNNING,
            length=waiting,
            assigned=0,
            pending_bytes=0,
            committed_total=self._status.committed_transactions,
            groups_total=self._status.committed_transactions,
            skipped_total=0,
            parallelism_mean=0.0,
            checkpoint=self.checkpoint(),
            low_water_mark=None,
            hold=None,
            is_sequential=False,
            holds={},
            fallbacks={},
            workers=(),
            failure=self._failure,
        )

    async def _run_until_error(self) -> None:
        try:
            await self._run()
        except psycopg.OperationalError as error:
            self._runtime.give_up(self._database.lost(error))
        except Exception as error:
            self._failed = str(error)
            self._failure = LastError.of(Stage.EXECUTING, error)
            self._runtime.give_up(error)
            with suppress(psycopg.Error):
                await self._standing.leave(self._failed)

    async def _run(self) -> None:
        """Serves until an error, or until it is cancelled.

        Raises:
            psycopg.OperationalError: The server has gone, or ended a session.
            RowsNotExecuted: A transaction of another server cannot be executed here.
        """
        socket = self._database.socket
        server = BackendServer(
            socket, self._serve, self._suspected.set, lambda: fields_of(self.server_status())
        )
        self._check_reach()
        self._note_visible(self._done_version)
        async with server:
            log.info("server_opened", version=self._order.version, socket=str(socket.path))
            duties = (
                self._take_turns,
                self._confirm,
                self._fold,
                self._end_late,
                self._make_durable,
                self._stand,
                self._be_watched,
                self._holds.run,
            )
            tasks = [asyncio.create_task(duty()) for duty in duties]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
        for result in ended:
            if isinstance(result, Exception):
                raise result

    def _check_reach(self) -> None:
        """Raises CopyNeeded if the member's state does not reach back to the server's version."""
        first = self._order.first_version or (
            self._runtime.member.certifier.window.newest_version + 1
        )
        if first > self._done_version + 1:
            raise CopyNeeded(server=self._database.name, version=self._done_version, first=first)

    def server_status(self) -> PostgresqlStatus:
        """Returns the numbers that `groupcert postgresql status` shows."""
        order, status, runtime = self._order, self._status, self._runtime
        newest = runtime.member.certifier.window.newest_version
        status.member = runtime.config.address
        status.out_of_group = self._standing.reason or self._held_up
        status.version = self._done_version
        status.behind_transactions = max(0, newest - self._done_version)
        status.pending_transactions = order.entries_count
        status.certifying_transactions = len(self._certifying)
        status.waiting_transactions = order.waiting_count
        status.granted_transactions = len(order.granted)
        status.held_snapshot_version = runtime.held.oldest
        status.waits_for = self._waits_for()
        waits_seconds = time.monotonic() - self._moved if status.waits_for else 0.0
        status.waits_seconds = round(waits_seconds, 3)
        return status

    def _waits_for(self) -> str:
        """Returns the transaction that holds up the order, and its owner, in words; "": none."""
        order = self._order
        if order.granted:
            first = order.granted[0]
            return f"backend {first.pid}, which commits {first.entry.gtid}"
        if (entry := self._executing) is not None:
            return f"{entry.gtid} of another server, version {entry.version}"
        return ""

    async def _serve(self, backend: Backend, request: Request | Wait) -> None:
        """Serves a transaction, or who waits for a version."""
        if isinstance(request, Wait):
            await self._wait(backend, request)
        else:
            await self._certify(backend, request)

    async def _certify(self, backend: Backend, request: Request) -> None:
        """Certifies a transaction, and lets it wait for its turn."""
        if reason := self._standing.reason or self._held_up:
            self._refuse(backend, out_of_group(reason))
            return
        if not backend.is_checked and not await self._is_of_this_server(backend):
            self._refuse(backend, out_of_group(CRASHED))
            return
        truncated = request.changes.truncated
        if late := [name for name in truncated if self._newest[name] > request.version]:
            self._refuse(backend, truncated_too_late(late[0], self._newest[late[0]]))
            return
        changes = request.changes
        logged = LoggedTransaction(
            uuid.uuid4().bytes, request.version, list(changes.write_set), [ITEM]
        )

        def decided(submission: Submission) -> None:
            (outcome,) = submission.outcomes
            assert outcome is not None, "ended undecided"
            self._decided(backend, request, outcome)

        self._certifying.add(request)
        try:
            await self._submit(logged, request, decided)
        except NotServing as error:
            if request in self._certifying:  # Else it waits for its turn, or has had it.
                is_unknown = error.ordered != "nothing"
                cause = OutcomeUnknown(transaction_id=logged.transaction_id, cause=str(error))
                self._refuse(backend, refusal_of_error(cause if is_unknown else error))
        except GroupcertError as error:
            self._refuse(backend, refusal_of_error(error))
        finally:
            self._certifying.discard(request)

    async def _wait(self, backend: Backend, wait: Wait) -> None:
        """Tells who waits for a version that it is visible here. A server that takes no writes is
        read, too, while its member is ONLINE.
        """
        if not backend.is_checked and not await self._is_of_this_server(backend):
            backend.refuse(out_of_group(CRASHED))
            return
        try:
            version = await self._newest_certified() if wait.version is None else wait.version
            self._awaited += 1
            self._suspected.set()
            try:
                await self._runtime.committed(version)
            finally:
                self._awaited -= 1
        except GroupcertError as error:
            backend.refuse(refusal_of_error(error))
        else:
            backend.tell_executed(version)

    async def _newest_certified(self) -> int:
        """Returns the version of all that the log has now, by a mark at its end.

        Raises:
            NotServing: The member is not ONLINE, or stopped being so.
        """
        known: asyncio.Future[int] = self._loop.create_future()
        # It ends when that is visible, too; by then nobody has to look for it.
        ended = self._runtime.submit((), lambda mark: known.set_result(mark.version))
        try:
            await asyncio.wait((known, ended), return_when=asyncio.FIRST_COMPLETED)
            return known.result() if known.done() else ended.result().version
        finally:
            ended.cancel()

    async def _submit(
        self,
        logged: LoggedTransaction,
        request: Request,
        decided: Callable[[Submission], None],
    ) -> None:
        """Orders a transaction, a large one after its rows; returns once it is visible here."""
        runtime, changes = self._runtime, request.changes
        limits = runtime.limits()
        if changes.size <= runtime.config.fragment_bytes:
            logged = logged._replace(payload=joined(changes.parts))
            check_size(logged, limits)
            await runtime.submit((logged,), decided)
            return
        check_size(logged, limits)
        if changes.size > limits.transaction_bytes_max:
            raise TransactionTooLarge(bytes=changes.size, bytes_max=limits.transaction_bytes_max)
        release = runtime.held.hold_all([request.version])
        try:
            with runtime.uploads.begin(2 * changes.size) as upload:
                for part in changes.parts:
                    await upload.add(part)
                await upload.finish()
                logged = logged._replace(payload=upload.reference)
                await submit_uploaded(runtime, [upload], [logged], decided)
        finally:
            release()

    def _decided(self, backend: Backend, request: Request, outcome: Outcome) -> None:
        """Takes the verdict, in the step of the event loop in which its entry was appended."""
        self._certifying.discard(request)
        changes = request.changes
        if outcome.verdict is not Verdict.CERTIFIED:
            item = outcome.conflict.item if outcome.conflict else ITEM
            row = "the schema" if item == ITEM else changes.name_of(item)
            self._refuse(backend, refusal_of(outcome, row))
            return
        self._note_tables(outcome.version, changes.tables)
        self._status.certified_transactions += 1
        local = self._order.decided(outcome.version, request.transaction_id, request.pid)
        self._backends[local] = backend
        self._news.set()

    async def _is_of_this_server(self, backend: Backend) -> bool:
        """Returns whether the server has not crashed between the start of this run and that of a
        backend. One that has crashed may lack its last commits, and takes clients before this run
        sees that its sessions are gone. A commit there would come before those commits, which
        nobody would execute again. No backend outlives a crash: one look for each connection is
        enough.
        """
        with suppress(psycopg.OperationalError):  # The next run begins behind what is there.
            await self._database.check_alive()
            backend.is_checked = True
        return backend.is_checked

    def _refuse(self, backend: Backend, refusal: Refusal) -> None:
        self._status.refused_transactions[refusal.sqlstate] += 1
        backend.refuse(refusal)

    async def _take_turns(self) -> None:
        """Does what has its turn, again and again."""
        while True:
            await self._news.wait()
            self._news.clear()
            while step := self._order.next_step():
                if isinstance(step, Grant):
                    self._answer(step)
                    self._granted.set()
                elif isinstance(step, Execute):
                    await self._execute(step)
                else:
                    await self._take_rows(step)
            self._note_visible(self._done_version)  # View changes have no turn.

    def _answer(self, grant: Grant) -> None:
        """Lets a backend commit; one that is gone is found by `_confirm`."""
        local, after = grant
        # Those behind wait for the first one, so only its time counts for `_end_late`.
        if len(self._order.granted) == 1:
            self._moved = time.monotonic()
        self._backends[local].grant(local.entry, after)

    async def _execute(self, step: Execute) -> None:
        """Executes entries; if the backend before them has died, once they have nobody before."""
        self._executing, self._moved = step.entries[0], time.monotonic()
        for entries in in_turns(step.entries):
            if change := change_of(entries[0]):
                await self._until_settled()
                self.comparison.schema_changes()
                await self._database.change_schema(change, entries[0], self._make_way)
            else:
                batch = await decoded(entries)
                self._note_tables(entries[-1].version, batch.tables)
                await self._execute_rows(batch, step.after)
            self._note_visible(entries[-1].version)
        self._executing = None
        self._status.committed_transactions += len(step.entries)

    async def _take_rows(self, step: Take) -> None:
        """Takes the rows that are to be compared, with nobody after them in the snapshot."""
        while not await self.comparison.take(step):
            await self._until_settled()
            step = step._replace(after=None)

    def _note_tables(self, version: int, names: Iterable[str]) -> None:
        """Notes the newest version with rows of tables. TRUNCATE removes rows at its server that
        its snapshot does not see, and that the group would not delete elsewhere.
        """
        for name in names:
            self._newest[name] = max(self._newest[name], version)

    def _note_visible(self, version: int) -> None:
        """Notes that all up to a version is visible: commits come in their order."""
        version = self._done_version = max(version, self._done_version)
        received, position = self._received, self._position
        while received and received[0].version <= version:
            each = received.popleft()
            self._visible.append(each)
            # What is read from the log again lies before what the server has noted.
            position = max(position, each.position)
            if each.gtid:
                self._executed.add(each.gtid)
        if position > self._position:
            self._position = position
            self._runtime.on_committed(version, position)

    async def _execute_rows(self, batch: Batch, after: str | None) -> None:
        """Executes entries in one transaction, or, if that fails, each in its own: those before the
        one that cannot be executed are.

        Raises:
            RowsNotExecuted: The first of them cannot be.
        """
        try:
            while not await self._database.execute(batch, after, self._make_way):
                # `after` has not committed. `_confirm` executes it, and then nothing is before this
                # batch.
                await self._until_settled()
                after = None
        except (psycopg.Error, KeyError, ValueError) as error:
            if has_gone(error):
                raise
            if len(batch.entries) == 1:
                raise await self._not_executed(batch.entries[0], error) from error
            for entry in batch.entries:
                self._executing = entry
                await self._execute_rows(await decoded([entry]), after)

    async def _not_executed(self, entry: Entry, error: Exception) -> RowsNotExecuted:
        await self._database.note_stopped(entry)
        return RowsNotExecuted(
            server=self._database.name,
            gtid=str(entry.gtid),
            version=entry.version,
            cause=str(error).strip().replace("\n", " "),
            row=await self._database.failing_row(entry),
        )

    async def _until_settled(self) -> None:
        """Waits until every granted transaction has ended."""
        while not self._order.is_settled:
            self._suspected.set()
            self._settled.clear()
            await self._settled.wait()

    def _make_way(self, pid: int) -> None:
        """Has a backend make way that stands in it: one that is certified, and is executed for in
        its turn. Others at their COMMIT have lost, and are about to be told.
        """
        local = self._order.waiting_of(pid)
        if local is None:
            return
        # It keeps its turn: the group has certified it.
        local.is_given_up = True
        self._status.executed_for_backends += 1
        self._refuse(self._backends.pop(local), given_up(local.entry))

    async def _confirm(self) -> None:
        """Notes how granted transactions ended; executes those whose backend died before it could
        commit.
        """
        granted = self._order.granted
        while True:
            await self._granted.wait()
            self._granted.clear()
            while granted:
                with suppress(TimeoutError):  # `wait_for` may lose a cancellation before 3.12.
                    async with asyncio.timeout(
                        AWAITED_SECONDS if self._awaited else CONFIRM_SECONDS
                    ):
                        await self._suspected.wait()
                self._suspected.clear()
                await self._confirm_once()
            self._settled.set()

    async def _confirm_once(self) -> None:
        asked = [*self._order.granted]
        ends = await self._database.statuses(
            [(each.transaction_id, each.entry.version) for each in asked]
        )
        for local, end in zip(asked, ends, strict=True):
            # They end in their order: those behind it wait for it in the server.
            if end == "in progress":
                break
            self._backends.pop(local, None)
            self._moved = time.monotonic()
            if end != "committed":
                # Those behind it are looked at anew: they have waited for a transaction that did
                # not commit, and the first of them is told so now.
                await self._execute_for(local)
                break
            self._order.committed(local)
            self._status.committed_transactions += 1
            self._note_visible(local.entry.version)

    async def _execute_for(self, local: Local) -> None:
        """Executes a transaction whose backend did not commit it, and answers the next one."""
        self._status.executed_for_backends += 1
        log.info("executed_for_backend", pid=local.pid, gtid=str(local.entry.gtid))
        try:
            await self._database.execute_for(local.entry, self._make_way)
        except (psycopg.Error, KeyError, ValueError) as error:
            if has_gone(error):
                raise
            raise await self._not_executed(local.entry, error) from error
        following = self._order.executed_for(local)
        self._note_visible(local.entry.version)
        if following is not None:
            self._answer(Grant(following, None))

    async def _end_late(self) -> None:
        """Ends backends that have their turn and do not commit: all others wait for them. One that
        does not even react to that is left to the operator, since to kill it ends every session of
        the server; others are refused meanwhile, and go to another server.
        """
        ended: Local | None = None
        while True:
            await asyncio.sleep(LATE_SECONDS)
            first = self._order.granted[0] if self._order.granted else None
            seconds = time.monotonic() - self._moved
            if first is None or seconds < self._database.turn_seconds:
                self._held_up = ""
                continue
            self._held_up = HELD_UP.format(pid=first.pid, seconds=seconds) if first is ended else ""
            log.warning("backend_is_late", pid=first.pid, seconds=round(seconds, 3))
            await self._database.end_commit(first.pid, first.transaction_id)
            ended = first

    async def _fold(self) -> None:
        while True:
            await asyncio.sleep(FOLD_SECONDS)
            await self.comparison.settle()
            # A granted transaction is known by its row until its end is found.
            granted = self._order.granted
            await self._database.fold(granted[0].entry.version if granted else self._done_version)

    async def _make_durable(self) -> None:
        """Notes, again and again, what the server has on disk: the relay queue lets go of it, and
        the member reports it.
        """
        self._let_go()
        while True:
            await asyncio.sleep(DURABLE_SECONDS)
            await self._follow()
            if not self._visible:
                if self._runtime.relay_queue.length:  # It was stored later than executed.
                    self._let_go()
                continue
            version, position, count = self._done_version, self._position, len(self._visible)
            await self._database.flushed()
            self._durable.extend(each for each in islice(self._visible, count) if each.payload)
            for _ in range(count):
                self._visible.popleft()
            self._durable_position = position
            self._let_go()
            self._runtime.flusher.request(version)

    async def _follow(self) -> None:
        """Has the binary log, if there is one, take what the relay queue has of what is visible."""
        runtime = self._runtime
        if runtime.binary_log is not None:
            for _ in runtime.binary_log.follow(runtime.relay_queue, self._position):
                runtime.answers.tell_news()
                await asyncio.sleep(0)

    def _let_go(self) -> None:
        """Has the relay queue let go of what the server has on disk, but for what it keeps, and for
        what the binary log lacks.
        """
        runtime = self._runtime
        batch = runtime.store.batch()
        position = self._durable_position
        if runtime.binary_log is not None:
            position = min(position, runtime.binary_log.position)
        removed = runtime.relay_queue.discard(batch, position)
        drop(batch, names_of(self._forgotten(removed)))
        runtime.store.write(batch)

    def _forgotten(self, position: int) -> Iterator[bytes]:
        """Yields the references of large transactions up to a position, which nobody needs."""
        while self._durable and self._durable[0].position <= position:
            yield self._durable.popleft().payload

    async def _stand(self) -> None:
        """Has the server take writes while the member takes transactions."""
        member, standing = self._runtime.member, self._standing
        while True:
            if takes_anything(member) and member.may_write:
                await standing.serve()
            elif member.state is MemberState.ONLINE:
                await standing.leave(str(why_not(member, ordered="nothing")))
            else:
                why = f"its member is {member.state.name}: {member.reason}"
                is_new = member.state is MemberState.RECOVERING
                await standing.leave(why, keeps_reason=is_new)
            with suppress(OSError):  # Of a full disk.
                self._database.socket.touch()
            await asyncio.sleep(STANDING_SECONDS)

    async def _be_watched(self) -> None:
        """Has the server leave its group where nobody else can tell it to."""
        while True:
            await self._database.watch_member()
            log.warning("has_stood_still")


def has_gone(error: Exception) -> bool:
    """Returns whether the server, or the session, is no longer there, or has no room."""
    if not isinstance(error, psycopg.OperationalError):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(("08", "53", "57", "58"))
