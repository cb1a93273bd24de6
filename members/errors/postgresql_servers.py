"""What the operator of a PostgreSQL server is told, in the tree of `certifier/errors.py`.

    InvalidRequest
    ├── RowsAtServer              ROWS_AT_SERVER
    └── SchemaChangeRefused       SCHEMA_CHANGE_REFUSED
    Fenced
    └── CopyNeeded                COPY_NEEDED
    Unavailable
    └── StoppedAtServer           the member tries it again, again and again
        ├── RowsNotExecuted       ROWS_NOT_EXECUTED
        ├── SchemaChangeFailed    SCHEMA_CHANGE_FAILED
        └── ServerLost            SERVER_LOST

The rule is that of the whole tree: a leaf's `reason` is never reused, and its message gives the
value, the limit and the next step.
"""

from ...certifier.errors import Fenced, InvalidRequest, Unavailable


class CopyNeeded(Fenced):
    """The state of a member begins behind what its server has executed."""

    message = (
        "{server} has executed all up to version {version}, and its member has nothing before "
        "version {first}: copy a running server into an empty database, "
        "groupcert postgresql join --dsn EMPTY --from RUNNING"
    )
    server: str
    version: int
    first: int


class StoppedAtServer(Unavailable):
    """A member cannot go on at its server; its next run begins where this one has stopped."""


class ServerLost(StoppedAtServer):
    """The server that keeps a member's rows has gone, or has ended the member's sessions."""

    message = "{server} has gone ({cause}): the member begins again once it answers"
    server: str
    cause: str


class RowsNotExecuted(StoppedAtServer):
    """A certified transaction cannot be executed at a server, which stops before it."""

    message = (
        "{server} cannot execute {gtid}, version {version}: {cause} (at row {row!q}); it has all "
        "before it, and the other servers go on: mend the cause, its member tries again, or "
        "leave it out there: groupcert postgresql skip {gtid} --reason TEXT"
    )
    server: str
    gtid: str
    version: int
    cause: str
    row: str


class SchemaChangeFailed(StoppedAtServer):
    """A certified schema change fails at a server, which stops before it."""

    message = (
        "schema change {gtid} failed at {server}: {cause} (its statements: {statements!q}); "
        "nothing of it is left there: mend the cause, its member tries again"
    )
    gtid: str
    server: str
    cause: str
    statements: str


class SchemaChangeRefused(InvalidRequest):
    """A schema change was tried at a server, and cannot be run by a group."""

    message = "schema change refused at {server}: {problem}; nothing was changed"
    server: str
    problem: str


class RowsAtServer(InvalidRequest):
    """A client asks a member for rows that a PostgreSQL server keeps."""

    message = (
        "the rows are at {server}: use SQL there; `groupcert verify` compares those of members"
    )
    server: str
