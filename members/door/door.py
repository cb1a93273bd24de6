"""The door of a member's gRPC server: the steps of each call on its way to its service.

    who calls       a principal, or a connection        callers.py
    may he          NotAuthenticated, CallNotAllowed    access.py
    is there room   TooManyCalls                        call_limit.py
    receive         RequestIncomplete                   call_limit.py
    decode          InvalidMessage, InvalidWriteSet     here, message_fields.py
    answer                                              the services, within answer_budget.py
    send            AnswerNotTaken                      here

The rule it keeps: a call is refused by its headers, before a byte of its message is read; and it
has its place until its answer is taken. To gRPC, therefore, each call has a stream of requests,
which are bytes: of other calls gRPC reads the whole message before the door is asked.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, NamedTuple, Self, TypeAlias

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from ...certifier.errors import GroupcertError
from ..errors.calls import AnswerNotTaken, InvalidMessage
from ..wire.channels import ADMITTED
from ..wire.frames import Frames
from ..wire.message_fields import check_repeated
from ..wire.statuses import abort
from .answer_budget import UNSENT, AnswerBudget, Unsent
from .call_limit import Room, Rooms
from .call_times import CallTimes, TimedCall
from .callers import CALLER, ROLES, Callers
from .refusal_log import RefusalLog

HANG_UP_SECONDS = 0.5
"""Seconds to wait at a call without a message: mostly its connection is gone, which gRPC reports a
moment later, and ends the call."""
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
TAKING_MS_MAX = 20_000
"""Milliseconds in which an answer of up to 1 MiB is taken: at 52 KB/s it is."""
LOOKS = 20
"""Looks at what is not taken within that time; one timer does for all."""
TASKS_AT_ONCE = 500
"""Tasks that are looked at before others have their turn."""
GRPC_WAITS = "_handle_cancellation_from_core"
"""The coroutine in which a task of gRPC waits for a call's end, beside the task of its handler."""
CallTask: TypeAlias = "asyncio.Task[Any]"
"""The task in which gRPC runs a call's handler."""


class _Delivery(NamedTuple):
    call: str
    caller: str
    bytes: int
    time_ms: float
    late_s: float
    """When it is late, in seconds of the loop's clock."""


class Deliveries:
    """Answers that gRPC has and nobody has taken yet; for one event loop."""

    def __init__(
        self, on_late: Callable[[str, AnswerNotTaken], None], time_ms_max: int = TAKING_MS_MAX
    ) -> None:
        """Calls `on_late` with the caller of each call that is ended."""
        self._on_late = on_late
        self._time_ms_max = time_ms_max
        self._open: dict[CallTask, _Delivery] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._hanging_up: set[asyncio.Task[None]] = set()

    def begin(self, task: CallTask, call: str, caller: str, size: int) -> None:
        """Notes that gRPC has an answer of the call that runs in a task."""
        loop = asyncio.get_running_loop()
        time_ms = self._time_ms_max * (1 + (size >> 20) / 20)
        late_s = loop.time() + time_ms / 1000
        self._open[task] = _Delivery(call, caller, size, time_ms, late_s)
        if self._timer is None:
            self._look_later(loop)

    def end(self, task: CallTask) -> None:
        """Notes that it was taken, or that its call has ended."""
        self._open.pop(task, None)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self._time_ms_max / 1000 / LOOKS, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._timer = None
        late = [task for task, each in self._open.items() if each.late_s < now_s]
        for task in late:
            each = self._open.pop(task)
            error = AnswerNotTaken(call=each.call, bytes=each.bytes, time_ms=int(each.time_ms))
            self._on_late(each.caller, error)
        if late:
            hanging_up = asyncio.create_task(hang_up(late))
            self._hanging_up.add(hanging_up)
            hanging_up.add_done_callback(self._hanging_up.discard)
        if self._open:
            self._look_later(loop)


async def hang_up(tasks: Collection[CallTask]) -> None:
    """Ends calls with CANCELLED, and what was handed to gRPC of their answers.

    A handler that is cancelled leaves its call to gRPC, which keeps it until its client ends it: so
    does the task that waits for that. With this task gone nobody refers to the call any more, once
    another one has come, which gRPC's loop refers to in its place; then gRPC resets it. A status
    would wait behind the answer.
    """
    late = {id(task): task for task in tasks}
    for count, waiting in enumerate(asyncio.all_tasks(), start=1):
        if (coroutine := waits_for_end(waiting)) is not None:
            for each in gc.get_referents(*gc.get_referents(coroutine)):
                if task := late.pop(id(each), None):
                    task.cancel()
                    waiting.cancel()
        if count % TASKS_AT_ONCE == 0:
            await asyncio.sleep(0)
    for task in late.values():  # Their clients have hung up meanwhile.
        task.cancel()


