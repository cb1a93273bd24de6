"""Profile: how much of a history can run at once, and what stands in the way.

The rule it keeps: nothing here is a finding. What is simulated or sampled says of what; everything
else is exact by the history's own stamps.
"""

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import Row

from groupcert.certifier.audit.answers.result import SAMPLE, JsonObject, Result
from groupcert.certifier.audit.profile.contention import TOP, conflict_rows, conflicts, hot_items
from groupcert.certifier.audit.profile.sample import sample
from groupcert.certifier.audit.rows.log import History, Log, of_each
from groupcert.certifier.audit.rows.stretches import (
    BUCKETS,
    FIELDS,
    TOTAL,
    TOTALS,
    Pace,
    bucket_column,
    bucket_size,
    is_remote,
    length_column,
    measure,
    measured_by_stamps,
    paces,
    totals,
    without_write_set,
)
from groupcert.certifier.history.schema import RecordKind, Verdict

_EPOCHS = "observer string, history string, " + ", ".join(
    f"{name} long" for name in (*FIELDS[1:], *TOTALS) if name != "bucket"
)


def run(log: Log) -> Result:
    """Profiles all histories; windows and the sample for the one with the most transactions that an
    applier executed, conflicts for the longest.

    Cost: two shuffles of all transactions as a few numbers, and two of the items of one history.
    """
    told = paces(log)
    applied = max(log.histories, key=lambda each: (told[each.h].remote, each.rows, -each.h))
    longest = max(log.histories, key=lambda each: (each.transactions, -each.h))
    pace = told[applied.h]
    measured = measured_by_stamps(log)
    own = of_each(measured)
    sums = {history.h: totals(own[history.h]) for history in log.histories}
    lost = conflict_rows(log, longest)
    hot, hot_table = hot_items(log, longest)
    path = sums[applied.h]
    trace, transactions = sample(log, told, applied.h)
    result = Result()
    result.summary = {
        "observer": applied.observer,
        "history": applied.history,
        "durations": "measured" if pace.measured else "unit",
        "parallelism": [
            _parallelism(history, sums[history.h], told[history.h])
            for history in log.histories
            if sums[history.h]["transactions"]
        ],
        "width": _width(pace, own[applied.h]),
        "sample": {
            "file": SAMPLE,
            "transactions": transactions,
            "share": round(transactions / pace.remote, 4) if pace.remote else 0.0,
        },
        "conflicts": conflicts(log, longest, lost),
        "hot_items": hot,
        "windows": _windows(log, applied, told, path),
        "without_write_set": _without_write_set(log, pace, path),
    }
    result.files = {SAMPLE: trace}
    result.tables = {
        "conflicts": lost,
        "hot_items": hot_table,
        "epochs": _epochs(log, measured),
    }
    return result


def _parallelism(history: History, sums: Mapping[str, int], pace: Pace) -> JsonObject:
    return {
        "observer": history.observer,
        "history": history.history,
        "durations": "measured" if pace.measured else "unit",
        "transactions": sums["transactions"],
        "epochs": sums["epochs"],
        "work": sums["work"],
        "critical_path": sums["path"],
        "forced_cuts": sums["forced"],
        "mean": round(sums["work"] / sums["path"], 3) if sums["path"] else 0.0,
        "width_max": sums["width"],
    }


def _width(pace: Pace, measured: Iterable[Row]) -> JsonObject:
    """Counts the transactions on one level of dependencies, over time or over the rows."""
    counts, levels, widths = [0] * BUCKETS, [0] * BUCKETS, [0] * BUCKETS
    for row in measured:
        bucket = row["bucket"]
        if bucket != TOTAL:
            counts[bucket] += row["transactions"]
            levels[bucket] += row["levels"]
            widths[bucket] = max(widths[bucket], row["width"])
    return {
        "unit": "time" if pace.dated else "number",
        "begin": pace.first_us if pace.dated else pace.first_number,
        "bucket": bucket_size(pace),
        "mean": [
            round(count / level, 3) if level else 0.0
            for count, level in zip(counts, levels, strict=True)
        ],
        "max": widths,
    }


