"""Apply: whether a member's applier ran dependent transactions at once, and how busy it was.

A transaction ran in [started_tick, committed_tick) of its applier's own clock. Transactions that
their own clients executed have no start there: their order is checked, but not their overlap with
others, because their rows were locked elsewhere. Only ticks decide the order: a wall clock may be
set back.
"""

from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import Row

from groupcert.certifier.audit.answers.findings import ROWS_MAX, Code, Finding
from groupcert.certifier.audit.answers.result import Result
from groupcert.certifier.audit.apply.times import observers
from groupcert.certifier.audit.rows.checks import hexadecimal
from groupcert.certifier.audit.rows.clocks import clock
from groupcert.certifier.audit.rows.log import History, Log
from groupcert.certifier.audit.rows.stretches import (
    is_remote,
    paces,
    segment_rows,
    without_write_set,
)

_TOGETHER, _ALONE, _BESIDE, _ORDER, _SOON = range(5)
"""The reasons of a flag: a common item; it has no write set; the other has none; and the rest."""
_CODES = {
    _TOGETHER: Code.APPLIED_TOGETHER,
    _ALONE: Code.APPLIED_TOGETHER,
    _BESIDE: Code.APPLIED_TOGETHER,
    _ORDER: Code.APPLIED_OUT_OF_ORDER,
    _SOON: Code.APPLIED_TOO_SOON,
}


def run(log: Log) -> Result:
    """Checks the appliers of all histories that have ticks, and measures how busy they were.

    Cost: a shuffle of all items, one of all transactions, and three passes.
    """
    told = paces(log)
    ticked = [history for history in log.histories if told[history.h].ticked]
    result = Result()
    result.summary = {
        "observers": [],
        "skipped": [_label(each, log) for each in log.histories if each not in ticked],
    }
    if not ticked:
        return result
    ran = _ran(log, [history.h for history in ticked])
    flags = _first_of_each(
        _common_items(ran).unionByName(_in_order(log, ran)).unionByName(_too_soon(log, ran))
    ).persist()
    try:
        for row in flags.groupBy("why").count().collect():
            result.counts[_CODES[row["why"]].value] += row["count"]
        for code in dict.fromkeys(_CODES.values()):
            if result.counts[code.value]:
                result.findings += _findings(log, ran, flags, code)
    finally:
        flags.unpersist()
    result.summary["observers"], result.tables["lag"] = observers(log, ran, ticked)
    return result


def _label(history: History, log: Log) -> str:
    """Returns the name of a history for people: its observer, and which of several it is."""
    own = [each for each in log.histories if each.observer == history.observer]
    return history.observer if len(own) == 1 else ", history ".join(history.name)


def _ran(log: Log, histories: list[int]) -> DataFrame:
    """Returns the visible transactions with their times; `remote`: an applier executed it."""
    remote = is_remote() & (F.coalesce("started_tick", F.lit(0)) > 0)
    return log.certified.where(
        F.col("h").isin(histories) & F.col("committed_tick").isNotNull()
    ).select(
        *("h", "number", "place", "gtid_source", "gtid_number", "version", "worker"),
        *("started_tick", "committed_tick", "started_us", "committed_us", "decided_us"),
        *("last_committed", "sequence_number", "write_set", "write_keys", "read_set"),
        remote.alias("remote"),
        without_write_set().alias("alone"),
    )


def _common_items(ran: DataFrame) -> DataFrame:
    """Returns transactions that started before an earlier writer of an item was visible."""
    before = (
        Window.partitionBy("h", "item").orderBy("number").rowsBetween(Window.unboundedPreceding, -1)
    )
    return (
        ran.where("remote")
        .select(
            *("h", "number", "started_tick", "committed_tick"),
            F.explode(F.array_distinct("write_set")).alias("item"),
        )
        .withColumn("writer", F.max(F.struct("committed_tick", "number")).over(before))
        .where(F.col("writer.committed_tick") > F.col("started_tick"))
        .select(
            *("h", "number"),
            F.lit(_TOGETHER).alias("why"),
            F.col("writer.number").alias("other"),
            "item",
        )
    )


