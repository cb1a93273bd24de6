"""The gRPC service whose streams carry the calls of other services, many in one message.

The rule it keeps: a call in a stream is checked, counted and answered as the same call by itself;
and an answer waits for no other one, only for the message before it to be taken.

What one stream may hold: the calls that its caller has a share of, one message of requests, and
`ANSWER_BYTES` of answers, beside those of `READS_MAX` reads.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import structlog
from google.rpc import code_pb2, status_pb2  # type: ignore[import-untyped]  # has no types

from groupcert.certifier.errors import GroupcertError
from groupcert.members.door.door import CarriedCalls, Door
from groupcert.members.errors.calls import InvalidMessage
from groupcert.members.runtime.snapshots import Snapshots
from groupcert.members.services.certification import CertificationService
from groupcert.members.services.current_runtime import CurrentRuntime
from groupcert.members.services.serving import Context
from groupcert.members.services.store import StoreService
from groupcert.members.wire.statuses import rpc_status
from groupcert.v1 import session_pb2_grpc
from groupcert.v1.session_pb2 import SessionAnswer, SessionCall, SessionRequest, SessionResponse

CALL = "/groupcert.v1.SessionService/Session"
ANSWER_BYTES = 1 << 20
"""Bytes of unsent answers above which a stream begins no more calls."""
READS_MAX = 4
"""Reads of one stream at a time: the answer of each may have 8 MiB, a message 64."""
BEGUN_AT_ONCE = 64
"""Calls that begin before others have their turn; each takes up to 0.1 ms."""
Method: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
log: structlog.stdlib.BoundLogger = structlog.get_logger()


class SessionService(session_pb2_grpc.SessionServiceServicer):
    """Opens session streams."""

    def __init__(
        self,
        current: CurrentRuntime,
        door: Door,
        certification: CertificationService,
        store: StoreService,
    ) -> None:
        self.current = current
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
    ) -> AsyncIterator[SessionResponse]:
        """Answers the calls of one stream; see the protocol."""
        session = _Session(self, self._door.carried_by(context), context)
        stopping = self.current.stopping
        reading = asyncio.create_task(session.read(request_iterator))
        stopped = asyncio.create_task(stopping.ended())
        stopped.add_done_callback(lambda _: reading.cancel())
        reading.add_done_callback(session.note)
        try:
            while (message := await session.next_answers(reading)) is not None:
                yield message
            stopping.check(self.current.name)
            reading.result()
        finally:
            stopped.cancel()
            reading.cancel()
            session.end()


class _Session:
    """One stream: the calls that run, and the answers that wait to be sent."""

    def __init__(self, service: SessionService, carried: CarriedCalls, context: Context) -> None:
        self._current = service.current
        self._methods = service.methods
        self._carried = carried
        self._context = context
        self._running: dict[int, asyncio.Task[SessionAnswer]] = {}
        self._answers = SessionResponse()
        self._answer_bytes = 0
        self._news, self._sent = asyncio.Event(), asyncio.Event()
        self._reads = asyncio.Semaphore(READS_MAX)
        self._snapshots: Snapshots | None = None
        self._session_id = 0

    async def read(self, messages: AsyncIterator[SessionRequest]) -> None:
        """Begins the calls of each message. Raises InvalidMessage if two have one number."""
        async for message in messages:
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

    def note(self, _ended: object = None) -> None:
        """Wakes who waits for the next answers."""
        self._news.set()

    async def next_answers(self, reading: "asyncio.Task[None]") -> SessionResponse | None:
        """Returns all answers that wait, once there are any; None if there will be no more, as
        nothing runs or the client sent what it must not.
        """
        self._sent.set()
        while not self._answers.answers:
            if reading.done() and (not self._running or has_failed(reading)):
                return None
            self._news.clear()
            await self._news.wait()
        answers, self._answers, self._answer_bytes = self._answers, SessionResponse(), 0
        return answers

    def end(self) -> None:
        """Ends the calls that still run, and closes the snapshots."""
        for task in self._running.values():
            task.cancel()
        if self._snapshots is not None:
            self._snapshots.end_session(self._session_id)

    async def _room(self) -> None:
        """Waits while too much is unsent."""
        while self._answer_bytes > ANSWER_BYTES:
            self._sent.clear()
            await self._sent.wait()

    def _begin(self, request: SessionCall) -> None:
        number = request.number
        if number in self._running:
            expected = f"a number that no unanswered request has, not {number} again"
            raise InvalidMessage(call=CALL, bytes=request.ByteSize(), expected=expected)
        task = asyncio.create_task(self._answer(request))
        self._running[number] = task
        task.add_done_callback(partial(self._ended, number))

    def _ended(self, number: int, task: "asyncio.Task[SessionAnswer]") -> None:
        """Adds the answer of a call, unless it was cancelled, to those that wait."""
        if self._running.get(number) is task:
            del self._running[number]
        if not task.cancelled():
            answer = task.result()
            self._answers.answers.append(answer)
            self._answer_bytes += answer.ByteSize()
        self._news.set()

    async def _answer(self, request: SessionCall) -> SessionAnswer:
        """Runs one call, and returns its answer."""
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
            return SessionAnswer(number=number, error=rpc_status(error).SerializeToString())
        except Exception as error:  # As gRPC does it for the same call by itself.
            log.exception("call_failed", call=field)
            failed = status_pb2.Status(code=code_pb2.UNKNOWN, message=f"{error!r:.200}")
            return SessionAnswer(number=number, error=failed.SerializeToString())
        return SessionAnswer(number=number, **{field: response})

    async def _response(self, field: str, method: Method, request: Any) -> Any:
        if field in ("get", "scan"):
            async with self._reads:
                await self._room()
                return await method(request, self._context)
        if field == "open_snapshot":
            request.session_id = self._current_session()
        return await method(request, self._context)

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
