"""The errors of an audit, as leaves of the tree in `certifier/errors.py`.

    GroupcertError
    ├── InvalidRequest
    │   ├── ForeignOutput             FOREIGN_OUTPUT
    │   ├── NoAuditBefore             NO_AUDIT_BEFORE
    │   └── UnreadableLog             UNREADABLE_LOG
    └── Unavailable
        ├── NoSuitableJava            NO_SUITABLE_JAVA
        └── SparkFailed               SPARK_FAILED

Nothing here imports Spark, so that its absence can be reported.
"""

from ...errors import InvalidRequest, Unavailable


class ForeignOutput(InvalidRequest):
    """The results cannot go where the caller wants them."""

    message = "{path} {problem}: {advice}"
    path: str
    problem: str
    advice: str


class NoAuditBefore(InvalidRequest):
    """There is no audit that this one could go on from."""

    message = "{path} has no audit ({problem}): {advice}"
    path: str
    problem: str
    advice: str


NO_LOG_ADVICE = (
    "give the folders that members write to (setting certification_log), or those of "
    "groupcert export"
)


class UnreadableLog(InvalidRequest):
    """The paths hold no certification log that this release can read."""

    message = "{problem}: {advice}"
    problem: str
    advice: str


class NoSuitableJava(Unavailable):
    """There is no Java that Spark runs on."""

    message = "{found}: {advice}"
    found: str
    advice: str


class SparkFailed(Unavailable):
    """Spark could not start, or gave up."""

    message = (
        "Spark failed while {task} ({cause}): nothing was written; look at the cluster, or give it "
        "more memory, and try again"
    )
    task: str
    cause: str
