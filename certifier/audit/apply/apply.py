"""Apply: whether a member's applier ran dependent transactions at once, and how busy it was.

A transaction ran in [started_tick, committed_tick) of its applier's own clock. Transactions that
their own clients executed have no start there: their order is checked, but not their overlap with
others, because their rows were locked elsewhere. Only ticks decide the order: a wall clock may be
set back.

Whether an earlier writer of an item was visible, and the one that last_committed names, is told by
the walk over items (`rows/items.py`); a walk over the rows of an applier sees the rest.
"""

from collections import Counter
from enum import IntEnum
from typing import NamedTuple

import polars as pl
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from ..answers.findings import ROWS_MAX, Code, Finding
from ..answers.result import Result
from ..rows.certification_log import Log
from ..rows.checks import (
    Found,
    FoundAll,
    as_kept,
    from_kept,
    hexadecimal,
    merged,
)
from ..rows.coded_columns import has_items
from ..rows.items import facts
from ..rows.states import KEYS, Begins, segment, segment_of
from ..rows.surveyed_history import History
from ..spark.walks import Frames, in_order, walk, whole
from .times import observers


class _Why(IntEnum):
    """The reason of a flag, the simplest first."""

    TOGETHER = 0
    """Both wrote an item."""
    ALONE = 1
    """It has no write set."""
    BESIDE = 2
    """The other has none."""
    ORDER = 3
    SOON = 4


_CODES = {
    _Why.TOGETHER: Code.APPLIED_TOGETHER,
    _Why.ALONE: Code.APPLIED_TOGETHER,
    _Why.BESIDE: Code.APPLIED_TOGETHER,
    _Why.ORDER: Code.APPLIED_OUT_OF_ORDER,
    _Why.SOON: Code.APPLIED_TOO_SOON,
}
_FLAG = pl.Schema(
    {
        "h": pl.Int32(),
        "number": pl.Int64(),
        "why": pl.Int32(),
        "other": pl.Int64(),
        "item": pl.Int64(),
    }
)
_VISIBLE = ("any_tick", "any_number", "single_tick", "single_number")
_MET = pl.Schema(
    dict.fromkeys(KEYS, pl.Int32())
    | dict.fromkeys(("number", "committed_tick", *_VISIBLE), pl.Int64())
)


def run(log: Log) -> Result:
    """Checks the appliers of all histories that have ticks, and measures how busy they were.

    Cost: a shuffle of all items, one of all transactions, and three passes.
    """
    recent = log.recent
    ticked = [history for history in recent.histories if history.pace.ticked]
    earlier = from_kept(log, log.before("apply"))
    result = Result([each.finding for each in earlier.found], +earlier.counts)
    result.summary = {
        "observers": [],
        "skipped": [_label(history, log) for history in recent.histories if history not in ticked],
    }
    if ticked:
        histories = [history.h for history in ticked]
        ran = _ran(log, histories)
        is_new = F.col("number") > log.by_history(lambda history: history.since)
        all_flags = _flags_of(log, ran).where(is_new)
        result.summary["observers"], result.tables["lag"], is_flagged = observers(
            recent, _ran(recent, histories), all_flags, ticked
        )
        if is_flagged:
            # Persisted, as the counts and the findings of each code ask for them again.
            _add_findings(log, ran, _first_of_each(all_flags).persist(), result)
    if log.keeps:
        told = [Found(finding, 0, 0, None, None) for finding in result.findings]
        result.kept = as_kept(merged([FoundAll(told, result.counts)]))
    return result


def _add_findings(log: Log, ran: DataFrame, flagged: DataFrame, result: Result) -> None:
    counts: Counter[str] = Counter()
    try:
        for row in flagged.groupBy("why").count().collect():
            counts[_CODES[row["why"]].value] += row["count"]
        for code in dict.fromkeys(_CODES.values()):
            if counts[code.value]:
                result.findings += _findings(log, ran, flagged, code)
        result.counts += counts
    finally:
        flagged.unpersist()


def _label(history: History, log: Log) -> str:
    """Returns the name of a history for people: its observer, and which of several it is."""
    own = [each for each in log.histories if each.observer == history.observer]
    return history.observer if len(own) == 1 else ", history ".join(history.name)


