"""The companion of a PostgreSQL server: it certifies what the server's backends commit, gives them
their turns, and executes there what others committed.

The rule it keeps: what is visible at the server is a prefix of the total order. It stores nothing
but what is in the server, and begins again from there whenever it loses its sessions.
"""

import asyncio
import threading
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

import psycopg
import structlog

from groupcert.applier.errors import ApplyFailed
from groupcert.certifier.errors import GroupcertError, NotServing
from groupcert.certifier.gtid import parse_gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.write_set import item_from_text, store_key_item
from groupcert.members.client.async_client import AsyncClient
from groupcert.members.postgresql.backends import Backend, BackendServer, Request
from groupcert.members.postgresql.commit_order import CommitOrder, Entry, Execute, Grant, Local
from groupcert.members.postgresql.database import Database
from groupcert.members.postgresql.holds import Holds
from groupcert.members.postgresql.items import key_items
from groupcert.members.postgresql.rows import Changes, changes_of, fits
from groupcert.members.postgresql.standing import Standing
from groupcert.members.postgresql.verdicts import (
    given_up,
    out_of_group,
    refusal_of,
    refusal_of_error,
)
from groupcert.members.replica.sources import ReplicaSources
from groupcert.members.wire.row_changes import decode_changes
from groupcert.v1 import transaction_pb2

