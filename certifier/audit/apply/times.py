"""The times of an applier: its lag, how many transactions it ran at once, each worker's work.

Every history, whatever its length, becomes `BUCKETS` parts of equal time, each of which is computed
by itself; a transaction that ran across a border counts on both sides of it.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import Row

from groupcert.certifier.audit.answers.result import JsonObject
from groupcert.certifier.audit.rows.critical_path import Ints
from groupcert.certifier.audit.rows.log import History, Log, of_each
from groupcert.certifier.audit.rows.stretches import (
    BUCKETS,
    execution_us,
    measured_by_stamps,
    segment_rows,
    totals,
)

BUCKETS_A_TASK = 12
WORKERS_MAX = 64
"""Most workers in the summary: those with the most work."""

_RUNNING = pa.schema(
    [(name, pa.int64()) for name in ("h", "bucket", "busy_us", "any_us", "running_max")]
)
_RUNNING_TEXT = "h long, bucket long, busy_us long, any_us long, running_max long"


class _Spans:
    """Divides the time of each history that its appliers' transactions took into buckets."""

    def __init__(self, log: Log, ran: DataFrame) -> None:
        found = (
            ran.where("remote")
            .groupBy("h")
            .agg(
                F.min(F.least("decided_us", "started_us")).alias("begin"),
                F.max("committed_us").alias("end"),
            )
            .collect()
        )
        self.begin = {row["h"]: row["begin"] or 0 for row in found}
        self.size = {
            row["h"]: max((row["end"] or 0) - (row["begin"] or 0), 0) // BUCKETS + 1
            for row in found
        }

        self.begin_column = log.by_history(lambda each: self.begin.get(each.h, 0))
        self.size_column = log.by_history(lambda each: self.size.get(each.h, 1))

    def bucket(self, column: str) -> Column:
        """Returns the bucket of a time."""
        at = (F.col(column) - self.begin_column) / self.size_column
        return F.floor(F.least(F.greatest(at, F.lit(0)), F.lit(BUCKETS - 1)))


def observers(
    log: Log, ran: DataFrame, ticked: Iterable[History]
) -> tuple[list[JsonObject], DataFrame]:
    """Returns the summary of each applier, and the lag as a table.

    `ran`: the visible transactions of histories that have ticks, see `certifier.audit.apply.apply`.
    """
    spans = _Spans(log, ran)
    lag = _lag(ran, spans)
    lags = of_each(lag.collect())
    running = of_each(_running(ran, spans).collect())
    beside = {row["h"]: row for row in _beside(log, ran).collect()}
    busy = of_each(
        ran.where("remote")
        .groupBy("h", "worker")
        .agg(
            F.count(F.lit(1)).alias("transactions"),
            F.coalesce(F.sum(execution_us()), F.lit(0)).alias("busy_us"),
        )
        .collect()
    )
    paths = of_each(measured_by_stamps(log))
    summary: list[JsonObject] = []
    for history in ticked:
        h = history.h
        workers = sorted(busy[h], key=lambda row: -row["busy_us"])
        summary.append(
            {
                "observer": history.observer,
                "history": history.history,
                "transactions": beside[h]["transactions"] if h in beside else 0,
                "overlapping": beside[h]["share"] if h in beside else 0.0,
                **_use(running[h], totals(paths[h]), workers),
                "lag": _lag_of(h, lags[h], spans),
                "running": _running_of(h, running[h], spans),
                "worker_busy": [
                    {name: row[name] for name in ("worker", "transactions", "busy_us")}
                    for row in workers[:WORKERS_MAX]
                ],
            }
        )
    return summary, lag


def _use(running: Sequence[Row], path: Mapping[str, int], workers: list[Row]) -> JsonObject:
    """Returns how many transactions ran at once while any ran, how many could have, and the ratio.

    `forced_cuts`: if not 0, more could have run than is stated, and the share is an upper bound.
    """
    any_us = sum(row["any_us"] for row in running)
    mean = sum(row["busy_us"] for row in running) / any_us if any_us else 0.0
    possible = path["work"] / path["path"] if path["path"] else 0.0
    count = len([row for row in workers if row["worker"] is not None])
    bound = min(max(count, 1), possible)
    return {
        "workers": count,
        "running_mean": round(mean, 3),
        "possible_mean": round(possible, 3),
        "used_share": round(min(mean / bound, 1.0), 3) if bound else 0.0,
        "forced_cuts": path["forced"],
    }


def _lag(ran: DataFrame, spans: _Spans) -> DataFrame:
    """Returns the lag, from decision to visibility, by history and bucket."""
    lag = F.col("committed_us") - F.col("decided_us")
    return (
        ran.where("remote")
        .where(lag.isNotNull())
        .select("h", spans.bucket("decided_us").alias("bucket"), lag.alias("lag_us"))
        .groupBy("h", "bucket")
        .agg(
            F.percentile_approx("lag_us", [0.5, 0.95], 1_000).alias("parts"),
            F.max("lag_us").alias("max_us"),
            F.count(F.lit(1)).alias("count"),
        )
        .select(
            *("h", "bucket", F.col("parts")[0].alias("p50_us"), F.col("parts")[1].alias("p95_us")),
            *("max_us", "count"),
        )
        .orderBy("h", "bucket")
    )