def _ran(log: Log, histories: list[int]) -> DataFrame:
    """Returns the visible transactions with their times; `remote`: an applier executed it."""
    remote = ~F.coalesce("is_local", F.lit(False)) & (F.coalesce("started_tick", F.lit(0)) > 0)
    return log.certified.where(
        F.col("h").isin(histories) & F.col("committed_tick").isNotNull()
    ).select(
        "h",
        "number",
        "place",
        "gtid_source",
        "gtid_number",
        "version",
        "worker",
        "started_tick",
        "committed_tick",
        "started_us",
        "executed_us",
        "committed_us",
        "decided_us",
        "last_committed",
        "sequence_number",
        "write_set",
        "write_keys",
        "read_set",
        remote.alias("remote"),
        (~has_items("write_set")).alias("alone"),
    )


def _flags_of(log: Log, ran: DataFrame) -> DataFrame:
    """Returns all flags: a transaction's number and that of the other one, an earlier one."""
    told_of = ("number", "started_tick", "committed_tick", "remote", "alone")
    rows = ran.select("h", segment(), *told_of)
    told = facts(log)
    together = told.where(F.col("beside").isNotNull()).select(
        "h",
        "number",
        F.lit(int(_Why.TOGETHER)).alias("why"),
        F.col("beside").alias("other"),
        F.col("beside_item").alias("item"),
    )
    soon = told.where(F.col("not_awaited").isNotNull()).select(
        "h",
        "number",
        F.lit(int(_Why.SOON)).alias("why"),
        F.col("not_awaited").alias("other"),
        F.lit(None).cast("long").alias("item"),
    )
    flagged = _OutOfOrder(_visible_before(log, rows)).flags
    walked = walk(in_order(rows, KEYS, ["number"]), flagged, _FLAG)
    return walked.union(together).union(soon)


def _visible_before(log: Log, rows: DataFrame) -> pl.DataFrame:
    """Returns for each segment but a history's first what was visible before it, as a row that
    stands before its own: the last row, and the latest of `_VISIBLE`.
    """
    if all(segment_of(history.last_number) == 0 for history in log.histories):
        return pl.DataFrame(schema=_MET)

    def latest(counts: Column) -> Column:
        return F.max(F.when(counts, F.struct("committed_tick", "number")))

    remote = F.col("remote")
    last = F.max_by("committed_tick", "number").alias("committed_tick")
    each = rows.groupBy(*KEYS).agg(
        F.max("number").alias("number"),
        last,
        latest(remote).alias("any"),
        latest(remote & F.col("alone")).alias("single"),
    )
    found: list[tuple[object, ...]] = []
    met: dict[str, tuple[int, int] | None] = {}
    before = None
    for row in sorted(each.collect(), key=lambda row: (row["h"], row["segment"])):
        if before is None or before["h"] != row["h"]:
            met = {"any": None, "single": None}
        else:
            ticks = (part for name in met for part in met[name] or (None, None))
            told = (before["number"], before["committed_tick"])
            found.append((row["h"], row["segment"], *told, *ticks))
        for name, known in met.items():
            mine = tuple(row[name]) if row[name] else None
            met[name] = max(filter(None, (known, mine)), default=None)
        before = row
    return pl.DataFrame(found, schema=_MET, orient="row")


