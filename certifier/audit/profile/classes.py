"""Classes of transactions: those that write the same tables, ranked by the time that they wasted.

Who has to make conflicts fewer asks which kind of transaction to change. A log has no times of what
was aborted: each counts as long as an applier executed a certified one of its class on average.
"""

from typing import NamedTuple

import polars as pl

from ...history.schema import Verdict
from ..answers.result import JsonObject
from ..rows.coded_columns import executed_at, is_remote
from ..rows.jobs import JOB, executed

CLASSES_MAX = 1_000
"""Classes that a partition counts by themselves: those with the most transactions."""
TABLES_MAX = 8
"""Tables that the name of a class has."""
OTHERS = "other classes"
SUMS = ("count", "aborted", "timed", "work_us")
TIMED = ("name", "file", "number", *JOB, "is_timed")
"""The columns of what an applier executed in a known time, see `jobs.py`."""


class Class(NamedTuple):
    """A class: its transactions, the aborted ones, those whose execution was timed, and its sum.

    `tables`: None if the log does not name them, "" of transactions without write set.
    """

    tables: str | None
    transactions: int
    aborted: int
    timed: int
    work_us: int

    @property
    def wasted_us(self) -> int | None:
        """Execution time of the aborted ones, as long as the others on average; None: not known."""
        if not self.aborted:
            return 0
        return self.aborted * self.work_us // self.timed if self.timed else None


def with_class(frame: pl.DataFrame, tables: pl.Expr) -> pl.DataFrame:
    """Returns the transactions of one history with their class (`name`)."""
    known = tables.list.sort()
    more = pl.when(known.list.len() > TABLES_MAX).then(pl.lit(", ...")).otherwise(pl.lit(""))
    named = known.list.head(TABLES_MAX).list.join(", ") + more
    written = pl.col("write_set").list.len().fill_null(0) > 0
    name = pl.when(known.list.len() > 0).then(named).when(~written).then(pl.lit(""))
    return frame.with_columns(name=name)


def of_class(frame: pl.DataFrame) -> pl.DataFrame:
    """Counts transactions by class: `name`, and `SUMS` without the last one."""
    certified = pl.col("verdict") == Verdict.CERTIFIED.value
    is_timed = executed_at().is_not_null() & pl.col("started_us").is_not_null()
    return frame.group_by("name").agg(
        pl.len().cast(pl.Int64).alias("count"),
        (~certified).sum().cast(pl.Int64).alias("aborted"),
        (certified & is_remote() & is_timed).sum().cast(pl.Int64).alias("timed"),
    )


def timed(frame: pl.DataFrame) -> pl.DataFrame:
    """Returns the transactions that an applier executed in a known time, as `TIMED`."""
    certified = pl.col("verdict") == Verdict.CERTIFIED.value
    return executed(frame).with_columns(is_timed=certified).select(TIMED)


def work_of_class(ran: pl.DataFrame) -> pl.DataFrame:
    """Returns the execution time by class, of rows of `TIMED` with their share of a job's time."""
    return ran.filter("is_timed").group_by("name").agg(pl.col("took_us").sum().alias("work_us"))


def most_used(counts: pl.DataFrame) -> pl.DataFrame:
    """Returns the classes with the most transactions, and the sum of the others as one."""
    ordered = counts.sort("count", "name", descending=[True, False])
    rest = ordered.slice(CLASSES_MAX).select(pl.lit(OTHERS).alias("name"), *SUMS)
    return pl.concat(
        [ordered.head(CLASSES_MAX).select("name", *SUMS), rest.group_by("name").sum()],
        how="vertical_relaxed",
    )


def ranked(classes: list[Class], most: int) -> JsonObject:
    """Returns the classes that wasted the most time, then those with the most aborts."""
    total, wasted = (
        sum(each.transactions for each in classes),
        sum(each.wasted_us or 0 for each in classes),
    )
    order = sorted(
        classes,
        key=lambda each: (
            -(each.wasted_us or 0),
            -each.aborted,
            -each.transactions,
            each.tables or "",
        ),
    )
    return {
        "classes": len(classes),
        "transactions": total,
        "aborted": sum(each.aborted for each in classes),
        "wasted_us": wasted if any(each.timed for each in classes) else None,
        "first": [
            {
                "tables": each.tables,
                "transactions": each.transactions,
                "share": round(each.transactions / total, 6),
                "aborted": each.aborted,
                "abort_rate": round(each.aborted / each.transactions, 6),
                "mean_us": each.work_us // each.timed if each.timed else None,
                "wasted_us": each.wasted_us,
            }
            for each in order[:most]
        ],
    }
