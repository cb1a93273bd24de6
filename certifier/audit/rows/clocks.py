"""Resets of a history's logical clock: numbers before and after one cannot be compared.

A clock begins again when a member joins, and when a process continues a history anew. It has also
begun again if files are missing after which numbers are not greater than before: one of these
events is among the missing rows.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter

from pyspark.sql import Column
from pyspark.sql import functions as F

from groupcert.certifier.audit.rows.log import History, Log


def clock(log: Log, number: Column) -> Column:
    """Returns how often the clock of a row's history had begun again by row `number`.

    Cost: O(resets) a row.
    """
    if not any(each.resets for each in log.histories):
        return F.lit(0)
    return F.size(F.filter(_numbers(log, attrgetter("resets")), lambda reset: reset <= number))


def is_behind_lost_reset(log: Log) -> Column:
    """Returns whether a row is the first one after missing files in which the clock began again."""
    if not any(each.lost_resets for each in log.histories):
        return F.lit(False)
    return F.array_contains(_numbers(log, attrgetter("lost_resets")), F.col("number"))


def _numbers(log: Log, of: Callable[[History], Sequence[int]]) -> Column:
    return log.by_history(lambda each: list(of(each))).cast("array<bigint>")
