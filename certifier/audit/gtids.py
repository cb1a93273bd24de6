"""GTIDs: none is given twice, none is skipped, and each member's ascend.

The rule it keeps: the next number is the smallest free one. With blocks of numbers a member takes
them from its block in order; blocks are cut off what is free, from the smallest number on, and all
are cut anew after as many numbers as a block has, and at a view change. A number that a transaction
brought along, or that was executed elsewhere, is not free.

Soundness: a gap is reported if the first or the last number of what was jumped over was free; so is
a block that begins neither behind a used number nor behind the block before. Completeness: free
numbers between used ones are not looked for.

Source: WL#8440; MySQL 8.4 Reference Manual, `group_replication_gtid_assignment_block_size`.
"""

from collections import Counter
from collections.abc import Mapping
from functools import reduce
from itertools import accumulate
from operator import or_

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from certifier.audit.arrow import arrow_function
from certifier.audit.checks import Check, FoundAll, merged, run_checks, words
from certifier.audit.findings import Code
from certifier.audit.foreign import intervals
from certifier.audit.log import Log
from certifier.audit.order import makes_version
from certifier.audit.sequence import CERTIFIED, is_kind, of_group, told_block_size
from certifier.audit.states import segment, segment_begins, with_states
from certifier.history import RecordKind, Source

_RANGES = ArrayType(
    StructType().add("gtid_source", StringType()).add("first", LongType()).add("last", LongType())
)


def order_checks(log: Log) -> list[Check]:
    """Of rows with `met_gtid` and `met_block_size`: numbers that are given one by one follow each
    other.
    """
    is_decided = log.by_history(lambda each: each.source is not Source.BINARY_LOG)
    given = is_decided & (F.col("verdict") == CERTIFIED) & F.col("is_assigned")
    told = log.by_history(lambda each: _block_size(each.settings))
    given &= (F.coalesce("met_block_size", told) == 1) & (F.col("met_gtid") >= 0)
    number, met = F.col("gtid_number"), F.col("met_gtid")
    why = _why(met)
    return [
        Check(Code.GTID_GAP, given & (number > met + 1), met + 1, number, why, met + 1, number - 1),
        Check(Code.GTID_ORDER, given & (number <= met), met + 1, number, why, number),
    ]


def check_duplicates(log: Log) -> FoundAll:
    """GTIDs of two transactions of one history, or of one and of what was executed elsewhere before
    it.
    """
    gtid = ["h", "gtid_source", "gtid_number"]
    used = log.certified.where(F.col("gtid_number").isNotNull()).select(*gtid, "number", "place")
    twice = (
        used.groupBy(*gtid)
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.min("place").alias("first"),
            F.max("place").alias("place"),
            F.max_by("number", "place").alias("number"),
        )
        .where(F.col("count") > 1)
    )
    if _has_elsewhere(log):
        elsewhere = F.broadcast(_elsewhere(log))
        again = used.join(elsewhere, ["h", "gtid_source"]).where(_is_elsewhere())
        again = again.groupBy(*gtid, "number", "place").agg(F.min("used_at").alias("first"))
        twice = twice.unionByName(again.withColumn("count", F.lit(2).cast("bigint")))
    name = words(F.col("gtid_source"), ":", F.col("gtid_number"))
    return run_checks(
        log,
        twice,
        [
            Check(
                Code.GTID_DUPLICATE,
                F.lit(True),
                words("one transaction ", name),
                words(F.col("count"), " transactions"),
                words(name, " was given before, at place ", F.col("first")),
                F.col("gtid_number"),
            )
        ],
    )


