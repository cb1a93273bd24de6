"""Contention: which transactions lost to which, over what, and what is written most.

The rule it keeps: conflicts are counted in one history, because every member records each of them.
Lists have at most `TOP` entries; tables of keys are told where the log may name them.
"""

from collections.abc import Callable, Iterable

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from groupcert.certifier.audit.answers.result import JsonObject
from groupcert.certifier.audit.rows.checks import hexadecimal
from groupcert.certifier.audit.rows.log import History, Log
from groupcert.certifier.history.schema import Verdict

TOP = 20
ITEMS_MAX = 1_000
BARS = 120
"""So many parts of a history's time are counted at most, if a day is not too short for that."""
BARS_MAX = 1_000
WIDTHS_US = tuple(seconds * 1_000_000 for seconds in (1, 10, 60, 600, 3_600, 86_400))
_HOT = "key string, item string, writers long, readers long, conflicts long"


def conflict_rows(log: Log, history: History) -> DataFrame:
    """Returns the conflicts of one history, each with the item that it lost over."""
    item = F.col("winner_item")
    key = F.coalesce(_key(item, "write_set", "write_keys"), _key(item, "read_set", "read_keys"))
    only_table = F.when(F.size("tables") == 1, F.col("tables")[0])
    return (
        log.transactions.where(F.col("h") == history.h)
        .where(F.col("verdict") == Verdict.CONFLICT)
        .select(
            *("observer", "history", "place", "number", "decided_us", "transaction_id"),
            *("origin", "winner_origin", "winner_version", "snapshot_version"),
            item.alias("winner_item"),
            key.alias("key"),
            F.coalesce(_table(key), only_table).alias("table"),
        )
    )


def conflicts(log: Log, history: History, rows: DataFrame) -> JsonObject:
    """Returns the summary's part about conflicts; `rows` are those of `conflict_rows`."""
    verdicts = log.transactions.where(F.col("h") == history.h)
    items = (
        rows.groupBy("winner_item")
        .agg(F.count(F.lit(1)).alias("conflicts"), F.max("key").alias("key"))
        .orderBy(F.desc("conflicts"), "winner_item")
        .limit(TOP)
        .collect()
    )
    pairs = (
        rows.groupBy("origin", "winner_origin")
        .agg(F.count(F.lit(1)).alias("conflicts"))
        .orderBy(F.desc("conflicts"), "origin", "winner_origin")
        .limit(TOP)
        .collect()
    )
    return {
        "observer": history.observer,
        "history": history.history,
        "total": rows.count(),
        "by_table": _by_table(verdicts, rows),
        "by_key": [
            {"key": row["key"], "item": hexadecimal(row["winner_item"]), "conflicts": row[1]}
            for row in items
        ],
        "by_pair": [
            {"loser": row["origin"], "winner": row["winner_origin"], "conflicts": row["conflicts"]}
            for row in pairs
        ],
        "by_time": _by_time(verdicts, history),
    }


def width_us(span_us: int) -> int:
    """Returns the microseconds that each count covers, for a history that took so long.

    >>> [width_us(seconds * 1_000_000) // 1_000_000 for seconds in (120, 121, 86_400, 10**9)]
    [1, 10, 3600, 86400]
    """
    return next((width for width in WIDTHS_US if span_us <= BARS * width), WIDTHS_US[-1])


def hot_items(log: Log, history: History) -> tuple[list[JsonObject], DataFrame]:
    """Returns the `TOP` items with the most conflicts, then writers, and a table of more.

    Cost: a shuffle of the items of one history, after counting where they are.
    """
    mine = log.transactions.where(F.col("h") == history.h)
    certified = F.col("verdict") == Verdict.CERTIFIED
    nothing = F.array().cast("array<bigint>")
    uses = F.concat(
        *(
            F.transform(F.coalesce(items, nothing), _use(number))
            for number, items in enumerate(
                (
                    F.when(certified, F.col("write_set")),
                    F.when(certified, F.col("read_set")),
                    F.when(F.col("winner_item").isNotNull(), F.array("winner_item")),
                )
            )
        )
    )
    found = (
        mine.select(F.explode(uses).alias("use"))
        .groupBy(F.col("use.item").alias("item"))
        .agg(
            *(
                F.count_if(F.col("use.how") == number).alias(name)
                for number, name in enumerate(("writers", "readers", "conflicts"))
            )
        )
        .orderBy(F.desc("conflicts"), F.desc("writers"), F.desc("readers"), "item")
        .limit(ITEMS_MAX)
        .collect()
    )
    keys = _keys(log.spark, mine, [row["item"] for row in found])
    rows: list[JsonObject] = [
        {
            "key": keys.get(row["item"]),
            "item": hexadecimal(row["item"]),
            **{name: row[name] for name in ("writers", "readers", "conflicts")},
        }
        for row in found
    ]
    table = log.spark.createDataFrame([tuple(row.values()) for row in rows], _HOT)
    return rows[:TOP], table


