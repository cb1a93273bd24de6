"""What the door of a member refuses, whoever calls, in the tree of `certifier/errors.py`.

    InvalidRequest
    └── InvalidMessage            INVALID_MESSAGE
    Unavailable
    ├── RequestIncomplete         REQUEST_INCOMPLETE
    ├── SessionEnded              SESSION_ENDED
    ├── TooManyCalls              TOO_MANY_CALLS
    └── TooManySnapshots          TOO_MANY_SNAPSHOTS

The rule is that of the whole tree: a leaf's `reason` is never reused, and its message gives the
value, the limit and the next step.
"""

from dataclasses import dataclass
from typing import ClassVar

from certifier.errors import InvalidRequest, Unavailable


@dataclass(eq=False, kw_only=True)
class InvalidMessage(InvalidRequest):
    """The bytes of a call are not the message that it takes."""

    reason: ClassVar[str] = "INVALID_MESSAGE"
    call: str
    bytes: int
    expected: str

    def __str__(self) -> str:
        return (
            f"call {self.call} got {self.bytes} bytes that are no message of its own: "
            f"expected {self.expected}, serialized"
        )


@dataclass(eq=False, kw_only=True)
class RequestIncomplete(Unavailable):
    """The rest of a call's message did not come; nothing was done."""

    reason: ClassVar[str] = "REQUEST_INCOMPLETE"
    call: str
    time_ms: int

    def __str__(self) -> str:
        return (
            f"the message of call {self.call} did not come whole within {self.time_ms} ms: "
            "send it again, or a smaller one"
        )


@dataclass(eq=False, kw_only=True)
class SessionEnded(Unavailable):
    """A snapshot was asked for in a session that is not open at this member."""

    reason: ClassVar[str] = "SESSION_ENDED"
    session_id: int

    def __str__(self) -> str:
        return f"session {self.session_id} is not open here: hold another one, then try again"


@dataclass(eq=False, kw_only=True)
class TooManyCalls(Unavailable):
    """A caller has its share of the calls of a kind that a member has open at a time."""

    reason: ClassVar[str] = "TOO_MANY_CALLS"
    open: int
    open_max: int
    what: str = "calls"
    held: int = 0
    """By this caller."""
    share: int = 0
    """Of this caller, while the others have theirs."""

    def __str__(self) -> str:
        return (
            f"{self.open} {self.what} are open, the limit is {self.open_max}: {self.held} are this "
            f"caller's, its share is {self.share}; end those that are not needed, or ask another "
            "member"
        )


@dataclass(eq=False, kw_only=True)
class TooManySnapshots(Unavailable):
    """A caller holds its share of the snapshots that a member has open at a time."""

    reason: ClassVar[str] = "TOO_MANY_SNAPSHOTS"
    open: int
    open_max: int
    held: int = 0
    """By this caller."""
    share: int = 0
    """Of this caller, while the others have theirs."""

    def __str__(self) -> str:
        return (
            f"{self.open} snapshots are open, the limit is {self.open_max}: {self.held} are this "
            f"caller's, its share is {self.share}; end transactions that are done, then try again"
        )
