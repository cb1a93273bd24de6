"""The companion of a PostgreSQL server: it certifies what the server's backends commit, gives them
their turns, and executes there what others committed.

The rule it keeps: what is visible at the server is a prefix of the total order. It stores nothing
but what is in the server, and begins again from there whenever it loses its sessions.

It holds snapshots at its member, so that the group remembers what it has to compare the server's
transactions with (`Holds`). Without them a group collects what all its members have executed,
within a second or two, and each transaction of the server that is open for longer would be too old.
A snapshot that is held at version V protects every transaction that the server began when it had V.
It is given up when all open transactions began after the server had the version of the next one.

Where the group does not let a transaction commit, its client is told so in PostgreSQL's words:
SQLSTATE 40001 is what frameworks retry; 08007 is "nobody knows", 25006 "this server takes no
writes now", 53100 a full disk, 54000 a limit.
"""

import asyncio
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import psycopg
import structlog

from groupcert.v1 import transaction_pb2
from groupcert.v1.companion_pb2 import CompanionStatus

from ...certifier.errors import (
    GroupcertError,
    InvalidRequest,
    LogFull,
    TransactionTooLarge,
    WriteSetTooLarge,
)
from ...certifier.gtid import parse_gtid
from ..client.async_client import AsyncClient
from ..client.async_transaction import AsyncTransaction
from ..errors.postgresql_servers import RowsNotExecuted
from ..errors.transactions import OutcomeUnknown
from ..wire.status_documents import fields_of
from .backends import (
    TOO_LARGE,
    Backend,
    BackendServer,
    Refusal,
    Request,
)
from .commit_order import CommitOrder, Entry, Execute, Grant, Local
from .database import Database, decoded
from .log_follower import LogFollower
from .schema_changes import ITEM, change_of, in_turns
from .standing import Standing
from .statements import Batch
from .status import Totals

ENTRIES_MAX = 4_096
"""Transactions of the binary log that wait here before it is read on."""
FOLD_SECONDS = 5.0
ROOM_SECONDS = 0.01
CONFIRM_SECONDS = 0.05
"""Between two looks at how granted transactions ended."""
LATE_SECONDS = 1.0
"""Between two looks for backends that hold up the order."""
HELD_UP = (
    "backend {pid} has its turn, has not committed for {seconds:.0f} s and cannot be ended (a"
    " debugger?); all commits wait for it, and kill -9 of it restarts the server"
)
log: structlog.stdlib.BoundLogger = structlog.get_logger()
PERIOD_SECONDS = 1.0
RENEW_SECONDS = 15.0
"""Seconds after which a held snapshot is read, so that its lease does not end."""
_ANY_KEY = b"groupcert"
RETRY = "Run the transaction again: it will see what the other one committed."
_LOOK = "Look for its rows before you run it again: they appear here if the group has certified it."


def refusal_of(outcome: transaction_pb2.Outcome, row: str) -> Refusal:
    """Builds the PostgreSQL error (SQLSTATE, message, detail, hint) for a transaction that the
    group rejected; `row` names the row over which it lost.
    """
    if outcome.verdict == transaction_pb2.VERDICT_CONFLICT:
        conflict = outcome.conflict
        return Refusal(
            "40001",
            "could not serialize access: another server of the group committed first",
            f"{row} was written by {conflict.winner_gtid} at member {conflict.winner_member},"
            f" version {conflict.winner_version}; this transaction read version"
            f" {conflict.snapshot_version}.",
            RETRY,
        )
    if outcome.verdict == transaction_pb2.VERDICT_TOO_OLD:
        return Refusal(
            "40001",
            "could not serialize access: the snapshot is older than the group remembers",
            outcome.reason,
            RETRY,
        )
    return Refusal("0A000", "the group refuses the transaction", outcome.reason, "Change it.")


def refusal_of_error(error: GroupcertError) -> Refusal:
    """Builds the PostgreSQL error for a transaction whose certification failed with an error."""
    if isinstance(error, OutcomeUnknown):
        message = "it is not known whether the group has certified the transaction"
        return Refusal("08007", message, str(error), _LOOK)
    if isinstance(error, TransactionTooLarge | WriteSetTooLarge):
        return Refusal("54000", TOO_LARGE, str(error), "Divide it.")
    if isinstance(error, InvalidRequest):
        return Refusal("0A000", "the group refuses the transaction", str(error), "Change it.")
    if isinstance(error, LogFull):
        return Refusal("53100", "the group takes no transactions", str(error), "Try again later.")
    return out_of_group(str(error))


