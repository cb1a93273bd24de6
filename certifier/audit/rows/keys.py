"""The keys that are walked: items, GTIDs, sequence numbers; each with its transactions.

All three are one set of rows, so that Spark moves and sorts them once.
"""

from collections.abc import Mapping

import polars as pl
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ...history.schema import Verdict
from ..spark.walks import concatenated
from .certification_log import Log
from .survey import NAMES

ITEM, GTID, STAMP = range(3)
"""The kinds of keys that are walked."""
KEY = ("key", "h", "what", "key_source")
"""An item; or a GTID's number with its source's hash; or a sequence number with its clock."""
SAME: Mapping[str, tuple[object, pl.DataType]] = {
    "what": (ITEM, pl.Int32()),
    "wrote": (True, pl.Boolean()),
    "asks": (False, pl.Boolean()),
    "key_source": (None, pl.Int64()),
    "place": (None, pl.Int64()),
}
"""The value that most rows have in a column, and its type. Each row is moved, sorted and sent to
Python: a column in which all have that is left out.
"""


def with_same(frame: pl.DataFrame) -> pl.DataFrame:
    """Returns rows of `touched` with the columns that were left out."""
    absent = {name: each for name, each in SAME.items() if name not in frame.columns}
    return frame.with_columns(
        pl.lit(value, kind).alias(name) for name, (value, kind) in absent.items()
    )


def has_foreign_snapshots(log: Log) -> bool:
    """Returns whether any snapshot is a GTID set."""
    return any(history.gtid_snapshots for history in log.histories)


def asks_for_gtids(log: Log) -> bool:
    """Returns whether a GTID may have been used before: one was given twice in a history, or
    refused. Mostly none was, and none has to be walked.
    """
    used, names = log.surveyed.used.filter(pl.col("given") > 0), (*NAMES, "gtid_source")
    ends = used.sort(*names, "first").select("first", pl.col("last").cum_max().shift(1).over(names))
    again = (ends["first"] <= ends["last"]).any()
    again |= (used["given"] > used["last"] - used["first"] + 1).any()
    return again or bool(log.surveyed.files["refused_gtids"].sum())


def touched(log: Log) -> DataFrame:
    """Returns a row for each item that a transaction wrote or read, and, if any is asked for, for
    each GTID that one was given, or was refused with: `key`, and what its transaction was.
    `claims`: the version that an aborted transaction names as the item's winner.

    Columns of `SAME` are left out if their value is that of all rows.
    """
    certified = F.col("verdict") == Verdict.CERTIFIED
    foreign = has_foreign_snapshots(log)
    gtid = ("gtid_source", "gtid_number")
    applied = ~F.coalesce("is_local", F.lit(False)) & (F.col("started_tick") > 0)
    ticked = any(history.pace.ticked for history in log.histories)
    ticks = ("started_tick", "committed_tick") if ticked else ()
    told = log.transactions.select(
        "h",
        "number",
        "place",
        "snapshot_version",
        "winner_item",
        "winner_version",
        *gtid,
        *[F.when(certified & applied, F.col(name)).alias(name) for name in ticks],
        *(["snapshot_set"] if foreign else []),
        F.when(certified, F.col("version")).alias("version"),
        F.when(certified, F.coalesce("sequence_number", F.lit(0))).alias("sequence_number"),
        "write_set",
        "read_set",
        "verdict",
    )
    touching = told.select(
        "h",
        "number",
        "snapshot_version",
        "version",
        "sequence_number",
        "winner_item",
        "winner_version",
        *([*gtid, "snapshot_set"] if foreign else []),
        *ticks,
        *_items(log),
    )
    claims = F.when(F.col("key") == F.col("winner_item"), F.col("winner_version"))
    items = touching.withColumn("claims", claims).drop("winner_item", "winner_version")
    others = [_stamps(log)] if ticked else []
    if asks_for_gtids(log):
        is_asked = certified | (F.col("verdict") == Verdict.REFUSED)
        gtids = told.where(is_asked & F.col("gtid_number").isNotNull()).select(
            "h",
            "number",
            "place",
            "version",
            F.col("gtid_number").alias("key"),
            F.xxhash64("gtid_source").alias("key_source"),
            F.lit(GTID).alias("what"),
        )
        others.append(gtids)
    keys = concatenated(items, *others)
    return keys.withColumns(
        {
            name: F.coalesce(name, F.lit(value))
            for name, (value, _) in SAME.items()
            if value is not None and name in keys.columns
        }
    )


def _stamps(log: Log) -> DataFrame:
    """Returns two rows for each transaction that an applier executed: with its sequence number, and
    with the one that it waits for.
    """
    ran = log.certified.where(
        ~F.coalesce("is_local", F.lit(False))
        & (F.col("started_tick") > 0)
        & F.col("committed_tick").isNotNull()
    )
    resets = log.by_history(lambda history: list(history.resets)).cast("array<bigint>")
    clock_of = F.size(F.filter(resets, lambda reset: reset <= F.col("number")))
    named = F.struct(F.col("sequence_number").alias("key"), F.lit(False).alias("asks"))
    awaited = F.struct(F.col("last_committed").alias("key"), F.lit(True).alias("asks"))
    return ran.select(
        "h",
        "number",
        "started_tick",
        "committed_tick",
        "version",
        F.inline(F.array(named, awaited)),
        clock_of.cast("bigint").alias("key_source"),
        F.lit(STAMP).alias("what"),
    ).select("*", (~F.col("asks")).alias("wrote"))


def _items(log: Log) -> list[Column]:
    """Returns the items of a transaction, each on a row of its own, and whether it wrote them if
    any has read some.
    """
    written = F.array_distinct("write_set")
    if not any(history.read_sets for history in log.histories):  # Fewer columns to move.
        return [F.explode(written).alias("key")]
    nothing = F.array().cast("array<bigint>")
    known = F.coalesce(written, nothing)
    read = F.array_except(F.coalesce("read_set", nothing), known)
    touched = F.concat(
        F.transform(known, lambda item: F.struct(item.alias("item"), F.lit(True).alias("wrote"))),
        F.transform(read, lambda item: F.struct(item.alias("item"), F.lit(False).alias("wrote"))),
    )
    return [F.inline(touched).alias("key", "wrote")]
