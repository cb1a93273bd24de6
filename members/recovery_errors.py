"""Errors of copies and of recovery, added to the tree of `certifier/errors.py`.

├── Unavailable               the caller may retry later
│   ├── CopyExpired               COPY_EXPIRED
│   ├── LogTooLong                LOG_TOO_LONG
│   ├── LogTrimmed                LOG_TRIMMED
│   ├── NoDonor                   NO_DONOR
│   └── TooManyCopies             TOO_MANY_COPIES
├── Fenced                    the operator must act before the member serves again
│   ├── ExtraTransactions         EXTRA_TRANSACTIONS
│   └── LogCutShort               LOG_CUT_SHORT
└── CorruptLog                data is lost: stop, and restore or rejoin
    └── CorruptCopy               CORRUPT_COPY
"""

from dataclasses import dataclass
from typing import ClassVar

from certifier.errors import CorruptLog, Fenced, Unavailable, quoted


@dataclass(eq=False, kw_only=True)
class CopyExpired(Unavailable):
    """A copy was closed, or nobody read from it for longer than it lasts."""

    reason: ClassVar[str] = "COPY_EXPIRED"
    copy_id: str
    lease_seconds: int

    def __str__(self) -> str:
        return (
            f"copy {quoted(self.copy_id)} is not open, or was not read for {self.lease_seconds} s: "
            "open another one"
        )


@dataclass(eq=False, kw_only=True)
class LogTooLong(Unavailable):
    """The log has more than a member should read that could copy a donor's state."""

    reason: ClassVar[str] = "LOG_TOO_LONG"
    messages: int
    messages_max: int

    def __str__(self) -> str:
        return (
            f"log has {self.messages} messages that this member lacks, it reads "
            f"{self.messages_max} at most where it has a donor: let it copy the donor's state, "
            "or raise recovery_log_messages_max"
        )


@dataclass(eq=False, kw_only=True)
class LogTrimmed(Unavailable):
    """The log no longer has what a member must read next."""

    reason: ClassVar[str] = "LOG_TRIMMED"
    expected: int
    first: int

    def __str__(self) -> str:
        return (
            f"log begins at position {self.first}, this member needs {self.expected}: "
            "set seeds to addresses of members that it can copy, or restore a backup"
        )


@dataclass(eq=False, kw_only=True)
class NoDonor(Unavailable):
    """No member gave its state."""

    reason: ClassVar[str] = "NO_DONOR"
    asked: str
    cause: str

    def __str__(self) -> str:
        return (
            f"no donor among {self.asked} ({self.cause}): "
            "start one of them, set seeds to members that are ONLINE, or restore a backup"
        )


@dataclass(eq=False, kw_only=True)
class TooManyCopies(Unavailable):
    """A donor holds as many copies as it allows."""

    reason: ClassVar[str] = "TOO_MANY_COPIES"
    open: int
    open_max: int

    def __str__(self) -> str:
        return (
            f"{self.open} copies are open, the limit is {self.open_max}: "
            "ask another member, or try again when one is done"
        )


@dataclass(eq=False, kw_only=True)
class ExtraTransactions(Fenced):
    """A member has executed what the group it wants to join has not."""

    reason: ClassVar[str] = "EXTRA_TRANSACTIONS"
    member: str
    lacking: str
    """Who or what has not."""
    extra: str

    def __str__(self) -> str:
        return (
            f"member {self.member} has executed {quoted(self.extra)}, which {self.lacking} has "
            "not: save what you need of them, then `groupcert group rejoin --discard-state`"
        )


@dataclass(eq=False, kw_only=True)
class LogCutShort(Fenced):
    """The log ends before what a member of the group has read of it."""

    reason: ClassVar[str] = "LOG_CUT_SHORT"
    last_sequence: int
    member: str
    log_sequence: int

    def __str__(self) -> str:
        return (
            f"the log ends at {self.last_sequence}, before what member {self.member} has read, "
            f"{self.log_sequence}: restore the disk of the log's server, or, to go on without what "
            f"is lost, save what only {self.member} has and `groupcert group rejoin "
            "--discard-state` there; then `groupcert group rejoin --unfence` where a member is "
            "fenced"
        )


@dataclass(eq=False, kw_only=True)
class CorruptCopy(CorruptLog):
    """A copy is not what its manifest says."""

    reason: ClassVar[str] = "CORRUPT_COPY"
    path: str
    problem: str

    def __str__(self) -> str:
        return f"copy {self.path} is corrupt ({self.problem}): take another one"
