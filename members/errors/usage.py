"""What is wrong with a command line or with settings, in the tree of `certifier/errors.py`.

    InvalidRequest
    ├── InvalidConfig             INVALID_CONFIG
    ├── InvalidOption             INVALID_OPTION
    ├── InvalidUsage              INVALID_USAGE
    └── MissingOption             MISSING_OPTION
    Unavailable
    ├── MemberEnded               MEMBER_ENDED
    ├── NothingUp                 NOTHING_UP
    └── ReplicaEnded              REPLICA_ENDED

They are told to who starts a process, and cross no wire.
"""

from ...certifier.errors import InvalidRequest, Unavailable


class InvalidConfig(InvalidRequest):
    """Settings that a process cannot start with; `problems` lists all that is wrong."""

    problems: tuple[str, ...]

    def __str__(self) -> str:
        return "settings: " + "; ".join(self.problems)


class InvalidOption(InvalidRequest):
    """An option or an argument of the command has a value that it cannot have."""

    message = "{name} is {value!q}: expected {expected}"
    name: str
    value: object
    expected: str


class InvalidUsage(InvalidRequest):
    """A command line is not one that the command understands."""

    message = "{problem}"
    problem: str


class MemberEnded(Unavailable):
    """A member of a group that starts on this machine has ended; the others are stopped."""

    message = "member {member} ended {how}, and said last: {last_line}; all of it is in {log}"
    member: str
    how: str
    last_line: str
    log: str


class MissingOption(InvalidRequest):
    """An option or an argument of the command was not given."""

    message = "{name} is missing: give it {ways}"
    name: str
    ways: str
    """All ways to give it, such as `as --group, in the file or as GROUPCERT_GROUP`."""


class NothingUp(Unavailable):
    """The group of a folder was asked for, and is down."""

    message = (
        "nothing is up in {folder}: `groupcert up` starts its group; another one has to be named "
        "by the ADDRESS of a member"
    )
    folder: str


class ReplicaEnded(Unavailable):
    """A replica of the demo has ended by itself; everything else is stopped."""

    message = "replica {replica} ended {how}, and said last: {last_line}; all of it is in {log}"
    replica: str
    how: str
    last_line: str
    log: str
