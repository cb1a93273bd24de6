"""The times of an applier: its lag, how many transactions it ran at once, each worker's work.

Every history, whatever its length, becomes `BUCKETS` parts of equal time, each of which is computed
by itself; a transaction that ran across a border counts on both sides of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from ..answers.result import JsonObject
from ..rows.certification_log import Log, of_each
from ..rows.checks import is_true
from ..rows.critical_path import Ints
from ..rows.jobs import JOB, share_us
from ..rows.pace import BUCKETS
from ..rows.states import KEYS, Begins
from ..rows.stretches import measured_by_stamps, totals
from ..rows.surveyed_history import History
from ..spark.walks import (
    Frames,
    concatenated,
    in_order,
    is_divided,
    of_kind,
    walk,
    whole,
)

WORKERS_MAX = 64
"""Most workers in the summary: those with the most work."""
_BUCKET, _WORKER, _BESIDE, _LAG, _FLAGGED = range(5)
_LAG_COLUMNS = ("p50_us", "p95_us", "max_us", "count")
_TIMES = pl.Schema(
    {
        "what": pl.Int32(),
        "h": pl.Int32(),
        **dict.fromkeys(("bucket", *_LAG_COLUMNS), pl.Int64()),
        **dict.fromkeys(("busy_us", "any_us", "running_max"), pl.Int64()),
        **dict.fromkeys(("worker", "transactions", "beside", "lag"), pl.Int64()),
    }
)
_SPAN = pl.Schema(
    {
        "h": pl.Int32(),
        **dict.fromkeys(("bucket", *JOB, "from_us", "until_us", "lag_us"), pl.Int64()),
    }
)
_TOGETHER = ("h", "started_tick", "committed_tick", *JOB)
"""The columns that the transactions of a job have alike, in the order of their start."""
_TABLE = "h int, bucket long, p50_us long, p95_us long, max_us long, count long"
PART_TICKS = 1 << 16
"""Ticks of an applier in which a task looks at what began."""
LAG_STEPS = 64
"""Steps of a lag's histogram between a value and its double: its percentiles are to 1 %."""


class _Buckets(NamedTuple):
    """Divides the time of each history that its appliers' transactions took into buckets: a row of
    `sizes` each.
    """

    sizes: pl.DataFrame

    def spans(self, frames: Frames) -> Frames:
        """Yields the parts of each execution by bucket, and each lag where it was decided."""
        size, begin = pl.col("size"), pl.col("begin")
        for frame in frames:
            rows = frame.join(self.sizes, "h")
            started, stopped = pl.col("started_us"), pl.col("executed_us")
            first, last = _bucket(started), _bucket(stopped)
            border = begin + pl.col("bucket") * size
            spans = (
                rows.filter(stopped > started)
                .with_columns(pl.int_ranges(first, last + 1).alias("bucket"))
                .explode("bucket")
                .with_columns(
                    pl.max_horizontal(started, border).alias("from_us"),
                    pl.min_horizontal(stopped, border + size).alias("until_us"),
                )
                .filter(pl.col("until_us") > pl.col("from_us"))
            )
            yield spans.select("h", "bucket", *JOB, "from_us", "until_us")
            lag = (pl.col("committed_us") - pl.col("decided_us")).alias("lag_us")
            told = rows.select("h", _bucket(pl.col("decided_us")).alias("bucket"), lag)
            yield told.filter(pl.col("lag_us").is_not_null())


def _buckets_of(histories: Iterable[History]) -> _Buckets:
    rows = [(history.h, history.applied_us[0], bucket_us(history)) for history in histories]
    kinds = {"h": pl.Int32(), "begin": pl.Int64(), "size": pl.Int64()}
    return _Buckets(pl.DataFrame(rows, schema=kinds, orient="row"))


def bucket_us(history: History) -> int:
    """Returns the microseconds of each bucket."""
    first, last = history.applied_us
    return max(last - first, 0) // BUCKETS + 1


