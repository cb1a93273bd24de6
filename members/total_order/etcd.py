"""The total order on etcd: one key a group, whose puts are the messages, in servers of its own.

`open` checks what can be checked: the servers' version and number, that they sync every write, that
nobody else keeps keys there. After it one task writes and another asks the servers how they are.
How a message is found and read is in `etcd_log.py` and `etcd_reader.py`.
"""

import asyncio
import re
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import grpc

from groupcert.etcd.rpc_pb2 import (
    Compare,
    DeleteRangeRequest,
    KeyValue,
    Member,
    MemberListRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
    StatusRequest,
    StatusResponse,
    TxnRequest,
    TxnResponse,
)

from ...certifier.errors import ForeignLog, InvalidSetting, LogGap, LogServerTooOld
from ..host.backoff import Backoff
from ..security.credentials import Tls
from .etcd_connection import (
    ATTEMPT_MS,
    ATTEMPT_MS_MAX,
    MEMBER_LIST,
    PUT,
    RANGE,
    STATUS,
    TRANSACTION,
    EtcdConnection,
    EtcdRefused,
    leader_of,
)
from .etcd_log import Compacted, EtcdLog, LogDescription, LogKeys, end_of, put
from .etcd_reader import EtcdReader
from .linger import Linger
from .port import PUBLISHING_MAX, Delivery, LogState, check_same_log
from .served_log import (
    GROUPS_NAMED_MAX,
    Message,
    NotAnswered,
    Pending,
    ServedLog,
    ServedLogOptions,
    now_ms,
    page_of,
)
from .server_health import LogServers, ServerAnswer

SCHEMES = ("etcd", "etcds")
VERSION_MIN = (3, 4, 0)
VERSIONS_BAD = ((3, 5, 0), (3, 5, 3))
"""From the first up to the second, without it: a crash could leave their servers with different
data (etcd's post-mortem of 2022)."""
PROMISES_MS = 10_000
"""Milliseconds until servers are asked again for their promises, unless all sync every write."""
PERIOD_SECONDS = 0.5
ANSWER_MS_MAX = 1_000
"""Milliseconds; shorter than `LOST_MS`, so that the end of an election is seen soon."""
SYNC_PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.4)
"""A server that is not needed for a majority may sync a little later."""
MESSAGE_BYTES_MIN = 1_310_720
"""Bytes that a message has to have room for: a fragment of a large transaction has up to 1 MiB."""
MESSAGE_BYTES_MAX = 8 << 20
"""Bytes of the largest message, as for JetStream, whatever the servers take."""
REQUEST_BYTES_DEFAULT = 1_572_864
OVERHEAD_BYTES = 512 << 10
"""Bytes that a server takes beyond `--max-request-bytes` before it looks at a call: a constant of
etcd."""
ENVELOPE_BYTES = 4 << 10
"""Bytes for what is around a message in a call: keys, ids and comparisons."""
_TOO_LARGE = re.compile(r"larger than max \(\d+ vs\. (\d+)\)")
_METRIC = re.compile(r"^(\w+) (\S+)$", re.MULTILINE)
SYNCS = "etcd_disk_wal_fsync_duration_seconds_count"
APPLIED = "etcd_server_proposals_applied_total"
QUOTA = "etcd_server_quota_backend_bytes"
BACKOFF_FIRST_MS = 10
BACKOFF_MAX_MS = 250
IDS_KEPT = 4_096
"""Ids of acknowledged messages that this publisher does not write again."""
PUBLISHERS_KEPT = 64
"""Keys of publishers that stay; those that wrote longest ago are removed, some with the first
message of a new one: each start of a member leaves one behind."""
REMOVED_MAX = 32
"""Of an etcd's 128 operations in a transaction."""
FULL_WORDS = "database space exceeded"
"""etcd's words once its quota is reached, until an operator disarms the alarm."""


class EtcdOptions(ServedLogOptions):
    """The log of a group in etcd, `etcd://host:port` or `etcds://...`. By default its servers are
    asked where they answer members whether they sync.
    """

    __slots__ = ()


