"""Collections: how many items each one had to purge, and how that moves the window.

An item is purged by the collection that reaches its last writer's version, unless a later
transaction wrote it before that collection.

Source: WL#8440, garbage collection. Stable sets that are GTID sets (traces) are not counted here:
they may purge beyond a version.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.rows.checks import Check, FoundAll, run_checks, words
from groupcert.certifier.audit.rows.clocks import clock
from groupcert.certifier.audit.rows.items import is_written, item_rows, overwritten
from groupcert.certifier.audit.rows.log import Log
from groupcert.certifier.audit.rows.sequence import walked_collections
from groupcert.certifier.history.schema import Source

_BLOCK_BITS = 12
"""Bits of a version within a block: 4,096 versions are looked up at once."""
_BLOCKS_MAX = 1 << 18
"""Most blocks of a history: versions a thousand million beyond its first are not counted."""
Steps = Mapping[int, tuple[np.ndarray, np.ndarray]]
"""By history, the collected versions, ascending, and the numbers of the rows that reached them."""


def check_purges(log: Log) -> FoundAll:
    """Checks the number of items that collections purged against the items there were to purge."""
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
    """Returns the collections that are counted, with the state before them."""
    decided = log.by_history(lambda each: each.source is not Source.BINARY_LOG)
    by_version = F.col("met_stable_set").isNull()
    return walked_collections(log).where(decided & by_version)


def _steps(collections: DataFrame) -> tuple[Steps, bool]:
    """Returns where versions were collected, and whether any collection left its window open."""
    columns = collections.select("h", "number", "collected_version", "met_tight").dropna(
        subset=["collected_version"]
    )
    table = columns.orderBy("h", "number").toArrow()
    h, number, version = (table[name].to_numpy() for name in ("h", "number", "collected_version"))
    found = {}
    for each in np.unique(h):
        mine = h == each
        versions, firsts = np.unique(np.maximum.accumulate(version[mine]), return_index=True)
        found[int(each)] = (versions, number[mine][firsts])
    return found, any(table["met_tight"].to_pylist())


def _counted(log: Log, steps: Steps) -> DataFrame:
    """Returns, by collection, the number of items that it had to purge: all that the collected
    versions' transactions wrote, less those written again before it.

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
    """Returns, by collection, the number of items that it had to purge, and their largest sequence
    number, for which the remaining items must be known.

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
    """Returns for each block of a history's versions the collections that were the first to reach
    one of them, ascending: h, block, `collections` of version and number.
    """
    rows: list[tuple[object, ...]] = []
    for h, (versions, numbers) in steps.items():
        first = log.histories[h].first_version >> _BLOCK_BITS
        last = min(int(versions[-1]) >> _BLOCK_BITS, first + _BLOCKS_MAX)
        blocks = np.arange(first, last + 1)
        begins = np.searchsorted(versions, blocks << _BLOCK_BITS)
        ends = np.searchsorted(versions, (blocks + 1) << _BLOCK_BITS)
        pairs = list(zip(versions.tolist(), numbers.tolist(), strict=True))
        spans = zip(blocks.tolist(), begins, ends, strict=True)
        rows += [(h, block, pairs[begin : end + 1]) for block, begin, end in spans]
    schema = "h int, block long, collections array<struct<version: long, number: long>>"
    return log.spark.createDataFrame(rows, schema)


def _with_collector(rows: DataFrame, by_version: DataFrame) -> DataFrame:
    """Returns the rows whose `version` was collected, with the number of the collection's row:
    `collector`.
    """
    block = F.shiftright("version", _BLOCK_BITS).alias("block")
    reaches = F.filter("collections", lambda each: each["version"] >= F.col("version"))
    return (
        rows.select("*", block)
        .join(F.broadcast(by_version), ["h", "block"])
        .withColumn("collector", F.get(reaches, 0)["number"])
        .where(F.col("collector").isNotNull())
        .drop("block", "collections")
    )
