"""Limits the calls that a member has open at a time, by kind and by caller.

The rule it keeps: a call counts once its caller is allowed to make it. Each kind has places of its
own, so that none locks out another, and within a kind each caller gets its share
(`caller_shares.py`). A call that is not read yet holds no more than HTTP/2 lets its sender send
ahead; messages are received in turn (`Receipts`), each caller within its share, and a caller that
sends too slowly loses its turn; but for streams of requests, each of which may hold a whole one.
"""

import asyncio
from typing import NamedTuple, Protocol

from ..core.caller_shares import Shares
from ..errors.calls import RequestIncomplete, TooManyCalls
from ..wire.frames import CALL
from .call_places import Places

RECEIPT_MS_MAX = 20_000
"""Milliseconds; a message of 1 MiB takes so long at 52 KB/s."""


class Readable(Protocol):
    """The part of a `grpc.aio.ServicerContext` that `Receipts` needs."""

    async def read(self) -> object:
        """Returns the next message, or gRPC's mark of the end."""
        ...


class Receipts:
    """Messages that are being received."""

    def __init__(self, receipts_max: int, time_ms_max: int = RECEIPT_MS_MAX) -> None:
        self._places = Places(Shares(receipts_max))
        self._time_ms_max = time_ms_max
        self._reading: dict[asyncio.Task[object], float] = {}
        """When each began, in seconds of the loop's clock; the first one has read for longest."""
        self._late: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def receive(self, call: str, caller: str, context: Readable) -> object:
        """Returns the message of a call with one message, once it is its turn.

        Raises RequestIncomplete if it does not come in time.
        """
        await self._places.take(caller)
        task = asyncio.current_task()
        assert task is not None
        self._watch(task)
        try:
            return await context.read()
        except asyncio.CancelledError:
            if task in self._late and not task.uncancel():
                raise RequestIncomplete(call=call, time_ms=self._time_ms_max) from None
            raise
        finally:
            del self._reading[task]
            self._late.discard(task)
            self._places.give_back(caller)

    def _watch(self, task: "asyncio.Task[object]") -> None:
        """Cancels a task if its message takes too long. One timer does for all, as an
        `asyncio.timeout` for each would cost 5 % of a call.
        """
        loop = asyncio.get_running_loop()
        self._reading[task] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._time_ms_max / 1000, self._end_late)

    def _end_late(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for task, began_s in self._reading.items():
            left_s = began_s + self._time_ms_max / 1000 - loop.time()
            if left_s > 0:
                self._timer = loop.call_later(left_s, self._end_late)
                return
            if task not in self._late:
                self._late.add(task)
                task.cancel()


class Kind(NamedTuple):
    """A kind of call."""

    what: str
    """Its name in messages."""
    begins: tuple[str, ...]
    """Prefixes of its calls' names."""


CALLS = Kind("calls", ())
"""All other calls with one answer."""
STREAMS = Kind("streams", ())
"""All other calls with streams of answers: the status as it changes, the history."""
OPERATORS = Kind(
    "calls of probes, operators and joiners",
    (
        "/groupcert.v1.AdminService/",
        "/groupcert.v1.RecoveryService/",  # Copies have a limit and leases of their own.
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/List",
    ),
)
REPLICAS = Kind("streams of replicas", ("/groupcert.v1.BinaryLogService/Subscribe",))
SESSIONS = Kind("sessions", ("/groupcert.v1.StoreService/HoldSession",))
CARRYING = Kind("session streams", (CALL,))
"""The calls that they carry have places among `CALLS`, too."""
CERTIFYING = Kind("streams of transactions", ("/groupcert.v1.CertificationService/CertifyStream",))
COMMITTING = Kind("large commits", ("/groupcert.v1.StoreService/CommitStream",))
"""For those that are admitted, `Uploads` counts the bytes, too."""

PLACES_MAX: dict[Kind, int] = {
    CALLS: 4_096,
    STREAMS: 1_024,
    OPERATORS: 256,
    REPLICAS: 256,
    SESSIONS: 4_096,
    CARRYING: 1_024,
    CERTIFYING: 128,
    COMMITTING: 128,
}
UNCHECKED_CALLS_MAX = sum(PLACES_MAX.values())
"""Calls that a server takes at a time, of all callers; gRPC refuses more. Calls that are not
allowed end at once."""
RECEIPTS_MAX = 32
"""Messages of calls that are received at a time, of at most 1 MiB."""
OPERATORS_RECEIPTS_MAX = 8


class Room:
    """The places of one kind of call."""

    def __init__(self, kind: Kind, places_max: int, receipts: Receipts) -> None:
        self.receipts = receipts
        """The queue in which its calls wait to be received."""
        self._what = kind.what
        self._shares = Shares(places_max)

    @property
    def taken(self) -> int:
        """The calls that are counted."""
        return self._shares.taken

    def enter(self, caller: str) -> None:
        """Counts a call of `caller`. Raises TooManyCalls."""
        shares = self._shares
        if not shares.take(caller):
            raise TooManyCalls(
                open=shares.taken,
                open_max=shares.places_max,
                what=self._what,
                held=shares.held(caller),
                share=shares.share(caller),
            )

    def leave(self, caller: str) -> None:
        """Removes a call of `caller` from the count."""
        self._shares.give_back(caller)


class Rooms:
    """The rooms of a member's server."""

    def __init__(self) -> None:
        receipts = Receipts(RECEIPTS_MAX)
        own = {OPERATORS: Receipts(OPERATORS_RECEIPTS_MAX)}
        self._rooms = {
            kind: Room(kind, places_max, own.get(kind, receipts))
            for kind, places_max in PLACES_MAX.items()
        }

    def of(self, call: str, *, is_stream: bool) -> Room:
        """Returns the room of a call; `is_stream`: it has a stream of answers."""
        named = (kind for kind in self._rooms if kind.begins and call.startswith(kind.begins))
        return self._rooms[next(named, STREAMS if is_stream else CALLS)]
