"""The door of a member's gRPC server: each call is asked who makes it before its service sees it.

The rule it keeps: a decision is made once a call, from what TLS has checked on its own connection
and from its own headers; nothing is remembered that another caller could inherit.
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from inspect import isasyncgenfunction
from typing import Any, TypeAlias

import grpc
import grpc.aio
import structlog

from certifier.errors import GroupcertError, InvalidRequest
from members.access import AccessRules, Caller
from members.channels import AUTHORIZATION
from members.config import MemberConfig
from members.status import abort

LOOPBACK_PEERS = ("ipv4:127.", "ipv6:[::1]:", "ipv6:%5B::1%5D:", "unix:")
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
AnyContext: TypeAlias = "Context | grpc.ServicerContext"
log: structlog.stdlib.BoundLogger = structlog.get_logger()


def interceptors_of(config: MemberConfig) -> tuple["AccessInterceptor", ...]:
    """What a member's server asks at each call: nothing where there is no access list."""
    if config.access is None:
        return ()
    return (AccessInterceptor(AccessRules(config.access), has_tls=config.tls is not None),)


class Guards(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # stubs only
    """Puts a guard around the handler of each call."""

    def __init__(self) -> None:
        self._guarded: dict[str, tuple[Handler, Handler]] = {}

    @abstractmethod
    def guard(self, call: str, handler: Handler) -> Handler:
        """A call's handler, guarded."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The call's handler, guarded; that is done once for each handler."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        call = handler_call_details.method
        known, guarded = self._guarded.get(call, (None, None))
        if known is not handler or guarded is None:
            guarded = self.guard(call, handler)
            self._guarded[call] = handler, guarded
        return guarded


class AccessInterceptor(Guards):
    """Refuses what the rules do not allow; all else goes on as if it were not there."""

    def __init__(self, rules: AccessRules, *, has_tls: bool) -> None:
        super().__init__()
        self._rules = rules
        self._has_tls = has_tls

    def guard(self, call: str, handler: Handler) -> Handler:
        """The handler of a call, for those who may make it."""

        def check(context: Context) -> InvalidRequest | None:
            return refusal_of(self._rules, call, context, has_tls=self._has_tls)

        return guarded(handler, check)


def refusal_of(
    rules: AccessRules, call: str, context: AnyContext, *, has_tls: bool
) -> InvalidRequest | None:
    """Why a caller may not make a call, which is logged; None: he may."""
    refusal = rules.refusal(call, _caller(context, has_tls=has_tls))
    if refusal is not None:
        log.warning("call_refused", peer=context.peer(), text=str(refusal))
    return refusal


def _caller(context: AnyContext, *, has_tls: bool) -> Caller:
    names: tuple[str, ...] = ()
    if has_tls:
        shown = context.auth_context()
        values = (*shown.get("x509_common_name", ()), *shown.get("peer_dns", ()))
        names = tuple(value.decode(errors="replace") for value in values)
    authorization = ""
    for name, value in context.invocation_metadata() or ():
        if name == AUTHORIZATION:
            authorization = value if isinstance(value, str) else value.decode(errors="replace")
    is_private = has_tls or context.peer().startswith(LOOPBACK_PEERS)
    return Caller(names, authorization, is_private)


def guarded(
    handler: Handler,
    check: Callable[[Context], GroupcertError | None],
    on_end: Callable[[], None] = lambda: None,
) -> Handler:
    """A handler whose calls end with what `check` gives; if nothing, they go on, then `on_end`."""
    make, behaviour = _parts(handler)

    async def single(request: Any, context: Context) -> Any:
        if refusal := check(context):
            await abort(context, refusal)
        try:
            return await behaviour(request, context)
        finally:
            on_end()

    async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
        if refusal := check(context):
            await abort(context, refusal)
        try:
            async with aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response
        finally:
            on_end()

    around = stream if isasyncgenfunction(behaviour) else single
    made: Handler = make(around, handler.request_deserializer, handler.response_serializer)
    return made


def _parts(handler: Handler) -> tuple[Callable[..., Any], Any]:
    """How a handler of its kind is made, and what it does."""
    if handler.request_streaming:
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler, handler.stream_stream
        return grpc.stream_unary_rpc_method_handler, handler.stream_unary
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler, handler.unary_stream
    return grpc.unary_unary_rpc_method_handler, handler.unary_unary