class _OutOfOrder(NamedTuple):
    """The walk over the rows of segments in order, each segment behind the row that `met` has of
    what was before it.
    """

    met: pl.DataFrame

    def flags(self, frames: Frames) -> Frames:
        """Yields the flags of those that ran beside one that must run alone, and of those that were
        visible too early.
        """
        met = Begins.of(self.met)
        nothing = [pl.lit(None, pl.Int64).alias(name) for name in _VISIBLE]
        for frame in whole(frames, KEYS):
            new = frame.with_columns(*nothing, is_kept=pl.lit(value=False))
            kept = met.within(frame).with_columns(
                *[pl.lit(value=False).alias(name) for name in ("remote", "alone")],
                pl.lit(None, pl.Int64).alias("started_tick"),
                is_kept=pl.lit(value=True),
            )
            rows = pl.concat([kept.select(new.columns), new]).sort(*KEYS, "number")
            both = _with_visible(rows)
            before = [
                pl.col(name).shift(1).over(KEYS) for name in (*_VISIBLE, "number", "committed_tick")
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
        latest = pl.col(tick).cum_max().over(KEYS)
        found = found.with_columns(
            latest.forward_fill().over(KEYS).alias(tick),
            pl.when(pl.col(tick) == latest)
            .then(pl.col(number))
            .forward_fill()
            .over(KEYS)
            .alias(number),
        )
    return found


def _rules() -> list[tuple[_Why, str, pl.Expr]]:
    started, remote, tick = pl.col("started_tick"), pl.col("remote"), pl.col("committed_tick")
    return [
        (_Why.ALONE, "any", remote & pl.col("alone") & (pl.col("before_any_tick") > started)),
        (_Why.BESIDE, "single", remote & (pl.col("before_single_tick") > started)),
        (_Why.ORDER, "last", tick < pl.col("before_last_tick")),
    ]


def _first_of_each(flags: DataFrame) -> DataFrame:
    """Returns for each transaction one flag of its order, and one of its overlap: that with the
    simplest reason.
    """
    return (
        flags.groupBy("h", "number", (F.col("why") == int(_Why.ORDER)).alias("order"))
        .agg(F.min(F.struct("why", "other", "item")).alias("flag"))
        .select("h", "number", "flag.why", "flag.other", "flag.item")
    )


class _Run(NamedTuple):
    """A transaction in the text of a witness."""

    place: int
    name: str
    worker: int | None
    started: int | None
    committed: int
    remote: bool
    last_committed: int | None
    key: str | None

    def __str__(self) -> str:
        if not self.remote:
            return f"{self.name} of its own client, visible at tick {self.committed}"
        who = "the applier" if self.worker is None else f"worker {self.worker}"
        return f"{self.name} of {who}, which ran in [{self.started}, {self.committed})"


def _findings(log: Log, ran: DataFrame, flags: DataFrame, code: Code) -> list[Finding]:
    """Returns the first findings of a code, with their witnesses."""
    whys = [int(why) for why, other in _CODES.items() if other is code]
    first = flags.where(F.col("why").isin(whys)).orderBy("h", "number").limit(ROWS_MAX)
    name = F.coalesce(
        F.concat("gtid_source", F.lit(":"), F.col("gtid_number").cast("string")),
        F.concat(F.lit("version "), F.col("version").cast("string")),
    )
    place_of_item = F.array_position("write_set", F.col("item")).cast("int")
    key = F.try_element_at("write_keys", F.nullif(place_of_item, F.lit(0)))
    run = F.struct(
        "place",
        name.alias("name"),
        "worker",
        "started_tick",
        "committed_tick",
        "remote",
        "last_committed",
        key.alias("key"),
    )
    later = (
        ran.join(F.broadcast(first), ["h", "number"])
        .select("h", "number", "why", "other", "item", run.alias("later"))
        .withColumnRenamed("number", "later_number")
        .withColumnRenamed("other", "number")
    )
    pairs = (
        ran.join(F.broadcast(later), ["h", "number"])
        .select("h", "later_number", "why", "item", "later", run.alias("earlier"))
        .orderBy("h", "later_number")
        .collect()
    )
    return [_finding(code, log.histories[row["h"]], row) for row in pairs]


def _finding(code: Code, history: History, row: Row) -> Finding:
    later, earlier = _Run(*row["later"]), _Run(*row["earlier"])
    visible = f"when {earlier.name} was visible"
    expected = f"started at tick {earlier.committed} or later, {visible}"
    found = f"started at tick {later.started}"
    if row["why"] == _Why.TOGETHER:
        item = f"item {hexadecimal(row['item'])}"
        why = f"both wrote {item}" + (f" (key {later.key})" if later.key else "")
    elif row["why"] == _Why.ALONE:
        why = f"{later.name} has no write set and has to run alone"
    elif row["why"] == _Why.BESIDE:
        why = f"{earlier.name} has no write set and has to run alone"
    elif row["why"] == _Why.SOON:
        why = f"{later.name} waits for last_committed {later.last_committed}, which that one has"
    else:
        expected = f"visible at tick {earlier.committed} or later, after {earlier.name}"
        found = f"visible at tick {later.committed}"
        why = "in the order the latter stands before the former"
    witness = f"{later}; {earlier}: {why}"
    return Finding(code, *history.name, later.place, expected, found, witness)