def _in_order(log: Log, ran: DataFrame) -> DataFrame:
    """Returns the transactions that ran beside one that must run alone, and those that were visible
    too early.

    A history is read in segments; the state before each is joined to it, a row a segment.
    """
    segment = F.floor(F.col("number") / log.by_history(segment_rows))
    visible = F.struct("committed_tick", "number")
    rows = ran.select(
        *("h", "number", "started_tick", "committed_tick", "remote"),
        segment.alias("segment"),
        F.when(F.col("remote"), visible).alias("any"),
        F.when(F.col("remote") & F.col("alone"), visible).alias("single"),
        F.struct("number", "committed_tick").alias("row"),
    )
    ends = rows.groupBy("h", "segment").agg(
        F.max("any").alias("any"), F.max("single").alias("single"), F.max("row").alias("last")
    )
    carried = Window.partitionBy("h").orderBy("segment").rowsBetween(Window.unboundedPreceding, -1)
    ends = ends.select(
        *("h", "segment"),
        *(F.max(name).over(carried).alias(f"{name}_carried") for name in ("any", "single", "last")),
    )
    within = (
        Window.partitionBy("h", "segment")
        .orderBy("number")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    step = Window.partitionBy("h", "segment").orderBy("number")
    seen = rows.join(F.broadcast(ends), ["h", "segment"]).select(
        *("h", "number", "started_tick", "committed_tick", "remote"),
        F.greatest(F.max("any").over(within), "any_carried").alias("any"),
        F.greatest(F.max("single").over(within), "single_carried").alias("single"),
        F.col("single").isNotNull().alias("is_single"),
        F.coalesce(F.lag("row").over(step), "last_carried").alias("last"),
    )
    started = F.col("started_tick")
    late = F.col("committed_tick") < F.col("last.committed_tick")
    whys = F.array(
        _flag(F.col("is_single") & (F.col("any.committed_tick") > started), _ALONE, "any"),
        _flag(F.col("remote") & (F.col("single.committed_tick") > started), _BESIDE, "single"),
        _flag(late, _ORDER, "last"),
    )
    return seen.select("h", "number", F.explode(F.array_compact(whys)).alias("flag")).select(
        *("h", "number", "flag.why", "flag.other"), F.lit(None).cast("long").alias("item")
    )


def _flag(holds: Column, why: int, other: str) -> Column:
    return F.when(holds, F.struct(F.lit(why).alias("why"), F.col(f"{other}.number").alias("other")))


def _too_soon(log: Log, ran: DataFrame) -> DataFrame:
    """Returns transactions that started before the one of their `last_committed` was visible.

    Transactions that wait for the same one are one row in the join, so that no key is frequent.
    """
    clocked = ran.where("remote").select(
        *("h", "number", "started_tick", "committed_tick", "last_committed", "sequence_number"),
        clock(log, F.col("number")).alias("clock"),
    )
    awaited = clocked.groupBy("h", "clock", F.col("last_committed").alias("sequence_number")).agg(
        F.min("started_tick").alias("first_tick")
    )
    named = clocked.select(
        *("h", "clock", "sequence_number"),
        F.col("committed_tick").alias("visible_tick"),
        F.col("number").alias("other"),
    )
    early = (
        awaited.join(named, ["h", "clock", "sequence_number"])
        .where(F.col("first_tick") < F.col("visible_tick"))
        .select(
            "h", "clock", F.col("sequence_number").alias("last_committed"), "visible_tick", "other"
        )
    )
    return (
        clocked.join(early, ["h", "clock", "last_committed"])
        .where(F.col("started_tick") < F.col("visible_tick"))
        .select(
            *("h", "number"),
            F.lit(_SOON).alias("why"),
            "other",
            F.lit(None).cast("long").alias("item"),
        )
    )


def _first_of_each(flags: DataFrame) -> DataFrame:
    """Returns for each transaction one flag of its order, and one of its overlap: that with the
    simplest reason.
    """
    return (
        flags.groupBy("h", "number", (F.col("why") == _ORDER).alias("order"))
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
    whys = [why for why, other in _CODES.items() if other is code]
    first = flags.where(F.col("why").isin(whys)).orderBy("h", "number").limit(ROWS_MAX)
    name = F.coalesce(
        F.concat("gtid_source", F.lit(":"), F.col("gtid_number").cast("string")),
        F.concat(F.lit("version "), F.col("version").cast("string")),
    )
    place_of_item = F.array_position("write_set", F.col("item")).cast("int")
    key = F.try_element_at("write_keys", F.nullif(place_of_item, F.lit(0)))
    run = F.struct(
        *("place", name.alias("name"), "worker", "started_tick", "committed_tick", "remote"),
        *("last_committed", key.alias("key")),
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
    if row["why"] == _TOGETHER:
        item = f"item {hexadecimal(row['item'])}"
        why = f"both wrote {item}" + (f" (key {later.key})" if later.key else "")
    elif row["why"] == _ALONE:
        why = f"{later.name} has no write set and has to run alone"
    elif row["why"] == _BESIDE:
        why = f"{earlier.name} has no write set and has to run alone"
    elif row["why"] == _SOON:
        why = f"{later.name} waits for last_committed {later.last_committed}, which that one has"
    else:
        expected = f"visible at tick {earlier.committed} or later, after {earlier.name}"
        found = f"visible at tick {later.committed}"
        why = "in the order the latter stands before the former"
    witness = f"{later}; {earlier}: {why}"
    return Finding(code, *history.name, later.place, expected, found, witness)
