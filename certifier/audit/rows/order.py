"""Checks of the order of rows: none is missing, none has moved."""

from pyspark.sql import Column
from pyspark.sql import functions as F

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.rows.checks import Check, words
from groupcert.certifier.history.schema import RecordKind, Verdict

STATE = ("number", "version", "place")
"""Columns of the row before, as `previous_number` and so on."""


def makes_version(certified: int | str = Verdict.CERTIFIED.value) -> Column:
    """Returns whether a row makes a version; `certified` is its verdict in that case."""
    elsewhere = F.col("kind") == RecordKind.EXECUTED_ELSEWHERE
    return F.coalesce(F.col("verdict") == certified, F.lit(False)) | elsewhere


def order_of_rows(certified: int | str = Verdict.CERTIFIED.value) -> list[Check]:
    """Returns the checks that rows follow the row before: no gap in numbers, ascending places."""
    number, version, place = (F.col(f"previous_{name}") for name in STATE)
    return [
        Check(
            Code.RECORD_MISSING,
            F.col("number") > number + 1,
            words("row ", number + 1),
            words("row ", F.col("number")),
            words(F.col("number") - number - 1, " rows are missing between this one and ", place),
            version + 1,
            F.col("version") - F.when(makes_version(certified), 1).otherwise(0),
        ),
        Check(
            Code.RECORD_REORDERED,
            (F.col("number") <= number) | (F.col("place") <= place),
            words("a place after ", place, ", as row ", number + 1),
            words("place ", F.col("place"), ", as row ", F.col("number")),
            words("rows ", number, " and ", F.col("number"), " have changed places, or came twice"),
        ),
    ]
