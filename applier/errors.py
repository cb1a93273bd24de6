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

from dataclasses import dataclass
from typing import ClassVar

from certifier.errors import Fenced, InvalidRequest, Unavailable, quoted


@dataclass(eq=False, kw_only=True)
class InvalidBinaryLog(InvalidRequest):
    """A file is not a binary log that can be read; the offset is in bytes."""

    reason: ClassVar[str] = "INVALID_BINARY_LOG"
    path: str
    offset: int
    problem: str
    expected: str

    def __str__(self) -> str:
        return (
            f"binary log {self.path} at byte {self.offset}: {self.problem}; "
            f"expected {self.expected}"
        )


@dataclass(eq=False, kw_only=True)
class UnsuitableTarget(InvalidRequest):
    """A replica's target cannot take its transactions; nothing was written."""

    reason: ClassVar[str] = "UNSUITABLE_TARGET"
    target: str
    problem: str
    expected: str

    def __str__(self) -> str:
        return f"target {self.target}: {self.problem}; expected {self.expected}"


@dataclass(eq=False, kw_only=True)
class TransientFailure(Unavailable):
    """A target could not execute or commit a transaction now; nothing of it is left there.

    `kind` is one of deadlock, lock_timeout, serialization_failure, connection_lost, duplicate_key:
    of a row that an earlier transaction is still to delete, or of a GTID whose commit by a lost
    session has come through.
    """

    reason: ClassVar[str] = "TRANSIENT_FAILURE"
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} at the target ({self.text}): try again"


@dataclass(eq=False, kw_only=True)
class ApplyFailed(Fenced):
    """A worker cannot execute a transaction: the replica has stopped, and lost nothing."""

    reason: ClassVar[str] = "APPLY_FAILED"
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


@dataclass(eq=False, kw_only=True)
class PurgedAtSource(Fenced):
    """The source's binary log begins after something that the replica still needs."""

    reason: ClassVar[str] = "PURGED_AT_SOURCE"
    source: str
    missing: str

    def __str__(self) -> str:
        return (
            f"source {self.source} has purged {quoted(self.missing)}, which the replica needs: "
            "follow a member that has it, or start from a newer copy of the data"
        )


@dataclass(eq=False, kw_only=True)
class ReplicaAhead(Fenced):
    """The replica has transactions that its source has not."""

    reason: ClassVar[str] = "REPLICA_AHEAD"
    source: str
    extra: str

    def __str__(self) -> str:
        return (
            f"replica has {quoted(self.extra)}, which source {self.source} has not: "
            "follow the group that they come from, or wait until the source has caught up"
        )
