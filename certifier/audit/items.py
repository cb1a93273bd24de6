"""What each transaction met at its items: who wrote them last, and whether its snapshot had that.

The rule it keeps: an item's writers are the certified transactions before it in the same history,
as recorded; one window by item sees them all. Only what can matter leaves the window: a writer
outside of the snapshot, or one whose sequence number is above the window's edge.

Source: WL#8440, conflict detection and AL1, derived here from the history as relations.
"""

from functools import cache

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from certifier.audit.arrow import arrow_function
from certifier.audit.foreign import is_included
from certifier.audit.log import Log
from certifier.audit.prefixes import whole_to
from certifier.audit.sequence import segment_edges
from certifier.audit.states import segment, segment_of
from certifier.history import Verdict


def item_rows(log: Log) -> DataFrame:
    """One row for each item that a transaction wrote or read: h, item, number, `wrote`, of
    certified transactions their version and sequence number (0: local), and the winner's version
    where the transaction names this item for its conflict.
    """
    certified = F.col("verdict") == Verdict.CERTIFIED
    written = F.array_distinct(F.coalesce("write_set", F.array().cast("array<bigint>")))
    read = F.array_except(
        F.coalesce("read_set", F.array().cast("array<bigint>")),
        F.coalesce("write_set", F.array().cast("array<bigint>")),
    )
    touched = F.when(F.col("read_set").isNull(), written).otherwise(F.concat(written, read))
    foreign = has_foreign_snapshots(log)
    names = ["gtid_source", "gtid_number", "snapshot_set", "whole_to"] if foreign else []
    asked = log.transactions.withColumn("whole_to", whole_to(log)) if foreign else log.transactions
    exploded = asked.select(
        *("h", "number", "snapshot_version", "winner_item", "winner_version"),
        *names,
        F.when(certified, F.col("version")).alias("version"),
        F.when(certified, F.coalesce("sequence_number", F.lit(0))).alias("sequence_number"),
        F.size(written).alias("written"),
        F.posexplode(touched).alias("index", "item"),
    )
    return exploded.select(
        *("h", "item", "number", "snapshot_version", *names, "version", "sequence_number"),
        F.when(F.col("item") == F.col("winner_item"), F.col("winner_version")).alias("claimed"),
        (F.col("index") < F.col("written")).alias("wrote"),
    )


def is_written() -> Column:
    """Of `item_rows`: whether a certified transaction wrote the item."""
    return F.col("version").isNotNull() & F.col("wrote")


def has_foreign_snapshots(log: Log) -> bool:
    """Whether any snapshot is a GTID set."""
    return any(each.gtid_snapshots for each in log.histories)


@cache
def met_at_items(log: Log) -> DataFrame:
    """By h, segment and number: `dependency`, the largest sequence number among the items' last
    writers (if it may be above the window's edge); `outside`, the newest writer's version that the
    snapshot lacks, with `outside_item`; `winner_found`, whether the recorded winner is one of them;
    `certified`. It is kept on disk: several jobs ask for it.
    """
    told = _met_each(log).where(F.col("outside").isNotNull() | F.col("dependency").isNotNull())
    # As segments are walked, so that what is met need not be moved to be joined there.
    partitions = int(log.spark.conf.get("spark.sql.shuffle.partitions") or 1)
    newest = F.when(F.col("outside").isNotNull(), F.struct("outside", "item"))
    is_winner = F.col("outside") == F.col("claimed")
    met = (
        told.repartition(partitions, "h", "segment")
        .groupBy("h", "segment", "number")
        .agg(
            F.max("dependency").alias("dependency"),
            F.max(newest).alias("newest"),
            F.max(F.coalesce(is_winner, F.lit(False))).alias("winner_found"),
            F.first("certified").alias("certified"),
        )
    )
    told_once = met.select(
        *("h", "segment", "number", "dependency", "winner_found", "certified"),
        F.col("newest.outside").alias("outside"),
        F.col("newest.item").alias("outside_item"),
    )
    return told_once.persist(StorageLevel.DISK_ONLY)


def overwritten(log: Log) -> DataFrame:
    """One row for each item that was written again while its last writer, of version `overwrote`,
    may not have been collected: h, number, `overwrote`.
    """
    rows = _met_each(log).where(F.col("overwrote").isNotNull())
    return rows.select("h", "number", "overwrote")


