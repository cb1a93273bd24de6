"""What the collections' windows cost, and what a replica of all transactions would gain.

Both are measured by exact last writers, in one walk: a certification info that is never purged
would know them. A member's applier executes what other members sent; a replica executes all.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import polars as pl
from pyspark.sql import Row
from pyspark.sql import functions as F

from ..answers.result import JsonObject
from ..rows.histories import History
from ..rows.log import Log
from ..rows.stretches import (
    MEASURED,
    Stretches,
    by_all_writers,
    by_writers,
    lengths_of,
    scheduled_rows,
    totals,
)
from ..spark.walks import Frames, concatenated, in_order, walk, whole

_FOLLOWS = pl.Schema(
    {"h": pl.Int32(), **dict.fromkeys(("number", "follows", "follows_any"), pl.Int64())}
)
_FREED = pl.Schema({**MEASURED, "is_all": pl.Boolean()})


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
        for frame in whole(frames, ("h", "number")):
            known = lengths.known(frame)
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
