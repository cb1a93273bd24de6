"""A group's log in etcd: its keys, its description, and at which revision a message is.

etcd keeps one sequence of revisions for all its keys. The log is one key: each message is a put of
it, and its sequence is the number of puts so far, which etcd counts as the key's `version`. So
sequences have no holes whatever else is written. Revisions have none either: three keys are made
in one revision, the base, and each revision after it is a message or a trim. Any other one is a
write of somebody else, whom a trim, which drops the history of all keys, would take by surprise.
"""

import asyncio
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

import grpc
import grpc.aio

from groupcert.etcd.rpc_pb2 import (
    CompactionRequest,
    Compare,
    DeleteRangeRequest,
    KeyValue,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
    WatchCreateRequest,
    WatchRequest,
    WatchResponse,
)

from ...certifier.errors import LogServerUnavailable
from .etcd_connection import (
    COMPACT,
    DELETE_RANGE,
    RANGE,
    RETRY_MS,
    TRANSACTION,
    EtcdConnection,
    EtcdRefused,
)
from .port import Continuation, LogIdentity
from .served_log import NotAnswered

PREFIX = "groupcert/"
WATCH_SECONDS_MAX = 2.0
FETCH_MS_MAX = 5_000
"""Milliseconds for many messages at once."""
COMPACTED = "has been compacted"
"""The text of an error about a revision that the servers no longer have; others are to come."""


@dataclass(frozen=True, slots=True)
class LogKeys:
    """The keys of one group's log."""

    group: str

    @property
    def prefix(self) -> bytes:
        """The prefix of all of them."""
        return f"{PREFIX}{self.group}/".encode()

    @property
    def identity(self) -> bytes:
        """Its value says when the log was made; it is never written again."""
        return self.prefix + b"identity"

    @property
    def log(self) -> bytes:
        """Each put of it is a message; the first one, empty, makes it."""
        return self.prefix + b"log"

    @property
    def first(self) -> bytes:
        """Its value is the sequence of the first message that was not trimmed."""
        return self.prefix + b"first"

    @property
    def continues(self) -> bytes:
        """Its value is the log that this one goes on from; not there if it begins anew."""
        return self.prefix + b"continues"

    @property
    def publishers(self) -> bytes:
        """The prefix of the publishers' keys."""
        return self.prefix + b"publishers/"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDescription:
    """A log at one revision, as a majority of the servers has it."""

    identity: LogIdentity
    base: int
    """The revision in which the log was made."""
    revision: int
    last_sequence: int
    trimmed_first: int
    """The first message that no trim dropped."""
    trims: int
    continues: Continuation | None = None

    @property
    def foreign_writes(self) -> int:
        """Revisions since the base that are no message and no trim."""
        return self.revision - self.base - self.last_sequence - self.trims


class Compacted(Exception):
    """The servers no longer have this revision."""


