"""Every error that groupcert raises on purpose, sorted by who must act; those of appliers are in
`applier/errors.py`, those of recovery in `members/recovery_errors.py`, those of every call in
`members/call_errors.py`.

    GroupcertError
    ├── InvalidRequest            the caller must change the request
    │   ├── DomainNotAllowed          DOMAIN_NOT_ALLOWED
    │   ├── InvalidGtid               INVALID_GTID
    │   ├── InvalidGtidSet            INVALID_GTID_SET
    │   ├── InvalidSetting            INVALID_SETTING
    │   ├── InvalidTrace              INVALID_TRACE
    │   ├── InvalidWriteSet           INVALID_WRITE_SET
    │   ├── TooManyKeys               TOO_MANY_KEYS
    │   ├── TransactionTooLarge       TRANSACTION_TOO_LARGE
    │   └── WriteSetTooLarge          WRITE_SET_TOO_LARGE
    ├── Unavailable               the caller may retry later
    │   ├── DiskFull                  DISK_FULL
    │   ├── LogServerTooOld           LOG_SERVER_TOO_OLD
    │   ├── LogServerUnavailable      LOG_SERVER_UNAVAILABLE
    │   ├── NotServing                NOT_SERVING
    │   ├── Overloaded                OVERLOADED
    │   ├── PortTaken                 PORT_TAKEN
    │   ├── SnapshotExpired           SNAPSHOT_EXPIRED
    │   └── UploadExpired             UPLOAD_EXPIRED
    ├── Fenced                    the operator must act before the member serves again
    │   ├── DigestMismatch            DIGEST_MISMATCH
    │   ├── ForeignDataFolder         FOREIGN_DATA_FOLDER
    │   ├── ForeignLog                FOREIGN_LOG
    │   ├── GtidsExhausted            GTIDS_EXHAUSTED
    │   ├── LogGap                    LOG_GAP
    │   ├── LogRewritten              LOG_REWRITTEN
    │   └── UnsupportedFormat         UNSUPPORTED_FORMAT
    └── CorruptLog                data is lost: stop, and restore or rejoin
        ├── CorruptRecord             CORRUPT_RECORD
        └── CorruptStore              CORRUPT_STORE

The rule: the four classes in the middle are what callers catch; the leaves are what is raised. A
leaf's `reason` is a stable name for machines, never reused; its message gives the value, the limit
and the next step. A conflict is a verdict and a bug is an assertion: neither is here.
"""

from dataclasses import dataclass
from typing import ClassVar

QUOTED_CHARACTERS_MAX = 80


class GroupcertError(Exception):
    """Any error of this tree; its fields are in `vars(error)`, its text is `str(error)`."""

    reason: ClassVar[str]


class InvalidRequest(GroupcertError):
    """The request can never succeed as it stands: the caller must change it."""


class Unavailable(GroupcertError):
    """The request may succeed later, unchanged."""


class Fenced(GroupcertError):
    """Going on could make members differ: this one stops serving until its operator has acted."""


class CorruptLog(GroupcertError):
    """Data that was durable cannot be read back: the member stops."""


@dataclass(eq=False, kw_only=True)
class DomainNotAllowed(InvalidRequest):
    """A session set `gtid_domain_id` and has no right to (MDEV-4506)."""

    reason: ClassVar[str] = "DOMAIN_NOT_ALLOWED"
    session: str
    domain_id: int

    def __str__(self) -> str:
        return (
            f"session {quoted(self.session)} may not set gtid_domain_id {self.domain_id}: "
            "name it in domain_sessions at this member, or leave the domain at 0"
        )


@dataclass(eq=False, kw_only=True)
class InvalidGtid(InvalidRequest):
    """A text is not a GTID, or not the part of one that was expected."""

    reason: ClassVar[str] = "INVALID_GTID"
    text: str
    expected: str

    def __str__(self) -> str:
        return f"invalid GTID {quoted(self.text)}: expected {self.expected}"


@dataclass(eq=False, kw_only=True)
class InvalidGtidSet(InvalidRequest):
    """A text is not a GTID set; `part` is the piece of it that was not understood."""

    reason: ClassVar[str] = "INVALID_GTID_SET"
    text: str
    part: str
    expected: str

    def __str__(self) -> str:
        return (
            f"invalid GTID set {quoted(self.text)}: "
            f"found {quoted(self.part)}, expected {self.expected}"
        )


@dataclass(eq=False, kw_only=True)
class InvalidSetting(InvalidRequest):
    """A setting has a value that it cannot have."""

    reason: ClassVar[str] = "INVALID_SETTING"
    name: str
    value: object
    expected: str

    def __str__(self) -> str:
        return f"setting {self.name} is {quoted(str(self.value))}: expected {self.expected}"