def _windows(
    log: Log, history: History, told: Mapping[int, Pace], path: Mapping[str, int]
) -> JsonObject:
    """Returns what the collections' windows cost: the critical path without them is that of exact
    last writers, which a certification info that is never purged would know.
    """
    collection = (F.col("h") == history.h) & (F.col("kind") == RecordKind.COLLECTION)
    shut = F.col("last_committed_global") == F.col("sequence_number")
    row = (
        log.rows.where(collection)
        .agg(F.count(F.lit(1)), F.coalesce(F.sum("purged_items"), F.lit(0)), F.count_if(shut))
        .collect()[0]
    )
    collections, purged, closed = row
    freed = {"path": path["path"], "waiting": 0, "forced": 0}
    if collections:
        mine = {history.h: told[history.h]}
        freed = totals(measure(log, _unpurged_rows(log, told, history.h), mine))
    return {
        "collections": collections,
        "purged_items": purged,
        "closed": closed,
        "waiting_for_window": freed["waiting"],
        "critical_path": path["path"],
        "critical_path_without": min(freed["path"], path["path"]),
        "forced_cuts": freed["forced"],
    }


def _unpurged_rows(log: Log, told: Mapping[int, Pace], h: int) -> DataFrame:
    """Returns the rows that an applier would schedule if no item was ever purged; see
    `stamped_rows`.

    Each waits for the last writers of its items, known by their rows' numbers; a writer that was
    local is visible already, as are those before it.
    """
    mine = log.rows.where(F.col("h") == h)
    certified = mine.where(F.col("verdict") == Verdict.CERTIFIED)
    stamped = is_remote() & F.col("sequence_number").isNotNull()
    by_item = Window.partitionBy("item").orderBy("number").rowsBetween(-1, -1)
    writer = F.max(F.when(F.col("stamped"), F.col("number"))).over(by_item)
    followed = (
        certified.select(
            "number",
            stamped.alias("stamped"),
            F.explode(F.array_distinct("write_set")).alias("item"),
        )
        .select("number", "stamped", writer.alias("writer"))
        .where(F.col("stamped") & F.col("writer").isNotNull())
        .groupBy("number")
        .agg(F.max("writer").alias("awaited"))
    )
    view = F.col("kind") == RecordKind.VIEW_CHANGE
    transaction = F.coalesce(F.col("verdict") == Verdict.CERTIFIED, F.lit(False)) & stamped
    rows = mine.where(view | transaction).select(
        *("h", "number", F.col("number").alias("key")),
        F.when(view, F.lit(0)).otherwise(length_column(log, told)).alias("length"),
        (view | without_write_set()).alias("alone"),
        (~view).alias("counts"),
        bucket_column(log, told).alias("bucket"),
        F.lit(None).cast("long").alias("closes"),
        F.when(view, F.lit(0)).otherwise(F.col("sequence_number")).alias("sn"),
        F.col("last_committed").alias("lc"),
    )
    return rows.join(followed, "number", "left").withColumn(
        "awaited", F.coalesce("awaited", F.lit(0))
    )


def _without_write_set(log: Log, pace: Pace, path: Mapping[str, int]) -> JsonObject:
    """Returns who sends transactions without write set, and the share of the critical path in which
    one of them runs alone.
    """
    mine = log.certified.where(F.col("h") == pace.h)
    origins = (
        mine.where(without_write_set())
        .groupBy("origin")
        .agg(F.count(F.lit(1)).alias("transactions"))
        .orderBy(F.desc("transactions"), "origin")
        .collect()
    )
    total = sum(row["transactions"] for row in origins)
    return {
        "total": total,
        "share": round(total / pace.certified, 6) if pace.certified else 0.0,
        "by_origin": [
            {"origin": row["origin"], "transactions": row["transactions"]} for row in origins[:TOP]
        ],
        "critical_path_share": (
            round(min(pace.alone_work / path["path"], 1.0), 4) if path["path"] else 0.0
        ),
    }


def _epochs(log: Log, measured: Iterable[Row]) -> DataFrame:
    """Returns the stretches that were measured, as a table."""
    names = [name for name in (*FIELDS[1:], *TOTALS) if name != "bucket"]
    rows = [
        (*_name(log.histories[row["h"]]), *(row[name] for name in names))
        for row in measured
        if row["bucket"] == TOTAL
    ]
    return log.spark.createDataFrame(rows, _EPOCHS)


def _name(history: History) -> tuple[str, str]:
    return history.observer, history.history
