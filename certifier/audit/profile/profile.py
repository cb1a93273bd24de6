"""Profile: how much of a history can run at once, and what stands in the way.

The rule it keeps: nothing here is a finding. What is simulated or sampled says of what; everything
else is exact by the history's own stamps. What the collections' windows cost, and what a replica of
all transactions would gain, is measured by exact last writers, in one walk: a certification info
that is never purged would know them. A member's applier executes what other members sent; a replica
executes all.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import polars as pl
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from ...history.schema import Verdict
from ..answers.result import SAMPLE, JsonObject, Result
from ..rows.certification_log import Log, of_each
from ..rows.pace import BUCKETS, Pace
from ..rows.stretches import (
    FIELDS,
    MEASURED,
    TOTAL,
    TOTALS,
    Stretches,
    by_all_writers,
    by_writers,
    lengths_of,
    measured_by_stamps,
    scheduled_rows,
    totals,
)
from ..rows.surveyed_history import History
from ..spark.walks import Frames, concatenated, in_order, walk
from . import ages
from .classes import ranked
from .contention import HotItems, conflict_rows, hot_items
from .held import by_part, parts_of
from .holders import by_member
from .sample import sample
from .tallies import (
    TOP,
    Tallies,
    by_origin,
    by_pair,
    by_table,
    by_time,
    tallies,
)

_EPOCHS = "observer string, history string, " + ", ".join(
    f"{name} long" for name in (*FIELDS[1:], *TOTALS) if name != "bucket"
)
_FOLLOWS = pl.Schema(
    {"h": pl.Int32(), **dict.fromkeys(("number", "follows", "follows_any"), pl.Int64())}
)
_FREED = pl.Schema({**MEASURED, "is_all": pl.Boolean()})


def run(log: Log) -> Result:
    """Profiles all histories, as far as their rows are new; windows and the sample for the one with
    the most transactions that an applier executed, conflicts for the longest.

    Cost: two shuffles of all transactions as a few numbers, and two of the items of one history.
    """
    log = log.recent
    applied = max(
        log.histories, key=lambda history: (history.pace.remote, history.rows, -history.h)
    )
    longest = max(log.histories, key=lambda history: (history.transactions, -history.h))
    pace = applied.pace
    measured = measured_by_stamps(log)
    own = of_each(measured)
    sums = {history.h: totals(own[history.h]) for history in log.histories}
    hot = hot_items(log, longest)
    path = sums[applied.h]["path"]
    counted = tallies(log, longest, hot.lost_over)
    sampled = sample(log, applied)
    without = freed(log, applied, sums[applied.h])
    result = Result()
    result.summary = {
        "observer": applied.observer,
        "history": applied.history,
        "durations": "measured" if pace.measured else "unit",
        "parallelism": [
            _parallelism(history, sums[history.h])
            for history in log.histories
            if sums[history.h]["transactions"]
        ],
        "replica": without.replica,
        "width": _width(pace, own[applied.h]),
        "sample": {
            "file": SAMPLE,
            "transactions": sampled.transactions,
            "share": round(sampled.transactions / pace.remote, 4) if pace.remote else 0.0,
            "has_tables": sampled.has_tables,
        },
        "conflicts": _conflicts(longest, counted, hot.by_conflicts),
        "classes": {**_of(longest), **ranked(counted.classes, TOP)},
        "snapshots": {**_of(longest), **_snapshots(counted)},
        "distances": {**_of(longest), "by_power": ages.by_power(counted.distances)},
        "certification_info": by_part(longest, hot.entered, counted.collections, counted.purged),
        "holders": by_member(longest, counted.holders, TOP),
        "heat": _heat(longest, counted, hot),
        "hot_items": hot.by_conflicts,
        "hot_writers": hot.by_writers,
        "windows": without.windows,
        "without_write_set": _without_write_set(counted, pace, path),
    }
    result.files = {SAMPLE: sampled.trace}
    result.tables = {
        "conflicts": conflict_rows(log, longest),
        "hot_items": hot.table,
        "epochs": _epochs(log, measured),
    }
    return result


def _of(history: History) -> JsonObject:
    return {"observer": history.observer, "history": history.history}


def _heat(history: History, counted: Tallies, hot: HotItems) -> JsonObject | None:
    """Returns the conflicts over the hottest items by part of the time; None if that is not known,
    or there are none.
    """
    if history.first_us is None or not hot.lost_over:
        return None
    parts = parts_of(history)
    return {
        "begin_us": parts.first_us,
        "bucket_us": parts.size_us,
        "items": [
            {
                "key": each["key"],
                "item": each["item"],
                "conflicts": [counted.heat[item, part] for part in range(BUCKETS)],
            }
            for item, each in zip(hot.lost_over, hot.by_conflicts, strict=False)
        ],
    }


def _snapshots(counted: Tallies) -> JsonObject:
    """Returns the ages of snapshots, and how many transactions have none that is a version."""
    unknown = sum(count for (_, step), (count, _) in counted.ages.items() if step == ages.NO_AGE)
    return {
        "unknown": unknown,
        "by_origin": ages.by_origin(counted.ages, TOP),
        "oldest": counted.oldest,
    }


def _conflicts(
    history: History, counted: Tallies, hot: Iterable[Mapping[str, object]]
) -> JsonObject:
    """Returns the summary's part about conflicts."""
    return {
        **_of(history),
        "total": history.verdicts[Verdict.CONFLICT],
        "by_table": by_table(counted),
        "by_key": [
            {name: each[name] for name in ("key", "item", "conflicts")}
            for each in hot
            if each["conflicts"]
        ],
        "by_pair": by_pair(counted),
        "by_time": by_time(counted, history),
    }


