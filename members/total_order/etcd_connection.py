"""Calls of etcd's API at one of several servers, over the gRPC library that members have anyway.

A call is one attempt with a limit of its own: what a server forwards to a leader that has just died
is lost without an answer. So a caller repeats, here at the next server, and only what may be
repeated. Calls that are made at once reach a server in any order: whoever needs an order waits for
each answer.
"""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import grpc
import grpc.aio

from groupcert.etcd import rpc_pb2

from ...certifier.errors import LogServerUnavailable
from ..security.credentials import Stamp, Tls
from .served_log import NotAnswered, Refused
from .server_address import ServerAddress, without_password

RETRY_MS = 50
ATTEMPT_MS = 400
"""Milliseconds for an answer."""
ELECTION_MS = 1_500
"""Milliseconds that an election is waited for: servers of a group elect a leader in about 500."""
ATTEMPT_MS_MAX = 3_200
"""It doubles with each attempt in a row that took all of it: perhaps a disk is just slow."""
STATUS_MS = 100
"""Milliseconds for a server that lives to say who leads: it asks nobody."""
AUTHENTICATE_MS = 2_000
"""Milliseconds: a server hashes the password slowly, on purpose."""
DEFAULT_PORT = 2379
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_NOT_ANSWERED = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.ABORTED,
}
_TOKEN_REFUSED = ("invalid auth token", "revision of auth store is old", "auth token is not")


class _Message(Protocol):
    """The methods that every message of protobuf has."""

    def SerializeToString(self) -> bytes: ...

    @classmethod
    def FromString(cls, s: bytes) -> Self: ...


Question = TypeVar("Question", bound=_Message)
Answer = TypeVar("Answer", bound=_Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Question, Answer]):
    """One call of etcd's contract."""

    path: str
    question: type[Question]
    answer: type[Answer]


RANGE = Method("/etcdserverpb.KV/Range", rpc_pb2.RangeRequest, rpc_pb2.RangeResponse)
PUT = Method("/etcdserverpb.KV/Put", rpc_pb2.PutRequest, rpc_pb2.PutResponse)
DELETE_RANGE = Method(
    "/etcdserverpb.KV/DeleteRange", rpc_pb2.DeleteRangeRequest, rpc_pb2.DeleteRangeResponse
)
TRANSACTION = Method("/etcdserverpb.KV/Txn", rpc_pb2.TxnRequest, rpc_pb2.TxnResponse)
COMPACT = Method("/etcdserverpb.KV/Compact", rpc_pb2.CompactionRequest, rpc_pb2.CompactionResponse)
WATCH = Method("/etcdserverpb.Watch/Watch", rpc_pb2.WatchRequest, rpc_pb2.WatchResponse)
MEMBER_LIST = Method(
    "/etcdserverpb.Cluster/MemberList", rpc_pb2.MemberListRequest, rpc_pb2.MemberListResponse
)
STATUS = Method("/etcdserverpb.Maintenance/Status", rpc_pb2.StatusRequest, rpc_pb2.StatusResponse)
AUTHENTICATE = Method(
    "/etcdserverpb.Auth/Authenticate", rpc_pb2.AuthenticateRequest, rpc_pb2.AuthenticateResponse
)
METHODS = (
    RANGE,
    PUT,
    DELETE_RANGE,
    TRANSACTION,
    COMPACT,
    WATCH,
    MEMBER_LIST,
    STATUS,
    AUTHENTICATE,
)
WatchCall = grpc.aio.StreamStreamCall[rpc_pb2.WatchRequest, rpc_pb2.WatchResponse]


class EtcdRefused(Refused):
    """A server answered with an error, which another one would give as well."""

    def __init__(self, code: grpc.StatusCode, description: str) -> None:
        super().__init__(description)
        self.code = code


