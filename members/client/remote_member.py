"""One member, as a client calls it: over a session stream, or by calls of their own.

The rules it keeps: all that gRPC has of a member is in one connection, of which nothing is left
once it is closed: a process can fork only while gRPC does nothing in it. On the session stream a
call is sent at once if nothing is on its way to gRPC, else together with all that wait meanwhile.
"""

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
from ..wire.statuses import error_from
from .forks import check_usable

if TYPE_CHECKING:
    from groupcert.v1.certification_pb2_grpc import CertificationServiceAsyncStub
    from groupcert.v1.group_pb2_grpc import GroupServiceAsyncStub
    from groupcert.v1.store_pb2_grpc import StoreServiceAsyncStub
import asyncio
import copy
from collections import deque
from contextlib import suppress
from itertools import count

from groupcert.v1.session_pb2 import SessionCall, SessionRequest, SessionResponse

from ...certifier.errors import NotServing
from ..errors.transactions import MemberFailed
from ..wire.channels import STREAM_ENDED
from ..wire.statuses import carried_error

MESSAGE_BYTES_MAX = 64 << 20
SESSION_REQUEST_BYTES = 64 << 10
"""Bytes of a request above which it goes in a call of its own."""
MESSAGE_BYTES = 256 << 10
"""Bytes of requests from which on a message is full."""
MESSAGE_REQUESTS = 1_000
CALLS_MAX = 1_000
"""Calls at a time; further ones wait here. A member takes up to 2,048 of one caller."""
CLOSE_SECONDS = 1.0
GONE = "CLOSED (the session has ended)"
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


class SessionStream:
    """A stream from its first call to its end: many calls, of any number of tasks, in few messages.
    Each call gets its own answer, error or end of its time. For one event loop.
    """

    def __init__(
        self,
        stream: "grpc.aio.StreamStreamCall[SessionRequest, SessionResponse]",
        address: str,
        failure: Callable[[grpc.RpcError], GroupcertError],
    ) -> None:
        """Begins to read; `failure` says what a failed call to the member at `address` means."""
        self.ended: GroupcertError | None = None
        """Why it ended, once it has."""
        self._stream: grpc.aio.StreamStreamCall[SessionRequest, SessionResponse] | None = stream
        """None once it has ended: an error that is kept refers to all this."""
        self._address = address
        self._failure = failure
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._unsent: deque[SessionRequest] = deque()
        self._unsent_bytes = 0
        """Of the last message that is not sent."""
        self._places = asyncio.Semaphore(CALLS_MAX)
        self._news = asyncio.Event()
        self._is_admitted = False
        self._ending = Ending(stream)
        self._sending: asyncio.Task[None] | None = asyncio.create_task(self._send(stream))
        self._receiving: asyncio.Task[None] | None = asyncio.create_task(self._receive(stream))
        self._receiving.add_done_callback(self._forget)

    async def call(self, field: str, request: Any, timeout_s: float) -> Any:
        """Returns the answer to a request.

        Args:
            field: Its name in a `SessionCall`, such as `commit`.

        Raises:
            TimeoutError: No answer came within `timeout_s` seconds; the member is told.
            GroupcertError: The answer is an error, or the stream has ended.
        """
        async with asyncio.timeout(timeout_s), self._places:
            if self.ended is not None:
                # A copy for each caller: an error that is raised takes the caller's frames with it.
                raise copy.copy(self.ended)
            number = next(self._numbers)
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._answers[number] = answer
            self._add(SessionCall(number=number, **{field: request}))
            try:
                return await answer
            except asyncio.CancelledError:
                self._withdraw(number)
                raise
            finally:
                del self._answers[number]

    async def close(self) -> None:
        """Ends the stream, and with it the snapshots that were opened over it.

        Where no call runs, the member ends it: after a stream that is cut off, gRPC has work left,
        which disturbs the other event loops of the process if this one is closed by then.
        """
        runs_nothing, stream = self._is_admitted and not self._answers, self._stream
        receiving = self._receiving
        self._end(NotServing(member=self._address, state=GONE))
        if stream is None or receiving is None:
            return
        with suppress(*STREAM_ENDED, TimeoutError):
            if runs_nothing:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await stream.done_writing()
                    await asyncio.wait((receiving,))
        stream.cancel()
        receiving.cancel()

    def _add(self, request: SessionCall) -> None:
        size = request.ByteSize()
        self._message(size).calls.append(request)
        self._unsent_bytes += size

    def _withdraw(self, number: int) -> None:
        """Removes a request that was not sent; of one that was, tells the member."""
        for message in self._unsent:
            for index, request in enumerate(message.calls):
                if request.number == number:
                    del message.calls[index]
                    return
        self._message(0).cancelled.append(number)

    def _message(self, size: int) -> SessionRequest:
        """Returns the unsent message that has room for `size` bytes more."""
        unsent = self._unsent
        is_full = self._unsent_bytes + size > MESSAGE_BYTES
        if not unsent or is_full or len(unsent[-1].calls) >= MESSAGE_REQUESTS:
            unsent.append(SessionRequest())
            self._unsent_bytes = 0
        self._news.set()
        return unsent[-1]

    async def admitted(self) -> None:
        """Waits until the member has let the stream in. Raises the error by which it ended."""
        stream, receiving = self._stream, self._receiving
        if stream is not None and receiving is not None and not await is_admitted(stream):
            await asyncio.wait((receiving,))
        # This frame goes with the error below, and would keep the stream alive for as long as that
        # is kept.
        del stream, receiving
        if self.ended is not None:
            raise copy.copy(self.ended)

    async def _send(self, stream: "grpc.aio.StreamStreamCall[Any, Any]") -> None:
        try:
            if not await is_admitted(stream):
                return  # Who receives knows why.
            self._is_admitted = True
            while await self._news.wait():
                self._news.clear()
                while self._unsent:
                    # Calls that come while this waits gather in the messages behind it.
                    await stream.write(self._unsent.popleft())
        except STREAM_ENDED:
            pass

    async def _receive(self, stream: "grpc.aio.StreamStreamCall[Any, Any]") -> None:
        ended: GroupcertError = NotServing(member=self._address, state=GONE)
        try:
            async for message in stream:
                for answer in message.answers:
                    self._answered(answer.number, answer)
        except grpc.RpcError as error:
            ended = self._failure(self._ending.of(error))
        finally:  # gRPC cancels this task, if the stream is cancelled.
            self._end(ended)

    def _answered(self, number: int, answer: Any) -> None:
        waiting = self._answers.get(number)
        # Its caller has gone: the time was up, or it was cancelled.
        if waiting is None or waiting.done():
            return
        field = answer.WhichOneof("answer")
        if field == "error":
            waiting.set_exception(carried_error(answer.error, self._address))
        elif field is None:  # A later release may have kinds that this one does not know.
            explanation = "its answer is of a kind that this release does not know"
            failed = MemberFailed(
                address=self._address, code=grpc.StatusCode.UNKNOWN.name, explanation=explanation
            )
            waiting.set_exception(failed)
        else:
            waiting.set_result(getattr(answer, field))

    def _forget(self, _receiving: "asyncio.Task[None]") -> None:
        self._receiving = None

    def _end(self, why: GroupcertError) -> None:
        if self.ended is None:
            self.ended = why
        if self._sending is not None:
            self._sending.cancel()
        self._stream = self._sending = None
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(copy.copy(why))


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

    def _stream(self) -> SessionStream:
        connection = self.connection
        if connection.session is None or connection.session.ended is not None:
            stream = connection.sessions.Session(None, metadata=self.metadata)
            connection.session = SessionStream(stream, self.address, self.failure)
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
