"""The gRPC service whose streams carry the calls of other services, many in one message.

The rule it keeps: a call in a stream is checked, counted and answered as the same call by itself;
and an answer waits for no other one, only for the message before it to be taken.

What one stream may hold: the calls that its caller has a share of, one message of requests, the
answer of one read, which counts in the budget of unsent answers, and `UNSENT_BYTES` of others.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeAlias

import structlog
from google.rpc import code_pb2, status_pb2  # type: ignore[import-untyped]  # has no types

from groupcert.v1 import session_pb2_grpc
from groupcert.v1.session_pb2 import (
    SessionCall,
    SessionFrames,
    SessionRequest,
    SessionResponse,
)

from ...certifier.errors import GroupcertError
from ..door.answer_budget import UNSENT, Unsent, answering
from ..door.door import Door
from ..door.frame_door import FrameDoor
from ..errors.calls import InvalidMessage
from ..runtime.snapshots import Snapshots
from ..wire.frames import CALL, Frames
from ..wire.session_answers import answered
from ..wire.statuses import rpc_status
from .certification import CertificationService
from .serving import Context, Current
from .store import StoreService

UNSENT_BYTES = 16 << 10
"""Bytes of answers that are not taken, of those that gRPC has, too, above which a stream begins no
more calls."""
BEGUN_AT_ONCE = 64
"""Calls that begin before others have their turn; each takes up to 0.1 ms."""
HANG_UP_SECONDS_MAX = 1.0
"""Seconds in which a client hangs up once it is told that all is answered."""
Method: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class SessionService(session_pb2_grpc.SessionServiceServicer):
    """Opens session streams."""

    def __init__(
        self,
        current: Current,
        door: Door,
        certification: CertificationService,
        store: StoreService,
        frames: FrameDoor | None = None,
    ) -> None:
        """Has messages come by `frames`, too; None: by gRPC only."""
        self.current = current
        self.frames = frames
        self._door = door
        in_store, in_certification = "/groupcert.v1.StoreService/", "/groupcert.v1.Certification"
        self.methods: dict[str, tuple[str, Method]] = {
            "open_snapshot": (f"{in_store}OpenSnapshot", store.OpenSnapshot),
            "close_snapshot": (f"{in_store}CloseSnapshot", store.CloseSnapshot),
            "get": (f"{in_store}Get", store.Get),
            "scan": (f"{in_store}Scan", store.Scan),
            "commit": (f"{in_store}Commit", store.Commit),
            "certify": (f"{in_certification}Service/Certify", certification.Certify),
            "get_outcome": (f"{in_certification}Service/GetOutcome", certification.GetOutcome),
        }
        """By the field of a request, the full name of its call and who answers it."""

    async def Session(
        self, request_iterator: AsyncIterator[SessionRequest], context: Context
    ) -> AsyncIterator[Any]:
        """Answers the calls of one stream, in messages that are serialized; see the protocol."""
        session = _Session(self, self._door, context)
        stopping = self.current.stopping
        stopped = asyncio.create_task(stopping.ended())
        stopped.add_done_callback(session.read_no_more)
        session.read(request_iterator)
        try:
            while await session.has_answers():
                if session.frames is None:  # No answer is kept here: it may be large.
                    yield session.take_answers()
                else:
                    await self._door.send_framed(CALL, session.frames, session.take_answers())
            session.check()
            await session.end_in_order()
            stopping.check(self.current.name)
        finally:
            stopped.cancel()
            session.end()


class _Session:
    """One stream: the calls that run, and the answers that wait to be sent."""

    def __init__(self, service: SessionService, door: Door, context: Context) -> None:
        self.frames: Frames | None = None
        """By which messages come and go, once the client has connected."""
        self._current = service.current
        self._methods = service.methods
        self._frame_door = service.frames
        self._told: SessionFrames | None = None
        self._door = door
        self._carried = door.carried_by(context)
        self._context = context
        self._caller = copy_context()
        """Who calls, and what he may: frames come in where nobody knows it."""
        self._readings: list[asyncio.Task[None]] = []
        """Of gRPC, and of frames."""
        self._running: dict[int, asyncio.Task[None]] = {}
        self._answers: list[bytes] = []
        self._read_unsent: list[Unsent] = []
        """Of the reads among them that took something from the budget."""
        self._answer_bytes = self._sending_bytes = 0
        """Of the answers that wait, and of those that are being sent."""
        self._unsent = answering()
        self._news, self._sent = asyncio.Event(), asyncio.Event()
        self._reads = asyncio.Lock()
        self._snapshots: Snapshots | None = None
        self._session_id = 0

    def read(self, messages: AsyncIterator[SessionRequest]) -> None:
        """Begins the calls of each message from here on."""
        reading = asyncio.create_task(self._read_all(messages), context=self._caller.copy())
        self._readings.append(reading)
        reading.add_done_callback(self._note)

    def read_no_more(self, _stopped: object = None) -> None:
        """Begins no further calls, nor takes a connection from which some would come."""
        if self._frame_door is not None and self._told is not None:
            self._frame_door.forget(self._told)
        for each in self._readings:
            each.cancel()

    async def has_answers(self) -> bool:
        """Returns True once answers wait, and those before them are taken; False if there will be
        no more, as nothing runs or the client sent what it must not.
        """
        self._sending_bytes = 0
        self._unsent.settle(0)
        self._sent.set()
        while not self._is_cut_off:
            if self._answers:
                return True
            if (self._readings[0].done() and not self._running) or self._has_failed:
                return False
            self._news.clear()
            await self._news.wait()
        return False

    def take_answers(self) -> bytes:
        """Returns the answers that wait, as one message."""
        answers = b"".join(self._answers)
        self._answers.clear()
        self._sending_bytes, self._answer_bytes = self._answer_bytes, 0
        self._unsent.settle(sum(each.bytes for each in self._read_unsent))
        self._forget_reads()
        return answers

    def check(self) -> None:
        """Raises the error of a client that sent what it must not."""
        for each in self._readings:
            if each.done() and not each.cancelled():
                each.result()

    async def end_in_order(self) -> None:
        """Says by frames, if there are any, that all is answered."""
        self.read_no_more()
        if self.frames is not None and not self.frames.has_ended:
            self.frames.write(b"")
            await asyncio.wait(self._readings)  # One at a time can wait for what comes.
            with suppress(TimeoutError):
                async with asyncio.timeout(HANG_UP_SECONDS_MAX):
                    await self.frames.ended()

    def end(self) -> None:
        """Ends the calls that still run, and closes the snapshots."""
        self.read_no_more()
        for task in self._running.values():
            task.cancel()
        self._forget_reads()
        if self._snapshots is not None:
            self._snapshots.end_session(self._session_id)
        if self.frames is not None:
            self.frames.abort()
        self._readings.clear()  # They hold this, which would stay until the collector runs.
        self._answers.clear()

    @property
    def _is_cut_off(self) -> bool:
        return self.frames is not None and self.frames.has_ended

    @property
    def _has_failed(self) -> bool:
        return any(each.done() and has_failed(each) for each in self._readings)

    async def _read_all(self, messages: AsyncIterator[SessionRequest]) -> None:
        """Begins the calls of each message. Raises InvalidMessage if two have one number."""
        async for message in messages:
            if message.asks_frames:
                self._tell_frames()
            for number in message.cancelled:
                cancelled = self._running.pop(number, None)
                if cancelled is not None:
                    cancelled.cancel()
            for count, request in enumerate(message.calls, start=1):
                self._begin(request)
                if count % BEGUN_AT_ONCE == 0:
                    await asyncio.sleep(0)
                    await self._room()
            await self._room()

    def _tell_frames(self) -> None:
        """Tells the client, once, where its messages may come by frames."""
        if self._frame_door is not None and self._told is None:
            self._told = self._frame_door.expect(self._attach)
            self._answers.append(SessionResponse(frames=self._told).SerializeToString())
            self._note()

    def _attach(self, frames: Frames) -> None:
        self.frames = frames
        parse = SessionRequest.FromString
        self.read(self._door.framed(CALL, parse, self._context, frames))

    def _note(self, _ended: object = None) -> None:
        """Wakes who waits for the next answers."""
        self._news.set()

    def _forget_reads(self) -> None:
        for each in self._read_unsent:
            each.settle(0)
        self._read_unsent.clear()

    async def _room(self) -> None:
        """Waits while too much is unsent."""
        while self._answer_bytes + self._sending_bytes > UNSENT_BYTES:
            self._sent.clear()
            await self._sent.wait()

    def _begin(self, request: SessionCall) -> None:
        number = request.number
        if number in self._running:
            expected = f"a number that no unanswered request has, not {number} again"
            raise InvalidMessage(call=CALL, bytes=request.ByteSize(), expected=expected)
        task = asyncio.create_task(self._run(request))
        self._running[number] = task
        task.add_done_callback(partial(self._ended, number))

    def _ended(self, number: int, task: "asyncio.Task[None]") -> None:
        if self._running.get(number) is task:
            del self._running[number]
        self._news.set()

    async def _run(self, request: SessionCall) -> None:
        """Adds the answer of one call to those that wait, unless it is cancelled: before another
        read can begin.
        """
        answer = await self._answer(request)
        self._answers.append(answer)
        self._answer_bytes += len(answer)

    async def _answer(self, request: SessionCall) -> bytes:
        """Runs one call, and returns its answer as a message."""
        field, number = request.WhichOneof("call"), request.number
        try:
            if field is None:
                expected = f"one of {', '.join(self._methods)} in request {number}"
                raise InvalidMessage(call=CALL, bytes=request.ByteSize(), expected=expected)
            call, method = self._methods[field]
            with self._carried.timed(call):
                self._carried.enter(call)
                try:
                    response = await self._response(field, method, getattr(request, field))
                finally:
                    self._carried.leave(call)
        except GroupcertError as error:
            return answered(number, "error", rpc_status(error))
        except Exception as error:  # As gRPC does it for the same call by itself.
            log.exception("call_failed", call=field)
            failed = status_pb2.Status(code=code_pb2.UNKNOWN, message=f"{error!r:.200}")
            return answered(number, "error", failed)
        return answered(number, field, response)

    async def _response(self, field: str, method: Method, request: Any) -> Any:
        if field in ("get", "scan"):
            return await self._read(method, request)
        if field == "open_snapshot":
            request.session_id = self._current_session()
        return await method(request, self._context)

    async def _read(self, method: Method, request: Any) -> Any:
        """Returns the answer of a read, which begins once the one before it is taken."""
        async with self._reads:
            await self._room()
            unsent = self._unsent.another()
            UNSENT.set(unsent)
            try:
                response = await method(request, self._context)
            except BaseException:
                unsent.settle(0)
                raise
            self._read_unsent.append(unsent)
            return response

    def _current_session(self) -> int:
        """Returns the session, at the member's current runtime, that the stream's snapshots end
        with.
        """
        snapshots = self._current.get().snapshots
        if self._snapshots is not snapshots:
            self._snapshots, self._session_id = snapshots, snapshots.begin_session()
        return self._session_id


def has_failed(task: "asyncio.Task[None]") -> bool:
    """Returns whether a task that is done has ended with an error."""
    return not task.cancelled() and task.exception() is not None
