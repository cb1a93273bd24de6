"""GTIDs: none is given twice, none is skipped, and each member's ascend.

The next number is the smallest free one. With blocks a member takes the numbers of its block in
order. Blocks are cut from the free numbers, from the smallest on, and all are cut anew after as
many numbers as a block has, and at a view change. A number is not free if a transaction came with
it as its own GTID, or if it was executed elsewhere.

Soundness: a gap is reported if the first or the last number of the skipped ones was free; a block
is reported if it begins neither after a used number nor after the block before. Completeness: free
numbers between used ones are not searched.

Source: WL#8440; MySQL 8.4 Reference Manual, `group_replication_gtid_assignment_block_size`.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.rows.checks import Check, FoundAll, run_checks, words
from groupcert.certifier.audit.rows.foreign import intervals
from groupcert.certifier.audit.rows.log import Log, block_size, of_each
from groupcert.certifier.audit.rows.order import makes_version
from groupcert.certifier.audit.rows.sequence import CERTIFIED, is_kind, of_group, told_block_size
from groupcert.certifier.audit.rows.states import segment, segment_begins, with_states
from groupcert.certifier.audit.spark.arrow import ColumnFunction, arrow_function
from groupcert.certifier.history.schema import RecordKind, Source

_RANGES = ArrayType(
    StructType().add("gtid_source", StringType()).add("first", LongType()).add("last", LongType())
)


def order_checks(log: Log) -> list[Check]:
    """Returns the checks, for rows with `met_gtid` and `met_block_size`, that numbers assigned one
    by one follow each other.
    """
    is_decided = log.by_history(lambda each: each.source is not Source.BINARY_LOG)
    given = is_decided & (F.col("verdict") == CERTIFIED) & F.col("is_assigned")
    one_by_one = {"gtid_assignment_block_size": 1}
    told = log.by_history(lambda each: block_size({**one_by_one, **each.settings}))
    given &= (F.coalesce("met_block_size", told) == 1) & (F.col("met_gtid") >= 0)
    number, met = F.col("gtid_number"), F.col("met_gtid")
    why = _why(met)
    return [
        Check(Code.GTID_GAP, given & (number > met + 1), met + 1, number, why, met + 1, number - 1),
        Check(Code.GTID_ORDER, given & (number <= met), met + 1, number, why, number),
    ]


def check_duplicates(log: Log) -> FoundAll:
    """Finds GTIDs of two transactions of one history, or of one and of those executed elsewhere
    before it.
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
    elsewhere = _elsewhere(log)
    if elsewhere:
        ends = [(*of, int(first[0]), int(last.max())) for of, (first, last, _) in elsewhere.items()]
        columns = "h int, gtid_source string, low long, high long"
        near = used.join(F.broadcast(log.spark.createDataFrame(ends, columns)), gtid[:2])
        near = near.where(F.col("gtid_number").between(F.col("low"), F.col("high")))
        before = used_elsewhere(log)(*gtid).alias("first")
        again = near.select(*gtid, "number", "place", before).where(F.col("first") < F.col("place"))
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
    """Checks numbers assigned in blocks: a member's ascend by one until its block ends, and blocks
    follow each other.
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
    return run_checks(log, without_used(log, walked, checks[0]), checks)


def without_used(log: Log, rows: DataFrame, gap: Check) -> DataFrame:
    """Returns the rows without those whose gap begins and ends with numbers that were used before.

    A history that begins late does not show what was used before: there a number was free only if
    it is used later.
    """
    assert gap.low is not None and gap.high is not None
    ends = F.explode(F.array_distinct(F.array(gap.low, gap.high)))
    group = log.by_history(lambda each: each.group_source or "")
    asked = rows.where(gap.wrong).select("h", "number", "place", ends.alias("gtid_number"))
    asked = asked.withColumn("used_at", used_elsewhere(log)(F.col("h"), group, "gtid_number"))
    used = log.certified.where(of_group(log)).select(
        "h", "gtid_number", F.col("place").alias("certified_at")
    )
    used_before = F.coalesce(F.least("certified_at", "used_at") < F.col("place"), F.lit(False))
    is_late = log.by_history(lambda each: each.start_version > 0)
    not_shown = is_late & F.col("certified_at").isNull() & F.col("used_at").isNull()
    filled = (
        asked.join(used, ["h", "gtid_number"], "left")
        .groupBy("h", "number", "gtid_number")
        .agg(F.bool_or(used_before | not_shown).alias("is_used"))
        .groupBy("h", "number")
        .agg(F.bool_and("is_used").alias("is_used"))
        .where("is_used")
    )
    return rows.join(filled.select("h", "number"), ["h", "number"], "left_anti")


def _why(met: Column) -> Column:
    return words("the number given before is ", met)


def _in_rounds(rows: DataFrame, is_of_group: Column) -> DataFrame:
    """Returns the numbers assigned in blocks of `size`, each with its round: the row at which
    reservations were last freed (`begin`), and how many rounds had ended since (`lap`). Rows
    without a known round are left out: those before the first view change of a history that begins
    late.
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
    """Returns the rows with `others`: how many versions up to each one got no number here."""
    cut = rows.withColumn("part", segment())
    sums = cut.groupBy("h", "part").agg(F.sum("other").alias("sum")).orderBy("h", "part").collect()
    totals: list[tuple[int, int, int]] = []
    for h, mine in of_each(sums).items():
        before = accumulate((row["sum"] for row in mine), initial=0)
        totals += [(h, row["part"], total) for row, total in zip(mine, before, strict=False)]
    begun = rows.sparkSession.createDataFrame(totals, "h int, part int, before long")
    window = Window.partitionBy("h", "part").orderBy("number")
    others = F.sum("other").over(window.rowsBetween(Window.unboundedPreceding, 0))
    summed = cut.withColumn("sum", others).join(F.broadcast(begun), ["h", "part"])
    return summed.withColumn("others", F.col("sum") + F.col("before")).drop("part", "sum", "before")


