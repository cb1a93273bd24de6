"""The last writers of each transaction's items, and whether its snapshot includes them.

An item's writers are the certified transactions before it in the same history, as recorded; one
window by item finds them all. Its output is only what a check can use: a writer outside of the
snapshot, or one whose sequence number is above the window's edge.

Source: WL#8440, conflict detection and AL1, derived here from the history as relations.
"""

from functools import cache

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from groupcert.certifier.audit.rows.clocks import clock
from groupcert.certifier.audit.rows.foreign import is_included
from groupcert.certifier.audit.rows.log import Log
from groupcert.certifier.audit.rows.prefixes import whole_to
from groupcert.certifier.audit.rows.sequence import segment_edges
from groupcert.certifier.audit.rows.states import segment, segment_of
from groupcert.certifier.history.schema import Verdict


def item_rows(log: Log) -> DataFrame:
    """Returns one row for each item that a transaction wrote or read: h, item, number, `wrote`; of
    certified transactions their version and sequence number (0: local); and the winner's version if
    the transaction names this item for its conflict.
    """
    certified = F.col("verdict") == Verdict.CERTIFIED
    foreign = has_foreign_snapshots(log)
    names = ["gtid_source", "gtid_number", "snapshot_set", "whole_to"] if foreign else []
    asked = log.transactions.withColumn("whole_to", whole_to(log)) if foreign else log.transactions
    exploded = asked.select(
        *("h", "number", "snapshot_version", "winner_item", "winner_version"),
        *names,
        F.when(certified, F.col("version")).alias("version"),
        F.when(certified, F.coalesce("sequence_number", F.lit(0))).alias("sequence_number"),
        *_touched(log),
    )
    return exploded.select(
        *("h", "item", "number", "snapshot_version", *names, "version", "sequence_number"),
        F.when(F.col("item") == F.col("winner_item"), F.col("winner_version")).alias("claimed"),
        "wrote",
    )


def _touched(log: Log) -> list[Column]:
    """Returns the items of a transaction, each on a row of its own, and whether it wrote them."""
    written = F.array_distinct("write_set")
    if not any(each.read_sets for each in log.histories):  # Fewer columns to move.
        return [F.explode(written).alias("item"), F.lit(True).alias("wrote")]
    nothing = F.array().cast("array<bigint>")
    known = F.coalesce(written, nothing)
    read = F.array_except(F.coalesce("read_set", nothing), known)
    touched = F.concat(
        F.transform(known, lambda item: F.struct(item.alias("item"), F.lit(True).alias("wrote"))),
        F.transform(read, lambda item: F.struct(item.alias("item"), F.lit(False).alias("wrote"))),
    )
    return [F.inline(touched).alias("item", "wrote")]


def is_written() -> Column:
    """Returns whether a row of `item_rows` is a write of a certified transaction."""
    return F.col("version").isNotNull() & F.col("wrote")


def has_foreign_snapshots(log: Log) -> bool:
    """Returns whether any snapshot is a GTID set."""
    return any(each.gtid_snapshots for each in log.histories)


@cache
def met_at_items(log: Log) -> DataFrame:
    """Returns by h, segment and number: `dependency`, the largest sequence number among the items'
    last writers (if it may be above the window's edge); `outside`, the newest writer's version that
    the snapshot lacks, with `outside_item`; `winner_found`, whether the recorded winner is one of
    the writers; `certified`. It is kept on disk, as several jobs use it.
    """
    told = _met_each(log).where(F.col("outside").isNotNull() | F.col("dependency").isNotNull())
    # Partitioned as segments are, so that the result need not be moved for the join there.
    partitions = int(log.spark.conf.get("spark.sql.shuffle.partitions") or 1)
    is_winner = F.col("outside") == F.col("claimed")
    met = (
        told.repartition(partitions, "h", "segment")
        .groupBy("h", "segment", "number")
        .agg(
            F.max("dependency").alias("dependency"),
            F.max("outside").alias("outside"),
            F.max_by("item", "outside").alias("outside_item"),
            F.max(F.coalesce(is_winner, F.lit(False))).alias("winner_found"),
            F.first("certified").alias("certified"),
        )
    )
    return met.persist(StorageLevel.DISK_ONLY)


def overwritten(log: Log) -> DataFrame:
    """Returns one row for each item that was written again while its last writer, of version
    `overwrote`, may not have been collected: h, number, `overwrote`.
    """
    rows = _met_each(log).where(F.col("overwrote").isNotNull())
    return rows.select("h", "number", "overwrote")


@cache
def _met_each(log: Log) -> DataFrame:
    """Returns how each item's last writer matters to a transaction, if it may: `dependency`,
    `outside` (with `item`, `claimed`), `overwrote`. Kept on disk, so that the items are moved and
    sorted once.
    """
    rows = item_rows(log)
    foreign = "snapshot_set" in rows.columns
    window = (
        Window.partitionBy("item", "h").orderBy("number").rowsBetween(Window.unboundedPreceding, -1)
    )
    last = {"last_version": F.col("version"), "last_sequence": F.col("sequence_number")}
    begins_again = any(each.resets for each in log.histories)
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
    counts = is_written() & (F.col("last_sequence") > F.coalesce("edge", F.lit(0)))
    if begins_again:
        counts &= clock(log, F.col("last_number")) == clock(log, F.col("number"))
    may_be_there = is_written() & (F.col("last_version") > F.coalesce("collected", F.lit(-1)))
    met = (
        seen.withColumn("segment", segment())
        .join(F.broadcast(_lowered(log, begins)), ["h", "segment"], "left")
        .withColumn("lacks", F.coalesce(lacks, F.lit(False)))
        .select(
            *("h", "segment", "number"),
            F.col("version").isNotNull().alias("certified"),
            F.when(counts, F.col("last_sequence")).alias("dependency"),
            F.when(F.col("lacks"), F.col("last_version")).alias("outside"),
            F.when(F.col("lacks"), F.col("item")).alias("item"),
            F.when(F.col("lacks"), F.col("claimed")).alias("claimed"),
            F.when(may_be_there, F.col("last_version")).alias("overwrote"),
        )
        .where(F.coalesce("dependency", "outside", "overwrote").isNotNull())
    )
    return met.persist(StorageLevel.DISK_ONLY)


def _lowered(log: Log, begins: DataFrame) -> DataFrame:
    """Returns the edge at the begin of each segment, 0 if the clock begins again inside of it: a
    lower bound of every transaction's own edge.
    """
    edge = F.col("edge")
    for each in log.histories:
        inside = sorted({segment_of(reset) for reset in each.resets})
        if inside:
            edge = F.when(
                (F.col("h") == each.h) & F.col("segment").isin(inside), F.lit(0)
            ).otherwise(edge)
    return begins.withColumn("edge", edge)
