"""Every error that groupcert raises on purpose, sorted by who must act; those of appliers are in
`applier/errors.py`, those of recovery in `members/errors/recovery.py`, those of every call in
`members/errors/calls.py`, those of a transaction in `members/errors/transactions.py`.

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
    │   ├── LogFull                   LOG_FULL
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
leaf's `reason` is a stable name for machines, never reused: that of its class, in capitals. Its
message gives the value, the limit and the next step. Every error can be pickled. A bug is an
assertion, which is not here.
"""

import copyreg
import re
from dataclasses import Field, dataclass
from string import Formatter
from typing import ClassVar, dataclass_transform

QUOTED_CHARACTERS_MAX = 80


@dataclass_transform(eq_default=False, kw_only_default=True)
class GroupcertError(Exception):
    """Any error of this tree; its fields are in `vars(error)`, its text is `str(error)`.

    Each subclass is a dataclass whose fields are given by their names.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]
    reason: ClassVar[str]
    message: ClassVar[str] = ""
    """A template of the text, with the fields in braces; one that ends in `!q` goes in quoted."""

    def __init_subclass__(cls) -> None:
        cls.reason = re.sub(r"(?<=.)(?=[A-Z])", "_", cls.__name__).upper()
        dataclass(eq=False, kw_only=True)(cls)

    def __str__(self) -> str:
        return _MESSAGES.vformat(self.message, (), vars(self))

    def __reduce__(self) -> tuple[object, ...]:
        """Returns the constructor, the class and the fields for pickle. `Exception` would repeat
        the call with positional arguments, of which there are none.
        """
        return copyreg.__newobj__, (type(self),), vars(self)  # type: ignore[attr-defined]  # stubs


class _Messages(Formatter):
    def convert_field(self, value: object, conversion: str | None) -> object:
        return quoted(str(value)) if conversion == "q" else super().convert_field(value, conversion)


_MESSAGES = _Messages()


class InvalidRequest(GroupcertError):
    """The request can never succeed as it stands: the caller must change it."""


class Unavailable(GroupcertError):
    """The request may succeed later, unchanged."""


class Fenced(GroupcertError):
    """Going on could make members differ: this one stops serving until its operator has acted."""


class CorruptLog(GroupcertError):
    """Data that was durable cannot be read back: the member stops."""


class DomainNotAllowed(InvalidRequest):
    """A session set `gtid_domain_id` and has no right to (MDEV-4506)."""

    message = (
        "session {session!q} may not set gtid_domain_id {domain_id}: name it in domain_sessions at "
        "this member, or leave the domain at 0"
    )
    session: str
    domain_id: int


class InvalidGtid(InvalidRequest):
    """A text is not a GTID, or not the part of one that was expected."""

    message = "invalid GTID {text!q}: expected {expected}"
    text: str
    expected: str


class InvalidGtidSet(InvalidRequest):
    """A text is not a GTID set; `part` is the piece of it that was not understood."""

    message = "invalid GTID set {text!q}: found {part!q}, expected {expected}"
    text: str
    part: str
    expected: str


class InvalidSetting(InvalidRequest):
    """A setting has a value that it cannot have."""

    message = "setting {name} is {value!q}: expected {expected}"
    name: str
    value: object
    expected: str


class InvalidTrace(InvalidRequest):
    """A line of a trace cannot be read; lines count from 1."""

    message = "trace line {line}: {problem}; expected {expected}"
    line: int
    problem: str
    expected: str


class InvalidWriteSet(InvalidRequest):
    """A value cannot be made into a write-set item."""

    message = "invalid write set: found {value!q}, expected {expected}"
    value: str
    expected: str


class TooManyKeys(InvalidRequest):
    """One call asks for more rows than a member looks up in a row."""

    message = "{keys} keys in one call, the limit is {keys_max}: ask for them in several calls"
    keys: int
    keys_max: int


class TransactionTooLarge(InvalidRequest):
    """A transaction's record is larger than the group accepts."""

    message = "transaction of {bytes} bytes, the limit is {bytes_max}: {advice}"
    bytes: int
    bytes_max: int
    advice: str = "split it, or raise the group's transaction size limit"


class WriteSetTooLarge(InvalidRequest):
    """A transaction has more write-set items than the group accepts."""

    message = (
        "write set of {items} items, the limit is {items_max}: split the transaction, or raise the "
        "group's write set limit"
    )
    items: int
    items_max: int


class DiskFull(Unavailable):
    """The disk took no more; nothing that was acknowledged is lost."""

    message = "no space left at {path} ({cause}): free some, the member then goes on"
    path: str
    cause: str