class EtcdPublisher:
    """Writes messages into a group's log, one after the other, each until it is acknowledged.

    An attempt is one transaction: if this publisher's own key was written as often as it has
    messages in the log, then write the message and that key. Both get one revision. So an attempt
    that was believed lost and comes late, or comes twice, changes nothing, however much later that
    is; the key says what became of it. One message is in flight, since servers take calls in any
    order.
    """

    def __init__(
        self, connection: EtcdConnection, keys: LogKeys, base: int, pending: Pending
    ) -> None:
        """Writes to the log that was made in revision `base`, and to no other."""
        self._connection = connection
        self._keys = keys
        self._base = base
        self._pending = pending
        self._recent: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._own_key = b""
        self._written = 0
        self._outdated: Sequence[bytes] = ()

    def publish(self, message_id: str, payload: bytes) -> None:
        """Accepts a message, as `TotalOrder.publish` says."""
        if message_id in self._recent:
            return
        self._recent[message_id] = None
        if len(self._recent) > PUBLISHING_MAX + IDS_KEPT:
            del self._recent[next(iter(self._recent))]
        self._pending.accept(message_id, payload)
        self._wake.set()

    async def run(self) -> None:
        """Sends, until it is cancelled."""
        while True:
            if (message := self._pending.oldest()) is None:
                self._wake.clear()
                await self._wake.wait()
            else:
                await self._write(message)
                self._pending.acknowledged(message)

    async def _write(self, message: Message) -> None:
        """Sends a message until the log has it, once."""
        attempt_ms = ATTEMPT_MS
        backoff = Backoff(first_ms=BACKOFF_FIRST_MS, max_ms=BACKOFF_MAX_MS)
        while True:
            server = self._connection.leader or self._connection.current
            try:
                if not self._own_key:
                    await self._begin(server)
                answer = await self._connection.ask(
                    TRANSACTION, self._attempt(message), limit_ms=attempt_ms, server=server
                )
                if self._is_written(message, answer):
                    return
            except NotAnswered as error:
                self._pending.refusal = str(error)
                if error.is_late:
                    attempt_ms = min(2 * attempt_ms, ATTEMPT_MS_MAX)
                # That was the pause: an election is over, or has had its time.
                await self._connection.wait_for_leader()
                continue
            except EtcdRefused as refused:
                self._pending.refusal = str(refused)
                self._pending.full = str(refused) if FULL_WORDS in str(refused) else ""
            await asyncio.sleep(backoff.next_s())

    async def _begin(self, server: str) -> None:
        """Begins with a key of its own, and finds those of publishers that are gone."""
        prefix = self._keys.publishers
        answer = await self._connection.ask(
            RANGE,
            RangeRequest(key=prefix, range_end=end_of(prefix), keys_only=True),
            server=server,
        )
        self._outdated = outdated_keys(answer.kvs)
        self._own_key = prefix + uuid.uuid4().hex.encode()
        self._written = 0

    def _attempt(self, message: Message) -> TxnRequest:
        own_key, identity = self._own_key, self._keys.identity
        return TxnRequest(
            compare=[
                Compare(target=Compare.VERSION, key=own_key, version=self._written),
                # A log that was made anew under the same keys gets nothing that was meant for this
                # one.
                Compare(target=Compare.CREATE, key=identity, create_revision=self._base),
            ],
            success=[
                put(self._keys.log, message.payload),
                put(own_key, message.message_id.encode()),
                *(
                    RequestOp(request_delete_range=DeleteRangeRequest(key=key))
                    for key in self._outdated
                ),
            ],
            failure=[
                RequestOp(request_range=RangeRequest(key=own_key)),
                RequestOp(request_range=RangeRequest(key=identity, keys_only=True)),
            ],
        )

    def _is_written(self, message: Message, answer: TxnResponse) -> bool:
        """Returns whether an answered attempt, or one before it, has written the message."""
        if answer.succeeded:
            self._written += 1
            self._outdated = ()
            return True
        own, identity = (answered.response_range.kvs for answered in answer.responses)
        if not identity or identity[0].create_revision != self._base:
            self._pending.refusal = "the log was deleted, or made anew"
            return False
        version = own[0].version if own else 0
        # An attempt that was believed lost has written it.
        if version == self._written + 1 and own[0].value == message.message_id.encode():
            self._written = version
            self._outdated = ()
            return True
        self._pending.refusal = "the key of this publisher was written, or removed, by another one"
        # Nobody knows then whether the message is in the log. It is written again, with a new key,
        # and readers know a repetition by its content.
        self._own_key = b""
        return False


