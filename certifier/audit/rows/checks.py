"""Checks as columns: when a row is wrong, what was expected, what was found.

All checks of a set of rows are one pass over them; only wrong rows produce output.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from groupcert.certifier.audit.answers.findings import ROWS_MAX, Code, Finding
from groupcert.certifier.audit.rows.log import Log


class Check(NamedTuple):
    """One check: a row for which `wrong` is true is a finding.

    `witness`: the explanation for a person. `low`, `high`: numbers by which its consequences are
    found (`consequences.py`), such as the versions that are missing.
    """

    code: Code
    wrong: Column
    expected: Column
    found: Column
    witness: Column
    low: Column | None = None
    high: Column | None = None


class Found(NamedTuple):
    """A finding with the position of its row and the check's numbers."""

    finding: Finding
    h: int
    number: int
    low: int | None
    high: int | None


class FoundAll(NamedTuple):
    """The first findings of each code, and the number of all of them by code."""

    found: list[Found]
    counts: Counter[str]


def merged(parts: Iterable[FoundAll]) -> FoundAll:
    """Returns the findings of several runs as those of one."""
    found: list[Found] = []
    counts: Counter[str] = Counter()
    for part in parts:
        found += part.found
        counts += part.counts
    return FoundAll(sorted(found, key=lambda each: (each.finding.place, each.h)), counts)


def words(*parts: Column | str) -> Column:
    """Returns a text from columns and words; columns without a value show as `none`."""
    return F.concat(
        *[
            F.lit(part) if isinstance(part, str) else F.coalesce(part.cast("string"), F.lit("none"))
            for part in parts
        ]
    )


def hexadecimal(item: int) -> str:
    """Returns an item as people see it."""
    return f"{item % 2**64:016x}"


def item_name(item: str) -> Column:
    """Returns the column of a column's items as people see them."""
    return F.lower(F.lpad(F.hex(item), 16, "0"))


def run_checks(log: Log, rows: DataFrame, checks: Sequence[Check]) -> FoundAll:
    """Applies the checks to the rows, which have `h`, `number` and `place`."""
    none = F.lit(None).cast("bigint")
    found = [
        F.when(
            check.wrong,
            F.struct(
                F.lit(check.code.value).alias("code"),
                check.expected.cast("string").alias("expected"),
                check.found.cast("string").alias("found"),
                check.witness.cast("string").alias("witness"),
                (none if check.low is None else check.low.cast("bigint")).alias("low"),
                (none if check.high is None else check.high.cast("bigint")).alias("high"),
            ),
        )
        for check in checks
    ]
    # Nearly all rows are filtered out here: the rest is too much code for Java to compile.
    any_wrong = reduce(or_, [F.coalesce(check.wrong, F.lit(False)) for check in checks])
    wrong = (
        rows.where(any_wrong)
        .select("h", "number", "place", F.explode(F.array_compact(F.array(*found))).alias("it"))
        .select("h", "number", "place", "it.*")
        .persist(StorageLevel.DISK_ONLY)
    )
    try:
        counts = {row["code"]: row["count"] for row in wrong.groupBy("code").count().collect()}
        if not counts:
            return FoundAll([], Counter())
        first = Window.partitionBy("code").orderBy("place", "h")
        kept = wrong.withColumn("rank", F.row_number().over(first)).where(F.col("rank") <= ROWS_MAX)
        rows_kept = kept.orderBy("place", "h", "code").collect()
    finally:
        wrong.unpersist()
    return FoundAll(
        [
            Found(
                Finding(
                    code=Code(row["code"]),
                    observer=log.histories[row["h"]].observer,
                    history=log.histories[row["h"]].history,
                    place=row["place"],
                    expected=row["expected"] or "",
                    found=row["found"] or "",
                    witness=row["witness"] or "",
                ),
                *(row["h"], row["number"], row["low"], row["high"]),
            )
            for row in rows_kept
        ],
        Counter(counts),
    )
