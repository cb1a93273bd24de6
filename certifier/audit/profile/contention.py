"""Contention: which transactions lost to which, and which items are written most.

The rule it keeps: conflicts are counted in one history, because every member records each of them.
"""

from typing import NamedTuple

import polars as pl
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ...history.schema import Verdict
from ..answers.result import JsonObject
from ..rows.certification_log import Log
from ..rows.checks import hexadecimal
from ..rows.surveyed_history import History
from ..spark.walks import Frames, in_order, walk
from . import held
from .tallies import TOP, key_lost, table_lost

ITEMS_MAX = 1_000
"""Items of the table, in each of its orders."""
_LOST = pl.Schema(
    {
        **dict.fromkeys(("observer", "history"), pl.String()),
        **dict.fromkeys(("place", "number", "decided_us"), pl.Int64()),
        **dict.fromkeys(("transaction_id", "origin", "winner_origin"), pl.String()),
        **dict.fromkeys(("winner_version", "snapshot_version", "winner_item"), pl.Int64()),
        **dict.fromkeys(("key", "table"), pl.String()),
    }
)
_COUNTS = ("writers", "readers", "conflicts")
_HOT = pl.Schema(
    {
        "item": pl.Int64(),
        "key": pl.String(),
        **dict.fromkeys((*_COUNTS, *held.ENTERED), pl.Int64()),
    }
)
_ORDERS = (("conflicts", "writers", "readers"), ("writers", "conflicts", "readers"))
_TABLE = "key string, item string, writers long, readers long, conflicts long"


class HotItems(NamedTuple):
    """The items with the most conflicts, those with the most writers, and a table of both.

    `entered`: how many items entered the certification info, by part of the time, see `held.py`.
    `lost_over`: the items of `by_conflicts` that have any.
    """

    by_conflicts: list[JsonObject]
    by_writers: list[JsonObject]
    table: DataFrame
    entered: pl.DataFrame
    lost_over: list[int]


def conflict_rows(log: Log, history: History) -> DataFrame:
    """Returns the conflicts of one history, each with the item that it lost over."""
    mine = log.transactions.where(F.col("h") == history.h)
    lost = mine.where(F.col("verdict") == Verdict.CONFLICT).select(
        *[name for name in _LOST if name not in ("key", "table")],
        "write_set",
        "write_keys",
        "read_set",
        "read_keys",
        "tables",
    )
    return walk(lost, _with_keys, _LOST)


def _with_keys(frames: Frames) -> Frames:
    for frame in frames:
        yield frame.with_columns(key=key_lost(), table=table_lost())


def hot_items(log: Log, history: History) -> HotItems:
    """Returns the items of a history that are lost over, written and read most.

    Cost: a shuffle of the items of one history, with the keys that the log has of them.
    """
    mine = log.transactions.where(F.col("h") == history.h)
    certified, lost = F.col("verdict") == Verdict.CERTIFIED, F.array("winner_item")
    uses = F.concat(
        _uses(F.col("write_set"), F.col("write_keys"), F.when(certified, "writers")),
        _uses(F.col("read_set"), F.col("read_keys"), F.when(certified, "readers")),
        _uses(
            F.when(F.col("winner_item").isNotNull(), lost),
            None,
            F.lit("conflicts"),
        ),
    )
    used = mine.select(F.inline(uses), "number", "version", "decided_us")
    parts, collections = held.parts_of(history), history.collections

    def counted(frames: Frames) -> Frames:
        hot = _Hottest()
        writers = (_writers(frame, parts) for frame in map(hot.taken, frames))
        yield _as_hot(held.entered(writers, collections))
        yield _as_hot(hot.first())

    found = pl.DataFrame(
        walk(in_order(used, ["item"], ["number"]), counted, _HOT).toArrow(), schema=_HOT
    )
    entered = found.filter(pl.col("part").is_not_null()).select(list(held.ENTERED))
    orders = [_first(found.filter(pl.col("item").is_not_null()), order) for order in _ORDERS]
    rows = {row["item"]: _shown(row) for order in orders for row in order.to_dicts()}
    table = log.spark.createDataFrame([tuple(row.values()) for row in rows.values()], _TABLE)
    by_conflicts, by_writers = ([_shown(row) for row in order.to_dicts()[:TOP]] for order in orders)
    most = orders[0].head(TOP).filter(pl.col("conflicts") > 0)["item"].to_list()
    return HotItems(by_conflicts, by_writers, table.coalesce(1), entered, most)


def _writers(frame: pl.DataFrame, parts: held.Parts) -> pl.DataFrame:
    """Returns the uses of items that are writes of certified transactions, with their part."""
    part = parts.of(pl.col("decided_us")).alias("part")
    return frame.filter(pl.col("how") == "writers").with_columns(part)


def _as_hot(rows: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([pl.DataFrame(schema=_HOT), rows], how="diagonal")


def _uses(items: Column, keys: Column | None, how: Column) -> Column:
    """Returns the items of a transaction, each with its key, and with how it was used; null if the
    transaction was not certified.
    """
    known = F.coalesce(items, F.array().cast("array<bigint>"))

    def use(item: Column, at: Column) -> Column:
        key = F.lit(None).cast("string") if keys is None else F.get(keys, at)
        return F.struct(item.alias("item"), key.alias("key"), how.alias("how"))

    return F.transform(known, use)


class _Hottest:
    """The items of a partition that come first in one of the orders."""

    def __init__(self) -> None:
        """Counts nothing yet."""
        self._kept: list[pl.DataFrame] = []
        self._left: pl.DataFrame | None = None

    def taken(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Counts a frame, and returns it; the frame's last item may go on in the next one."""
        both = frame.group_by("item", maintain_order=True).agg(
            pl.col("key").max(),
            *[(pl.col("how") == name).sum().cast(pl.Int64).alias(name) for name in _COUNTS],
        )
        if self._left is not None:
            both = _added(pl.concat([self._left, both]))
        self._left = both.tail(1)
        # Rows are in the order of items: all counts but the last one are final, and only the first
        # ones of them are kept.
        self._kept = [_firsts(pl.concat([*self._kept, both.head(len(both) - 1)]))]
        return frame

    def first(self) -> pl.DataFrame:
        """Returns the items that come first."""
        if self._left is None:
            return pl.DataFrame()
        both = _firsts(pl.concat([*self._kept, self._left]))
        return both.filter(pl.sum_horizontal(_COUNTS) > 0)


def _added(counts: pl.DataFrame) -> pl.DataFrame:
    return counts.group_by("item", maintain_order=True).agg(
        pl.col("key").max(), pl.col(_COUNTS).sum()
    )


def _firsts(counts: pl.DataFrame) -> pl.DataFrame:
    if len(counts) <= ITEMS_MAX:
        return counts
    return pl.concat([_first(counts, order) for order in _ORDERS]).unique(
        "item", maintain_order=True
    )


def _first(counts: pl.DataFrame, order: tuple[str, ...]) -> pl.DataFrame:
    descending = [*[True for _ in order], False]
    return counts.sort(*order, "item", descending=descending).head(ITEMS_MAX)


def _shown(row: dict[str, object]) -> JsonObject:
    item = row["item"]
    assert isinstance(item, int)
    counts = {name: row[name] for name in _COUNTS}
    return {"key": row["key"], "item": hexadecimal(item), **counts}