def truncated_too_late(table: str, version: int) -> Refusal:
    """Builds the PostgreSQL error for a TRUNCATE whose snapshot may lack rows of its table."""
    return Refusal(
        "40001",
        "could not serialize access: another transaction changed a table that is truncated",
        f"Version {version} may have rows of {table} that this transaction does not see.",
        RETRY,
    )


def out_of_group(reason: str) -> Refusal:
    """Builds the PostgreSQL error for a transaction while the server is out of its group."""
    return Refusal(
        "25006",
        f"this server is read-only: {reason}",
        "It is out of its group, and takes part again by itself.",
        "Try again later, or at another server.",
    )


def given_up(entry: Entry) -> Refusal:
    """Builds the PostgreSQL error for a certified transaction whose session had to make way."""
    return Refusal(
        "08007",
        "the group has certified the transaction, which will be executed for this session",
        f"{entry.gtid} is version {entry.version}; the session held a lock that an earlier"
        " transaction of another server needs.",
        "Do not run it again: its rows appear here in a moment.",
    )


@dataclass(slots=True)
class _Held:
    snapshot: AsyncTransaction
    used: float
    reached: float | None = None


class Holds:
    """The held snapshots, oldest first."""

    def __init__(
        self,
        client: AsyncClient,
        database: Database,
        standing: Standing,
        version: Callable[[], int],
    ) -> None:
        """Takes what it asks, and what it tells whether a member answers; `version` is the
        server's.
        """
        self._client = client
        self._database = database
        self._standing = standing
        self._version = version
        self._held: deque[_Held] = deque()
        self.oldest_transaction_seconds = 0.0
        """Age of the server's oldest open transaction, when it was last looked at."""

    @property
    def oldest_version(self) -> int:
        """The oldest held snapshot's version; 0: none is held."""
        return self._held[0].snapshot.snapshot_version if self._held else 0

    async def run(self) -> None:
        """Takes a snapshot each second and gives up those that nobody needs, until cancelled."""
        while True:
            try:
                await self._take()
            except GroupcertError as error:  # No member answers: nothing is certified.
                await self._standing.leave(str(error))
            else:
                await self._standing.serve()
            await self._give_up()
            await asyncio.sleep(PERIOD_SECONDS)

    async def _take(self) -> None:
        snapshot = await self._client.transaction()
        self._held.append(_Held(snapshot, asyncio.get_running_loop().time()))

    async def _give_up(self) -> None:
        now = asyncio.get_running_loop().time()
        # `now` was read before: the answer takes its time, which makes `began` too early, never too
        # late.
        self.oldest_transaction_seconds = await self._database.oldest_transaction_seconds()
        began = now - self.oldest_transaction_seconds
        for held in self._held:
            if held.reached is None and held.snapshot.snapshot_version <= self._version():
                held.reached = now
        # The newest one stays: it protects transactions that begin from now on.
        while len(self._held) > 1:
            reached = self._held[1].reached
            if reached is None or reached >= began:
                break
            with suppress(GroupcertError, ValueError):
                await self._held.popleft().snapshot.rollback()
        for held in [*self._held]:
            if now - held.used > RENEW_SECONDS:
                held.used = now
                try:
                    await held.snapshot.get(_ANY_KEY)
                except GroupcertError:
                    self._held.remove(held)


