"""What the operator of a PostgreSQL server is told, in the tree of `certifier/errors.py`.

    InvalidRequest
    └── SchemaChangeRefused       SCHEMA_CHANGE_REFUSED
    Fenced
    ├── CopyNeeded                COPY_NEEDED
    ├── RowsNotExecuted           ROWS_NOT_EXECUTED
    └── SchemaChangeFailed        SCHEMA_CHANGE_FAILED

The rule is that of the whole tree: a leaf's `reason` is never reused, and its message gives the
value, the limit and the next step.
"""

from ...certifier.errors import Fenced, InvalidRequest


class CopyNeeded(Fenced):
    """No member's binary log reaches back to what a server has executed."""

    message = (
        "the binary log of {source} has purged {missing!q}, which {server} needs: give the "
        "companion a --member that has it, or copy a running server into an empty database: "
        "groupcert postgresql join --dsn EMPTY --from RUNNING"
    )
    source: str
    missing: str
    server: str


class RowsNotExecuted(Fenced):
    """A certified transaction cannot be executed at a server, whose companion stops before it."""

    message = (
        "{server} cannot execute {gtid}, version {version}: {cause} (at row {row!q}); it has all "
        "before it, and the other servers go on: mend the cause and start the companion again, or "
        "leave it out there: groupcert postgresql skip {gtid} --reason TEXT"
    )
    server: str
    gtid: str
    version: int
    cause: str
    row: str


class SchemaChangeFailed(Fenced):
    """A certified schema change fails at a server, whose companion stops before it."""

    message = (
        "schema change {gtid} failed at {server}: {cause} (its statements: {statements!q}); "
        "nothing of it is left there: mend the cause, and start the companion again"
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