class LogFull(Unavailable):
    """The log has no space for another message; it has nothing of what was handed in."""

    message = (
        "the log has no space ({cause}), and nothing of this attempt was ordered: make room at "
        "its servers"
    )
    cause: str


class LogServerTooOld(Unavailable):
    """The log server lacks what the total order needs of it."""

    message = (
        "log server has version {version}, the oldest that serves is {version_min}: upgrade it"
    )
    version: str
    version_min: str


class LogServerUnavailable(Unavailable):
    """The log server does not answer."""

    message = "log server at {address} does not answer ({cause}): start it, or correct the address"
    address: str
    cause: str


class NotServing(Unavailable):
    """The member is in a state in which it takes no such request."""

    message = "member {member} is {state}, not ONLINE: wait until it is, or ask another member"
    member: str
    state: str
    ordered: str = "perhaps"
    """`nothing` of the request, where the member refused it at its door."""


class Overloaded(Unavailable):
    """More transactions wait for the log than the member takes."""

    waiting: int
    waiting_max: int
    cause: str = ""
    """The member that holds them up, in words, if that is known."""
    what: str = "transactions"

    def __str__(self) -> str:
        limit = f"{self.waiting_max} ({self.cause})" if self.cause else f"{self.waiting_max}"
        return (
            f"{self.waiting} {self.what} wait for the log, the limit is {limit}: "
            "try again in a moment, or ask another member"
        )


class PortTaken(Unavailable):
    """Another process listens where this one wants to."""

    message = "address {address} is in use: stop its user, or choose another port"
    address: str


class SnapshotExpired(Unavailable):
    """A snapshot was closed, or not used for longer than its lease."""

    message = (
        "snapshot {snapshot_id} is not open, or was not used for {lease_ms} ms: begin the "
        "transaction again"
    )
    snapshot_id: int
    lease_ms: int


class UploadExpired(Unavailable):
    """A client left a member for too long without the next part of a large commit."""

    message = (
        "no part of a large commit came for {lease_ms} ms, nothing of it is kept: send it again "
        "from the start"
    )
    lease_ms: int


class DigestMismatch(Fenced):
    """Two members that read the same log hold different certification states."""

    message = (
        "digest at position {position} is {mine} here and {theirs} at member {member}: find out "
        "which one is wrong, and let it rejoin with an empty folder"
    )
    position: int
    mine: str
    theirs: str
    member: str


class ForeignDataFolder(Fenced):
    """A data folder belongs to another group or member."""

    message = (
        "data folder {path} belongs to {found}, expected {expected}: name its owner, or another "
        "folder"
    )
    path: str
    found: str
    expected: str


class ForeignLog(Fenced):
    """The log under the group's name is not the one this member has read so far."""

    message = (
        "log has identity {found}, expected {expected}: point the member at its own log; where "
        "that is lost, `groupcert log rebuild` makes it again; else let the member rejoin with an "
        "empty folder"
    )
    expected: str
    found: str


class GtidsExhausted(Fenced):
    """The group's source has no free number left."""

    message = "every GTID of {source} up to {number_max} is used: give the group a new UUID"
    source: str
    number_max: int


class LogGap(Fenced):
    """The log went on at another position than the next one."""

    message = (
        "log goes on at position {found}, expected {expected}: restore the log, or let the member "
        "rejoin with an empty folder"
    )
    expected: int
    found: int


class LogRewritten(Fenced):
    """The log lost its end and was filled again: it has another message where one was read."""

    message = (
        "message {sequence} of the log has hash {found}, this member has read one with {read} "
        "there: the log has lost its end since and was filled again; save what only this member "
        "has, then `groupcert group rejoin --discard-state`"
    )
    sequence: int
    read: str
    """The hash of the message that was read, as hexadecimal digits."""
    found: str


class UnsupportedFormat(Fenced):
    """Bytes were written in a format that this release does not read."""

    message = (
        "{what} has format {found}, this release reads {supported}: run a release that reads it"
    )
    what: str
    found: str
    supported: str


class CorruptRecord(CorruptLog):
    """A record of the log cannot be decoded."""

    message = (
        "record at position {position} is corrupt ({problem}): restore the log from a server that "
        "has it whole"
    )
    position: int
    problem: str


class CorruptStore(CorruptLog):
    """A member's own store contradicts itself."""

    message = (
        "store at {path} is corrupt ({problem}): move the folder away and let the member rejoin"
    )
    path: str
    problem: str


def quoted(text: str) -> str:
    """Returns the text as it goes into a message: on one line, and not longer than is readable."""
    if len(text) <= QUOTED_CHARACTERS_MAX:
        return repr(text)
    return f"{text[:QUOTED_CHARACTERS_MAX]!r}… ({len(text)} characters)"
