"""How many calls a member has open at a time.

The rule it keeps: a call counts once its caller is allowed to make it. Those that may last for ever
(the status as it changes, the binary log, streams of certification) are counted apart, so that they
leave room for the others; what a probe, an operator or a joiner asks for is never refused here.
"""

from certifier.errors import TooManyCalls
from members.access_interceptor import Context, Guards, Handler, guarded

UNCHECKED_CALLS_MAX = 65_536
"""Calls that a server takes at a time, whoever makes them; gRPC refuses more."""
CALLS_MAX = 4_096
"""Of callers that are allowed, calls with one answer."""
STREAMS_MAX = 1_024
"""Of callers that are allowed, calls with streams of answers."""
UNCOUNTED = (
    "/groupcert.v1.AdminService/",
    "/groupcert.v1.RecoveryService/",  # Copies have a limit and leases of their own.
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/List",
)
"""What calls begin with that are not counted."""
COMMIT_STREAM = "/groupcert.v1.StoreService/CommitStream"
"""One answer in the end; uploads have a limit and leases of their own."""


class CallLimit(Guards):
    """Counts calls, and refuses those that are too many."""

    def __init__(self, calls_max: int = CALLS_MAX, streams_max: int = STREAMS_MAX) -> None:
        super().__init__()
        self._calls = _Open(calls_max, "calls")
        self._streams = _Open(streams_max, "streams")

    def guard(self, call: str, handler: Handler) -> Handler:
        """The handler of a call, counted."""
        if call.startswith(UNCOUNTED):
            return handler
        is_stream = handler.response_streaming and call != COMMIT_STREAM
        kind = self._streams if is_stream else self._calls
        return guarded(handler, kind.begin, kind.end)


class _Open:
    """How many calls of a kind are open."""

    def __init__(self, open_max: int, what: str) -> None:
        self._open = 0
        self._open_max = open_max
        self._what = what

    def begin(self, context: Context) -> TooManyCalls | None:
        """Counts one more, or tells why not."""
        if self._open >= self._open_max:
            return TooManyCalls(open=self._open, open_max=self._open_max, what=self._what)
        self._open += 1
        return None

    def end(self) -> None:
        """Counts one less."""
        self._open -= 1
