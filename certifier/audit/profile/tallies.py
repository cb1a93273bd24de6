"""Counts of one history's transactions, by what people ask for: pairs, times, tables, origins.

Each is made of few values, so that every frame is counted by itself and the driver adds up;
classes, ages and distances, which may have many, are added up by partition.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import polars as pl
from pyspark.sql import functions as F

from ...history.schema import RecordKind, Verdict
from ..answers.result import JsonObject
from ..rows.certification_log import Log
from ..rows.jobs import BORDERS, JOB, shared, shares
from ..rows.surveyed_history import History
from ..spark.walks import Frames, concatenated, of_kind, shaped, walk
from . import ages
from .classes import (
    OTHERS,
    Class,
    most_used,
    of_class,
    timed,
    with_class,
    work_of_class,
)
from .held import Parts, is_known, parts_of
from .holders import HOLDER, holders, reports_of

TOP = 20
"""Most entries of a list."""
BARS = 120
"""So many parts of a history's time are counted at most, if a day is not too short for that."""
BARS_MAX = 1_000
WIDTHS_US = tuple(seconds * 1_000_000 for seconds in (1, 10, 60, 600, 3_600, 86_400))
_PAIR, _PART, _USED, _LOST, _ALONE, _CLASS, _AGE, _OLDEST, _DISTANCE, _COLLECTION, _HEAT = range(11)
_HOLDER, _CUT = 11, 12
_ADDED = ("what", "name", "part")
_NUMBERS = ("count", "aborted", "timed", "work_us")
_TALLY = pl.Schema(
    {
        "what": pl.Int32(),
        "count": pl.Int64(),
        "part": pl.Int64(),
        **dict.fromkeys(("name", "other", "verdict"), pl.String()),
        **dict.fromkeys(("aborted", "timed", "work_us", "most", "place", "purged"), pl.Int64()),
        **HOLDER,
        **dict.fromkeys(("file", "number", *JOB), pl.Int64()),
        **dict.fromkeys(("is_timed", *BORDERS), pl.Boolean()),
    }
)


_SNAPSHOT = {
    "place": "place",
    "verdict": "verdict",
    "origin": "name",
    "gtid": "other",
    "age": "most",
    "snapshot_version": "part",
}
"""Names of what is told of an old snapshot, and where a tally has it."""
_EMPTY = pl.DataFrame(schema=_TALLY)


@dataclass(slots=True)
class Tallies:
    """`pairs`: conflicts by loser's and winner's member. `parts`: verdicts by part of the time.
    `used`, `lost`: transactions and conflicts by table. `alone`: those without write set that an
    applier executed, and that others did, by origin. `classes`: by tables. `ages`: by origin and
    step the transactions and the largest age, see `ages.py`; `oldest`: the oldest
    snapshots. `distances`: of stamps, by power of two. `collections`, `purged`:
    collections, and the items that they purged, by part of the time as `held.py` has it.
    `heat`: conflicts over hot items, by item and part. `holders`: who held the collection back, as
    `holders.py` has it.
    """

    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    parts: Counter[tuple[int, str]] = field(default_factory=Counter)
    used: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)
    classes: list[Class] = field(default_factory=list)
    ages: dict[tuple[str | None, int], tuple[int, int]] = field(default_factory=dict)
    oldest: list[JsonObject] = field(default_factory=list)
    distances: Counter[int] = field(default_factory=Counter)
    collections: Counter[int] = field(default_factory=Counter)
    purged: Counter[int] = field(default_factory=Counter)
    heat: Counter[tuple[int, int]] = field(default_factory=Counter)
    holders: pl.DataFrame = field(default_factory=partial(pl.DataFrame, schema=HOLDER))