ENTRIES_MAX = 4_096
"""Transactions of the binary log that wait here before it is read on."""
FOLD_SECONDS = 5.0
ROOM_SECONDS = 0.01
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Companion:
    """One run, from the connection to the server until that is lost."""

    def __init__(
        self,
        database: Database,
        standing: Standing,
        client: AsyncClient,
        watch: AsyncClient,
        sources: ReplicaSources,
        executed: GtidSet,
        version: int,
    ) -> None:
        """Begins behind what is executed at the server. `client` certifies, `watch` gives up soon
        where no member answers.
        """
        self._database = database
        self._standing = standing
        self._client = client
        self._watch = watch
        self._sources = sources
        self._executed = executed
        self._order = CommitOrder(version)
        self._backends: dict[Local, Backend] = {}
        self._news = asyncio.Event()
        self._granted = asyncio.Event()
        self._settled = asyncio.Event()
        self._is_over = threading.Event()

    async def run(self) -> None:
        """Serves until an error, or until it is cancelled.

        Raises:
            psycopg.OperationalError: The server has gone, or ended a session.
            ApplyFailed: A transaction of another server cannot be executed here.
            GroupcertError: No member serves it any more.
        """
        path, token = await self._database.socket()
        server = BackendServer(Path(path), token, self._serve)
        holds = Holds(self._watch, self._database, self._standing, lambda: self._order.version)
        async with server:
            log.info("companion_started", version=self._order.version, socket=path)
            duties = (self._take_turns, self._confirm, self._fold, self._follow, holds.run)
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

    async def _serve(self, backend: Backend, request: Request) -> None:
        """Certifies a transaction, and lets it wait for its turn."""
        if self._standing.reason:
            backend.refuse(out_of_group(self._standing.reason))
            return
        if not fits(request.rows, self._database.tables):
            await self._database.read_tables()
        changes = changes_of(request.rows, self._database.tables)
        local = Local(
            transaction_id=request.transaction_id, pid=request.pid, keys=frozenset(changes.rows)
        )
        texts = key_items(request.rows, self._database.tables)
        self._order.submitted(local)
        try:
            outcome = await self._client.certify(certifiable(request, changes, texts))
        except GroupcertError as error:
            backend.refuse(refusal_of_error(error))
            outcome = None
        finally:
            self._news.set()
            self._order.withdrawn(local)
        if outcome is None:
            return
        if outcome.verdict != transaction_pb2.VERDICT_CERTIFIED:
            backend.refuse(refusal_of(outcome, item_names(changes, texts)))
            return
        entry = Entry(outcome.version, parse_gtid(outcome.gtid), payload_of(changes))
        self._backends[local] = backend
        self._order.decided(local, entry)

    async def _take_turns(self) -> None:
        """Does what has its turn, again and again."""
        while True:
            await self._news.wait()
            self._news.clear()
            while step := self._order.next_step(_keys_of):
                if isinstance(step, Grant):
                    self._answer(step)
                    self._granted.set()
                else:
                    await self._execute_settled(step)

    def _answer(self, grant: Grant) -> None:
        """Lets a backend commit; one that is gone is found by `_confirm`."""
        local, after = grant
        assert local.entry is not None, "granted before the verdict"
        version, gtid, _ = local.entry
        previous = after.transaction_id if after else None
        self._backends[local].grant(version, gtid.source, gtid.number, previous)

    async def _execute_settled(self, step: Execute) -> None:
        """Executes entries once every granted transaction has ended."""
        while not self._order.is_settled:
            self._settled.clear()
            await self._settled.wait()
        await self._execute(step.entries)

    async def _execute(self, entries: Sequence[Entry]) -> None:
        try:
            await self._database.execute(entries, self._make_way)
        except psycopg.OperationalError:
            raise
        except (psycopg.Error, KeyError, ValueError) as error:
            raise ApplyFailed(
                worker=0, gtid=str(entries[0].gtid), cause=str(error).strip(), gaps=""
            ) from error

    def _make_way(self, pid: int) -> None:
        """Has a backend make way that stands in it: one that is certified, and is executed for in
        its turn. Others at their COMMIT have lost, and are about to be told.
        """
        local = self._order.waiting_of(pid)
        if local is None:
            return
        assert local.entry is not None, "waits before the verdict"
        local.is_given_up = True
        self._backends.pop(local).refuse(given_up(local.entry))

    async def _confirm(self) -> None:
        """Notes how granted transactions ended; executes those whose backend died before it could
        commit.
        """
        granted = self._order.granted
        while True:
            await self._granted.wait()
            self._granted.clear()
            while granted:
                asked = [*granted]
                ends = await self._database.statuses([each.transaction_id for each in asked])
                for local, end in zip(asked, ends, strict=True):
                    if end == "in progress":
                        break
                    self._backends.pop(local, None)
                    if end == "committed":
                        self._order.committed(local)
                        continue
                    await self._execute_for(local)
                    break
            self._settled.set()

    async def _execute_for(self, local: Local) -> None:
        """Executes a transaction whose backend did not commit it, and answers the next one."""
        assert local.entry is not None, "granted before the verdict"
        log.info("executed_for_backend", pid=local.pid, gtid=str(local.entry.gtid))
        await self._execute([local.entry])
        following = self._order.executed_for(local)
        if following is not None:
            self._answer(Grant(following, None))

    async def _fold(self) -> None:
        while True:
            await asyncio.sleep(FOLD_SECONDS)
            await self._database.fold()

    async def _follow(self) -> None:
        """Receives the binary log, from a thread that waits for it."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def receive(entries: list[Entry]) -> None:
            self._order.received(entries)
            self._news.set()

        def end(error: Exception | None) -> None:
            if not ended.done():
                ended.set_exception(error or NotServing(member="binary log", state="ended"))

        def follow() -> None:
            with suppress(RuntimeError):  # The loop has ended before this thread.
                try:
                    self._read_log(lambda entries: loop.call_soon_threadsafe(receive, entries))
                except Exception as error:
                    loop.call_soon_threadsafe(end, error)
                else:
                    loop.call_soon_threadsafe(end, None)

        thread = threading.Thread(target=follow, name="binary log", daemon=True)
        thread.start()
        try:
            await ended
        finally:
            self._is_over.set()
            self._sources.stop()

    def _read_log(self, take: Callable[[list[Entry]], object]) -> None:
        """Hands on what the members have committed, until the sources stop."""
        received = self._executed
        for news in self._sources.follow(received, lambda: 0):  # Positions are not needed here.
            entries = []
            for entry in news.entries:
                if entry.gtid is not None:
                    received.add(entry.gtid)
                    entries.append(Entry(entry.version, entry.gtid, entry.payload))
            if entries:
                take(entries)
            while self._order.entries_count > ENTRIES_MAX and not self._is_over.wait(ROOM_SECONDS):
                pass


def certifiable(
    request: Request, changes: Changes, texts: Sequence[str]
) -> transaction_pb2.Transaction:
    """Returns a backend's transaction as the certify call takes it. Its snapshot is a version: what
    the server shows is always a prefix of the total order.
    """
    return transaction_pb2.Transaction(
        transaction_id=uuid.uuid4().bytes,
        snapshot_version=request.version,
        write_set=map(item_from_text, texts),
        changes=payload_of(changes),
    )


def payload_of(changes: Changes) -> bytes:
    """Returns the changes as members carry them."""
    keys, values = changes.puts
    message = transaction_pb2.Changes(put_keys=keys, put_values=values, delete_keys=changes.deletes)
    return message.SerializeToString()


def item_names(changes: Changes, texts: Sequence[str]) -> dict[int, str]:
    """Returns the rows and keys of a transaction in words, by their items."""
    names = {store_key_item(key): key.decode(errors="replace") for key in changes.rows}
    return names | {item_from_text(text): text for text in texts}


def _keys_of(entry: Entry) -> Collection[bytes]:
    put, _, deleted = decode_changes(entry.payload)
    return [*put, *deleted]
