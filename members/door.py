"""The door of a member's gRPC server: what each call passes on its way to its service.

    who calls       a principal, or a connection        callers.py
    may he          NotAuthenticated, CallNotAllowed    access.py
    is there room   TooManyCalls                        call_limit.py
    receive         RequestIncomplete                   receipts.py
    decode          InvalidMessage, InvalidWriteSet     here, wire_fields.py
    answer                                              the services

The rule it keeps: what a call is refused for is known at its headers, and not a byte of its message
is read before. To gRPC, therefore, each call has a stream of requests, which are bytes: for others
it reads the whole message before anybody is asked.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from inspect import isasyncgenfunction
from typing import Any, Self, TypeAlias

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from certifier.errors import GroupcertError
from members.call_errors import InvalidMessage
from members.call_limit import Room, Rooms
from members.callers import CALLER, Callers
from members.refusal_log import RefusalLog
from members.status import abort
from members.wire_fields import check_repeated

HANG_UP_SECONDS = 0.5
"""A call that ends without a message has mostly gone with its connection: gRPC says so a moment
later, and ends what would answer it."""
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Door(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # stubs only
    """Puts what is above around the handler of each call."""

    def __init__(self, callers: Callers, rooms: Rooms) -> None:
        self._callers = callers
        self._rooms = rooms
        self._log = RefusalLog()
        self._known: dict[str, tuple[Handler, Handler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The call's handler behind the door; that is made once for each handler."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        call = handler_call_details.method
        known, behind = self._known.get(call, (None, None))
        if known is not handler or behind is None:
            behind = self._behind(call, handler)
            self._known[call] = handler, behind
        return behind

    def _behind(self, call: str, handler: Handler) -> Handler:
        """A handler of streams of bytes, which does what a handler of messages does."""
        room = self._rooms.of(call, is_stream=handler.response_streaming)
        receive = self._receiver(call, handler, room)
        answer = _answer_of(handler)
        enter = self._enter

        async def single(_received: object, context: Context) -> Any:
            caller = ""
            try:
                caller = enter(call, room, context)
                return await answer(await receive(caller, context), context)
            except GroupcertError as error:
                await abort(context, error)
            finally:
                if caller:
                    room.leave(caller)

        async def stream(_received: object, context: Context) -> AsyncIterator[Any]:
            caller = ""
            try:
                caller = enter(call, room, context)
                request = await receive(caller, context)
                async with aclosing(answer(request, context)) as responses:
                    async for response in responses:
                        yield response
            except GroupcertError as error:
                await abort(context, error)
            finally:
                if caller:
                    room.leave(caller)

        around = stream if isasyncgenfunction(answer) else single
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                around, response_serializer=handler.response_serializer
            )
        return grpc.stream_unary_rpc_method_handler(
            around, response_serializer=handler.response_serializer
        )

    def _enter(self, call: str, room: Room, context: Context) -> str:
        """Who calls, once he may and has a place."""
        try:
            caller = self._callers.admit(call, context)
            room.enter(caller)
        except GroupcertError as error:
            self._log.note(call, context.peer(), error)
            raise
        CALLER.set(caller)
        return caller

    def _receiver(self, call: str, handler: Handler, room: Room) -> Callable[..., Awaitable[Any]]:
        """What makes of the bytes that come the request, or the requests, of a handler."""
        parse: Any = handler.request_deserializer
        kind: Descriptor = parse.__self__.DESCRIPTOR
        names = (each.name for each in kind.fields if each.is_repeated and each.message_type)
        repeated = next(names, "")

        def decoded(message: bytes, context: Context) -> Any:
            check_repeated(message, repeated)
            with suppress(DecodeError):
                return parse(message)
            raise invalid(message, context)

        def invalid(message: bytes, context: Context) -> InvalidMessage:
            error = InvalidMessage(call=call, bytes=len(message), expected=kind.full_name)
            self._log.note(call, context.peer(), error)
            return error

        async def one(caller: str, context: Context) -> Any:
            message = await room.receipts.receive(call, caller, context)
            if isinstance(message, bytes):
                return decoded(message, context)
            await asyncio.sleep(HANG_UP_SECONDS)
            raise invalid(b"", context)

        async def every(_caller: str, context: Context) -> Any:
            return _Messages(context, decoded)

        return every if handler.request_streaming else one


class _Messages:
    """The messages of a stream, none of which is kept here however it ends: a generator would keep
    the last one, as gRPC's own does, until Python looks for circles.
    """

    def __init__(self, context: Context, decode: Callable[[bytes, Context], Any]) -> None:
        self._context = context
        self._decode = decode

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await self._context.read()
        if isinstance(message, bytes):
            return self._decode(message, self._context)
        raise StopAsyncIteration


def _answer_of(handler: Handler) -> Any:
    """What a handler of any kind does."""
    return (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