def _running(ran: DataFrame, spans: _Spans) -> DataFrame:
    """Returns how many transactions ran at once, by history and bucket."""
    size = spans.size_column
    begin = spans.begin_column + F.col("bucket") * size
    return (
        ran.where(F.col("remote") & F.col("started_us").isNotNull())
        .where(F.col("committed_us") > F.col("started_us"))
        .select(
            *("h", "started_us", "committed_us"),
            F.explode(F.sequence(spans.bucket("started_us"), spans.bucket("committed_us"))).alias(
                "bucket"
            ),
        )
        .select(
            F.col("h").cast("long").alias("h"),
            "bucket",
            F.greatest(F.col("started_us"), begin).alias("started_us"),
            F.least(F.col("committed_us"), begin + size).alias("committed_us"),
        )
        .where(F.col("committed_us") > F.col("started_us"))
        .groupBy("h", F.floor(F.col("bucket") / BUCKETS_A_TASK))
        .applyInArrow(_run_together, _RUNNING_TEXT)
    )


def _run_together(table: pa.Table) -> pa.Table:
    """Returns for each bucket the sum of all times, the time in which any ran, the most at once."""
    started = table.column("started_us").to_numpy()
    stopped = table.column("committed_us").to_numpy()
    buckets = table.column("bucket").to_numpy()
    h = table.column("h")[0].as_py()
    rows = []
    for bucket in np.unique(buckets).tolist():
        mine = buckets == bucket
        rows.append((h, bucket, *_sweep(started[mine], stopped[mine])))
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(each, pa.int64()) for each in columns], schema=_RUNNING)


def _sweep(started: Ints, stopped: Ints) -> tuple[int, int, int]:
    times = np.concatenate([stopped, started])
    changes = np.concatenate([np.full(len(stopped), -1), np.full(len(started), 1)])
    order = np.argsort(times, kind="stable")
    running = np.cumsum(changes[order])
    any_us = int(np.diff(times[order])[running[:-1] > 0].sum())
    return int(np.sum(stopped - started)), any_us, int(running.max())


def _beside(log: Log, ran: DataFrame) -> DataFrame:
    """Returns how many transactions an applier ran, and by ticks the share beside another.

    Commits are in order, so one ran beside an earlier one if the newest was not visible when it
    started, and beside a later one if that started before it was visible itself. Later rows are
    read in the opposite order: a frame that ends with the last row is quadratic in Spark.
    """
    rows = ran.where("remote").select(
        *("h", "number", "started_tick", "committed_tick"),
        F.floor(F.col("number") / log.by_history(segment_rows)).alias("segment"),
    )
    earlier = (Window.unboundedPreceding, -1)
    every, one = Window.partitionBy("h"), Window.partitionBy("h", "segment")
    before = one.orderBy("number").rowsBetween(*earlier)
    after = one.orderBy(F.desc("number")).rowsBetween(*earlier)
    newest, oldest = F.max("committed_tick"), F.min("started_tick")
    ends = rows.groupBy("h", "segment").agg(newest.alias("newest"), oldest.alias("oldest"))
    ends = ends.select(
        *("h", "segment"),
        F.max("newest").over(every.orderBy("segment").rowsBetween(*earlier)).alias("newest_before"),
        F.min("oldest")
        .over(every.orderBy(F.desc("segment")).rowsBetween(*earlier))
        .alias("oldest_after"),
    )
    started, committed = F.col("started_tick"), F.col("committed_tick")
    seen = rows.join(F.broadcast(ends), ["h", "segment"]).select(
        "h",
        (F.coalesce(F.greatest(newest.over(before), "newest_before"), started) > started).alias(
            "earlier"
        ),
        (F.coalesce(F.least(oldest.over(after), "oldest_after"), committed) < committed).alias(
            "later"
        ),
    )
    return seen.groupBy("h").agg(
        F.count(F.lit(1)).alias("transactions"),
        F.round(F.avg((F.col("earlier") | F.col("later")).cast("double")), 4).alias("share"),
    )


def _lag_of(h: int, rows: Iterable[Row], spans: _Spans) -> JsonObject:
    mine = {row["bucket"]: row for row in rows}
    series: JsonObject = {
        name: [mine[bucket][name] if bucket in mine else None for bucket in range(BUCKETS)]
        for name in ("p50_us", "p95_us", "max_us")
    }
    series["count"] = [mine[bucket]["count"] if bucket in mine else 0 for bucket in range(BUCKETS)]
    return {"begin_us": spans.begin.get(h), "bucket_us": spans.size.get(h), **series}


def _running_of(h: int, rows: Iterable[Row], spans: _Spans) -> JsonObject:
    mine = {row["bucket"]: row for row in rows}
    size = spans.size.get(h, 1)
    return {
        "begin_us": spans.begin.get(h),
        "bucket_us": size,
        "mean": [
            round(mine[bucket]["busy_us"] / size, 3) if bucket in mine else 0.0
            for bucket in range(BUCKETS)
        ],
        "max": [mine[bucket]["running_max"] if bucket in mine else 0 for bucket in range(BUCKETS)],
    }