def check_blocks(log: Log) -> FoundAll:
    """Of numbers given in blocks: a member's ascend by one until its block ends, and blocks follow
    each other.
    """
    histories = [each.h for each in log.histories if each.block_size_max > 1]
    if not histories:
        return FoundAll([], Counter())
    rows = _in_rounds(log.rows.where(F.col("h").isin(histories)), of_group(log))
    met = {"met": F.struct("gtid_number", "begin", "lap")}
    keys = ["h", "origin"]
    walked = with_states(rows, keys, met, segment_begins(rows, keys, met))
    number, before = F.col("gtid_number"), F.col("met.gtid_number")
    is_same = (F.col("met.begin") == F.col("begin")) & (F.col("met.lap") == F.col("lap"))
    walked = walked.withColumn("before", F.when(is_same, before)).where(
        F.coalesce(number != F.col("before") + 1, number != 1)
    )
    block = ["h", "begin", "lap", "gtid_number"]
    ended = rows.withColumn("gtid_number", number + F.col("size"))
    ended = ended.groupBy(*block).agg(F.min("place").alias("begun_at"))
    walked = walked.join(ended, block, "left")
    follows = F.coalesce(F.col("begun_at") < F.col("place"), F.lit(False))
    first, last = F.col("before") + 1, F.when(~follows, number - 1)
    low, high = F.coalesce(first, last), F.coalesce(last, first)
    why = _why(F.col("before"))
    goes_back = number <= F.col("before")
    is_gap = ~F.coalesce(goes_back, F.lit(False)) & low.isNotNull()
    checks = [
        Check(Code.GTID_GAP, is_gap, low, number, why, low, high),
        Check(Code.GTID_ORDER, goes_back, first, number, why, number),
    ]
    return run_checks(log, _unused(log, walked, checks[0]), checks)


def without_used(log: Log, rows: DataFrame, checks: list[Check], found: FoundAll) -> FoundAll:
    """What the checks have found of the rows without gaps that numbers fill which were brought
    along or executed elsewhere, and without refusals of GTIDs that were used before.

    Cost: another pass over the rows, if there are any gaps or refusals.
    """
    codes = {Code.GTID_GAP, Code.REFUSAL_FALSE}
    again = [each for each in checks if each.code in codes and each.code.value in found.counts]
    if not again:
        return found
    doubted = rows.where(reduce(or_, [F.coalesce(each.wrong, F.lit(False)) for each in again]))
    doubted = doubted.persist(StorageLevel.DISK_ONLY)
    try:
        wrong = doubted
        for check in again:
            is_gap = check.code is Code.GTID_GAP
            wrong = _unused(log, wrong, check) if is_gap else _unrefused(log, wrong)
        judged = run_checks(log, wrong, again)
    finally:
        doubted.unpersist()
    kept = [each for each in found.found if each.finding.code not in codes]
    counts = Counter({code: count for code, count in found.counts.items() if code not in codes})
    return merged([FoundAll(kept, counts), judged])


def _block_size(settings: Mapping[str, object]) -> int:
    """How many numbers members reserved as a history began; 0: not known."""
    size = settings.get("gtid_assignment_block_size", 1)
    return size if isinstance(size, int) else 0


def _why(met: Column) -> Column:
    return words("the number given before is ", met)


def _in_rounds(rows: DataFrame, is_of_group: Column) -> DataFrame:
    """The numbers given in blocks of `size`, each with its round: the row at which reservations
    were last freed (`begin`), and how many rounds had ended since (`lap`). None where that is not
    known, which is until the first view change of a history that begins late.
    """
    assigned = ~F.coalesce("gtid_brought", F.lit(False))
    given = F.coalesce((F.col("verdict") == "certified") & assigned & is_of_group, F.lit(False))
    begins = is_kind(RecordKind.VIEW_CHANGE) | is_kind(RecordKind.SETTINGS)
    begins |= is_kind(RecordKind.START) & (F.col("version") == 0)
    size = told_block_size()
    rows = rows.where(begins | makes_version() | size.isNotNull()).select(
        *("h", "number", "place", "version", "origin", "gtid_number"),
        given.alias("given"),
        begins.alias("begins"),
        size.alias("told_size"),
        (makes_version() & ~given).cast("int").alias("other"),
    )
    counted = _with_others(rows)
    given_count = F.col("version") - F.col("others")
    states = {
        "size": F.col("told_size"),
        "round": F.when(F.col("begins"), F.struct("number", given_count.alias("count"))),
    }
    known = with_states(counted, ["h"], states, segment_begins(counted, ["h"], states))
    lap = F.floor((given_count - F.col("round.count") - 1) / F.col("size"))
    return known.where(
        F.col("given") & (F.col("size") > 1) & F.col("round.number").isNotNull()
    ).select(
        *("h", "number", "place", "origin", "gtid_number", "size"),
        F.col("round.number").alias("begin"),
        lap.alias("lap"),
    )


