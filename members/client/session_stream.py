"""A client's session stream: many calls, of any number of tasks, in few messages.

The rules it keeps: a call is sent at once if nothing is on its way, else together with all that
wait meanwhile. Messages go over gRPC until the member's frames are connected, by these from then
on; what the member answered last has come before the stream's end counts as one in order.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from groupcert.v1.session_pb2 import SessionCall, SessionFrames, SessionRequest, SessionResponse

from ...certifier.errors import GroupcertError, NotServing
from ..errors.calls import InvalidMessage
from ..errors.transactions import MemberFailed
from ..wire.channels import STREAM_ENDED, Ending, is_admitted
from ..wire.frames import Frames
from ..wire.statuses import carried_error

MESSAGE_BYTES = 256 << 10
"""Bytes of requests from which on a message is full."""
MESSAGE_REQUESTS = 1_000
CALLS_MAX = 1_000
"""Calls at a time; further ones wait here. A member takes up to 2,048 of one caller."""
ANSWER_BYTES_MAX = 64 << 20
CLOSE_SECONDS = 1.0
GONE = "CLOSED (the session has ended)"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[int], Awaitable[Connection]]
"""Connects to the frames at a port of a member. Raises OSError or TimeoutError."""


class SessionStream:
    """A stream from its first call to its end: many calls, of any number of tasks, in few messages.
    Each call gets its own answer, error or end of its time. For one event loop.
    """

    def __init__(
        self,
        stream: "grpc.aio.StreamStreamCall[SessionRequest, SessionResponse]",
        address: str,
        failure: Callable[[grpc.RpcError], GroupcertError],
        connect: Connect | None = None,
    ) -> None:
        """Begins to read; `failure` says what a failed call to the member at `address` means, and
        `connect` connects to its frames; None: they are not asked for.
        """
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
        self._connect = connect
        self._framed: asyncio.Task[None] | None = None
        self._frames: Frames | None = None
        """By which messages go, from the moment at which the member may answer by them."""
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
            asks = self._connect is not None
            while await self._news.wait():
                self._news.clear()
                while self._unsent:
                    message = self._unsent.popleft()
                    message.asks_frames, asks = asks, False
                    # Calls that come while this waits gather in the messages behind it.
                    if self._frames is None:
                        await stream.write(message)
                    else:
                        self._frames.write(message.SerializeToString())
                        if self._frames.is_full:
                            await self._frames.sent()
        except STREAM_ENDED:
            pass

    async def _receive(self, stream: "grpc.aio.StreamStreamCall[Any, Any]") -> None:
        gone = NotServing(member=self._address, state=GONE)
        ended: GroupcertError = gone
        try:
            async for message in stream:
                self._take(message)
                if message.HasField("frames"):
                    self._framed = asyncio.create_task(self._use_frames(message.frames))
        except grpc.RpcError as error:
            ended = self._failure(self._ending.of(error))
        finally:  # gRPC cancels this task, if the stream is cancelled.
            if self._framed is not None and not await self._has_all(self._framed):
                ended = gone
            self._end(ended)

    def _take(self, message: SessionResponse) -> None:
        for answer in message.answers:
            self._answered(answer.number, answer)

    async def _use_frames(self, told: SessionFrames) -> None:
        """Takes what comes by frames until they end, if they can be connected."""
        assert self._connect is not None
        try:
            frames = Frames(*await self._connect(told.port), ANSWER_BYTES_MAX)
        except (OSError, TimeoutError):
            return
        try:
            # Another process may listen there, as behind a mapped port.
            if await frames.sign() == told.greeting:
                frames.show(told.ticket)
                self._frames = frames
                while (message := await frames.read()) is not None:
                    self._take(SessionResponse.FromString(message))
        except (InvalidMessage, DecodeError):
            pass
        finally:
            frames.abort()
            is_cut_off = self._frames is not None and not frames.ended_in_order
            if is_cut_off and self._stream is not None:
                self._stream.cancel()

    async def _has_all(self, framed: "asyncio.Task[None]") -> bool:
        """Returns whether all that the member has answered is here, once the stream has ended."""
        if self._frames is not None:
            await asyncio.wait((framed,), timeout=CLOSE_SECONDS)
        framed.cancel()
        return self._frames is None or self._frames.ended_in_order

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
        self._receiving = self._framed = None

    def _end(self, why: GroupcertError) -> None:
        if self.ended is None:
            self.ended = why
        if self._sending is not None:
            self._sending.cancel()
        self._stream = self._sending = None
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(copy.copy(why))
