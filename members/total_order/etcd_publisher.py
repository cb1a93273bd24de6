"""Writes messages into a group's log in etcd, one after the other, each until it is acknowledged.

An attempt is one transaction: if this publisher's own key was written as often as it has messages
in the log, then write the message and that key. Both get one revision. So an attempt that was
believed lost and comes late, or comes twice, changes nothing, however much later that is; the key
says what became of it. One message is in flight, since servers take calls in any order.
"""

import asyncio
import uuid
from collections.abc import Sequence

from groupcert.etcd.rpc_pb2 import (
    Compare,
    DeleteRangeRequest,
    KeyValue,
    RangeRequest,
    RequestOp,
    TxnRequest,
    TxnResponse,
)

from ..host.backoff import Backoff
from .etcd_connection import (
    ATTEMPT_MS,
    ATTEMPT_MS_MAX,
    RANGE,
    TRANSACTION,
    EtcdConnection,
    EtcdRefused,
)
from .etcd_log import LogKeys, end_of, put
from .port import PUBLISHING_MAX
from .served_log import Message, NotAnswered, Pending

BACKOFF_FIRST_MS = 10
BACKOFF_MAX_MS = 250
IDS_KEPT = 4_096
"""Ids of acknowledged messages that this publisher does not write again."""
PUBLISHERS_KEPT = 64
"""Keys of publishers that stay; those that wrote longest ago are removed, some with the first
message of a new one: each start of a member leaves one behind."""
FULL_WORDS = "database space exceeded"
"""etcd's words once its quota is reached, until an operator disarms the alarm."""
REMOVED_MAX = 32
"""Of an etcd's 128 operations in a transaction."""


class EtcdPublisher:
    """The sending half of the adapter; `run` does the sending."""

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
        own, identity = (each.response_range.kvs for each in answer.responses)
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

    >>> entries = [KeyValue(key=b"%d" % each, mod_revision=each) for each in range(66)]
    >>> outdated_keys(entries)
    [b'0', b'1']
    """
    by_age = sorted(publishers, key=lambda each: each.mod_revision)
    return [each.key for each in by_age[: max(len(by_age) - PUBLISHERS_KEPT, 0)]][:REMOVED_MAX]