def _bucket(at: pl.Expr) -> pl.Expr:
    return ((at - pl.col("begin")) // pl.col("size")).clip(0, BUCKETS - 1)


def observers(
    log: Log, ran: DataFrame, flags: DataFrame, ticked: Sequence[History]
) -> tuple[list[JsonObject], DataFrame, bool]:
    """Returns the summary of each applier, the lag as a table, and whether there is any flag.

    Args:
        ran: the visible transactions of histories that have ticks, see `apply.py`.
        flags: those of transactions that ran beside, or before, what they depend on.
    Cost: a shuffle of the transactions by bucket, and one by `PART_TICKS`.
    """
    times = ("started_us", "committed_us", "decided_us")
    rows = ran.where("remote").select(
        "h",
        "started_tick",
        "committed_tick",
        "worker",
        *times,
        F.coalesce("executed_us", "committed_us").alias("executed_us"),
        _part(ran).alias("segment"),
    )
    spans = walk(rows, _buckets_of(ticked).spans, _SPAN)
    made = concatenated(
        walk(in_order(spans, ("bucket", "h"), ["from_us"]), _of_buckets, _TIMES),
        walk(in_order(rows, KEYS, _TOGETHER[1:]), _Beside(_edges(rows)).of_workers, _TIMES),
        walk(flags, _of_flags, _TIMES),
    )
    found = pl.DataFrame(made.toArrow(), schema=_TIMES)
    of_kind = {what: found.filter(pl.col("what") == what) for what in range(5)}
    paths = of_each(measured_by_stamps(log))
    summary = [_summary(history, of_kind, totals(paths[history.h])) for history in ticked]
    lag = of_kind[_BUCKET].filter(pl.col("count") > 0).sort("h", "bucket")
    table = log.spark.createDataFrame(
        lag.select("h", "bucket", *_LAG_COLUMNS).rows(), _TABLE
    ).coalesce(1)
    return summary, table, len(of_kind[_FLAGGED]) > 0


def _of_flags(frames: Frames) -> Frames:
    """Yields a row for each frame that has flags."""
    for frame in frames:
        yield of_kind(_FLAGGED, frame.head(1).select("h"))


def _of_buckets(frames: Frames) -> Frames:
    """Yields for each bucket its lag, the sum of all times, the time in which any ran, the most at
    once; and the lags of its history, counted by step.
    """
    for frame in whole(frames, ("bucket", "h")):
        lag = pl.col("lag_us").drop_nulls().sort()
        step = (pl.col("lag_us").clip(lower_bound=1).log(2) * LAG_STEPS).floor().cast(pl.Int64)
        counts = frame.filter(pl.col("lag_us").is_not_null()).group_by("h", lag=step).len("count")
        yield of_kind(_LAG, counts)
        # The transactions of one job share their worker's time, which counts once.
        running = frame.filter(pl.col("from_us").is_not_null()).unique(["bucket", "h", *JOB])
        swept = [
            (h, bucket, *_sweep(rows["from_us"].to_numpy(), rows["until_us"].to_numpy()))
            for (h, bucket), rows in running.group_by("h", "bucket")
        ]
        names = ("h", "bucket", "busy_us", "any_us", "running_max")
        kinds = {name: _TIMES[name] for name in names}
        lags = frame.group_by("h", "bucket").agg(
            *[_rank(lag, share).alias(f"p{share}_us") for share in (50, 95)],
            pl.col("lag_us").max().alias("max_us"),
            pl.col("lag_us").count().alias("count"),
        )
        at_once = pl.DataFrame(swept, schema=kinds, orient="row")
        yield of_kind(_BUCKET, lags.join(at_once, ["h", "bucket"], "left"))


def _rank(ordered: pl.Expr, percent: int) -> pl.Expr:
    """Returns the value that `percent` of the values do not exceed; null if there are none."""
    rank = (ordered.len() * percent + 99) // 100
    return ordered.slice(rank.cast(pl.Int64) - 1, 1).first()


def _part(rows: DataFrame) -> Column:
    """Returns the part of its applier's ticks in which a transaction began."""
    part = F.floor(F.col("started_tick") / PART_TICKS) if is_divided(rows) else F.lit(0)
    return part.cast("int")


def _edges(rows: DataFrame) -> pl.DataFrame:
    """Returns for each part the newest tick at which one that began before it was visible, and the
    tick at which the next part begins.
    """
    ends = F.max("committed_tick").alias("newest"), F.min("started_tick").alias("begin")
    each = pl.DataFrame(rows.groupBy(*KEYS).agg(*ends).toArrow()).sort(KEYS)
    return each.select(
        *KEYS,
        pl.col("newest").cum_max().shift(1).over("h"),
        pl.col("begin").shift(-1).over("h").alias("next"),
    )


class _Beside(NamedTuple):
    """The walk over the transactions that an applier ran, in the order of their start, in parts."""

    edges: pl.DataFrame

    def of_workers(self, frames: Frames) -> Frames:
        """Yields each worker's work; and how many transactions an applier ran, and of these beside
        another: one that began before it and was not visible, or that began before it was visible
        itself.
        """
        edges = Begins.of(self.edges)
        for frame in whole(frames, KEYS):
            timed = frame.with_columns(share_us(*_TOGETHER))
            work = timed.group_by("h", "worker").agg(
                pl.len().alias("transactions"), pl.col("took_us").sum().alias("busy_us")
            )
            yield of_kind(_WORKER, work)
            rows = frame.join(edges.within(frame), KEYS, "left", maintain_order="left")
            met = pl.col("committed_tick").cum_max().shift(1).over(KEYS)
            follows = pl.col("started_tick").shift(-1).over(KEYS).fill_null(pl.col("next"))
            earlier = pl.max_horizontal(met, "newest") > pl.col("started_tick")
            later = follows < pl.col("committed_tick")
            beside = rows.with_columns(is_beside=is_true(earlier) | is_true(later)).group_by("h")
            counts = pl.len().alias("transactions"), pl.col("is_beside").sum().alias("beside")
            yield of_kind(_BESIDE, beside.agg(counts))


def _summary(
    history: History, found: Mapping[int, pl.DataFrame], path: Mapping[str, int]
) -> JsonObject:
    """Returns the summary of a history's applier. `lag_us`: over all of it, to 1 %."""
    mine = {what: rows.filter(pl.col("h") == history.h) for what, rows in found.items()}
    workers = (
        mine[_WORKER]
        .group_by("worker")
        .agg(pl.col("transactions", "busy_us").sum())
        .sort("busy_us", "worker", descending=[True, False])
        .iter_rows(named=True)
    )
    work = [Row(**worker) for worker in workers]
    count, beside = (int(mine[_BESIDE][name].sum()) for name in ("transactions", "beside"))
    buckets = {row["bucket"]: Row(**row) for row in mine[_BUCKET].iter_rows(named=True)}
    running = {at: row for at, row in buckets.items() if row["busy_us"] is not None}
    return {
        "observer": history.observer,
        "history": history.history,
        "transactions": count,
        "overlapping": round(beside / count, 4) if count else 0.0,
        **_use(list(running.values()), path, work, BUCKETS * bucket_us(history)),
        "lag_us": _percentiles(mine[_LAG], mine[_BUCKET]["max_us"].max()),
        "lag": _lag_of(history, {at: row for at, row in buckets.items() if row["count"]}),
        "running": _running_of(history, running),
        "worker_busy": [each.asDict() for each in work[:WORKERS_MAX]],
    }


def _percentiles(counts: pl.DataFrame, most: object) -> JsonObject | None:
    """Returns the lag that half, and 95 of 100, of the transactions do not exceed, and the most;
    None if no lag is known.
    """
    steps = counts.group_by("lag").agg(pl.col("count").sum()).sort("lag")
    if not len(steps):
        return None
    reached = np.cumsum(steps["count"].to_numpy())
    found: JsonObject = {"max": most}
    for percent in (50, 95):
        at = int(np.searchsorted(reached, -(-int(reached[-1]) * percent // 100)))
        found[f"p{percent}"] = int(2 ** ((steps["lag"][at] + 0.5) / LAG_STEPS))
    return found


def _use(
    running: Sequence[Row], path: Mapping[str, int], workers: Sequence[Row], span_us: int
) -> JsonObject:
    """Returns the mean number of transactions that ran at once while any ran, the number that could
    have, and the ratio; and the share of the time in which any ran. What is not known is None: the
    ratio, if no worker is named; the share, if no time is.

    `forced_cuts`: if not 0, more could have run than is stated, and the share is an upper bound.
    """
    any_us = sum(row["any_us"] for row in running)
    mean = sum(row["busy_us"] for row in running) / any_us if any_us else 0.0
    possible = path["work"] / path["path"] if path["path"] else 0.0
    count = len([row for row in workers if row["worker"] is not None])
    bound = min(count, possible)
    return {
        "workers": count,
        "running_mean": round(mean, 3),
        "possible_mean": round(possible, 3),
        "used_share": round(min(mean / bound, 1.0), 3) if bound else None,
        "busy_share": round(min(any_us / span_us, 1.0), 5) if any_us else None,
        "forced_cuts": path["forced"],
    }


def _sweep(started: Ints, stopped: Ints) -> tuple[int, int, int]:
    # Ends first: of a start and an end at one time the end comes first in a stable sort, so that
    # one that follows another does not count as beside it.
    times = np.concatenate([stopped, started])
    changes = np.concatenate([np.full(len(stopped), -1), np.full(len(started), 1)])
    order = np.argsort(times, kind="stable")
    running = np.cumsum(changes[order])
    any_us = int(np.diff(times[order])[running[:-1] > 0].sum())
    return int(np.sum(stopped - started)), any_us, int(running.max())


def _lag_of(history: History, mine: Mapping[int, Row]) -> JsonObject:
    series: JsonObject = {
        name: [mine[bucket][name] if bucket in mine else None for bucket in range(BUCKETS)]
        for name in ("p50_us", "p95_us", "max_us")
    }
    series["count"] = [mine[bucket]["count"] if bucket in mine else 0 for bucket in range(BUCKETS)]
    return {"begin_us": history.applied_us[0], "bucket_us": bucket_us(history), **series}


def _running_of(history: History, mine: Mapping[int, Row]) -> JsonObject:
    size = bucket_us(history)
    return {
        "begin_us": history.applied_us[0],
        "bucket_us": size,
        "mean": [
            round(mine[bucket]["busy_us"] / size, 3) if bucket in mine else 0.0
            for bucket in range(BUCKETS)
        ],
        "max": [mine[bucket]["running_max"] if bucket in mine else 0 for bucket in range(BUCKETS)],
    }
