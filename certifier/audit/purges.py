"""Collections: how many items each one had to purge, and what that does to the window.

The rule it keeps: an item goes with the collection that reaches its last writer's version, unless a
later transaction wrote it before that collection.

Source: WL#8440, garbage collection. Stable sets that are GTID sets (traces) are not counted here:
they may purge beyond a version.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from certifier.audit.arrow import ColumnFunction, arrow_function
from certifier.audit.checks import Check, FoundAll, run_checks, words
from certifier.audit.findings import Code
from certifier.audit.items import is_stamp_of_now, is_written, item_rows, overwritten
from certifier.audit.log import Log
from certifier.audit.sequence import walked_collections
from certifier.history import Source

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
    collected_by = _collected_by(steps)
    write_set = F.coalesce("write_set", F.array().cast("array<bigint>"))
    written = log.certified.select(
        "h",
        collected_by(F.col("h"), F.col("version")).alias("number"),
        F.size(F.array_distinct(write_set)).alias("items"),
    ).where(F.col("number").isNotNull())
    again = (
        overwritten(log)
        .select(
            "h",
            F.col("number").alias("again"),
            collected_by(F.col("h"), F.col("overwrote")).alias("number"),
        )
        .where(F.col("number") > F.col("again"))
        .select("h", "number", F.lit(-1).alias("items"))
    )
    return (
        written.union(again)
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
    step = last.withColumn("number", _collected_by(steps)(F.col("h"), F.col("version")))
    purged = step.where(
        F.col("number").isNotNull()
        & (F.col("next_number").isNull() | (F.col("next_number") > F.col("number")))
    )
    counts = is_stamp_of_now(log, F.col("writer"), F.col("number"))
    stamp = F.when(counts, F.col("sequence_number"))
    return (
        purged.withColumn("sequence_number", stamp)
        .groupBy("h", "number")
        .agg(F.count(F.lit(1)).alias("items"), F.max("sequence_number").alias("sequence_max"))
    )


def _collected_by(steps: Steps) -> ColumnFunction:
    """A function of history and version: the number of the row that collected it, or null."""

    def collected_by(h: pa.Array, version: pa.Array) -> pa.Array:
        histories = h.to_numpy(zero_copy_only=False)
        versions = version.to_numpy(zero_copy_only=False)
        found = np.full(len(versions), -1, np.int64)
        for each, (collected, numbers) in steps.items():
            mine = histories == each
            places = np.searchsorted(collected, versions[mine])
            found[mine] = np.append(numbers, -1)[places]
        return pa.array(found, pa.int64(), mask=found < 0)

    return arrow_function(collected_by, LongType())