def used_elsewhere(log: Log) -> ColumnFunction:
    """Returns a function of history, source and number: the place at which that GTID became known
    to be executed elsewhere; null if it did not.

    Cost: a search in the intervals of its source, which each process holds that calls it.
    """
    elsewhere = _elsewhere(log)

    def used_at(h: pa.Array, source: pa.Array, number: pa.Array) -> pa.Array:
        asked = pc.fill_null(number, 0).to_numpy(zero_copy_only=False)
        found = np.full(len(asked), -1, np.int64)
        for (each, name), (first, last, place) in elsewhere.items():
            mine = np.flatnonzero(_is_of(h, source, each, name).to_numpy(zero_copy_only=False))
            at = np.searchsorted(first, asked[mine], "right") - 1
            inside = (at >= 0) & (asked[mine] <= last[at])
            found[mine[inside]] = place[at[inside]]
        return pa.array(found, pa.int64(), mask=found < 0)

    if not elsewhere:
        return lambda *_: F.lit(None).cast("bigint")
    return arrow_function(used_at, LongType())


@cache
def _elsewhere(log: Log) -> Mapping[tuple[int, str], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Returns the intervals of GTIDs executed elsewhere, by history and source: first numbers, last
    numbers, and the places from which on they are known; int64[n], ascending by number.

    Cost: 24 bytes an interval.
    """
    if not any(each.elsewhere for each in log.histories):
        return {}
    known = arrow_function(_ranges, _RANGES)(F.col("snapshot_set"))
    rows = log.rows.where(is_kind(RecordKind.EXECUTED_ELSEWHERE))
    told = rows.select("h", F.col("place").alias("used_at"), F.explode(known).alias("range"))
    ordered = told.select("h", "range.*", "used_at").orderBy("h", "gtid_source", "first")
    table = ordered.toArrow()
    found = {}
    for each in table.group_by(["h", "gtid_source"]).aggregate([]).to_pylist():
        h, source = each["h"], each["gtid_source"]
        mine = table.filter(_is_of(table["h"], table["gtid_source"], h, source))
        first, last, used_at = (mine[name].to_numpy() for name in ("first", "last", "used_at"))
        found[h, source] = (first, last, used_at)
    return found


def _is_of(
    histories: pa.Array, sources: pa.Array, h: int, source: str
) -> pa.BooleanArray | pa.ChunkedArray:
    """Returns which GTIDs are of a history and a source."""
    return pc.fill_null(pc.and_(pc.equal(histories, h), pc.equal(sources, source)), False)


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
