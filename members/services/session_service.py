"""The gRPC service whose streams carry the calls of other services, many in one message.

The rule it keeps: a call in a stream is checked, counted and answered as the same call by itself;
and an answer waits for no other one, only for the message before it to be taken.

What one stream may hold: the calls that its caller has a share of, one message of requests, the
answer of one read, which counts in the budget of unsent answers, and `UNSENT_BYTES` of others.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import structlog
from google.rpc import code_pb2, status_pb2  # type: ignore[import-untyped]  # has no types

from groupcert.v1 import session_pb2_grpc
from groupcert.v1.session_pb2 import SessionCall, SessionRequest

from ...certifier.errors import GroupcertError
from ..door.answer_budget import UNSENT, Unsent, answering
from ..door.door import CarriedCalls, Door
from ..errors.calls import InvalidMessage
from ..runtime.snapshots import Snapshots
from ..wire.session_answers import answered
from ..wire.statuses import rpc_status
from .certification import CertificationService
from .serving import Context, Current
from .store import StoreService

CALL = "/groupcert.v1.SessionService/Session"
UNSENT_BYTES = 16 << 10
"""Bytes of answers that are not taken, of those that gRPC has, too, above which a stream begins no
more calls."""
BEGUN_AT_ONCE = 64
"""Calls that begin before others have their turn; each takes up to 0.1 ms."""
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
    ) -> AsyncIterator[Any]:
        """Answers the calls of one stream, in messages that are serialized; see the protocol."""
        session = _Session(self, self._door.carried_by(context), context)
        stopping = self.current.stopping
        reading = asyncio.create_task(session.read(request_iterator))
        stopped = asyncio.create_task(stopping.ended())
        stopped.add_done_callback(lambda _: reading.cancel())
        reading.add_done_callback(session.note)
        try:
            while await session.has_answers(reading):
                yield session.take_answers()
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
        self._running: dict[int, asyncio.Task[None]] = {}
        self._answers: list[bytes] = []
        self._read_unsent: list[Unsent] = []
        """Of the reads among them that took something from the budget."""
        self._answer_bytes = self._sending_bytes = 0
        """Of the answers that wait, and of those that gRPC has."""
        self._unsent = answering()
        self._news, self._sent = asyncio.Event(), asyncio.Event()
        self._reads = asyncio.Lock()
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

    async def has_answers(self, reading: "asyncio.Task[None]") -> bool:
        """Returns True once answers wait, and those before them are taken; False if there will be
        no more, as nothing runs or the client sent what it must not.
        """
        self._sending_bytes = 0
        self._unsent.settle(0)
        self._sent.set()
        while not self._answers:
            if reading.done() and (not self._running or has_failed(reading)):
                return False
            self._news.clear()
            await self._news.wait()
        return True

    def take_answers(self) -> bytes:
        """Returns the answers that wait, as one message."""
        answers = b"".join(self._answers)
        self._answers.clear()
        self._sending_bytes, self._answer_bytes = self._answer_bytes, 0
        self._unsent.settle(sum(each.bytes for each in self._read_unsent))
        self._forget_reads()
        return answers

    def end(self) -> None:
        """Ends the calls that still run, and closes the snapshots."""
        for task in self._running.values():
            task.cancel()
        self._forget_reads()
        if self._snapshots is not None:
            self._snapshots.end_session(self._session_id)

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