def _with_others(rows: DataFrame) -> DataFrame:
    """The rows with `others`: how many versions up to each one were not given a number here."""
    cut = rows.withColumn("part", segment())
    sums = cut.groupBy("h", "part").agg(F.sum("other").alias("sum")).orderBy("h", "part").collect()
    totals: list[tuple[int, int, int]] = []
    for h in sorted({row["h"] for row in sums}):
        mine = [row for row in sums if row["h"] == h]
        before = accumulate((row["sum"] for row in mine), initial=0)
        totals += [(h, row["part"], total) for row, total in zip(mine, before, strict=False)]
    begun = rows.sparkSession.createDataFrame(totals, "h int, part int, before long")
    window = Window.partitionBy("h", "part").orderBy("number")
    others = F.sum("other").over(window.rowsBetween(Window.unboundedPreceding, 0))
    summed = cut.withColumn("sum", others).join(F.broadcast(begun), ["h", "part"])
    return summed.withColumn("others", F.col("sum") + F.col("before")).drop("part", "sum", "before")


def _unused(log: Log, rows: DataFrame, gap: Check) -> DataFrame:
    """The rows without those whose gap begins and ends with numbers that were used before.

    A history that begins late does not show what was used before: there a number was free only if
    it is used later.
    """
    assert gap.low is not None and gap.high is not None
    ends = F.explode(F.array_distinct(F.array(gap.low, gap.high)))
    asked = rows.where(gap.wrong).select("h", "number", "place", ends.alias("gtid_number"))
    used = log.certified.where(of_group(log)).select(
        "h", "gtid_number", F.col("place").alias("certified_at")
    )
    elsewhere = _elsewhere(log).where(of_group(log)).withColumnRenamed("h", "of")
    used_before = F.coalesce(F.least("certified_at", "used_at") < F.col("place"), F.lit(False))
    is_late = log.by_history(lambda each: each.start_version > 0)
    not_shown = is_late & F.col("certified_at").isNull() & F.col("used_at").isNull()
    filled = (
        asked.join(used, ["h", "gtid_number"], "left")
        .join(elsewhere, (F.col("h") == F.col("of")) & _is_elsewhere(), "left")
        .groupBy("h", "number", "gtid_number")
        .agg(F.bool_or(used_before | not_shown).alias("is_used"))
        .groupBy("h", "number")
        .agg(F.bool_and("is_used").alias("is_used"))
        .where("is_used")
    )
    return rows.join(filled.select("h", "number"), ["h", "number"], "left_anti")


def _unrefused(log: Log, rows: DataFrame) -> DataFrame:
    """The rows without refused transactions whose GTID was used before."""
    gtid = ["h", "gtid_source", "gtid_number"]
    refused = log.transactions.where(
        (F.col("verdict") == "refused") & F.col("gtid_brought")
    ).select(*gtid, "number", "place")
    earlier = log.certified.groupBy(*gtid).agg(F.min("place").alias("used_at"))
    known = refused.join(earlier, gtid).where(F.col("used_at") < F.col("place"))
    beside = refused.join(_elsewhere(log), ["h", "gtid_source"]).where(_is_elsewhere())
    rightly = known.select("h", "number").union(beside.select("h", "number"))
    return rows.join(rightly, ["h", "number"], "left_anti")


def _has_elsewhere(log: Log) -> bool:
    return any(each.elsewhere for each in log.histories)


def _elsewhere(log: Log) -> DataFrame:
    """What was executed elsewhere, from `used_at` on: a row for each interval `first` to `last`."""
    known = arrow_function(_ranges, _RANGES)(F.col("snapshot_set"))
    rows = log.rows.where(is_kind(RecordKind.EXECUTED_ELSEWHERE))
    told = rows.select("h", F.col("place").alias("used_at"), F.explode(known).alias("range"))
    return told.select("h", "used_at", "range.*")


def _ranges(sets: pa.Array) -> pa.Array:
    return pa.array(
        [
            [
                {"gtid_source": source, "first": first, "last": last}
                for source, ends in intervals(text or "").items()
                for first, last in zip(*ends, strict=True)
            ]
            for text in sets.to_pylist()
        ],
        to_arrow_type(_RANGES),
    )


def _is_elsewhere() -> Column:
    """Of rows with GTIDs joined with `_elsewhere`: whether it was executed there before."""
    inside = F.col("gtid_number").between(F.col("first"), F.col("last"))
    return inside & (F.col("used_at") < F.col("place"))