class EtcdConnection:
    """Calls at the servers of one log; after a failure the next server is asked."""

    def __init__(self, servers: Sequence[str], tls: Tls | None = None) -> None:
        """Prepares; the first call connects."""
        addresses = [ServerAddress.parse(each, DEFAULT_PORT) for each in servers]
        self.servers = tuple(each.host_and_port for each in addresses)
        self.address = ",".join(map(without_password, servers))
        self._user = next(((each.user, each.password) for each in addresses if each.user), None)
        self._tls = tls
        self._stamp: Stamp | None = None
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._retired: list[grpc.aio.Channel] = []
        self._calls: dict[tuple[str, str], Any] = {}
        self._token = ""
        self._authenticating = asyncio.Lock()
        self._current = random.choice(self.servers)
        self.leader = ""
        """The server that leads, as far as it is known: it does not have to forward a write."""
        self._leader_found: asyncio.Future[None] | None = None
        self.problem = ""
        """Why the last call had no answer; empty since one had."""
        self.is_closed = False

    @property
    def current(self) -> str:
        """The server to ask next."""
        return self._current

    def leave(self, server: str) -> None:
        """Asks another server from now on, if this one is the current one."""
        if self.leader == server:
            self.leader = ""
        # Calls that were made at once fail at once, and only the first of them moves on.
        if self._current == server:
            index = self.servers.index(server) + 1
            self._current = self.servers[index % len(self.servers)]

    async def ask(
        self,
        method: Method[Question, Answer],
        question: Question,
        *,
        limit_ms: int = ATTEMPT_MS,
        server: str = "",
    ) -> Answer:
        """Returns the answer of one server, by default the current one, to one attempt.

        Raises:
            NotAnswered: There was none, and another server is the current one now.
            EtcdRefused: The answer is an error.
        """
        server = server or self._current
        try:
            answer = await self._ask(method, question, limit_ms, server)
        except grpc.aio.AioRpcError as error:
            if not self._user or not is_token_refused(error):
                raise self._failure(server, error) from None
            self._token = ""  # It has expired, or users have changed.
            try:
                answer = await self._ask(method, question, limit_ms, server)
            except grpc.aio.AioRpcError as again:
                raise self._failure(server, again) from None
        self.problem = ""
        return answer

    async def ask_until(
        self, limit_ms: int, method: Method[Question, Answer], question: Question
    ) -> Answer:
        """Returns the first answer of any server.

        Raises:
            LogServerUnavailable: There was none within the limit.
            EtcdRefused: It is an error.
        """
        deadline = time.monotonic() + limit_ms / 1000
        attempt_ms = ATTEMPT_MS
        while True:
            try:
                return await self.ask(method, question, limit_ms=min(attempt_ms, limit_ms))
            except NotAnswered as error:
                if time.monotonic() > deadline:
                    raise LogServerUnavailable(address=self.address, cause=str(error)) from None
                if error.is_late:
                    attempt_ms = min(2 * attempt_ms, ATTEMPT_MS_MAX)
            await self.wait_for_leader()

    async def wait_for_leader(self) -> None:
        """Waits until a server says that it leads, at most the time that an election may take:
        what is asked before its end gets no answer, and would be waited for in vain after it.
        """
        if self._leader_found is None or self._leader_found.done():
            self._leader_found = asyncio.ensure_future(self._find_leader())
        # All callers wait for one search: the end of one must not end it for the others.
        await asyncio.shield(self._leader_found)

    async def statuses(self, limit_ms: int) -> dict[str, rpc_pb2.StatusResponse]:
        """Returns the statuses of the servers that answer within `limit_ms`, by their addresses."""
        answers = await asyncio.gather(*(self._status(server, limit_ms) for server in self.servers))
        pairs = zip(self.servers, answers, strict=True)
        return {server: answer for server, answer in pairs if answer is not None}

    async def watch(self, server: str) -> WatchCall:
        """Returns a new stream of watches, which the server ends if it has no leader.

        Raises: as `ask`.
        """
        try:
            metadata = (*await self._metadata(server), ("hasleader", "true"))
        except grpc.aio.AioRpcError as error:
            raise self._failure(server, error) from None
        key = (server, WATCH.path)
        if key not in self._calls:
            self._calls[key] = self._channel(server).stream_stream(
                WATCH.path,
                request_serializer=WATCH.question.SerializeToString,
                response_deserializer=WATCH.answer.FromString,
            )
        call: WatchCall = self._calls[key](metadata=metadata)
        return call

    def forget_token(self) -> None:
        """Authenticates anew with the next call: a watch was not permitted."""
        self._token = ""

    def renew_certificates(self) -> None:
        """Connects anew if the files of TLS have changed."""
        if self._tls is None or self._stamp is None:
            return
        try:
            is_new = self._tls.stamp() != self._stamp
        except OSError:  # They are being replaced.
            return
        if is_new:  # Calls that are under way, and watches, go on as they are.
            self._retired += self._channels.values()
            self._channels.clear()
            self._calls.clear()

    async def close(self) -> None:
        """Closes the connections to all servers."""
        self.is_closed = True
        if self._leader_found is not None:
            self._leader_found.cancel()
        channels = [*self._channels.values(), *self._retired]
        self._channels.clear()
        self._retired.clear()
        self._calls.clear()
        for channel in channels:
            await channel.close(None)

    async def _find_leader(self) -> None:
        deadline = time.monotonic() + ELECTION_MS / 1000
        while not self.is_closed and time.monotonic() < deadline:
            await asyncio.sleep(RETRY_MS / 1000)
            answers = await self.statuses(STATUS_MS)
            if answers and self._current not in answers:
                # It is cut off, perhaps together with whom it believes to lead.
                self._current = random.choice(list(answers))
            if leader := leader_of(answers):
                self.leader = leader
                return

    async def _status(self, server: str, limit_ms: int) -> rpc_pb2.StatusResponse | None:
        with suppress(NotAnswered, EtcdRefused):
            return await self.ask(STATUS, rpc_pb2.StatusRequest(), limit_ms=limit_ms, server=server)
        return None

    async def _ask(
        self, method: Method[Question, Answer], question: Question, limit_ms: int, server: str
    ) -> Answer:
        # A server says who leads to anybody, also while it could not let anybody authenticate.
        metadata = () if method.path == STATUS.path else await self._metadata(server)
        answer: Answer = await self._unary(server, method)(
            question, timeout=limit_ms / 1000, metadata=metadata
        )
        return answer

    def _unary(self, server: str, method: Method[Question, Answer]) -> Any:
        key = (server, method.path)
        if key not in self._calls:
            self._calls[key] = self._channel(server).unary_unary(
                method.path,
                request_serializer=method.question.SerializeToString,
                response_deserializer=method.answer.FromString,
            )
        return self._calls[key]

    async def _metadata(self, server: str) -> tuple[tuple[str, str], ...]:
        """Returns the token, if there is a user; asks the server for one if there is none yet."""
        if self._user is None:
            return ()
        # One caller asks for all: it is slow, on purpose.
        async with self._authenticating:
            if not self._token:
                name, password = self._user
                question = rpc_pb2.AuthenticateRequest(name=name, password=password)
                answer = await self._unary(server, AUTHENTICATE)(
                    question, timeout=AUTHENTICATE_MS / 1000
                )
                self._token = answer.token
            return (("token", self._token),)

    def _channel(self, server: str) -> grpc.aio.Channel:
        if self.is_closed:
            raise NotAnswered("the connection is closed")
        if server not in self._channels:
            self._channels[server] = self._open_channel(server)
        return self._channels[server]

    def _open_channel(self, server: str) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(server, _CHANNEL_OPTIONS)
        try:
            self._stamp = self._tls.stamp()
            files = self._tls.read()
        except OSError as error:  # They are being replaced.
            self.problem = str(error)
            raise NotAnswered(self.problem) from error
        credentials = grpc.ssl_channel_credentials(files.authority, files.key, files.certificate)
        return grpc.aio.secure_channel(server, credentials, _CHANNEL_OPTIONS)

    def _failure(self, server: str, error: grpc.aio.AioRpcError) -> NotAnswered | EtcdRefused:
        """Converts an error of gRPC into NotAnswered or EtcdRefused; leaves a server that gives no
        answer.
        """
        description = error.details() or error.code().name
        if error.code() in _NOT_ANSWERED:
            self.leave(server)
            self.problem = f"{server}: {description}"
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            return NotAnswered(self.problem, is_late=is_late)
        return EtcdRefused(error.code(), description)


def leader_of(answers: Mapping[str, rpc_pb2.StatusResponse]) -> str:
    """Returns the server that leads by its own words, in the newest term of all; empty: none."""
    # A leader that was cut off believes that it leads, in an older term.
    newest = max((each.raft_term for each in answers.values()), default=0)
    leading = (
        server
        for server, each in answers.items()
        if each.raft_term == newest and each.leader == each.header.member_id
    )
    return next(leading, "")


def is_token_refused(error: grpc.aio.AioRpcError) -> bool:
    """Returns whether a server does not know the token, or knows more of users than it has."""
    text = error.details() or ""
    return error.code() is grpc.StatusCode.UNAUTHENTICATED or any(
        each in text for each in _TOKEN_REFUSED
    )
