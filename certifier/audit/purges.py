"""Collections: how many items each one had to purge, and what that does to the window.

The rule it keeps: an item goes with the collection that reaches its last writer's version, unless a
later transaction wrote it before that collection.

Source: WL#8440, garbage collection. Stable sets that are GTID sets (traces) are not counted here:
they may purge beyond a version.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from certifier.audit.checks import Check, FoundAll, run_checks, words
from certifier.audit.clocks import clock
from certifier.audit.findings import Code
from certifier.audit.items import is_written, item_rows, overwritten
from certifier.audit.log import Log
from certifier.audit.sequence import walked_collections
from certifier.history import Source

_BLOCK_BITS = 12
"""Of versions: 4,096 are looked up at once."""
Steps = Mapping[int, tuple[np.ndarray, np.ndarray]]
"""By history the collected versions, ascending, and the numbers of their rows."""


def check_purges(log: Log) -> FoundAll:
    """What collections purged, against what was there to purge."""
    collections = _collections(log)
    steps, is_tight = _steps(collections)
    if not steps:
        return FoundAll([], Counter())
    purged = _purged(log, steps) if is_tight else _counted(log, steps)
    rows = collections.join(purged, ["h", "number"], "left")
    expected = F.coalesce("items", F.lit(0))
    known = F.col("met_collected") >= log.by_history(lambda each: each.start_version)
    after = F.greatest("met_edge", F.coalesce("sequence_max", F.lit(0)))
    span = (F.col("met_collected") + 1, F.col("collected_version"))
    return run_checks(
        log,
        rows,
        [
            Check(
                Code.COLLECTION_WRONG,
                known & (F.col("purged_items") != expected),
                words(expected, " items"),
                words(F.col("purged_items"), " items"),
                words("it collected the versions ", span[0], " to ", span[1]),
                *span,
            ),
            Check(
                Code.WINDOW_WRONG,
                known & F.col("met_tight") & (F.col("last_committed_global") != after),
                after,
                F.col("last_committed_global"),
                words("the largest sequence number that it purged is ", F.col("sequence_max")),
                *span,
            ),
        ],
    )


def _collections(log: Log) -> DataFrame:
    """Collections that are counted, with the state that they met."""
    decided = log.by_history(lambda each: each.source is not Source.BINARY_LOG)
    by_version = F.col("met_stable_set").isNull()
    return walked_collections(log).where(decided & by_version)


def _steps(collections: DataFrame) -> tuple[Steps, bool]:
    """Where versions were collected, and whether any collection left its window open."""
    columns = collections.select("h", "number", "collected_version", "met_tight")
    table = columns.orderBy("h", "number").toArrow()
    h, number, version = (table[name].to_numpy() for name in ("h", "number", "collected_version"))
    found = {}
    for each in np.unique(h):
        mine = h == each
        found[int(each)] = (np.maximum.accumulate(version[mine]), number[mine])
    return found, any(table["met_tight"].to_pylist())


def _counted(log: Log, steps: Steps) -> DataFrame:
    """By collection the items that it had to purge: all that the transactions wrote whose versions
    it was to collect, less those that were written again before it.

    Cost: as many rows as there are transactions, and items that were written again so soon.
    """
    by_version = _by_version(log, steps)
    count = F.coalesce(F.size(F.array_distinct("write_set")), F.lit(0))
    written = log.certified.select("h", "version", count.alias("items"))
    again = overwritten(log).select(
        *("h", F.col("overwrote").alias("version"), F.col("number").alias("again"))
    )
    again = _with_collector(again, by_version).where(F.col("collector") > F.col("again"))
    return (
        _with_collector(written, by_version)
        .select("h", F.col("collector").alias("number"), "items")
        .union(again.select("h", F.col("collector").alias("number"), F.lit(-1).alias("items")))
        .groupBy("h", "number")
        .agg(F.sum("items").alias("items"))
        .withColumn("sequence_max", F.lit(None).cast("bigint"))
    )


def _purged(log: Log, steps: Steps) -> DataFrame:
    """By collection the items that it had to purge, and their largest sequence number: which of
    them are left has to be known for that.

    Cost: the items are moved and sorted once more.
    """
    window = Window.partitionBy("item", "h").orderBy("number")
    written = item_rows(log).where(is_written())
    last = written.select(
        *("h", "version", "sequence_number", F.col("number").alias("writer")),
        F.lead("number").over(window).alias("next_number"),
    )
    step = _with_collector(last, _by_version(log, steps)).withColumnRenamed("collector", "number")
    purged = step.where(F.col("next_number").isNull() | (F.col("next_number") > F.col("number")))
    counts = clock(log, F.col("writer")) == clock(log, F.col("number"))
    stamp = F.when(counts, F.col("sequence_number"))
    return (
        purged.withColumn("sequence_number", stamp)
        .groupBy("h", "number")
        .agg(F.count(F.lit(1)).alias("items"), F.max("sequence_number").alias("sequence_max"))
    )


def _by_version(log: Log, steps: Steps) -> DataFrame:
    """For each block of a history's versions the collections that have reached one of them first,
    ascending: h, block, `collections` of version and number.
    """
    rows = []
    for h, (versions, numbers) in steps.items():
        blocks = np.arange((int(versions[-1]) >> _BLOCK_BITS) + 1)
        begins = np.searchsorted(versions, blocks << _BLOCK_BITS)
        ends = np.searchsorted(versions, (blocks + 1) << _BLOCK_BITS)
        pairs = list(zip(versions.tolist(), numbers.tolist(), strict=True))
        rows += [
            (h, block, pairs[begin : end + 1])
            for block, begin, end in zip(
                *map(np.ndarray.tolist, (blocks, begins, ends)), strict=True
            )
        ]
    schema = "h int, block long, collections array<struct<version: long, number: long>>"
    return log.spark.createDataFrame(rows, schema)


def _with_collector(rows: DataFrame, by_version: DataFrame) -> DataFrame:
    """The rows whose `version` was collected, with the number of the row that did: `collector`."""
    block = F.shiftright("version", _BLOCK_BITS).alias("block")
    reaches = F.filter("collections", lambda each: each["version"] >= F.col("version"))
    return (
        rows.select("*", block)
        .join(F.broadcast(by_version), ["h", "block"])
        .withColumn("collector", F.get(reaches, 0)["number"])
        .where(F.col("collector").isNotNull())
        .drop("block", "collections")
    )
