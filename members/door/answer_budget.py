"""Limits the bytes of answers that a member has in memory and nobody has taken yet.

Without it a client that asks for much and reads nothing fills the member's memory, as each answer
waits for room in the windows of HTTP/2. The rule it keeps: what an answer may need is taken from
the budget before it is read, given back once gRPC has sent it, and each caller has its share of it
(`caller_shares.py`); answers of at most `SMALL_BYTES` are free, as open calls are counted.
"""

from contextvars import ContextVar

from ..core.caller_shares import Shares
from .call_places import Places

PAGE_BYTES = 1 << 20
"""Bytes of an answer from which on it has one row, one event or one chunk."""
BYTES_MAX = 64 << 20
"""Bytes of answers that are read and not taken yet, of all callers: of these one caller alone gets
half, and gRPC has each answer once more."""
SMALL_BYTES = 16 << 10
"""Bytes of an answer that needs nothing of the budget, as of a request that is not read yet."""


class AnswerBudget:
    """The unsent answers of one member, in bytes."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        """Divides `bytes_max` among callers. One that has nothing unsent may have a larger answer
        than that, once there is room for a page.
        """
        self.bytes_max = bytes_max
        self.places = Places(Shares(bytes_max, PAGE_BYTES))

    @property
    def bytes(self) -> int:
        """The bytes of all unsent answers."""
        return self.places.shares.taken


class Unsent:
    """What one call has of the budget. Cost of each method, unless it waits: 1 us."""

    __slots__ = ("_caller", "_places", "bytes")

    def __init__(self, places: Places, caller: str) -> None:
        self.bytes = 0
        self._places = places
        self._caller = caller

    def another(self) -> "Unsent":
        """Returns that of another answer to the same caller."""
        return Unsent(self._places, self._caller)

    async def room(self, size: int = PAGE_BYTES) -> None:
        """Returns once the call may read an answer of `size` bytes, in place of what it had."""
        self.settle(0)
        if size > SMALL_BYTES:
            await self._places.take(self._caller, size)
            self.bytes = size

    def settle(self, size: int) -> None:
        """Counts `size` bytes in place of what the call had: they are in memory."""
        size = size if size > SMALL_BYTES else 0
        more, self.bytes = size - self.bytes, size
        if more > 0:
            self._places.shares.add(self._caller, more)
        elif more < 0:
            self._places.give_back(self._caller, -more)


UNSENT: ContextVar[Unsent] = ContextVar("UNSENT")


def answering() -> Unsent:
    """Returns that of the call that is being answered; outside of one there is no limit."""
    return UNSENT.get(None) or Unsent(AnswerBudget(1 << 62).places, "")