def tallies(log: Log, history: History, hot: Sequence[int]) -> Tallies:
    """Counts the transactions of a history.

    Args:
        hot: the items whose conflicts are counted over time.
    Cost: a pass over them; the keys that its rows have are read. The reports are sorted, of which
        each member makes one a second.
    """
    width, parts = width_us((history.last_us or 0) - (history.first_us or 0)), parts_of(history)
    kinds = [RecordKind.TRANSACTION.value, RecordKind.COLLECTION.value]
    mine = (F.col("h") == history.h) & F.col("kind").isin(kinds)
    rows = log.rows.where(mine).select(
        "kind",
        "purged_items",
        "verdict",
        "origin",
        "winner_origin",
        "winner_item",
        "decided_us",
        "tables",
        "write_set",
        "write_keys",
        "read_set",
        "read_keys",
        F.xxhash64("_metadata.file_path").alias("file"),
        "number",
        "place",
        "version",
        "snapshot_version",
        "gtid_source",
        "gtid_number",
        "is_local",
        "worker",
        "started_us",
        "executed_us",
        "committed_us",
        "sequence_number",
        "last_committed",
    )

    def counted(frames: Frames) -> Frames:
        added, oldest, cut = _EMPTY, _EMPTY, _EMPTY
        for rows in frames:
            yield _collected(rows, parts)
            transactions = rows.filter(pl.col("kind") == RecordKind.TRANSACTION.value)
            frame = with_class(transactions, tables_of())
            yield from _counted(frame, width)
            yield _heat(frame, parts, hot)
            ran = shares(timed(frame), ("file",))
            cut = pl.concat([cut, _tally(_CUT, ran.cut)])
            added = _added(pl.concat([added, *_many(frame), _work(ran.known)]))
            oldest = ages.first_of(pl.concat([oldest, _tally(_OLDEST, ages.oldest(frame))]))
        of_class = pl.col("what") == _CLASS
        classes = most_used(added.filter(of_class))
        yield _tally(_CLASS, classes)
        is_told = pl.col("name").is_in(classes["name"].to_list(), nulls_equal=True)
        yield cut.with_columns(
            pl.when(is_told).then("name").otherwise(pl.lit(OTHERS)).alias("name")
        )
        yield added.filter(~of_class)
        yield oldest

    def held_back(frames: Frames) -> Frames:
        return (of_kind(_HOLDER, rows) for rows in holders(frames, parts))

    found = walk(rows, counted, _TALLY)
    if is_known(history):
        # One step of Spark: what it plans costs more than to read the reports of a small log.
        found = concatenated(found, walk(reports_of(log, history), held_back, _TALLY))
    return _told(pl.DataFrame(found.toArrow(), schema=_TALLY))


def _told(found: pl.DataFrame) -> Tallies:
    """Adds up what the partitions have counted."""
    told = Tallies()
    of_name = {_USED: told.used, _LOST: told.lost, _ALONE: told.alone}
    few = ("what", "count", "part", "name", "other")
    for what, count, part, name, other in found.filter(pl.col("what") < _CLASS).select(few).rows():
        if what == _PAIR:
            told.pairs[name, other] += count
        elif what == _PART:
            told.parts[part, name] += count
        else:
            of_name[what][name] += count
    many = found.filter(pl.col("what").is_in([_CLASS, _AGE, _DISTANCE]))
    work = _work(shared(found.filter(pl.col("what") == _CUT), ()))
    for row in _added(pl.concat([many, work])).to_dicts():
        if row["what"] == _CLASS:
            told.classes.append(Class(row["name"], *(row[name] for name in _NUMBERS)))
        elif row["what"] == _AGE:
            told.ages[row["name"], row["part"]] = row["count"], row["most"]
        else:
            told.distances[row["part"]] = row["count"]
    for part, count, purged in (
        found.filter(pl.col("what") == _COLLECTION).select("part", "count", "purged").rows()
    ):
        told.collections[part] += count
        told.purged[part] += purged
    heat = found.filter(pl.col("what") == _HEAT).select("most", "part", "count").rows()
    for item, part, count in heat:
        told.heat[item, part] += count
    told.holders = found.filter(pl.col("what") == _HOLDER).select(list(HOLDER))
    for row in ages.first_of(found.filter(pl.col("what") == _OLDEST)).to_dicts():
        told.oldest.append({to: row[name] for to, name in _SNAPSHOT.items()})
    return told


def _collected(rows: pl.DataFrame, parts: Parts) -> pl.DataFrame:
    """Counts collections, and what they purged, by part of the time."""
    dated = rows.filter(
        (pl.col("kind") == RecordKind.COLLECTION.value) & pl.col("decided_us").is_not_null()
    )
    counts = dated.group_by(part=parts.of(pl.col("decided_us"))).agg(
        pl.len().cast(pl.Int64).alias("count"), pl.col("purged_items").sum().alias("purged")
    )
    return _tally(_COLLECTION, counts)


def _heat(frame: pl.DataFrame, parts: Parts, hot: Sequence[int]) -> pl.DataFrame:
    """Counts the conflicts over items, by part of the time."""
    is_lost = pl.col("verdict") == Verdict.CONFLICT.value
    is_hot = pl.col("winner_item").is_in(list(hot)) & pl.col("decided_us").is_not_null()
    part = parts.of(pl.col("decided_us"))
    found = frame.filter(is_lost & is_hot).group_by(part=part, most="winner_item")
    return _tally(_HEAT, found.agg(pl.len().cast(pl.Int64).alias("count")))


def _many(frame: pl.DataFrame) -> list[pl.DataFrame]:
    """Returns the counts of a frame that may have many values: classes, ages and distances."""
    return [
        _tally(_CLASS, of_class(frame)),
        _tally(_AGE, ages.ages(frame)),
        _tally(_DISTANCE, ages.distances(frame)),
    ]


def _work(ran: pl.DataFrame) -> pl.DataFrame:
    """Returns the execution time by class."""
    return _tally(_CLASS, work_of_class(ran))