class Companion:
    """One run, from the connection to the server until that is lost."""

    def __init__(
        self,
        database: Database,
        standing: Standing,
        client: AsyncClient,
        watch: AsyncClient,
        follower: LogFollower,
        version: int,
    ) -> None:
        """Begins behind `version`, which is executed at the server. `client` certifies, `watch`
        gives up soon where no member answers.
        """
        self._database = database
        self._standing = standing
        self._client = client
        self._follower = follower
        self._order = CommitOrder(version)
        self._backends: dict[Local, Backend] = {}
        self._news = asyncio.Event()
        self._granted = asyncio.Event()
        self._suspected = asyncio.Event()
        """Set when a granted transaction may have ended without its commit."""
        self._settled = asyncio.Event()
        self._totals = Totals()
        self._newest: defaultdict[str, int] = defaultdict(lambda: version)
        """By table, the newest version that may have rows of it."""
        self._executing: Entry | None = None
        self._moved = 0.0
        """When the order went on, by `time.monotonic`."""
        self._held_up = ""
        """The backend that has its turn and does not react, in words; "": none."""
        self._holds = Holds(watch, database, standing, lambda: self._order.version)

    async def run(self) -> None:
        """Serves until an error, or until it is cancelled.

        Raises:
            psycopg.OperationalError: The server has gone, or ended a session.
            RowsNotExecuted: A transaction of another server cannot be executed here.
            GroupcertError: No member serves it any more.
        """
        socket = self._database.socket
        server = BackendServer(
            socket, self._serve, self._suspected.set, lambda: fields_of(self.status())
        )
        async with server:
            log.info("companion_started", version=self._order.version, socket=str(socket.path))
            duties = (self._take_turns, self._confirm, self._fold, self._follow, self._holds.run)
            tasks = [asyncio.create_task(duty()) for duty in (*duties, self._end_late)]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
        for result in ended:
            if isinstance(result, Exception):
                raise result

    def status(self) -> CompanionStatus:
        """Returns the status of this run; any thread may call."""
        order, totals, follower = self._order, self._totals, self._follower
        waits_for = self._waits_for()
        return CompanionStatus(
            server=self._database.name,
            member=follower.connected,
            out_of_group=self._standing.reason or self._held_up,
            version=order.version,
            behind_transactions=max(0, follower.source_version - order.version),
            pending_transactions=order.entries_count,
            certifying_transactions=order.in_flight_count,
            waiting_transactions=order.waiting_count,
            granted_transactions=len(order.granted),
            held_snapshot_version=self._holds.oldest_version,
            oldest_transaction_seconds=round(self._holds.oldest_transaction_seconds, 3),
            waits_for=waits_for,
            waits_seconds=round(time.monotonic() - self._moved, 3) if waits_for else 0.0,
            certified_transactions=totals.certified,
            refused_transactions=totals.refused,
            committed_transactions=totals.committed,
            executed_for_backends=totals.executed_for_backends,
            cancelled_sessions=self._database.cancelled_total,
            skipped_rows=self._database.skipped_total,
            astray_sequences=self._database.astray_sequences,
            rows_outside=self._database.rows_outside,
            skipped_transactions=self._database.skipped_transactions,
        )

    def _waits_for(self) -> str:
        """Returns the transaction that holds up the order, and its owner, in words; "": none."""
        order = self._order
        with suppress(IndexError):  # It ends while another thread asks.
            first = order.granted[0]
            assert first.entry is not None, "granted before the verdict"
            return f"backend {first.pid}, which commits {first.entry.gtid}"
        if (entry := self._executing) is not None:
            return f"{entry.gtid} of another server, version {entry.version}"
        if order.waiting_count or order.entries_count:
            return f"version {order.version + 1}, which has not come"
        return ""

    async def _serve(self, backend: Backend, request: Request) -> None:
        """Certifies a transaction, and lets it wait for its turn."""
        if reason := self._standing.reason or self._held_up:
            self._refuse(backend, out_of_group(reason))
            return
        if not await self._is_of_this_server(backend):
            self._refuse(backend, out_of_group("it has crashed, or ended its companion's sessions"))
            return
        if late := [name for name in request.truncated if self._newest[name] > request.version]:
            self._refuse(backend, truncated_too_late(late[0], self._newest[late[0]]))
            return
        changes = request.changes
        local = Local(
            transaction_id=request.transaction_id, pid=request.pid, write_set=changes.write_set
        )
        self._order.submitted(local)
        try:
            outcome = await self._client.certify(certifiable(request), changes.parts)
        except GroupcertError as error:
            self._refuse(backend, refusal_of_error(error))
            outcome = None
        finally:
            # Entries that may have been this one go on. `_take_turns` runs after `decided` below:
            # nothing is awaited between.
            self._news.set()
            self._order.withdrawn(local)
        if outcome is None:
            return
        if outcome.verdict != transaction_pb2.VERDICT_CERTIFIED:
            item = outcome.conflict.item
            row = "the schema" if item == ITEM else changes.name_of(item)
            self._refuse(backend, refusal_of(outcome, row))
            return
        entry = Entry(outcome.version, parse_gtid(outcome.gtid), changes.parts)
        self._note_tables(entry.version, changes.tables)
        self._totals.certified += 1
        self._backends[local] = backend
        self._order.decided(local, entry)

    async def _is_of_this_server(self, backend: Backend) -> bool:
        """Returns whether the server has not crashed between the start of this run and that of a
        backend. One that has crashed may lack its last commits, and takes clients before the
        companion sees that its sessions are gone. A commit there would come before those commits,
        which nobody would execute again. No backend outlives a crash: one look for each connection
        is enough.
        """
        if not backend.is_checked:
            with suppress(psycopg.OperationalError):  # The companion begins again.
                await self._database.check_alive()
                backend.is_checked = True
        return backend.is_checked

    def _refuse(self, backend: Backend, refusal: Refusal) -> None:
        self._totals.refused[refusal.sqlstate] += 1
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
                else:
                    await self._execute(step)

    def _answer(self, grant: Grant) -> None:
        """Lets a backend commit; one that is gone is found by `_confirm`."""
        local, after = grant
        assert local.entry is not None, "granted before the verdict"
        gtid = local.entry.gtid
        previous = after.transaction_id if after else None
        # Those behind wait for the first one, so only its time counts for `_end_late`.
        if len(self._order.granted) == 1:
            self._moved = time.monotonic()
        self._backends[local].grant(local.entry.version, gtid.source, gtid.number, previous)

    async def _execute(self, step: Execute) -> None:
        """Executes entries; if the backend before them has died, once they have nobody before."""
        after = step.after.transaction_id if step.after else None
        self._executing, self._moved = step.entries[0], time.monotonic()
        for entries in in_turns(step.entries):
            if change := change_of(entries[0]):
                await self._until_settled()
                await self._database.change_schema(change, entries[0], self._make_way)
                continue
            batch = await decoded(entries)
            self._note_tables(entries[-1].version, batch.tables)
            await self._execute_rows(batch, after)
        self._executing = None
        self._totals.committed += len(step.entries)

    def _note_tables(self, version: int, names: Iterable[str]) -> None:
        """Notes the newest version with rows of tables. TRUNCATE removes rows at its server that
        its snapshot does not see, and that the group would not delete elsewhere.
        """
        for name in names:
            self._newest[name] = max(self._newest[name], version)

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
            if _has_gone(error):
                raise
            if len(batch.entries) == 1:
                raise await self._not_executed(batch.entries[0], error) from error
            for entry in batch.entries:
                self._executing = entry
                await self._execute_rows(await decoded([entry]), after)

    async def _not_executed(self, entry: Entry, error: Exception) -> RowsNotExecuted:
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
        assert local.entry is not None, "waits before the verdict"
        # It keeps its turn: the group has certified it.
        local.is_given_up = True
        self._totals.executed_for_backends += 1
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
                    async with asyncio.timeout(CONFIRM_SECONDS):
                        await self._suspected.wait()
                self._suspected.clear()
                asked = [*granted]
                ends = await self._database.statuses(
                    [(each.transaction_id, each.entry.version) for each in asked if each.entry]
                )
                for local, end in zip(asked, ends, strict=True):
                    # They end in their order: those behind it wait for it in the server.
                    if end == "in progress":
                        break
                    self._backends.pop(local, None)
                    self._moved = time.monotonic()
                    if end == "committed":
                        self._order.committed(local)
                        continue
                    # Those behind it are looked at anew: they have waited for a transaction that
                    # did not commit, and the first of them is told so now.
                    await self._execute_for(local)
                    break
            self._settled.set()

    async def _execute_for(self, local: Local) -> None:
        """Executes a transaction whose backend did not commit it, and answers the next one."""
        assert local.entry is not None, "granted before the verdict"
        self._totals.executed_for_backends += 1
        log.info("executed_for_backend", pid=local.pid, gtid=str(local.entry.gtid))
        try:
            await self._database.execute_for(local.entry, self._make_way)
        except (psycopg.Error, KeyError, ValueError) as error:
            if _has_gone(error):
                raise
            raise await self._not_executed(local.entry, error) from error
        following = self._order.executed_for(local)
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
            granted = self._order.granted  # How these ended is still to be found.
            first = granted[0].entry if granted else None
            await self._database.fold(first.version if first else self._order.version)

    async def _follow(self) -> None:
        """Receives the binary log."""
        async for entries in self._follower.entries():
            self._order.received(entries)
            self._news.set()
            while self._order.entries_count > ENTRIES_MAX:  # noqa: ASYNC110 - room has no event
                await asyncio.sleep(ROOM_SECONDS)


def certifiable(request: Request) -> transaction_pb2.Transaction:
    """Returns a backend's transaction, without its rows, as the certify call takes it. Its snapshot
    is a version: what the server shows is always a prefix of the total order.
    """
    return transaction_pb2.Transaction(
        transaction_id=uuid.uuid4().bytes,
        snapshot_version=request.version,
        write_set=request.changes.items,
        read_set=[ITEM],
        first_attempt=True,
    )


def _has_gone(error: Exception) -> bool:
    """Returns whether the server, or the session, is no longer there, or has no room."""
    if not isinstance(error, psycopg.OperationalError):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(("08", "53", "57", "58"))
