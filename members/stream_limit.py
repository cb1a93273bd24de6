"""How many calls with streams of answers a member has open at a time.

The rule it keeps: calls that may last for ever (the status as it changes, the binary log, streams
of certification) are fewer than all that the server takes, so that they leave room for the others.
"""

from collections.abc import Awaitable, Callable

import grpc.aio

from certifier.errors import TooManyStreams
from members.access_interceptor import Context, Handler, guarded
from members.status import abort

CALLS_MAX = 4_096
"""Calls that a server takes at a time; gRPC refuses more."""
STREAMS_MAX = 1_024
"""Of these, calls with streams of answers."""


class StreamLimit(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # stubs only
    """Counts streams, and refuses those that are too many."""

    def __init__(self, streams_max: int = STREAMS_MAX) -> None:
        self._streams_max = streams_max
        self._open = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The call's handler, counted if it answers with a stream."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler.response_streaming:
            return handler
        return guarded(handler, self._begin, self._end)

    async def _begin(self, context: Context) -> None:
        if self._open >= self._streams_max:
            error = TooManyStreams(open=self._open, open_max=self._streams_max)
            await abort(context, error)
        self._open += 1

    def _end(self) -> None:
        self._open -= 1