def _use(how: int) -> Callable[[Column], Column]:
    def use(item: Column) -> Column:
        return F.struct(item.alias("item"), F.lit(how).alias("how"))

    return use


def _key(item: Column, items: str, keys: str) -> Column:
    """Returns the text of an item, where the row has it."""
    place = F.array_position(items, item).cast("int")
    return F.try_element_at(keys, F.nullif(place, F.lit(0)))


def _table(key: Column) -> Column:
    """Returns the table that a key names; null if it names none."""
    return F.when(F.contains(key, F.lit("/")), F.substring_index(key, "/", 1))


def _by_table(verdicts: DataFrame, rows: DataFrame) -> list[JsonObject]:
    """Counts for each table its conflicts, and the transactions that wrote it or wanted to."""
    lost = {
        row["table"]: row["conflicts"]
        for row in rows.where(F.col("table").isNotNull())
        .groupBy("table")
        .agg(F.count(F.lit(1)).alias("conflicts"))
        .orderBy(F.desc("conflicts"), "table")
        .limit(TOP)
        .collect()
    }
    named = F.filter(F.transform("write_keys", _table), lambda name: name.isNotNull())
    tables = F.array_distinct(F.coalesce(F.when(F.size(named) > 0, named), F.col("tables")))
    used = (
        verdicts.select(F.explode(tables).alias("table"))
        .groupBy("table")
        .agg(F.count(F.lit(1)).alias("transactions"))
    )
    if lost:
        first = used.orderBy(~F.col("table").isin(list(lost)), F.desc("transactions"), "table")
    else:
        first = used.orderBy(F.desc("transactions"), "table")
    told = {row["table"]: row["transactions"] for row in first.limit(TOP).collect()}
    names = sorted({*lost, *told}, key=lambda name: (-lost.get(name, 0), -told.get(name, 0), name))
    return [
        {"table": name, "conflicts": lost.get(name, 0), "transactions": told.get(name, 0)}
        for name in names[:TOP]
    ]


def _by_time(verdicts: DataFrame, history: History) -> JsonObject:
    """Counts the decisions over time, in the newest `BARS_MAX` parts of it that have any."""
    width = width_us((history.last_us or 0) - (history.first_us or 0))
    parts = (
        verdicts.where(F.col("decided_us").isNotNull())
        .groupBy(F.floor(F.col("decided_us") / width).alias("part"))
        .agg(*(F.count_if(F.col("verdict") == verdict).alias(verdict.value) for verdict in Verdict))
        .orderBy(F.desc("part"))
        .limit(BARS_MAX)
        .collect()
    )
    return {
        "width_us": width,
        "parts": [
            {
                "begin_us": row["part"] * width,
                **{verdict.value: row[verdict.value] for verdict in Verdict},
            }
            for row in reversed(parts)
        ],
    }


def _keys(spark: SparkSession, rows: DataFrame, items: Iterable[int]) -> dict[int, str]:
    """Returns the texts of some items, where rows have them."""
    wanted = spark.createDataFrame([(item,) for item in items], "item long")
    keys: dict[int, str] = {}
    for names, texts in (("write_set", "write_keys"), ("read_set", "read_keys")):
        known = rows.where(F.size(texts) > 0)
        found = (
            known.select(F.explode(F.arrays_zip(names, texts)).alias("pair"))
            .select(F.col(f"pair.{names}").alias("item"), F.col(f"pair.{texts}").alias("key"))
            .join(F.broadcast(wanted), "item")
            .groupBy("item")
            .agg(F.max("key").alias("key"))
            .collect()
        )
        keys = {row["item"]: row["key"] for row in found} | keys
    return keys