@cache
def _met_each(log: Log) -> DataFrame:
    """What each item's last writer is to a transaction, where it may be something: `dependency`,
    `outside`, `overwrote`. Kept on disk, so that the items are moved and sorted once.
    """
    rows = item_rows(log)
    foreign = "snapshot_set" in rows.columns
    window = (
        Window.partitionBy("item", "h").orderBy("number").rowsBetween(Window.unboundedPreceding, -1)
    )
    last = {"last_version": F.col("version"), "last_sequence": F.col("sequence_number")}
    dependency = F.when(is_written(), F.col("last_sequence"))
    begins_again = any(len(each.resets) > 1 for each in log.histories)
    if begins_again:
        last["last_number"] = F.col("number")
    if foreign:
        last["last_read"] = F.struct(
            "gtid_source", "gtid_number", "snapshot_set", "snapshot_version"
        )
    seen = rows.select(
        "*",
        *[
            F.last(F.when(is_written(), value), ignorenulls=True).over(window).alias(name)
            for name, value in last.items()
        ],
    ).where(F.col("last_version").isNotNull())
    lacks = F.col("last_version") > F.col("snapshot_version")
    if foreign:
        lacks = F.when(F.col("snapshot_set").isNull(), lacks).otherwise(~is_included())
    begins = segment_edges(log).select(
        "h", "segment", F.col("met_edge").alias("edge"), F.col("met_collected").alias("collected")
    )
    is_above = dependency > F.coalesce("edge", F.lit(0))
    may_be_there = is_written() & (F.col("last_version") > F.coalesce("collected", F.lit(-1)))
    met = (
        seen.withColumn("segment", segment())
        .join(F.broadcast(_lowered(log, begins)), ["h", "segment"], "left")
        .select(
            *(
                "h",
                "segment",
                "number",
                "item",
                "claimed",
                *(["last_number"] if begins_again else []),
            ),
            F.col("version").isNotNull().alias("certified"),
            F.when(is_above, dependency).alias("dependency"),
            F.when(F.coalesce(lacks, F.lit(False)), F.col("last_version")).alias("outside"),
            F.when(may_be_there, F.col("last_version")).alias("overwrote"),
        )
        .where(F.coalesce("dependency", "outside", "overwrote").isNotNull())
    )
    if begins_again:  # Asked of what is left only: it is a function of Python.
        counts = is_stamp_of_now(log, F.col("last_number"), F.col("number"))
        met = (
            met.withColumn("dependency", F.when(counts, F.col("dependency")))
            .drop("last_number")
            .where(F.coalesce("dependency", "outside", "overwrote").isNotNull())
        )
    return met.persist(StorageLevel.DISK_ONLY)


def is_stamp_of_now(log: Log, writer: Column, number: Column) -> Column:
    """Whether the stamp of the row `writer` counts at the later row `number` of the same history:
    the clock did not begin again between them.

    Cost: O(log resets) a row.
    """
    numbers = {each.h: np.array(each.resets, np.int64) for each in log.histories}
    if all(len(each) < 2 for each in numbers.values()):
        return F.lit(True)

    def reset_before(h: pa.Array, number: pa.Array) -> pa.Array:
        histories = h.to_numpy(zero_copy_only=False)
        rows = number.to_numpy(zero_copy_only=False)
        found = np.zeros(len(rows), np.int64)
        for each in np.unique(histories):
            mine = histories == each
            begun = np.insert(numbers[int(each)], 0, 0)
            found[mine] = begun[np.searchsorted(begun, rows[mine]) - 1]
        return pa.array(found)

    return writer > arrow_function(reset_before, LongType())(F.col("h"), number)


def _lowered(log: Log, begins: DataFrame) -> DataFrame:
    """The edge that each segment begins with, 0 where the clock begins again inside of it: a bound
    that no transaction's own edge is below.
    """
    edge = F.col("edge")
    for each in log.histories:
        inside = sorted({segment_of(reset) for reset in each.resets})
        if inside:
            edge = F.when(
                (F.col("h") == each.h) & F.col("segment").isin(inside), F.lit(0)
            ).otherwise(edge)
    return begins.withColumn("edge", edge)
