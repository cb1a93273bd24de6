"""What appliers and replicas raise on purpose, in the tree of `certifier/errors.py`.

    InvalidRequest
    ├── InvalidBinaryLog          INVALID_BINARY_LOG
    └── UnsuitableTarget          UNSUITABLE_TARGET
    Unavailable
    └── TransientFailure          TRANSIENT_FAILURE
    Fenced
    ├── ApplyFailed               APPLY_FAILED
    ├── PurgedAtSource            PURGED_AT_SOURCE
    └── ReplicaAhead              REPLICA_AHEAD

The rule is that of the whole tree: a leaf's `reason` is never reused, and its message gives the
value, the limit and the next step.
"""

from ..certifier.errors import Fenced, InvalidRequest, Unavailable

TABLE_CHANGED = "table_changed"
OF_ROWS = ("duplicate_key", "foreign_key", "no_row")
"""Failures that a worker has met at each of its own retries: a target that is opened again helps
where a lost commit has come through, and no third time."""
STATEMENT_CHARACTERS_MAX = 200
_STATEMENT = "statement: "


def note_statement(error: Exception, statement: str) -> None:
    """Notes at an error the beginning of the statement that it is about."""
    error.add_note(f"{_STATEMENT}{statement[:STATEMENT_CHARACTERS_MAX]}")


def noted_statement(error: Exception) -> str:
    """Returns the statement that was noted at an error; empty: none was."""
    notes = (note for note in getattr(error, "__notes__", ()) if note.startswith(_STATEMENT))
    return next(notes, "").removeprefix(_STATEMENT)


class InvalidBinaryLog(InvalidRequest):
    """A file is not a binary log that can be read; the offset is in bytes."""

    message = "binary log {path} at byte {offset}: {problem}; expected {expected}"
    path: str
    offset: int
    problem: str
    expected: str


class UnsuitableTarget(InvalidRequest):
    """A replica's target cannot take its transactions; nothing was written."""

    message = "target {target}: {problem}; expected {expected}"
    target: str
    problem: str
    expected: str


class TransientFailure(Unavailable):
    """A target could not execute or commit a transaction now; nothing of it is left there.

    `kind` is one of deadlock, lock_timeout, serialization_failure, connection_lost; duplicate_key,
    foreign_key, no_row: of rows that an earlier transaction is still to delete or to write, or of a
    GTID whose commit by a lost session has come through; `TABLE_CHANGED`: the target has to be
    opened again, as its tables are others now.
    """

    message = "{kind} at the target ({text}): try again"
    kind: str
    text: str


class ApplyFailed(Fenced):
    """A worker cannot execute a transaction: the replica has stopped, and lost nothing."""

    worker: int
    gtid: str
    cause: str
    gaps: str

    def __str__(self) -> str:
        warning = f"; executed beyond it: {self.gaps} (a restart fills the gaps)"
        return (
            f"worker {self.worker} failed at {self.gtid or 'a view change'}: {self.cause}; "
            f"mend the cause and start the replica again{warning if self.gaps else ''}"
        )


class PurgedAtSource(Fenced):
    """The source's binary log begins after something that the replica still needs."""

    message = (
        "source {source} has purged {missing!q}, which the replica needs: follow a member that has "
        "it, or start from a newer copy of the data"
    )
    source: str
    missing: str


class ReplicaAhead(Fenced):
    """The replica has transactions that its source has not."""

    message = (
        "replica has {extra!q}, which source {source} has not: follow the one that they come from, "
        "or wait until this one has caught up; if it was made anew, copy its rows to a new replica"
    )
    source: str
    extra: str