@dataclass(eq=False, kw_only=True)
class InvalidTrace(InvalidRequest):
    """A line of a trace cannot be read; lines count from 1."""

    reason: ClassVar[str] = "INVALID_TRACE"
    line: int
    problem: str
    expected: str

    def __str__(self) -> str:
        return f"trace line {self.line}: {self.problem}; expected {self.expected}"


@dataclass(eq=False, kw_only=True)
class InvalidWriteSet(InvalidRequest):
    """A value cannot be made into a write-set item."""

    reason: ClassVar[str] = "INVALID_WRITE_SET"
    value: str
    expected: str

    def __str__(self) -> str:
        return f"invalid write set: found {quoted(self.value)}, expected {self.expected}"


@dataclass(eq=False, kw_only=True)
class TooManyKeys(InvalidRequest):
    """One call asks for more rows than a member looks up in a row."""

    reason: ClassVar[str] = "TOO_MANY_KEYS"
    keys: int
    keys_max: int

    def __str__(self) -> str:
        return (
            f"{self.keys} keys in one call, the limit is {self.keys_max}: "
            "ask for them in several calls"
        )


@dataclass(eq=False, kw_only=True)
class TransactionTooLarge(InvalidRequest):
    """A transaction's record is larger than the group accepts."""

    reason: ClassVar[str] = "TRANSACTION_TOO_LARGE"
    bytes: int
    bytes_max: int
    advice: str = "split it, or raise the group's transaction size limit"

    def __str__(self) -> str:
        return f"transaction of {self.bytes} bytes, the limit is {self.bytes_max}: {self.advice}"


@dataclass(eq=False, kw_only=True)
class WriteSetTooLarge(InvalidRequest):
    """A transaction has more write-set items than the group accepts."""

    reason: ClassVar[str] = "WRITE_SET_TOO_LARGE"
    items: int
    items_max: int

    def __str__(self) -> str:
        return (
            f"write set of {self.items} items, the limit is {self.items_max}: "
            "split the transaction, or raise the group's write set limit"
        )


@dataclass(eq=False, kw_only=True)
class DiskFull(Unavailable):
    """The disk took no more; nothing that was acknowledged is lost."""

    reason: ClassVar[str] = "DISK_FULL"
    path: str
    cause: str

    def __str__(self) -> str:
        return f"no space left at {self.path} ({self.cause}): free some, the member then goes on"


@dataclass(eq=False, kw_only=True)
class LogServerTooOld(Unavailable):
    """The log server lacks what the total order needs of it."""

    reason: ClassVar[str] = "LOG_SERVER_TOO_OLD"
    version: str
    version_min: str

    def __str__(self) -> str:
        return (
            f"log server has version {self.version}, the oldest that serves is "
            f"{self.version_min}: upgrade it"
        )


@dataclass(eq=False, kw_only=True)
class LogServerUnavailable(Unavailable):
    """The log server does not answer."""

    reason: ClassVar[str] = "LOG_SERVER_UNAVAILABLE"
    address: str
    cause: str

    def __str__(self) -> str:
        return (
            f"log server at {self.address} does not answer ({self.cause}): "
            "start it, or correct the address"
        )


@dataclass(eq=False, kw_only=True)
class NotServing(Unavailable):
    """The member is in a state in which it takes no such request."""

    reason: ClassVar[str] = "NOT_SERVING"
    member: str
    state: str
    ordered: str = "perhaps"
    """`nothing` of the request, where the member refused it at its door."""

    def __str__(self) -> str:
        return (
            f"member {self.member} is {self.state}, not ONLINE: "
            "wait until it is, or ask another member"
        )


@dataclass(eq=False, kw_only=True)
class Overloaded(Unavailable):
    """More transactions wait for the log than the member takes."""

    reason: ClassVar[str] = "OVERLOADED"
    waiting: int
    waiting_max: int
    cause: str = ""
    """Who holds them up, if that is known."""
    what: str = "transactions"

    def __str__(self) -> str:
        limit = f"{self.waiting_max} ({self.cause})" if self.cause else f"{self.waiting_max}"
        return (
            f"{self.waiting} {self.what} wait for the log, the limit is {limit}: "
            "try again in a moment, or ask another member"
        )


@dataclass(eq=False, kw_only=True)
class PortTaken(Unavailable):
    """Another process listens where this one wants to."""

    reason: ClassVar[str] = "PORT_TAKEN"
    address: str

    def __str__(self) -> str:
        return f"address {self.address} is in use: stop its user, or choose another port"


