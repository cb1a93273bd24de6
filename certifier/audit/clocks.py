"""Where a history's logical clock began again: numbers before that say nothing about those after.

The rule it keeps: a clock begins again when a member joins and when a process takes up a history
anew; and where files are missing behind which numbers are no greater than before, since then one
of these is among what is missing.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter

from pyspark.sql import Column
from pyspark.sql import functions as F

from certifier.audit.log import History, Log


def clock(log: Log, number: Column) -> Column:
    """How often the clock of a row's history had begun again by the row of a number.

    Cost: O(times that it did so) a row.
    """
    if not any(each.resets for each in log.histories):
        return F.lit(0)
    return F.size(F.filter(_numbers(log, attrgetter("resets")), lambda reset: reset <= number))


def is_behind_lost_reset(log: Log) -> Column:
    """Whether a row is the first one behind missing files in which the clock has begun again."""
    if not any(each.lost_resets for each in log.histories):
        return F.lit(False)
    return F.array_contains(_numbers(log, attrgetter("lost_resets")), F.col("number"))


def _numbers(log: Log, of: Callable[[History], Sequence[int]]) -> Column:
    return log.by_history(lambda each: list(of(each))).cast("array<bigint>")
