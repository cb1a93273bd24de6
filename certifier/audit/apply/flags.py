"""Transactions that an applier ran at once, or in another order, than what depends on each other.

Whether an earlier writer of an item was visible, and the one that last_committed names, is told by
the walk over items (`rows/items.py`); what a walk over the rows of an applier sees is here.
"""

from enum import IntEnum

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..rows.items import facts
from ..rows.log import Log
from ..spark.walks import Frames, in_order, walk


class Why(IntEnum):
    """The reason of a flag, the simplest first."""

    TOGETHER = 0
    """Both wrote an item."""
    ALONE = 1
    """It has no write set."""
    BESIDE = 2
    """The other has none."""
    ORDER = 3
    SOON = 4


FLAG = pl.Schema(
    {
        "h": pl.Int32(),
        "number": pl.Int64(),
        "why": pl.Int32(),
        "other": pl.Int64(),
        "item": pl.Int64(),
    }
)
_VISIBLE = ("any_tick", "any_number", "single_tick", "single_number")


def flags(log: Log, ran: DataFrame) -> DataFrame:
    """Returns all flags: a transaction's number and that of the other one, an earlier one.

    `ran`: see `apply.py`.
    """
    rows = ran.select("h", "number", "started_tick", "committed_tick", "remote", "alone")
    told = facts(log)
    together = told.where(F.col("beside").isNotNull()).select(
        "h",
        "number",
        F.lit(int(Why.TOGETHER)).alias("why"),
        F.col("beside").alias("other"),
        F.col("beside_item").alias("item"),
    )
    soon = told.where(F.col("not_awaited").isNotNull()).select(
        "h",
        "number",
        F.lit(int(Why.SOON)).alias("why"),
        F.col("not_awaited").alias("other"),
        F.lit(None).cast("long").alias("item"),
    )
    walked = walk(in_order(rows, ["h"], ["number"]), _out_of_order, FLAG)
    return walked.union(together).union(soon)


def _out_of_order(frames: Frames) -> Frames:
    """Yields the flags of those that ran beside one that must run alone, and of those that were
    visible too early. The last row is kept between frames, with what was visible up to it.
    """
    left: pl.DataFrame | None = None
    nothing = [pl.lit(None, pl.Int64).alias(name) for name in _VISIBLE]
    for frame in frames:
        new = frame.with_columns(*nothing, is_kept=pl.lit(value=False))
        both = _with_visible(new if left is None else pl.concat([left, new]))
        before = [
            pl.col(name).shift(1).over("h") for name in (*_VISIBLE, "number", "committed_tick")
        ]
        names = (*_VISIBLE, "last_number", "last_tick")
        seen = both.with_columns(
            each.alias(f"before_{name}") for name, each in zip(names, before, strict=True)
        ).filter(~pl.col("is_kept"))
        for why, other, holds in _rules():
            yield seen.filter(holds).select(
                "h",
                "number",
                pl.lit(int(why), pl.Int32).alias("why"),
                pl.col(f"before_{other}_number").alias("other"),
                pl.lit(None, pl.Int64).alias("item"),
            )
        left = both.tail(1).with_columns(is_kept=pl.lit(value=True))


def _with_visible(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows with what was visible last up to each: of all that the applier executed, and
    of those without write set.
    """
    remote = pl.col("remote") & ~pl.col("is_kept")
    found = rows
    for name, counts in (("any", remote), ("single", remote & pl.col("alone"))):
        tick, number = f"{name}_tick", f"{name}_number"
        own = {tick: "committed_tick", number: "number"}
        found = found.with_columns(
            pl.when(counts).then(pl.col(of)).otherwise(pl.col(each)).alias(each)
            for each, of in own.items()
        )
        latest = pl.col(tick).cum_max().over("h")
        found = found.with_columns(
            latest.forward_fill().over("h").alias(tick),
            pl.when(pl.col(tick) == latest)
            .then(pl.col(number))
            .forward_fill()
            .over("h")
            .alias(number),
        )
    return found


def _rules() -> list[tuple[Why, str, pl.Expr]]:
    started, remote, tick = pl.col("started_tick"), pl.col("remote"), pl.col("committed_tick")
    return [
        (Why.ALONE, "any", remote & pl.col("alone") & (pl.col("before_any_tick") > started)),
        (Why.BESIDE, "single", remote & (pl.col("before_single_tick") > started)),
        (Why.ORDER, "last", tick < pl.col("before_last_tick")),
    ]