@dataclass(eq=False, kw_only=True)
class SnapshotExpired(Unavailable):
    """A snapshot was closed, or not used for longer than its lease."""

    reason: ClassVar[str] = "SNAPSHOT_EXPIRED"
    snapshot_id: int
    lease_ms: int

    def __str__(self) -> str:
        return (
            f"snapshot {self.snapshot_id} is not open, or was not used for {self.lease_ms} ms: "
            "begin the transaction again"
        )


@dataclass(eq=False, kw_only=True)
class UploadExpired(Unavailable):
    """A client left a member for too long without the next part of a large commit."""

    reason: ClassVar[str] = "UPLOAD_EXPIRED"
    lease_ms: int

    def __str__(self) -> str:
        return (
            f"no part of a large commit came for {self.lease_ms} ms, nothing of it is kept: "
            "send it again from the start"
        )


@dataclass(eq=False, kw_only=True)
class DigestMismatch(Fenced):
    """Two members that read the same log hold different certification states."""

    reason: ClassVar[str] = "DIGEST_MISMATCH"
    position: int
    mine: str
    theirs: str
    member: str

    def __str__(self) -> str:
        return (
            f"digest at position {self.position} is {self.mine} here and {self.theirs} at member "
            f"{self.member}: find out which one is wrong, and let it rejoin with an empty folder"
        )


@dataclass(eq=False, kw_only=True)
class ForeignDataFolder(Fenced):
    """A data folder belongs to another group or member."""

    reason: ClassVar[str] = "FOREIGN_DATA_FOLDER"
    path: str
    found: str
    expected: str

    def __str__(self) -> str:
        return (
            f"data folder {self.path} belongs to {self.found}, expected {self.expected}: "
            "name its owner, or another folder"
        )


@dataclass(eq=False, kw_only=True)
class ForeignLog(Fenced):
    """The log under the group's name is not the one this member has read so far."""

    reason: ClassVar[str] = "FOREIGN_LOG"
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"log has identity {self.found}, expected {self.expected}: "
            "point the member at its own log, or let it rejoin with an empty folder"
        )


@dataclass(eq=False, kw_only=True)
class GtidsExhausted(Fenced):
    """The group's source has no free number left."""

    reason: ClassVar[str] = "GTIDS_EXHAUSTED"
    source: str
    number_max: int

    def __str__(self) -> str:
        return (
            f"every GTID of {self.source} up to {self.number_max} is used: "
            "give the group a new UUID"
        )


@dataclass(eq=False, kw_only=True)
class LogGap(Fenced):
    """The log went on at another position than the next one."""

    reason: ClassVar[str] = "LOG_GAP"
    expected: int
    found: int

    def __str__(self) -> str:
        return (
            f"log goes on at position {self.found}, expected {self.expected}: "
            "restore the log, or let the member rejoin with an empty folder"
        )


@dataclass(eq=False, kw_only=True)
class LogRewritten(Fenced):
    """The log lost its end and was filled again: it has another message where one was read."""

    reason: ClassVar[str] = "LOG_REWRITTEN"
    sequence: int
    read: str
    """The hash of the message that was read, as hexadecimal digits."""
    found: str

    def __str__(self) -> str:
        return (
            f"message {self.sequence} of the log has hash {self.found}, this member has read one "
            f"with {self.read} there: the log has lost its end since and was filled again; save "
            "what only this member has, then `groupcert group rejoin --discard-state`"
        )


@dataclass(eq=False, kw_only=True)
class UnsupportedFormat(Fenced):
    """Bytes were written in a format that this release does not read."""

    reason: ClassVar[str] = "UNSUPPORTED_FORMAT"
    what: str
    found: str
    supported: str

    def __str__(self) -> str:
        return (
            f"{self.what} has format {self.found}, this release reads {self.supported}: "
            "run a release that reads it"
        )


@dataclass(eq=False, kw_only=True)
class CorruptRecord(CorruptLog):
    """A record of the log cannot be decoded."""

    reason: ClassVar[str] = "CORRUPT_RECORD"
    position: int
    problem: str

    def __str__(self) -> str:
        return (
            f"record at position {self.position} is corrupt ({self.problem}): "
            "restore the log from a server that has it whole"
        )


@dataclass(eq=False, kw_only=True)
class CorruptStore(CorruptLog):
    """A member's own store contradicts itself."""

    reason: ClassVar[str] = "CORRUPT_STORE"
    path: str
    problem: str

    def __str__(self) -> str:
        return (
            f"store at {self.path} is corrupt ({self.problem}): "
            "move the folder away and let the member rejoin"
        )


def quoted(text: str) -> str:
    """Return the text as it goes into a message: on one line, and not longer than is readable."""
    if len(text) <= QUOTED_CHARACTERS_MAX:
        return repr(text)
    return f"{text[:QUOTED_CHARACTERS_MAX]!r}… ({len(text)} characters)"
