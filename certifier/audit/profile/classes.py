"""Classes of transactions: those that write the same tables, ranked by the time that they wasted.

Who has to make conflicts fewer asks which kind of transaction to change. A log has no times of what
was aborted: each counts as long as an applier executed a certified one of its class on average.
"""

from typing import NamedTuple

import polars as pl

from ...history.schema import Verdict
from ..answers.result import JsonObject
from ..rows.coded_columns import execution_us, is_remote

CLASSES_MAX = 1_000
"""Classes that a partition counts by themselves: those with the most transactions."""
TABLES_MAX = 8
"""Tables that the name of a class has."""
OTHERS = "other classes"
SUMS = ("count", "aborted", "timed", "work_us")


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


def of_class(frame: pl.DataFrame, tables: pl.Expr) -> pl.DataFrame:
    """Counts the transactions of one history by class: `name`, and `SUMS`."""
    certified = pl.col("verdict") == Verdict.CERTIFIED.value
    took = pl.when(certified & is_remote()).then(execution_us("h"))
    known = tables.list.sort()
    more = pl.when(known.list.len() > TABLES_MAX).then(pl.lit(", ...")).otherwise(pl.lit(""))
    named = known.list.head(TABLES_MAX).list.join(", ") + more
    written = pl.col("write_set").list.len().fill_null(0) > 0
    name = pl.when(known.list.len() > 0).then(named).when(~written).then(pl.lit(""))
    rows = frame.select(name=name, aborted=~certified, took=took)
    return rows.group_by("name").agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("aborted").sum().cast(pl.Int64),
        pl.col("took").count().cast(pl.Int64).alias("timed"),
        pl.col("took").sum().alias("work_us"),
    )


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
