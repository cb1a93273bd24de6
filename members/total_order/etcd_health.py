"""Asks each etcd server of a log for its state, again and again, and what it has promised, once.

etcd's leader does not tell of the others as JetStream's does: a server that does not answer this
member is silent to it, whatever the others hear of it. One is current that has applied all that any
of them had half a second ago.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import grpc

from groupcert.etcd.rpc_pb2 import (
    Member,
    MemberListRequest,
    PutRequest,
    StatusResponse,
)

from ..security.credentials import Tls
from .etcd_connection import (
    MEMBER_LIST,
    PUT,
    EtcdConnection,
    EtcdRefused,
    leader_of,
)
from .served_log import NotAnswered, now_ms, page_of
from .server_health import LogServers, ServerAnswer

PERIOD_SECONDS = 0.5
ANSWER_MS_MAX = 1_000
"""Milliseconds; shorter than `LOST_MS`, so that the end of an election is seen soon."""
SYNC_PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.4)
"""A server that is not needed for a majority may sync a little later."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPromises:
    """The promises of all servers of a log, by their metrics."""

    syncs_always: bool | None = None
    """Whether they sync every write; None: one of them does not say."""
    quota_bytes: int = 0
    """Bytes that the smallest of them takes; 0: none says."""


class EtcdHealth:
    """The health of one log's servers; `run` asks them."""

    def __init__(
        self, connection: EtcdConnection, members: Sequence[Member], servers: LogServers
    ) -> None:
        """Asks over `connection`, and tells `servers`; `members`: as they know each other."""
        self._connection = connection
        self._names = {each.id: each.name for each in members}
        self._servers = servers
        self._id_of: dict[str, int] = {}
        self._index_before = 0

    async def run(self) -> None:
        """Asks until it is cancelled."""
        while True:
            self._connection.renew_certificates()
            answers = await self._connection.statuses(ANSWER_MS_MAX)
            if not all(self._names.get(each.header.member_id) for each in answers.values()):
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
            self._names = {each.id: each.name for each in answer.members}

    def _take(self, answers: Mapping[str, StatusResponse]) -> None:
        for server, answer in answers.items():
            self._id_of[server] = answer.header.member_id
        if not answers:
            self._servers.failed(self._connection.problem or "no server answers")
            return
        self._connection.leader = leader_of(answers)
        # In the newest term; in it, a server that has not heard yet who leads knows less.
        newest = max(answers.values(), key=lambda each: (each.raft_term, each.leader != 0))
        self._servers.answered(
            now_ms(),
            self._names.get(newest.leader, "") if newest.leader else "",
            [self._answer_of(each, answers.get(each)) for each in self._connection.servers],
        )
        self._index_before = max(each.raft_index for each in answers.values())
        if problems := sorted({text for each in answers.values() for text in each.errors}):
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


async def voters_of(connection: EtcdConnection, limit_ms: int) -> list[Member]:
    """Returns the servers that vote, as they know each other. Raises as `ask_until`."""
    answer = await connection.ask_until(limit_ms, MEMBER_LIST, MemberListRequest())
    return [each for each in answer.members if not each.is_learner]


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
        elif found := _TOO_LARGE.search(str(refused)):
            limit = int(found[1]) - OVERHEAD_BYTES
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
