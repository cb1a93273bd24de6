"""Whether rows follow each other: none is missing, none has moved."""

from pyspark.sql import Column
from pyspark.sql import functions as F

from certifier.audit.checks import Check, words
from certifier.audit.findings import Code
from certifier.history import RecordKind, Verdict

STATE = ("number", "version", "place")
"""What `previous` has of the row before."""


def makes_version() -> Column:
    """Whether a row, with its verdict as a number or a name, makes a version."""
    certified = F.col("verdict").cast("string").isin("1", Verdict.CERTIFIED.value)
    elsewhere = F.col("kind") == RecordKind.EXECUTED_ELSEWHERE
    return F.coalesce(certified, F.lit(False)) | elsewhere


def order_of_rows() -> list[Check]:
    """Of rows with `previous`: their numbers have no gap, and their places ascend."""
    number, version, place = (F.col(f"previous.{name}") for name in STATE)
    return [
        Check(
            Code.RECORD_MISSING,
            F.col("number") > number + 1,
            words("row ", number + 1),
            words("row ", F.col("number")),
            words(F.col("number") - number - 1, " rows are missing between this one and ", place),
            version + 1,
            F.col("version") - F.when(makes_version(), 1).otherwise(0),
        ),
        Check(
            Code.RECORD_REORDERED,
            (F.col("number") <= number) | (F.col("place") <= place),
            words("a place after ", place, ", as row ", number + 1),
            words("place ", F.col("place"), ", as row ", F.col("number")),
            words("rows ", number, " and ", F.col("number"), " have changed places, or came twice"),
        ),
    ]