def _added(rows: pl.DataFrame) -> pl.DataFrame:
    sums = rows.group_by(_ADDED).agg(pl.col(_NUMBERS).sum(), pl.col("most").max())
    return pl.concat([_EMPTY, sums], how="diagonal")


def _counted(frame: pl.DataFrame, width: int) -> Frames:
    conflict = pl.col("verdict") == Verdict.CONFLICT.value
    certified = pl.col("verdict") == Verdict.CERTIFIED.value
    lost = frame.filter(conflict)
    pairs = lost.group_by(name="origin", other="winner_origin").len("count")
    yield _tally(_PAIR, pairs)
    dated = frame.filter(pl.col("decided_us").is_not_null())
    part = pl.col("decided_us") // width
    yield _tally(_PART, dated.group_by(part=part, name="verdict").len("count"))
    used = frame.select(name=tables_of()).explode("name").drop_nulls()
    yield _tally(_USED, used.group_by("name").len("count"))
    tables = lost.select(name=table_lost()).drop_nulls()
    yield _tally(_LOST, tables.group_by("name").len("count"))
    alone = frame.filter(certified & (pl.col("write_set").list.len().fill_null(0) == 0))
    yield _tally(_ALONE, alone.group_by(name="origin").len("count"))


def _tally(what: int, rows: pl.DataFrame) -> pl.DataFrame:
    return shaped(of_kind(what, rows), _TALLY)


def tables_of() -> pl.Expr:
    """Returns a transaction's tables: those that its keys name, else those that its log has."""
    named = pl.col("write_keys").list.eval(_table(pl.element())).list.drop_nulls()
    has_named = named.list.len().fill_null(0) > 0
    return pl.when(has_named).then(named).otherwise(pl.col("tables")).list.unique()


def key_lost() -> pl.Expr:
    """Returns the text of the item that a conflict was lost over, where the row has it."""
    return pl.coalesce(
        *[
            pl.struct("winner_item", items, keys).map_elements(_key, return_dtype=pl.String)
            for items, keys in (("write_set", "write_keys"), ("read_set", "read_keys"))
        ]
    )


def table_lost() -> pl.Expr:
    """Returns the table of the item that a conflict was lost over; null if it is not known."""
    only = pl.when(pl.col("tables").list.len() == 1).then(pl.col("tables").list.first())
    return pl.coalesce(_table(key_lost()), only)


def _key(row: dict[str, object]) -> str | None:
    item, items, keys = row.values()
    if not isinstance(items, list) or not isinstance(keys, list) or item not in items:
        return None
    place = items.index(item)
    return str(keys[place]) if place < len(keys) else None


def _table(key: pl.Expr) -> pl.Expr:
    """Returns the table that a key names; null if it names none."""
    return pl.when(key.str.contains("/", literal=True)).then(key.str.split("/").list.first())


def width_us(span_us: int) -> int:
    """Returns the microseconds that each count covers, for a history that took so long.

    >>> [width_us(seconds * 1_000_000) // 1_000_000 for seconds in (120, 121, 86_400, 10**9)]
    [1, 10, 3600, 86400]
    """
    return next((width for width in WIDTHS_US if span_us <= BARS * width), WIDTHS_US[-1])


def by_pair(found: Tallies) -> list[JsonObject]:
    """Returns the pairs of members with the most conflicts."""
    return [
        {"loser": loser, "winner": winner, "conflicts": count}
        for (loser, winner), count in sorted(found.pairs.items(), key=_most)[:TOP]
    ]


def by_table(found: Tallies) -> list[JsonObject]:
    """Returns the tables with the most conflicts, then those that most transactions wrote, or
    wanted to.
    """
    names = sorted(
        {*found.lost, *found.used},
        key=lambda name: (-found.lost[name], -found.used[name], name),
    )
    return [
        {"table": name, "conflicts": found.lost[name], "transactions": found.used[name]}
        for name in names[:TOP]
    ]


def by_time(found: Tallies, history: History) -> JsonObject:
    """Returns the decisions over time, in the newest `BARS_MAX` parts of it that have any."""
    width = width_us((history.last_us or 0) - (history.first_us or 0))
    parts = sorted({part for part, _ in found.parts})[-BARS_MAX:]
    return {
        "width_us": width,
        "parts": [
            {
                "begin_us": part * width,
                **{verdict.value: found.parts[part, verdict.value] for verdict in Verdict},
            }
            for part in parts
        ],
    }


def by_origin(found: Tallies) -> Sequence[JsonObject]:
    """Returns the origins that sent the most transactions without write set, with their numbers."""
    most = sorted(found.alone.items(), key=_most)[:TOP]
    return [{"origin": origin, "transactions": count} for origin, count in most]


def _most(entry: tuple[object, int]) -> tuple[int, str]:
    return -entry[1], str(entry[0])