def _parallelism(history: History, sums: Mapping[str, int]) -> JsonObject:
    return {
        "observer": history.observer,
        "history": history.history,
        "durations": "measured" if history.pace.measured else "unit",
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
        "bucket": pace.bucket_size,
        "mean": [
            round(count / level, 3) if level else 0.0
            for count, level in zip(counts, levels, strict=True)
        ],
        "max": widths,
    }


class Freed(NamedTuple):
    """The cost of the windows, and the gain of a replica; None: nothing was certified."""

    windows: JsonObject
    replica: JsonObject | None


def freed(log: Log, history: History, own: Mapping[str, int]) -> Freed:
    """Measures the cost of the collections' windows: the critical path without them is that of
    exact last writers; and the gain of a replica of all certified transactions: by the history's
    stamps if all have some, else by last writers.

    Args:
        own: the sums by the history's own stamps, of what its applier executed.
    """
    path, pace = own["path"], history.pace
    kept = {"path": path, "waiting": 0, "forced": 0}
    is_stamped = pace.stamped == pace.certified
    mine, everyones = kept, own
    if history.collected["collections"] or not is_stamped:
        measured = _unpurged(log, history)
        mine = totals(row for row in measured if not row["is_all"])
        if not is_stamped:
            everyones = totals(row for row in measured if row["is_all"])
    if not history.collected["collections"]:
        mine = kept
    windows: JsonObject = {
        **history.collected,
        "waiting_for_window": mine["waiting"],
        "critical_path": path,
        "critical_path_without": min(mine["path"], path),
        "forced_cuts": mine["forced"],
    }
    return Freed(windows, _replica(history, everyones, is_stamped=is_stamped))


def _replica(history: History, sums: Mapping[str, int], *, is_stamped: bool) -> JsonObject | None:
    """Returns the gain of a replica, for the summary. `estimated`: so many transactions have no
    execution time and were taken to be `unit_us` long, the mean of the others.
    """
    pace = history.pace
    if not pace.certified:
        return None
    return {
        "observer": history.observer,
        "history": history.history,
        "rule": "stamps" if is_stamped else "last_writers",
        "transactions": sums["transactions"],
        "estimated": pace.certified - pace.timed if pace.measured else 0,
        "unit_us": pace.unit if pace.measured else None,
        "work": sums["work"],
        "critical_path": sums["path"],
        "forced_cuts": sums["forced"],
        "mean": round(sums["work"] / sums["path"], 3) if sums["path"] else 0.0,
        "width_max": sums["width"],
    }


def _unpurged(log: Log, history: History) -> Iterable[Row]:
    """Measures what could run at once if no item was ever purged: of what the applier executed, and
    of all that was certified (`is_all`).
    """
    is_mine, lengths, h = F.col("h") == history.h, lengths_of(log), history.h
    stamped = ~F.coalesce("is_local", F.lit(False)) & F.col("sequence_number").isNotNull()
    items = log.certified.where(is_mine).select(
        "h",
        "number",
        "version",
        stamped.alias("stamped"),
        F.explode(F.array_distinct("write_set")).alias("key"),
    )
    follows = walk(in_order(items, ["key"], ["number"]), _followed, _FOLLOWS)
    rows = concatenated(scheduled_rows(log).where(is_mine), follows)

    def stretches(frames: Frames) -> Frames:
        mine, everyones = Stretches(h), Stretches(h)
        for known in lengths.known(frames):
            yield from _marked(mine.take(by_writers(known)), is_all=False)
            yield from _marked(everyones.take(by_all_writers(known)), is_all=True)
        yield from _marked(mine.rest(), is_all=False)
        yield from _marked(everyones.rest(), is_all=True)

    return walk(in_order(rows, ["h"], ["number"]), stretches, _FREED).collect()


def _marked(found: Iterable[pl.DataFrame], *, is_all: bool) -> Frames:
    for rows in found:
        yield rows.with_columns(is_all=pl.lit(is_all))


def _followed(frames: Frames) -> Frames:
    """Yields for each write the row of the last writer (`follows_any`), and again as `follows` if
    the applier had to wait for that.
    """
    left: pl.DataFrame | None = None
    for frame in frames:
        both = frame if left is None else pl.concat([left, frame])
        last = both.select(pl.all().shift(1).name.prefix("last_"))
        pairs = pl.concat([both, last], how="horizontal").tail(len(frame))
        waits = pl.col("stamped") & pl.col("last_stamped")
        yield pairs.filter(pl.col("last_key") == pl.col("key")).select(
            "h",
            "number",
            pl.when(waits).then("last_number").alias("follows"),
            follows_any="last_number",
        )
        left = frame.tail(1)


def _without_write_set(counted: Tallies, pace: Pace, path: int) -> JsonObject:
    """Returns the origins of transactions without write set, and the share of the critical path in
    which one of them runs alone.
    """
    total = counted.alone.total()
    return {
        "total": total,
        "share": round(total / pace.certified, 6) if pace.certified else 0.0,
        "by_origin": by_origin(counted),
        "critical_path_share": round(min(pace.alone_work / path, 1.0), 4) if path else 0.0,
    }


def _epochs(log: Log, measured: Iterable[Row]) -> DataFrame:
    """Returns the stretches that were measured, as a table."""
    names = [name for name in (*FIELDS[1:], *TOTALS) if name != "bucket"]
    rows = [
        (*_name(log.histories[row["h"]]), *(row[name] for name in names))
        for row in measured
        if row["bucket"] == TOTAL
    ]
    return log.spark.createDataFrame(rows, _EPOCHS).coalesce(1)


def _name(history: History) -> tuple[str, str]:
    return history.observer, history.history
