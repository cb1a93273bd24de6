"""What a member or a replica refuses, whoever calls, in the tree of `certifier/errors.py`.

    InvalidRequest
    ├── InvalidMessage            INVALID_MESSAGE
    └── ReadOnlyReplica           READ_ONLY_REPLICA
    Unavailable
    ├── AnswerNotTaken            ANSWER_NOT_TAKEN
    ├── RequestIncomplete         REQUEST_INCOMPLETE
    ├── SessionEnded              SESSION_ENDED
    ├── TooManyCalls              TOO_MANY_CALLS
    ├── TooManySnapshots          TOO_MANY_SNAPSHOTS
    └── VersionMissing            VERSION_MISSING

The rule is that of the whole tree: a leaf's `reason` is never reused, and its message gives the
value, the limit and the next step.
"""

from ...certifier.errors import InvalidRequest, Unavailable


class AnswerNotTaken(Unavailable):
    """Nobody has taken an answer; its call was ended. The caller reads CANCELLED, as a status would
    wait behind the answer: this is for the member's log and metrics.
    """

    message = (
        "the answer of {bytes} bytes to call {call} was not taken within {time_ms} ms: read what "
        "was asked for, or ask for less"
    )
    call: str
    bytes: int
    time_ms: int


class InvalidMessage(InvalidRequest):
    """The bytes of a call are not the message that it takes."""

    message = (
        "call {call} got {bytes} bytes that are no message of its own: expected {expected}, "
        "serialized"
    )
    call: str
    bytes: int
    expected: str


class ReadOnlyReplica(InvalidRequest):
    """A replica was asked for what only its source can do; nothing was done."""

    message = (
        "replica {replica} serves reads only: send what writes or certifies, and reads with "
        "consistency BEFORE, to its source, {source}"
    )
    replica: str
    source: str


class RequestIncomplete(Unavailable):
    """The rest of a call's message did not come; nothing was done."""

    message = (
        "the message of call {call} did not come whole within {time_ms} ms: send it again, or a "
        "smaller one"
    )
    call: str
    time_ms: int


class SessionEnded(Unavailable):
    """A snapshot was asked for in a session that is not open at this member."""

    message = "session {session_id} is not open here: hold another one, then try again"
    session_id: int


class TooManyCalls(Unavailable):
    """A caller has its share of the calls of a kind that a member has open at a time."""

    message = (
        "{open} {what} are open, the limit is {open_max}: {held} are this caller's, its share is "
        "{share}; end those that are not needed, or ask another member"
    )
    open: int
    open_max: int
    what: str = "calls"
    held: int = 0
    """By this caller."""
    share: int = 0
    """Of this caller, while the others have theirs."""


class TooManySnapshots(Unavailable):
    """A caller holds its share of the snapshots that a member has open at a time."""

    message = (
        "{open} snapshots are open, the limit is {open_max}: {held} are this caller's, its share "
        "is {share}; end transactions that are done, then try again"
    )
    open: int
    open_max: int
    held: int = 0
    """By this caller."""
    share: int = 0
    """Of this caller, while the others have theirs."""


class VersionMissing(Unavailable):
    """A session has seen a version that its member does not have, and did not get in time."""

    message = (
        "member {member} is at version {version}, and this session waits for {wanted}, which it "
        "has seen: wait for the member, or begin a session without the token of another group"
    )
    member: str
    version: int
    wanted: int
