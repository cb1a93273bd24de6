"""One session stream to a member: many calls, of any number of tasks, in few messages.

The rule it keeps: a call is sent at once if nothing is on its way to gRPC, else together with all
that wait meanwhile; each call gets its own answer, error or end of its time.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import grpc.aio

from groupcert.v1.session_pb2 import SessionCall, SessionRequest, SessionResponse

from ...certifier.errors import GroupcertError, NotServing
from ..errors.transactions import MemberFailed
from ..wire.channels import STREAM_ENDED, Ending, is_admitted
from ..wire.statuses import carried_error

MESSAGE_BYTES = 256 << 10
"""Bytes of requests from which on a message is full."""
MESSAGE_REQUESTS = 1_000
CALLS_MAX = 1_000
"""Calls at a time; further ones wait here. A member takes up to 2,048 of one caller."""
CLOSE_SECONDS = 1.0
GONE = "CLOSED (the session has ended)"


class SessionStream:
    """A stream from its first call to its end; for one event loop."""

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
