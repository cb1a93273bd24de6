"""The errors of an audit, as leaves of the tree in `certifier/errors.py`.

    GroupcertError
    ├── InvalidRequest
    │   ├── ForeignOutput             FOREIGN_OUTPUT
    │   └── UnreadableLog             UNREADABLE_LOG
    └── Unavailable
        ├── AuditNotInstalled         AUDIT_NOT_INSTALLED
        ├── NoSuitableJava            NO_SUITABLE_JAVA
        └── SparkFailed               SPARK_FAILED

Nothing here needs Spark, so that it can be said that there is none.
"""

from dataclasses import dataclass
from typing import ClassVar

from certifier.errors import InvalidRequest, Unavailable


@dataclass(eq=False, kw_only=True)
class ForeignOutput(InvalidRequest):
    """The results cannot go where the caller wants them."""

    reason: ClassVar[str] = "FOREIGN_OUTPUT"
    path: str
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path} {self.problem}: {self.advice}"


@dataclass(eq=False, kw_only=True)
class UnreadableLog(InvalidRequest):
    """The paths hold no certification log that this release can read."""

    reason: ClassVar[str] = "UNREADABLE_LOG"
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"{self.problem}: {self.advice}"


@dataclass(eq=False, kw_only=True)
class AuditNotInstalled(Unavailable):
    """What an audit runs on is not installed."""

    reason: ClassVar[str] = "AUDIT_NOT_INSTALLED"
    missing: str

    def __str__(self) -> str:
        return f"the audit needs {self.missing}: pip install 'groupcert[audit]'"


@dataclass(eq=False, kw_only=True)
class NoSuitableJava(Unavailable):
    """There is no Java that Spark runs on."""

    reason: ClassVar[str] = "NO_SUITABLE_JAVA"
    found: str
    advice: str

    def __str__(self) -> str:
        return f"{self.found}: {self.advice}"


@dataclass(eq=False, kw_only=True)
class SparkFailed(Unavailable):
    """Spark could not start, or gave up."""

    reason: ClassVar[str] = "SPARK_FAILED"
    task: str
    cause: str

    def __str__(self) -> str:
        return (
            f"Spark failed while {self.task} ({self.cause}): nothing was written; look at the "
            "cluster, or give it more memory, and try again"
        )
