"""One member, as a client calls it: over a session stream, or by calls of their own.

The rule it keeps: all that gRPC has of a member is in one connection, of which nothing is left
once it is closed: a process can fork only while gRPC does nothing in it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import grpc
import grpc.aio

from groupcert.v1.certification_pb2_grpc import CertificationServiceStub
from groupcert.v1.group_pb2_grpc import GroupServiceStub
from groupcert.v1.session_pb2_grpc import SessionServiceStub
from groupcert.v1.store_pb2_grpc import StoreServiceStub

from ...certifier.errors import GroupcertError
from ..security.credentials import ANONYMOUS, Credentials
from ..wire.channels import Ending, is_admitted, open_aio_channel, token_metadata
from ..wire.frames import READ_AHEAD_BYTES
from ..wire.statuses import error_from
from .forks import check_usable
from .session_stream import Connection, SessionStream

if TYPE_CHECKING:
    from groupcert.v1.certification_pb2_grpc import CertificationServiceAsyncStub
    from groupcert.v1.group_pb2_grpc import GroupServiceAsyncStub
    from groupcert.v1.store_pb2_grpc import StoreServiceAsyncStub
MESSAGE_BYTES_MAX = 64 << 20
SESSION_REQUEST_BYTES = 64 << 10
"""Bytes of a request above which it goes in a call of its own."""
KEEPALIVE_MS = 2_000
KEEPALIVE_TIMEOUT_MS = 5_000
"""A member that owes an answer is pinged; one that hangs does not answer the ping, and another one
is asked. Members that are just busy answer it: gRPC does so beside Python."""
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # clients of one process have connections of their own
)
Answer = TypeVar("Answer")


class _Connection:
    """What gRPC has of a member: a channel, and what is made of it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.store = StoreServiceStub(channel)
        self.certification = CertificationServiceStub(channel)
        self.group = GroupServiceStub(channel)
        self.sessions = SessionServiceStub(channel)
        self.session: SessionStream | None = None


class RemoteMember:
    """One member: its session stream, which the first call opens, and its services."""

    def __init__(self, address: str, credentials: Credentials = ANONYMOUS) -> None:
        """Connects when it is first used, again after `close`."""
        self.address = address
        self.metadata = token_metadata(credentials)
        """Of each call that is made at the services directly."""
        self._credentials = credentials
        self.transactions: WeakSet[object] = WeakSet()
        """Those that have a snapshot there, and have not ended."""
        self._connection: _Connection | None = None

    @property
    def connection(self) -> _Connection:
        """The connection; of it nothing is kept by those who call, so that `close` ends all."""
        if self._connection is None:
            check_usable()
            channel = open_aio_channel(self.address, self._credentials, CHANNEL_OPTIONS)
            self._connection = _Connection(channel)
        return self._connection

    @property
    def is_connected(self) -> bool:
        """True if it has a connection, or makes one."""
        return self._connection is not None

    @property
    def channel(self) -> grpc.aio.Channel:
        """The channel to the member."""
        return self.connection.channel

    @property
    def store(self) -> "StoreServiceAsyncStub":
        """Calls of transactions on the embedded store."""
        return self.connection.store

    @property
    def certification(self) -> "CertificationServiceAsyncStub":
        """Calls of transactions of other stores."""
        return self.connection.certification

    @property
    def group(self) -> "GroupServiceAsyncStub":
        """Calls about the group."""
        return self.connection.group

    async def call(self, field: str, request: Any, timeout_s: float) -> Any:
        """Returns the answer to a request: over the session stream, or, if it is long, in a call of
        its own, which holds up no other.

        Args:
            field: The request's name in a `SessionCall`, such as `commit`.

        Raises:
            TimeoutError: No answer came within `timeout_s` seconds.
            GroupcertError: The member answered with an error, or is out of reach.
        """
        if request.ByteSize() <= SESSION_REQUEST_BYTES:
            return await self._stream().call(field, request, timeout_s)
        return await self.unary(_METHODS[field](self), request, timeout_s)

    async def stream(self, method: Any, timeout_s: float | None = None) -> Any:
        """Opens a call with a stream of requests, and returns it. Raises as `call`."""
        await self._stream().admitted()
        call = method(None, timeout=timeout_s, metadata=self.metadata)
        if not await is_admitted(call):
            await call.code()  # Its end: who reads learns why, and nothing is written.
        return call

    async def unary(self, method: Any, request: Any, timeout_s: float) -> Any:
        """Returns the answer of a service. Raises as `call`."""
        failure: Exception
        try:
            return await method(request, timeout=timeout_s, metadata=self.metadata)
        except grpc.RpcError as error:
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            failure = TimeoutError() if is_late else self.failure(error)
        del method  # The frames of an error that is kept, and its context, would keep the channel.
        raise failure

    def received(self, stream: AsyncIterable[Answer]) -> AsyncGenerator[Answer, None]:
        """Yields the messages of a call, which nothing was sent over before; ends it with its
        reader. Raises GroupcertError.
        """
        return self._received(stream, Ending(stream))  # type: ignore[arg-type]  # it is a call

    async def _received(
        self, stream: AsyncIterable[Answer], ending: Ending
    ) -> AsyncGenerator[Answer, None]:
        try:
            async for message in stream:
                yield message
        except grpc.RpcError as error:
            failure = self.failure(ending.of(error))
        else:
            return
        finally:
            stream.cancel()  # type: ignore[attr-defined]  # it is a call
            del stream, ending
        raise failure

    def failure(self, error: grpc.RpcError) -> GroupcertError:
        """Returns the error that a failed call to this member means to its caller."""
        return error_from(error, self.address, has_tls=self._credentials.tls is not None)

    async def close(self) -> None:
        """Ends the session and every call."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if connection.session is not None:
                await connection.session.close()
            await connection.channel.close(None)

    async def _connect_frames(self, port: int) -> Connection:
        host, tls = self.address.rpartition(":")[0].strip("[]"), self._credentials.tls
        context = None if tls is None else tls.client_context()
        return await asyncio.open_connection(host, port, limit=READ_AHEAD_BYTES, ssl=context)

    def _stream(self) -> SessionStream:
        connection = self.connection
        if connection.session is None or connection.session.ended is not None:
            stream = connection.sessions.Session(None, metadata=self.metadata)
            connection.session = SessionStream(
                stream, self.address, self.failure, self._connect_frames
            )
        return connection.session


_METHODS: Mapping[str, Callable[[RemoteMember], Any]] = {
    "open_snapshot": lambda member: member.store.OpenSnapshot,
    "close_snapshot": lambda member: member.store.CloseSnapshot,
    "get": lambda member: member.store.Get,
    "scan": lambda member: member.store.Scan,
    "commit": lambda member: member.store.Commit,
    "certify": lambda member: member.certification.Certify,
    "get_outcome": lambda member: member.certification.GetOutcome,
}
