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

from ...certifier.errors import CorruptLog, Fenced, Unavailable


class CopyExpired(Unavailable):
    """A copy was closed, or nobody read from it for longer than it lasts."""

    message = (
        "copy {copy_id!q} is not open, or was not read for {lease_seconds} s: open another one"
    )
    copy_id: str
    lease_seconds: int


class LogTooLong(Unavailable):
    """The log has more than a member should read that could copy a donor's state."""

    message = (
        "log has {messages} messages that this member lacks, it reads {messages_max} at most where "
        "it has a donor: let it copy the donor's state, or raise recovery_log_messages_max"
    )
    messages: int
    messages_max: int


class LogTrimmed(Unavailable):
    """The log no longer has what a member must read next."""

    message = (
        "log begins at position {first}, this member needs {expected}: set seeds to addresses of "
        "members that it can copy, or restore a backup"
    )
    expected: int
    first: int


class NoDonor(Unavailable):
    """No member gave its state."""

    message = (
        "no donor among {asked} ({cause}): start one of them, set seeds to members that are "
        "ONLINE, or restore a backup"
    )
    asked: str
    cause: str


class TooManyCopies(Unavailable):
    """A donor holds as many copies as it allows."""

    message = (
        "{open} copies are open, the limit is {open_max}: ask another member, or try again when "
        "one is done"
    )
    open: int
    open_max: int


class ExtraTransactions(Fenced):
    """A member has executed what the group it wants to join has not."""

    message = (
        "member {member} has executed {extra!q}, which {lacking} has not: save what you need of "
        "them, then `groupcert group rejoin --discard-state`"
    )
    member: str
    lacking: str
    """Who or what has not."""
    extra: str


class LogCutShort(Fenced):
    """The log ends before what a member of the group has read of it."""

    message = (
        "the log ends at {last_sequence}, before what member {member} has read, {log_sequence}: "
        "restore the disk of the log's server, then `groupcert group rejoin --unfence` where a "
        "member is fenced; or stop all members and make the log again from what they hold: "
        "`groupcert log rebuild`"
    )
    last_sequence: int
    member: str
    log_sequence: int


class CorruptCopy(CorruptLog):
    """A copy is not what its manifest says."""

    message = "copy {path} is corrupt ({problem}): take another one"
    path: str
    problem: str
