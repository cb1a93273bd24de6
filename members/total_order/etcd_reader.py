"""Reads a group's log in etcd from a sequence on, and checks that no message is missing.

A reading is a chain of watches, each at one server, which sends each put of the log's key; what is
far behind is fetched first. That server is the leader, which has a message half a millisecond
before the others. A message that is not the next one, another leader, silence, or an error ends a
watch, and the next one starts where it ended. Before each one a majority is asked whether it is the
same log, whether that still has the next message, and whether anybody else has written. A watch
asks for no majority: a server that has lost the leader ends it, and one that stands still is
noticed, as it is asked four times a second for its progress.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

import grpc.aio

from groupcert.etcd.rpc_pb2 import (
    Event,
    WatchCreateRequest,
    WatchProgressRequest,
    WatchRequest,
    WatchResponse,
)

from ...certifier.errors import ForeignLog, LogGap, LogServerUnavailable
from .etcd_connection import (
    EtcdConnection,
    EtcdRefused,
    WatchCall,
)
from .etcd_log import Compacted, EtcdLog, LogDescription
from .linger import Linger
from .port import Delivery, LogIdentity, check_same_log
from .served_log import NotAnswered

HEARTBEAT_MS = 250
SILENT_BEATS_MAX = 4
"""Requests for progress that a server may leave without an answer; one more ends its watch."""
RETRY_MS = 50
AHEAD_BYTES_MAX = 32 << 20
"""Bytes that are read ahead of the consumer; the server keeps the rest, on its disk."""
BEHIND_MAX = 256
"""Messages that a watch may lack when it begins; with more they are fetched first."""
FETCHED_FIRST, FETCHED_MAX, FETCHED_BYTES = 8, 64, 4 << 20
"""Messages fetched at once, at first and at most, and about how many bytes; etcd allows 128
operations at once."""
NOT_FOUND_MS_MAX = 5_000
"""Milliseconds for which the log may be missing before it counts as deleted."""


class EtcdReader:
    """One reading of a log: `batches()` is iterated once."""

    def __init__(
        self,
        connection: EtcdConnection,
        log: EtcdLog,
        identity: LogIdentity,
        *,
        foreign_writes: int,
        linger: Linger,
    ) -> None:
        """Reads the log of this identity, in which others had written so often when it was
        opened.
        """
        self._connection = connection
        self._log = log
        self._identity = identity
        self._foreign_writes = foreign_writes
        self._linger = linger

    async def batches(self, first_sequence: int) -> AsyncGenerator[list[Delivery], None]:
        """Yields messages as they arrive, see `TotalOrder.read`."""
        next_sequence = first_sequence
        while True:
            start = await self._begin(next_sequence)
            if start.description.last_sequence - next_sequence >= BEHIND_MAX:
                async with aclosing(self._fetched(start, next_sequence)) as fetched:
                    async for deliveries in fetched:
                        yield deliveries
                        next_sequence = deliveries[-1].sequence + 1
                continue
            server = self._connection.leader or self._connection.current
            watch = LogWatch(self._connection, server, self._linger)
            try:
                await watch.open(self._log.keys.log, start, next_sequence)
                while deliveries := await watch.take():
                    yield deliveries
                    next_sequence = deliveries[-1].sequence + 1
            finally:
                await watch.close()
            if watch.is_lost:
                self._connection.leave(watch.server)
            await asyncio.sleep(RETRY_MS / 1000)

    async def _begin(self, next_sequence: int) -> "_Start":
        """Returns the revision at which to read a sequence; waits while the log is unavailable."""
        missing_since: float | None = None
        while True:
            if not self._connection.leader:
                await self._connection.wait_for_leader()
            try:
                description = await self._log.find(once=True)
                if description is not None:
                    return await self._start(description, next_sequence)
                missing_since = missing_since or time.monotonic()
                if time.monotonic() - missing_since > NOT_FOUND_MS_MAX / 1000:
                    raise ForeignLog(expected=str(self._identity), found="no log")
            except (NotAnswered, LogServerUnavailable):
                # Only an answer says that the log is missing. Without one its time begins anew.
                missing_since = None
            except EtcdRefused as refused:
                self._connection.problem = str(refused)
            await asyncio.sleep(RETRY_MS / 1000)

    async def _start(self, description: LogDescription, next_sequence: int) -> "_Start":
        """Returns the revision at which to read a sequence of a log that has it, or has it next.

        Raises:
            ForeignLog: It is another log, or others write to its servers.
            LogGap: It no longer has this message, or ends before it.
        """
        check_same_log(self._identity, description.identity)
        self._check_alone(description)
        if next_sequence > description.last_sequence + 1:
            raise LogGap(expected=next_sequence, found=description.last_sequence + 1)
        if next_sequence < description.trimmed_first:
            raise LogGap(expected=next_sequence, found=description.trimmed_first)
        revision = description.revision + 1
        if next_sequence <= description.last_sequence:
            try:
                message = await self._log.message_at(
                    description.base, next_sequence, keys_only=True
                )
            except Compacted:
                first = await self._log.first_kept(description)
                raise LogGap(expected=next_sequence, found=first) from None
            revision = message.mod_revision
        return _Start(description, revision)

    async def _fetched(
        self, start: "_Start", next_sequence: int
    ) -> AsyncGenerator[list[Delivery], None]:
        """Yields messages, some at a time, until few are lacking, or one that was not to be next.

        A server reads all that a new watch lacks at once, and keeps it in memory.
        """
        description, revision, count = start.description, start.revision, FETCHED_FIRST
        while description.last_sequence - next_sequence >= BEHIND_MAX:
            # Behind the described revision nothing has been checked yet for writes of others.
            count = min(count, description.revision + 1 - revision)
            try:
                puts = await self._log.messages_from(revision, count)
            except (NotAnswered, EtcdRefused, Compacted):
                await asyncio.sleep(RETRY_MS / 1000)
                return
            deliveries = [
                Delivery(sequence, put.value)
                for sequence, put in enumerate(puts, next_sequence)
                if put.version - 1 == sequence and put.create_revision == description.base
            ]
            if len(deliveries) < len(puts):  # Servers of another log: that is told at the start.
                await asyncio.sleep(RETRY_MS / 1000)
                return
            if deliveries:
                yield deliveries
                next_sequence += len(deliveries)
                size = sum(len(each.payload) for each in deliveries) // len(deliveries)
                count = max(1, min(FETCHED_MAX, FETCHED_BYTES // (size + 1)))
            revision = puts[-1].mod_revision + 1 if puts else revision + count

    def _check_alone(self, description: LogDescription) -> None:
        writes = description.foreign_writes - self._foreign_writes
        if writes > 0:
            raise ForeignLog(
                expected=f"{self._identity}, in servers that nobody else writes to",
                found=f"{writes} writes of others, the last in or before revision "
                f"{description.revision}",
            )


class _Start(NamedTuple):
    """Where reading begins."""

    description: LogDescription
    """The log at or after it: all is well up to there."""
    revision: int


class LogWatch:
    """One watch at a server, and what it has sent: without gaps; a gap ends it."""

    def __init__(self, connection: EtcdConnection, server: str, linger: Linger) -> None:
        """Watches at `server`."""
        self.server = server
        self.is_lost = False
        self._connection = connection
        self._linger = linger
        self._arrived: list[Delivery] = []
        self._arrived_bytes = 0
        self._next_sequence = self._base = self._known_revision = self._offset = 0
        self._ended = False
        self._silent_beats = 0
        self._room = asyncio.Event()
        self._room.set()
        self._call: WatchCall | None = None
        self._following: asyncio.Task[None] | None = None

    async def open(self, key: bytes, start: "_Start", next_sequence: int) -> None:
        """Begins with a sequence. A watch that cannot be made has ended."""
        description = start.description
        self._base, self._known_revision = description.base, description.revision
        self._next_sequence = next_sequence
        # As long as each revision is a message of the log, this difference stays as it is.
        self._offset = description.revision - description.last_sequence
        try:
            self._call = await self._connection.watch(self.server)
        except (NotAnswered, EtcdRefused):
            self.is_lost = True
            self._end()
            return
        create = WatchCreateRequest(key=key, start_revision=start.revision, fragment=True)
        self._following = asyncio.create_task(
            self._follow(self._call, WatchRequest(create_request=create)), name="log watch"
        )

    async def close(self) -> None:
        """Ends the watch, and takes nothing more."""
        self._end()
        if self._call is not None:
            self._call.cancel()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait((self._following,))

    async def take(self) -> list[Delivery]:
        """Returns the messages that have come by the end of a wait; none once the watch ended."""
        while not self._ended:
            await self._linger.wait()
            if self._arrived:
                break
        following = self._following
        if following is not None and following.done() and not following.cancelled():
            following.result()  # Raises a bug of ours: it must not look like an outage.
        deliveries, self._arrived = self._arrived, []
        self._arrived_bytes = 0
        self._room.set()
        return deliveries

    def _end(self) -> None:
        self._ended = True
        self._linger.end()

    async def _follow(self, call: WatchCall, create: WatchRequest) -> None:
        """Takes what the server sends, until it sends no more."""
        heard = asyncio.create_task(self._hear(call), name="log watch heard")
        try:
            await call.write(create)
            await self._receive(call)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.InternalError) as error:
            self._lose(_text(error))
        finally:
            heard.cancel()
            await asyncio.gather(heard, return_exceptions=True)
            self._end()

    async def _receive(self, call: WatchCall) -> None:
        while not self._ended:
            answer = await call.read()
            self._silent_beats = 0
            if not isinstance(answer, WatchResponse):
                self._lose("the watch has ended")
                return
            if answer.canceled:
                if not answer.compact_revision:
                    self._connection.forget_token()
                self._lose(answer.cancel_reason)
                return
            for event in answer.events:
                # The watch ends, but the server is not left: it has told the truth.
                if not self._take(event):
                    return
            if not self._room.is_set():
                await self._room.wait()

    async def _hear(self, call: WatchCall) -> None:
        """Ends the watch at a server that does not lead any more, or sends nothing when asked."""
        asking: asyncio.Future[None] | None = None
        try:
            while self._connection.leader in {"", self.server}:
                await asyncio.sleep(HEARTBEAT_MS / 1000)
                if not self._room.is_set():  # It is not read either.
                    continue
                if self._silent_beats > SILENT_BEATS_MAX:
                    self._lose("sends nothing")
                    break
                self._silent_beats += 1
                # After one silent beat: most servers send messages anyway. And one request at a
                # time, as one that has stopped takes none.
                if self._silent_beats > 1 and (asking is None or asking.done()):
                    progress = WatchRequest(progress_request=WatchProgressRequest())
                    asking = asyncio.ensure_future(call.write(progress))
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        self._end()

    def _lose(self, problem: str) -> None:
        self.is_lost = True
        self._connection.problem = f"{self.server}: {problem}"

    def _take(self, event: Event) -> bool:
        """Takes one put of the log's key; False: it is not the next message, or others wrote."""
        put = event.kv
        sequence = put.version - 1
        is_next = (
            event.type == Event.PUT
            and put.create_revision == self._base
            and sequence == self._next_sequence
        )
        # Up to the described revision `EtcdReader._check_alone` has accounted for revisions without
        # a message. Behind it each has to be one: a hole is a trim or a write of somebody else, and
        # the description before the next watch tells which.
        is_known = put.mod_revision <= self._known_revision
        if not is_next or not (is_known or put.mod_revision - sequence == self._offset):
            return False
        self._next_sequence = sequence + 1
        self._arrived.append(Delivery(sequence, put.value))
        self._arrived_bytes += len(put.value)
        if self._arrived_bytes > AHEAD_BYTES_MAX:
            self._room.clear()
            # The consumer must not be kept waiting: only what it takes makes room.
            self._linger.end()
        self._linger.arrived(put.value)
        return True


def _text(error: Exception) -> str:
    return (error.details() if isinstance(error, grpc.aio.AioRpcError) else "") or str(error)