def outdated_keys(publishers: Sequence[KeyValue]) -> list[bytes]:
    """Returns the keys of publishers that wrote longest ago, beyond those that are kept.

    >>> entries = [KeyValue(key=b"%d" % revision, mod_revision=revision) for revision in range(66)]
    >>> outdated_keys(entries)
    [b'0', b'1']
    """
    by_age = sorted(publishers, key=lambda publisher: publisher.mod_revision)
    outdated = by_age[: max(len(by_age) - PUBLISHERS_KEPT, 0)]
    return [publisher.key for publisher in outdated[:REMOVED_MAX]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPromises:
    """The promises of all servers of a log, by their metrics."""

    syncs_always: bool | None = None
    """Whether they sync every write; None: one of them does not say."""
    quota_bytes: int = 0
    """Bytes that the smallest of them takes; 0: none says."""


class EtcdHealth:
    """Asks each server of a log for its state, again and again.

    etcd's leader does not tell of the others as JetStream's does: a server that does not answer
    this member is silent to it, whatever the others hear of it. One is current that has applied all
    that any of them had half a second ago.
    """

    def __init__(
        self, connection: EtcdConnection, members: Sequence[Member], servers: LogServers
    ) -> None:
        """Asks over `connection`, and tells `servers`; `members`: as they know each other."""
        self._connection = connection
        self._names = {member.id: member.name for member in members}
        self._servers = servers
        self._id_of: dict[str, int] = {}
        self._index_before = 0

    async def run(self) -> None:
        """Asks until it is cancelled."""
        while True:
            self._connection.renew_certificates()
            answers = await self._connection.statuses(ANSWER_MS_MAX)
            if not all(self._names.get(answer.header.member_id) for answer in answers.values()):
                await self._ask_names()
            self._take(answers)
            await asyncio.sleep(PERIOD_SECONDS)

    async def _ask_names(self) -> None:
        """Asks for the servers' names again: one that was replaced has its old name and a new id,
        and tells its name once it runs.
        """
        with suppress(NotAnswered, EtcdRefused):
            question = MemberListRequest()
            answer = await self._connection.ask(MEMBER_LIST, question, limit_ms=ANSWER_MS_MAX)
            self._names = {member.id: member.name for member in answer.members}

    def _take(self, answers: Mapping[str, StatusResponse]) -> None:
        for server, answer in answers.items():
            self._id_of[server] = answer.header.member_id
        if not answers:
            self._servers.failed(self._connection.problem or "no server answers")
            return
        self._connection.leader = leader_of(answers)
        # In the newest term; in it, a server that has not heard yet who leads knows less.
        newest = max(answers.values(), key=lambda answer: (answer.raft_term, answer.leader != 0))
        self._servers.answered(
            now_ms(),
            self._names.get(newest.leader, "") if newest.leader else "",
            [self._answer_of(server, answers.get(server)) for server in self._connection.servers],
        )
        self._index_before = max(answer.raft_index for answer in answers.values())
        if problems := sorted({text for answer in answers.values() for text in answer.errors}):
            self._servers.failed("; ".join(problems))

    def _answer_of(self, server: str, answer: StatusResponse | None) -> ServerAnswer:
        name = self._name(server)
        if answer is None:
            return ServerAnswer(name, is_current=False, heard_ms=None, is_offline=True)
        # Against the last look, not this one: what is on its way between servers is no lag.
        lag = max(self._index_before - answer.raft_applied_index, 0)
        return ServerAnswer(name, is_current=not lag and answer.leader != 0, lag=lag)

    def _name(self, server: str) -> str:
        """Returns the name that a server's own group has for it, once it has answered."""
        return self._names.get(self._id_of.get(server, 0)) or server


class EtcdOrder(ServedLog[LogDescription]):
    """`TotalOrder` on the puts of a key. After `open` one task writes, another asks for health."""

    _options: EtcdOptions
    _connection: EtcdConnection
    _publisher: EtcdPublisher

    def __init__(self, options: EtcdOptions) -> None:
        super().__init__(options, EtcdConnection(options.servers, options.tls))
        self._log = EtcdLog(self._connection, options.group, options.connect_ms_max)
        self._foreign_writes = self._skipped = 0
        self._members: list[Member] = []
        self._message_bytes_max = 0
        self._promises = ServerPromises()
        self._asked_promises_ns = 0

    async def read(
        self, first_sequence: int, linger: Linger | None = None
    ) -> AsyncGenerator[list[Delivery], None]:
        """Yields messages, see `TotalOrder.read`."""
        reader = EtcdReader(
            self._connection,
            self._log,
            self._identity,
            foreign_writes=self._foreign_writes,
            linger=linger or Linger(),
        )
        skipped = self._skipped
        async with aclosing(reader.batches(first_sequence - skipped)) as batches:
            try:
                async for deliveries in batches:
                    yield [Delivery(number + skipped, payload) for number, payload in deliveries]
            except LogGap as gap:
                expected, found = gap.expected + skipped, gap.found + skipped
                raise LogGap(expected=expected, found=found) from None

    async def message(self, sequence: int) -> Delivery | None:
        """Returns one message, see `TotalOrder.message`."""
        description = await self._describe()
        number = sequence - self._skipped
        if not description.trimmed_first <= number <= description.last_sequence:
            return None
        # It may have been trimmed since the description was read.
        with suppress(Compacted):
            stored = await self._log.message_at(description.base, number)
            return Delivery(sequence, stored.value)
        return None

    async def state(self) -> LogState:
        """Returns the log's state, see `TotalOrder.state`."""
        asked_ns = time.monotonic_ns() - self._asked_promises_ns
        if not self._promises.syncs_always and asked_ns > PROMISES_MS * 1_000_000:
            await self._ask_promises()
        return await self._state_of(await self._describe())

    async def trim(self, sequence: int) -> None:
        """Drops messages, see `TotalOrder.trim`. Raises InvalidSetting if the user may not."""
        description = await self._describe()
        try:
            await self._log.trim(description, sequence - self._skipped)
        except EtcdRefused as refused:
            expected = f"a user that may write to {self._log.keys.prefix.decode()} ({refused})"
            raise InvalidSetting(name="log_trim_servers", value="", expected=expected) from refused

    async def _remove(self) -> None:
        await self._log.remove()

    async def _connect(self) -> None:
        """Raises LogServerTooOld if a server is older than needed, or of a release to avoid."""
        status = await self._connection.ask_until(
            self._options.connect_ms_max, STATUS, StatusRequest()
        )
        version = tuple(int(part) for part in status.version.split("-")[0].split("."))
        needed = VERSIONS_BAD[1] if VERSIONS_BAD[0] <= version < VERSIONS_BAD[1] else VERSION_MIN
        if version < needed:
            version_min = ".".join(map(str, needed))
            raise LogServerTooOld(version=status.version, version_min=version_min)

    async def _prepare(self) -> None:
        self._members = await voters_of(self._connection, self._options.connect_ms_max)
        self._message_bytes_max = await message_bytes_max(self._connection)
        if self._message_bytes_max < MESSAGE_BYTES_MIN:
            raise InvalidSetting(
                name="--max-request-bytes of etcd",
                value=f"{self._message_bytes_max} and some for what is around a message",
                expected="1572864, which is etcd's default, or more",
            )
        await self._ask_promises()

    async def _check_servers(self) -> None:
        """Raises InvalidSetting if the log has too few servers, or they have keys of others."""
        wanted = self._options.replicas
        if len(self._members) < wanted:
            raise InvalidSetting(
                name="log_replicas",
                value=wanted,
                expected=f"{len(self._members)} or less, as the etcd at {self._connection.address} "
                "has no more voting servers",
            )
        if others := await self._log.keys_of_others():
            raise InvalidSetting(
                name="log_servers",
                value=self._connection.address,
                expected=f"an etcd that only the group {self._options.group} uses, since trimming "
                f"its log drops the history of all keys: this one has {others} keys of others",
            )

    async def _find(self) -> LogDescription | None:
        return await self._log.find()

    async def _make(self) -> LogDescription | None:
        # Before the log is made, too: none may stay behind at servers that are refused.
        await self._check_servers()
        await self._log.make(self._options.continues)
        # It is looked for, as another member may have made it first.
        return await self._log.find()

    async def _groups(self) -> list[str]:
        return await self._log.groups(GROUPS_NAMED_MAX)

    async def _opened(self, description: LogDescription) -> LogState:
        await self._check_servers()
        self._foreign_writes = description.foreign_writes
        self._skipped = skipped_by(description)
        return await self._state_of(description)

    def _duties(
        self, description: LogDescription, servers: LogServers
    ) -> dict[str, Coroutine[Any, Any, None]]:
        connection, keys, base = self._connection, self._log.keys, description.base
        self._publisher = EtcdPublisher(connection, keys, base, self.pending)
        health = EtcdHealth(connection, self._members, servers)
        return {"health": health.run(), "publisher": self._publisher.run()}

    async def _describe(self) -> LogDescription:
        """Returns the log's description now. Raises as `state`."""
        with self._refusals():
            description = await self._log.find()
        if description is None:
            raise ForeignLog(expected=str(self._identity), found="no log")
        check_same_log(self._identity, description.identity)
        return description

    async def _state_of(self, description: LogDescription) -> LogState:
        status = await self._connection.ask_until(
            self._options.connect_ms_max, STATUS, StatusRequest()
        )
        return LogState(
            identity=description.identity,
            first_sequence=await self._log.first_kept(description) + skipped_by(description),
            last_sequence=description.last_sequence + skipped_by(description),
            replicas=len(self._members),
            durable=self._promises.syncs_always,
            message_bytes_max=self._message_bytes_max,
            bytes=status.db_size_in_use,
            bytes_max=self._promises.quota_bytes,
            continues=description.continues,
        )

    async def _ask_promises(self) -> None:
        self._asked_promises_ns = time.monotonic_ns()
        scheme = "http" if self._options.tls is None else "https"
        own = tuple(f"{scheme}://{server}" for server in self._connection.servers)
        monitors = self._options.monitors or own
        self._promises = await promises_of(monitors, self._options.tls, self._log.find)


def skipped_by(description: LogDescription) -> int:
    """Returns the sequence before a log's first message: that of the last one of the log that it
    goes on from. Below this module messages are counted from 1.
    """
    return description.continues.log_sequence if description.continues else 0


async def voters_of(connection: EtcdConnection, limit_ms: int) -> list[Member]:
    """Returns the servers that vote, as they know each other. Raises as `ask_until`."""
    answer = await connection.ask_until(limit_ms, MEMBER_LIST, MemberListRequest())
    return [member for member in answer.members if not member.is_learner]


async def message_bytes_max(connection: EtcdConnection) -> int:
    """Returns the bytes of the largest message that the current server takes.

    No call tells. So it is sent one that is wrong, since it names no key, and larger than any
    message: a server that takes so much says what is wrong, the others say how much they take.
    """
    size = MESSAGE_BYTES_MAX + ENVELOPE_BYTES + OVERHEAD_BYTES
    limit = REQUEST_BYTES_DEFAULT
    try:
        await connection.ask(PUT, PutRequest(value=bytes(size)), limit_ms=5_000)
    except NotAnswered:
        pass
    except EtcdRefused as refused:
        if refused.code is grpc.StatusCode.INVALID_ARGUMENT:
            limit = MESSAGE_BYTES_MAX + ENVELOPE_BYTES
        elif told_size := _TOO_LARGE.search(str(refused)):
            limit = int(told_size[1]) - OVERHEAD_BYTES
    return limit - ENVELOPE_BYTES


async def promises_of(
    monitors: Sequence[str], tls: Tls | None, propose: Callable[[], Awaitable[object]]
) -> ServerPromises:
    """Reads the promises of servers out of their metrics, at `http://host:port`.

    Args:
        propose: Has the servers write something to their logs. One that was told not to sync
            (`--unsafe-no-fsync`) applies that, and counts no sync of its log.
    """
    before = await asyncio.to_thread(_all_metrics, monitors, tls)
    await propose()
    for pause in (*SYNC_PAUSES_SECONDS, 0.0):
        after = await asyncio.to_thread(_all_metrics, monitors, tls)
        syncs = [_syncs(*pair) for pair in zip(before, after, strict=True)]
        if all(syncs):
            break
        await asyncio.sleep(pause)
    return ServerPromises(
        syncs_always=False if False in syncs else True if syncs and all(syncs) else None,
        quota_bytes=int(min(filter(None, (metrics.get(QUOTA) for metrics in after)), default=0)),
    )


def _syncs(before: Mapping[str, float], after: Mapping[str, float]) -> bool | None:
    """Returns whether a server has synced between two looks at it; None: it had no reason to."""
    if after.get(SYNCS, 0) > before.get(SYNCS, 0) > 0:
        return True
    return False if after.get(APPLIED, 0) > before.get(APPLIED, 0) > 0 else None


def _all_metrics(monitors: Sequence[str], tls: Tls | None) -> list[dict[str, float]]:
    """Returns the plain metrics of each server, by name; none of one that does not answer."""
    metrics: list[dict[str, float]] = []
    for monitor in monitors:
        text = page_of(f"{monitor}/metrics", tls).decode(errors="replace")
        metrics.append({})
        with suppress(ValueError):
            metrics[-1] = {name: float(value) for name, value in _METRIC.findall(text)}
    return metrics