class EtcdLog:
    """The log of a group at the servers of a connection."""

    def __init__(self, connection: EtcdConnection, group: str, limit_ms: int) -> None:
        """Waits for an answer up to `limit_ms`, where it waits."""
        self.keys = LogKeys(group)
        self._connection = connection
        self._limit_ms = limit_ms

    async def find(self, *, once: bool = False) -> LogDescription | None:
        """Returns the log's description now; None: there is no log. With `once`, of one attempt.

        It goes through the servers' own log, as a write does. Reads that ask the leader alone can
        hang for seconds at a server that asked while there was none (etcd 3.4).

        Raises:
            LogServerUnavailable: No answer within the limit.
            NotAnswered: Likewise, with `once`.
            EtcdRefused: The servers do not let this user ask.
        """
        keys = self.keys
        question = TxnRequest(
            # Always true. One transaction reads all keys at one revision.
            compare=[Compare(result=Compare.GREATER, key=keys.identity, version=-1)],
            success=[
                _get(RangeRequest(key=keys.identity)),
                _get(RangeRequest(key=keys.first)),
                _get(RangeRequest(key=keys.log, keys_only=True)),
                _get(RangeRequest(key=keys.continues)),
            ],
            failure=[self._never()],
        )
        if once:
            leader = self._connection.leader
            answer = await self._connection.ask(TRANSACTION, question, server=leader)
        else:
            answer = await self._connection.ask_until(self._limit_ms, TRANSACTION, question)
        found = [each.response_range.kvs for each in answer.responses]
        if not found[0]:
            return None
        identity, first, log, continues = (each[0] if each else KeyValue() for each in found)
        made = identity.value.decode(errors="replace")
        # They were made in one revision. Whatever was deleted and written again is not the log that
        # was read.
        if {first.create_revision, log.create_revision} != {identity.create_revision}:
            made = f"{made}, and keys that were deleted since"
        cluster = f"{answer.header.cluster_id:x}"
        return LogDescription(
            identity=LogIdentity(
                name=keys.prefix.decode(),
                created=f"{made} in cluster {cluster} at revision {identity.create_revision}",
            ),
            base=identity.create_revision,
            revision=answer.header.revision,
            last_sequence=max(log.version - 1, 0),
            trimmed_first=int(first.value or b"1"),
            trims=max(first.version - 1, 0),
            continues=Continuation.decode(continues.value) if continues.value else None,
        )

    async def make(self, continues: Continuation | None = None) -> None:
        """Makes the log, which goes on from another one, unless it is there. Raises as `find`."""
        keys = self.keys
        made = f"{datetime.now(UTC).isoformat(timespec='seconds')} as {uuid.uuid4()}"
        question = TxnRequest(
            compare=[Compare(target=Compare.CREATE, key=keys.identity, create_revision=0)],
            success=[
                put(keys.identity, made.encode()),
                put(keys.first, b"1"),
                put(keys.log, b""),
                *([put(keys.continues, continues.encode().encode())] if continues else []),
            ],
        )
        await self._connection.ask_until(self._limit_ms, TRANSACTION, question)

    async def remove(self) -> None:
        """Removes the log, and all that its publishers keep. Raises as `find`."""
        prefix = self.keys.prefix
        question = DeleteRangeRequest(key=prefix, range_end=end_of(prefix))
        await self._connection.ask_until(self._limit_ms, DELETE_RANGE, question)

    async def groups(self, count_max: int) -> list[str]:
        """Returns groups that the servers have logs of. Raises as `find` with `once`."""
        question = RangeRequest(
            key=PREFIX.encode(), range_end=end_of(PREFIX.encode()), keys_only=True
        )
        answer = await self._connection.ask(RANGE, question)
        names = [each.key.decode(errors="replace").split("/") for each in answer.kvs]
        return [name[1] for name in names if name[2:] == ["identity"]][:count_max]

    async def keys_of_others(self) -> int:
        """Returns the number of keys in the servers that are not this log's; 0 where this user may
        not know. Raises LogServerUnavailable.
        """
        own = RangeRequest(
            key=self.keys.prefix, range_end=end_of(self.keys.prefix), count_only=True
        )
        question = TxnRequest(
            success=[_get(RangeRequest(key=b"\0", range_end=b"\0", count_only=True)), _get(own)]
        )
        try:
            answer = await self._connection.ask_until(self._limit_ms, TRANSACTION, question)
        except EtcdRefused:
            return 0
        every, ours = (response.response_range.count for response in answer.responses)
        return every - ours

    async def message_at(self, base: int, sequence: int, *, keys_only: bool = False) -> KeyValue:
        """Returns the put of a message that is in the log; with `keys_only` without its value.

        Each revision adds one message at most, so that a guess is never too high, and what it
        lacks is what to add to it: two or three answers, unless others wrote between them.

        Raises:
            Compacted: The servers no longer have it.
            LogServerUnavailable: No answer within the limit.
        """
        revision = base + sequence
        while True:
            found = await self._at(revision, keys_only)
            if found is None:
                revision = max(await self._compacted_revision(), revision + 1)
                continue
            lacking = sequence - (found.version - 1)
            # The oldest revision that is left has a later message.
            if lacking < 0:
                raise Compacted
            if not lacking:
                return found
            revision += lacking

    async def messages_from(self, revision: int, count: int) -> list[KeyValue]:
        """Returns the messages at so many revisions that are there, from one on.

        Raises:
            Compacted: The servers no longer have the first one.
            EtcdRefused, NotAnswered: As one attempt does.
        """
        question = TxnRequest(
            success=[
                _get(RangeRequest(key=self.keys.log, revision=each, serializable=True))
                for each in range(revision, revision + count)
            ]
        )
        try:
            answer = await self._connection.ask(TRANSACTION, question, limit_ms=FETCH_MS_MAX)
        except EtcdRefused as refused:
            if COMPACTED in str(refused):
                raise Compacted from None
            raise
        found = (kv for each in answer.responses for kv in each.response_range.kvs)
        # At a trim, or a write of others, the message before it is found again.
        by_revision = {each.mod_revision: each for each in found}
        return [each for at, each in by_revision.items() if at >= revision]

    async def first_kept(self, description: LogDescription) -> int:
        """Returns the first message that can be read; somebody else may have compacted more than
        was trimmed. Raises as `find`.
        """
        first = description.trimmed_first
        if first > description.last_sequence:
            return first
        try:
            await self.message_at(description.base, first, keys_only=True)
        except Compacted:
            found = await self._at(await self._compacted_revision(), keys_only=True)
            return first if found is None else max(first, found.version - 1)
        return first

    async def trim(self, description: LogDescription, sequence: int) -> None:
        """Drops every message below a sequence. Raises as `find`."""
        sequence = min(sequence, description.last_sequence + 1)
        if sequence <= description.trimmed_first:
            return
        # A compaction keeps what is newest at its revision: the message `sequence`, if it is there.
        revision = description.revision
        if sequence <= description.last_sequence:
            revision = (
                await self.message_at(description.base, sequence, keys_only=True)
            ).mod_revision
        # What was trimmed is known before it is gone.
        note = TxnRequest(
            compare=[
                Compare(
                    target=Compare.CREATE,
                    key=self.keys.identity,
                    create_revision=description.base,
                ),
                Compare(target=Compare.VERSION, key=self.keys.first, version=description.trims + 1),
            ],
            success=[put(self.keys.first, str(sequence).encode())],
        )
        try:
            answer = await self._connection.ask_until(self._limit_ms, TRANSACTION, note)
            is_noted = answer.succeeded
        except EtcdRefused as refused:
            if refused.code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            is_noted = True  # Full servers take no note, and need the room.
        if not is_noted:  # Another trim came first, or this one at its last attempt.
            now = await self.find()
            if now is None or now.base != description.base or now.trimmed_first < sequence:
                return
        try:
            await self._connection.ask_until(
                self._limit_ms, COMPACT, CompactionRequest(revision=revision)
            )
        except EtcdRefused as refused:
            if refused.code is not grpc.StatusCode.OUT_OF_RANGE:  # It is compacted already.
                raise

    def _never(self) -> RequestOp:
        """Returns an operation for the side of a transaction that is not taken: with it, servers
        take the transaction for a write.
        """
        return RequestOp(request_delete_range=DeleteRangeRequest(key=self.keys.prefix + b"never"))

    async def _at(self, revision: int, keys_only: bool) -> KeyValue | None:
        """Returns the newest message at a revision; None: the servers no longer have that."""
        # What was at a revision does not change: any server may say it that is so far.
        question = RangeRequest(
            key=self.keys.log, revision=revision, keys_only=keys_only, serializable=True
        )
        deadline = time.monotonic() + self._limit_ms / 1000
        while True:
            server = self._connection.current
            try:
                answer = await self._connection.ask_until(self._limit_ms, RANGE, question)
                # The key was not there at that revision: no message, as in its first put, which is
                # empty.
                return answer.kvs[0] if answer.kvs else KeyValue(version=1, mod_revision=revision)
            except EtcdRefused as refused:
                if COMPACTED in str(refused):
                    return None
                # A server that lags behind does not have the revision yet, and another one may.
                if refused.code is not grpc.StatusCode.OUT_OF_RANGE or time.monotonic() > deadline:
                    raise
            self._connection.leave(server)
            await asyncio.sleep(RETRY_MS / 1000)

    async def _compacted_revision(self) -> int:
        """Returns the first revision that the servers still have."""
        deadline = time.monotonic() + self._limit_ms / 1000
        while True:
            try:
                return await self._ask_compacted_revision()
            except NotAnswered as error:
                if time.monotonic() > deadline:
                    address = self._connection.address
                    raise LogServerUnavailable(address=address, cause=str(error)) from None
            await asyncio.sleep(RETRY_MS / 1000)

    async def _ask_compacted_revision(self) -> int:
        """Asks one server for it: only a watch is told. 0: nothing was compacted."""
        connection = self._connection
        server = connection.current
        call = await connection.watch(server)
        create = WatchCreateRequest(key=self.keys.identity, start_revision=1)
        try:
            async with asyncio.timeout(WATCH_SECONDS_MAX):
                await call.write(WatchRequest(create_request=create))
                while isinstance(answer := await call.read(), WatchResponse):
                    if answer.compact_revision or answer.events:
                        return answer.compact_revision
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError) as error:
            connection.leave(server)
            raise NotAnswered(str(error)) from None
        finally:
            call.cancel()
        raise NotAnswered(f"{server}: the watch has ended")


def put(key: bytes, value: bytes) -> RequestOp:
    """Returns the operation that writes a key."""
    return RequestOp(request_put=PutRequest(key=key, value=value))


def _get(question: RangeRequest) -> RequestOp:
    return RequestOp(request_range=question)


def end_of(prefix: bytes) -> bytes:
    """Returns the end of the range of all keys with a prefix.

    >>> end_of(b"groupcert/shop/")
    b'groupcert/shop0'
    """
    return prefix[:-1] + bytes([prefix[-1] + 1])