def waits_for_end(task: CallTask) -> object | None:
    """Returns the coroutine in which a task waits for the end of a call; None: it does not."""
    coroutine = getattr(task.get_coro(), "cr_await", None)
    return coroutine if getattr(coroutine, "__name__", "") == GRPC_WAITS else None


class Door(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # stubs only
    """Wraps the handler of each call in the steps above."""

    def __init__(
        self,
        callers: Callers,
        rooms: Rooms,
        times: CallTimes,
        answers: AnswerBudget,
        deliveries_ms_max: int = TAKING_MS_MAX,
    ) -> None:
        self._times = times
        self._callers = callers
        self._rooms = rooms
        self._answers = answers
        self._deliveries = Deliveries(self._note_late, deliveries_ms_max)
        self._log = RefusalLog()
        self._known: dict[str, tuple[Handler, Handler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Returns the call's handler behind the door; it is made once for each handler."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        call = handler_call_details.method
        known, behind = self._known.get(call, (None, None))
        if known is not handler or behind is None:
            behind = self._behind(call, handler)
            self._known[call] = handler, behind
        return behind

    def carried_by(self, context: Context) -> "CarriedCalls":
        """Returns the door of calls that come as messages of one stream."""
        timed = partial(self._times.timed, context=context)
        return CarriedCalls(partial(self._enter, context=context), self._rooms, timed)

    def framed(self, call: str, parse: Any, context: Context, frames: Frames) -> "_Messages":
        """Returns the messages of a stream that come by frames."""
        return _Messages(frames.read, partial(self._decoder(call, parse), context=context))

    async def send_framed(self, call: str, frames: Frames, message: bytes) -> None:
        """Waits until a message that goes by frames, in the task of its stream, is taken."""
        frames.write(message)
        if frames.is_full:
            task = asyncio.current_task()
            assert task is not None
            self._deliveries.begin(task, call, CALLER.get(), len(message))
            try:
                await frames.sent()
            finally:
                self._deliveries.end(task)

    def _behind(self, call: str, handler: Handler) -> Handler:
        """Returns a handler of streams of bytes that does what `handler` does with messages."""
        room = self._rooms.of(call, is_stream=handler.response_streaming)
        receive = self._receiver(call, handler, room)
        answer: Any = _answer_of(handler)
        serialized: Any = handler.response_serializer
        timed = partial(self._times.timed, call)

        async def single(_received: object, context: Context) -> Any:
            entered, is_answered = None, False
            try:
                with timed(context):
                    entered = self._entered(call, room, context)
                    request = await receive(entered.caller, context)
                    message = serialized(await answer(request, context))
                is_answered = True
                entered.leave_once_sent(message)
                return message
            except GroupcertError as error:
                await abort(context, error)
            finally:
                if entered and not is_answered:
                    entered.leave()

        async def stream(_received: object, context: Context) -> None:
            entered = None
            try:
                with timed(context):
                    entered = self._entered(call, room, context)
                    if handler.request_streaming:
                        await context.send_initial_metadata(((ADMITTED, ""),))
                    request = await receive(entered.caller, context)
                    async with aclosing(answer(request, context)) as responses:
                        async for response in responses:
                            is_ready = isinstance(response, bytes)
                            message = response if is_ready else serialized(response)
                            del response  # It would be in memory twice.
                            await entered.send(message, context)
                            del message
            except GroupcertError as error:
                await abort(context, error)
            finally:
                if entered:
                    entered.leave()

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.stream_unary_rpc_method_handler(single)

    def _entered(self, call: str, room: Room, context: Context) -> "_Entered":
        caller = self._enter(call, room, context)
        return _Entered(caller, call, room, self._answers, self._deliveries)

    def _note_late(self, caller: str, error: AnswerNotTaken) -> None:
        self._times.refusals[error.reason] += 1
        self._log.note(error.call, caller, error)

    def _enter(self, call: str, room: Room, context: Context) -> str:
        """Returns the caller, once it is admitted and has a place."""
        try:
            caller, roles = self._callers.admit(call, context)
            room.enter(caller)
        except GroupcertError as error:
            self._log.note(call, context.peer(), error)
            raise
        CALLER.set(caller)
        ROLES.set(roles)
        return caller

    def _receiver(self, call: str, handler: Handler, room: Room) -> Callable[..., Awaitable[Any]]:
        """Returns the function that turns received bytes into a handler's request, or requests."""
        parse: Any = handler.request_deserializer
        decoded = self._decoder(call, parse)

        async def one(caller: str, context: Context) -> Any:
            message = await room.receipts.receive(call, caller, context)
            if isinstance(message, bytes):
                return decoded(message, context)
            await asyncio.sleep(HANG_UP_SECONDS)
            raise self._invalid(call, parse, b"", context)

        async def every(_caller: str, context: Context) -> Any:
            return _Messages(context.read, partial(decoded, context=context))

        return every if handler.request_streaming else one

    def _decoder(self, call: str, parse: Any) -> Callable[..., Any]:
        """Returns the function that turns the bytes of one message into a request."""
        kind: Descriptor = parse.__self__.DESCRIPTOR
        names = (each.name for each in kind.fields if each.is_repeated and each.message_type)
        repeated = next(names, "")

        def decoded(message: bytes, context: Context) -> Any:
            check_repeated(message, repeated)
            with suppress(DecodeError):
                return parse(message)
            raise self._invalid(call, parse, message, context)

        return decoded

    def _invalid(self, call: str, parse: Any, message: bytes, context: Context) -> InvalidMessage:
        expected = parse.__self__.DESCRIPTOR.full_name
        error = InvalidMessage(call=call, bytes=len(message), expected=expected)
        self._log.note(call, context.peer(), error)
        return error


class _Entered:
    """A call that was let in, until its answer is taken."""

    __slots__ = ("_call", "_deliveries", "_room", "_unsent", "caller")

    def __init__(
        self, caller: str, call: str, room: Room, answers: AnswerBudget, deliveries: Deliveries
    ) -> None:
        self.caller = caller
        self._call = call
        self._room = room
        self._deliveries = deliveries
        self._unsent = Unsent(answers.places, caller)
        UNSENT.set(self._unsent)

    async def send(self, message: bytes, context: Context) -> None:
        """Waits until one of many messages is taken."""
        unsent, kept = self._unsent, self._unsent.bytes
        unsent.settle(max(kept, len(message)))
        task = self._handed_over(message)
        try:
            await context.write(message)
        finally:
            self._deliveries.end(task)
            unsent.settle(kept)

    def leave_once_sent(self, message: bytes) -> None:
        """Leaves when the last message is taken; gRPC sends it when its handler has returned."""
        self._unsent.settle(len(message))
        self._handed_over(message).add_done_callback(self._sent)

    def leave(self) -> None:
        """Makes room for others."""
        self._unsent.settle(0)
        self._room.leave(self.caller)

    def _handed_over(self, message: bytes) -> CallTask:
        task = asyncio.current_task()
        assert task is not None
        self._deliveries.begin(task, self._call, self.caller, len(message))
        return task

    def _sent(self, task: CallTask) -> None:
        self._deliveries.end(task)
        self.leave()


class CarriedCalls:
    """Lets in the calls that one stream carries: each takes its own right, which is found out once,
    and its own place.
    """

    def __init__(
        self,
        enter: Callable[[str, Room], str],
        rooms: Rooms,
        timed: Callable[[str], TimedCall],
    ) -> None:
        self.timed = timed
        """Returns a context manager that counts the call that its block answers."""
        self._enter = enter
        self._rooms = rooms
        self._known: dict[str, tuple[Room, str]] = {}

    def enter(self, call: str) -> None:
        """Counts a call with one answer. Raises NotAuthenticated, CallNotAllowed, TooManyCalls."""
        known = self._known.get(call)
        if known is None:
            room = self._rooms.of(call, is_stream=False)
            self._known[call] = room, self._enter(call, room)
        else:
            room, caller = known
            room.enter(caller)

    def leave(self, call: str) -> None:
        """Removes a call that `enter` has counted."""
        room, caller = self._known[call]
        room.leave(caller)


class _Messages:
    """The messages of a stream, none of which is kept here however it ends: a generator would keep
    the last one, as gRPC's own does, until Python's garbage collector runs.
    """

    def __init__(
        self, read: Callable[[], Awaitable[object]], decode: Callable[[bytes], Any]
    ) -> None:
        self._read = read
        self._decode = decode

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await self._read()
        if isinstance(message, bytes):
            return self._decode(message)
        raise StopAsyncIteration


def _answer_of(handler: Handler) -> Any:
    """Returns the function of a handler of any kind."""
    return (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
