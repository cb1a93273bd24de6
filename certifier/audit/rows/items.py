"""The last writers of each transaction's items, and what follows from them.

An item's writers are the certified transactions before it in the same history, as recorded. One
walk over the items, each with its transactions in order, finds them all; GTIDs are walked with
them, each with the transactions that have it. What a row has to know is told to it as a fact: a row
of `FACT` with the row's number.

Source: WL#8440, conflict detection and AL1, derived here from the history as relations; garbage
collection: an item is purged by the collection that reaches its last writer's version, unless a
later transaction wrote it before that collection.
"""

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import DataFrame

from ..spark.walks import Frames, in_order, walk
from .certification_log import Log
from .clocks import Resets, clock, resets_of
from .critical_path import Ints
from .foreign import WholeTo, includes
from .keys import (
    GTID,
    ITEM,
    KEY,
    STAMP,
    has_foreign_snapshots,
    touched,
    with_same,
)
from .once import once
from .prefixes import whole_to
from .sequence import begins_of
from .states import segment_of
from .survey import of_history

_LATEST = ("latest_tick", "latest_number")
FACT = pl.Schema(
    {
        "h": pl.Int32(),
        "number": pl.Int64(),
        "certified": pl.Boolean(),
        **dict.fromkeys(("dependency", "outside", "outside_item"), pl.Int64()),
        "outside_source": pl.String(),
        "outside_number": pl.Int64(),
        "winner_found": pl.Boolean(),
        "gtid_used_at": pl.Int64(),
        **dict.fromkeys(("purged", "purged_sequence"), pl.Int64()),
        **dict.fromkeys(("beside", "beside_item", "not_awaited"), pl.Int64()),
        "is_kept": pl.Boolean(),
    }
)
"""`dependency`: the sequence number of an item's last writer, if it may be above the window's edge.
`outside`: the version of a last writer that the snapshot lacks, with its item and GTID, and whether
the transaction names it as its winner. `gtid_used_at`: the place of a transaction before it that
has the same GTID. `purged`: items that this collection had to purge, with their largest sequence
number. `beside`: the number of an earlier writer of `beside_item` that was not visible when the
applier began this one; `not_awaited`: that of the one that its last_committed names, likewise.
`is_kept`: an audit of later rows needs this row, the last writer of an item that is not purged.
"""
_BOUNDS = pl.Schema(
    {"h": pl.Int32(), **dict.fromkeys(("purged_to", "edge_at_end", "clock_at_end"), pl.Int64())}
)


class Seen(NamedTuple):
    """Rows that have a last writer of their key in the history, by index; see `of`."""

    rows: Ints
    """The rows that are asked."""
    writers: Ints
    """The last writer of each."""
    what: Ints
    """The kind of key of each."""
    overwriting: Ints
    """Writers of items that have one before them, kept ones included."""
    overwritten: Ints
    """Their last writers."""
    finished: Ints
    """The last writers of the items that no later frame has."""
    unfinished: Ints
    """The last writer of the last key, if it has any."""

    @classmethod
    def of(cls, rows: pl.DataFrame) -> "Seen":
        """Finds them among rows sorted by key and number."""
        place = np.arange(len(rows))
        is_first = is_first_of_key(rows)
        begin = np.maximum.accumulate(np.where(is_first, place, 0))
        wrote = rows.select(pl.col("version").is_not_null() & pl.col("wrote")).to_series()
        newest = np.maximum.accumulate(np.where(wrote.to_numpy(), place, -1))
        # The newest writer before a row: its own write does not count.
        last = np.append(-1, newest[:-1])
        # A row that is kept from the frame before was asked there.
        has = (last >= begin) & ~rows["is_kept"].to_numpy()
        what = rows["what"].to_numpy()
        is_item = what == ITEM
        over = has & wrote.to_numpy() & is_item
        ends = np.append(np.flatnonzero(is_first)[1:] - 1, len(rows) - 1)
        ended = ends[newest[ends] >= begin[ends]]
        written = newest[ended]
        is_last = begin[written] == begin[-1]
        return cls(
            rows=place[has],
            writers=last[has],
            what=what[has],
            overwriting=place[over],
            overwritten=last[over],
            finished=written[~is_last & is_item[written]],
            unfinished=written[is_last],
        )

    def pairs(self, rows: pl.DataFrame, what: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Returns the rows with keys of a kind that have a last writer, and these writers."""
        mine = self.what == what
        return rows[self.rows[mine]], rows[self.writers[mine]]


def overwritten(rows: pl.DataFrame, seen: Seen) -> tuple[pl.DataFrame, pl.Series]:
    """Returns the rows that wrote an item last of all or until another did, and the numbers of
    these others.
    """
    told = rows.select("h", "number", "version", "sequence_number")
    written = told[np.concatenate([seen.overwritten, seen.finished])]
    nothing = pl.Series([None] * len(seen.finished), dtype=pl.Int64)
    return written, pl.concat([rows["number"][seen.overwriting], nothing])


def is_first_of_key(rows: pl.DataFrame) -> NDArray[np.bool_]:
    """Returns whether each row has another key than the row before it."""
    differs = [pl.col(name).ne_missing(pl.col(name).shift(1)) for name in KEY]
    first = rows.select(pl.any_horizontal(differs)).to_series().to_numpy(writable=True)
    first[:1] = True
    return first


class Collections(NamedTuple):
    """The collections of a history: the versions that they reached, ascending, and the numbers of
    the rows that first reached each: int64[n].
    """

    versions: Ints
    numbers: Ints


@once
def facts(log: Log) -> DataFrame:
    """Returns the facts of all rows, as `FACT`. It is kept on disk, as several jobs use it."""
    ticked = any(history.pace.ticked for history in log.histories)
    rows = touched(log)
    within = [name for name in (*KEY[2:], "asks") if name in rows.columns]
    writers = _Writers(
        edges=_edges(log),
        resets=resets_of(log.histories),
        collections=_collections(log),
        foreign=whole_to(log) if has_foreign_snapshots(log) else None,
        ticked=ticked,
        bounds=_bounds(log) if log.keeps else None,
    )
    ordered = in_order(rows, KEY[:2], (*within, "number"))
    return walk(ordered, writers.facts, FACT).persist(StorageLevel.DISK_ONLY)


class _Writers(NamedTuple):
    """The walk over keys in order: what each row's last writer means to it."""

    edges: pl.DataFrame
    resets: Resets
    collections: dict[int, Collections]
    foreign: WholeTo | None
    """The function that gives the version up to which a GTID set is whole; None: there are none."""
    ticked: bool
    bounds: pl.DataFrame | None
    """The purges, windows and clocks of histories at their ends; None if nothing is kept."""

    def facts(self, frames: Frames) -> Frames:
        """Yields facts. Between frames the last writer of the last key is kept."""
        left: pl.DataFrame | None = None
        nothing = [pl.lit(None, pl.Int64).alias(name) for name in _LATEST]
        for frame in frames:
            new = with_same(frame).with_columns(*nothing, is_kept=pl.lit(value=False))
            both = new if left is None else pl.concat([left, new])
            seen = Seen.of(both)
            yield self._met(both, seen)
            yield _gtids(both, seen)
            yield self._purged(*overwritten(both, seen))
            yield self._kept(both[seen.finished])
            if self.ticked:
                both = _with_latest(both)
                yield _beside(both, seen)
                yield _not_awaited(both, seen)
            left = both[seen.unfinished].with_columns(is_kept=pl.lit(value=True))
        if left is not None:
            items = left.filter(pl.col("what") == ITEM)
            yield self._purged(items, pl.Series([None] * len(items), dtype=pl.Int64))
            yield self._kept(items)

    def _met(self, rows: pl.DataFrame, seen: Seen) -> pl.DataFrame:
        """Returns the dependencies and the writers outside of snapshots."""
        mine, last = seen.pairs(rows, ITEM)
        lacks = last["version"] > mine["snapshot_version"]
        if self.foreign:
            lacks = includes(mine, last, self.foreign).not_().fill_null(lacks)
        lacks = lacks.fill_null(value=False)
        wrote = mine["version"].is_not_null() & mine["wrote"]
        counts = wrote & (last["sequence_number"] > self._edges_of(mine))
        # A number that another run of the clock gave says nothing in this one.
        if self.resets:
            begun = clock(mine["h"], last["number"], self.resets)
            counts &= begun == clock(mine["h"], mine["number"], self.resets)
        counts = counts.fill_null(value=False)
        matters = counts | lacks
        mine, last = mine.filter(matters), last.filter(matters)
        counts, lacks = counts.filter(matters), lacks.filter(matters)
        claimed = last["version"] == mine["claims"]
        return mine.select(
            "h",
            "number",
            pl.col("version").is_not_null().alias("certified"),
            last["sequence_number"].alias("dependency"),
            last["version"].alias("outside"),
            pl.col("key").alias("outside_item"),
            *[
                (last[f"gtid_{each}"] if self.foreign else pl.lit(None)).alias(f"outside_{each}")
                for each in ("source", "number")
            ],
            claimed.fill_null(value=False).alias("winner_found"),
        ).with_columns(
            pl.when(counts).then(pl.col("dependency")).alias("dependency"),
            *[
                pl.when(lacks).then(pl.col(name)).alias(name)
                for name in ("outside", "outside_item", "outside_source", "outside_number")
            ],
            (lacks & pl.col("winner_found")).alias("winner_found"),
        )

    def _edges_of(self, rows: pl.DataFrame) -> pl.Series:
        """Returns a lower bound of each row's window's edge: that at the begin of its segment."""
        if not len(self.edges):
            return pl.Series(np.zeros(len(rows), np.int64))
        segments = rows.select("h", segment_of(pl.col("number")).cast(pl.Int32).alias("segment"))
        edges = segments.join(self.edges, ["h", "segment"], "left", maintain_order="left")
        return edges["edge"].fill_null(0)

    def _purged(self, written: pl.DataFrame, overwritten_at: pl.Series) -> pl.DataFrame:
        """Returns the number of items that collections had to purge, and the largest sequence
        number of them: items written by rows, which the rows of the numbers `overwritten_at` wrote
        next, if any did.
        """
        collector = _collectors(written, self.collections)
        is_purged = collector.is_not_null() & (
            # Overwritten before the collection, the item has a newer last writer, and stays.
            overwritten_at.is_null() | (overwritten_at > collector)
        )
        purged = written.with_columns(collector.alias("collector")).filter(is_purged)
        begun = clock(purged["h"], purged["number"], self.resets)
        # The window's edge moves only to numbers of the clock as it runs then.
        counts = begun == clock(purged["h"], purged["collector"], self.resets)
        return (
            purged.with_columns(counts.alias("counts"))
            .group_by("h", pl.col("collector").alias("number"))
            .agg(
                pl.len().cast(pl.Int64).alias("purged"),
                pl.col("sequence_number").filter("counts").max().alias("purged_sequence"),
            )
        )

    def _kept(self, writers: pl.DataFrame) -> pl.DataFrame:
        """Returns the last writers of items that later rows may ask for."""
        if self.bounds is None:
            return pl.DataFrame(schema=FACT)
        begun = clock(writers["h"], writers["number"], self.resets)
        is_held = pl.col("version") > pl.col("purged_to")
        is_open = pl.col("sequence_number") > pl.col("edge_at_end")
        kept = (
            writers.select("h", "number", "version", "sequence_number", begun.alias("clock"))
            .join(self.bounds, "h")
            .filter(is_held | (is_open & (pl.col("clock") == pl.col("clock_at_end"))))
        )
        return kept.select("h", "number").unique().with_columns(is_kept=pl.lit(value=True))


def _gtids(rows: pl.DataFrame, seen: Seen) -> pl.DataFrame:
    """Returns the rows whose GTID had been given before, with the place of that."""
    mine, last = seen.pairs(rows, GTID)
    return mine.select("h", "number", last["place"].alias("gtid_used_at"))


def _with_latest(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows with `_LATEST`: of the writers of its item up to a row, that which became
    visible last.
    """
    place = np.arange(len(rows))
    is_first = is_first_of_key(rows)
    begin = np.maximum.accumulate(np.where(is_first, place, 0))
    own = pl.when((pl.col("what") == ITEM) & pl.col("wrote")).then(pl.col("committed_tick"))
    ticks = rows.select(pl.coalesce("latest_tick", own)).to_series()
    _, rank = np.unique(ticks.fill_null(-1).to_numpy(), return_inverse=True)
    # Of a later key each rank is larger, so that one pass does for all keys.
    ranks = np.cumsum(is_first) * (len(rows) + 1) + rank
    is_newest = (ranks == np.maximum.accumulate(ranks)) & ticks.is_not_null().to_numpy()
    newest = np.maximum.accumulate(np.where(is_newest, place, -1))
    found = pl.Series(np.where(newest >= begin, newest, -1)).replace(-1, None)
    numbers = rows.select(pl.coalesce("latest_number", "number")).to_series()
    return rows.with_columns(
        ticks.gather(found).alias("latest_tick"), numbers.gather(found).alias("latest_number")
    )


def _beside(rows: pl.DataFrame, seen: Seen) -> pl.DataFrame:
    """Returns the transactions that an applier started before the previous writer of the same item
    was visible (`APPLIED_TOGETHER`).
    """
    before = rows[seen.rows - 1]
    mine = rows[seen.rows].with_columns(
        before["latest_tick"].alias("tick"), before["latest_number"]
    )
    wrote = (pl.col("what") == ITEM) & pl.col("wrote")
    began = mine.filter(wrote & (pl.col("started_tick") < pl.col("tick")))
    return began.select("h", "number", beside="latest_number", beside_item="key")


def _not_awaited(rows: pl.DataFrame, seen: Seen) -> pl.DataFrame:
    """Returns the transactions that an applier started before the one that their last_committed
    names was visible (`APPLIED_TOO_SOON`).
    """
    mine, last = seen.pairs(rows, STAMP)
    mine = mine.with_columns(last["committed_tick"].alias("tick"), other=last["number"])
    began = mine.filter(pl.col("asks") & (pl.col("started_tick") < pl.col("tick")))
    return began.select("h", "number", not_awaited="other")


def _bounds(log: Log) -> pl.DataFrame:
    """Returns the version up to which each history had purged items at its end, the edge of its
    window there or less, and how often its clock had begun again.
    """
    rows = []
    for history in log.histories:
        mine = of_history(log.surveyed.files, history.name)
        purged = [_last(mine, name)[1] for name in ("stable", "collected")]
        at, edge = _last(mine, "edge")
        is_known = at >= max(history.resets, default=0)
        rows.append((history.h, min(purged), edge if is_known else 0, len(history.resets)))
    return pl.DataFrame(rows, schema=_BOUNDS, orient="row")


def _last(files: pl.DataFrame, name: str) -> tuple[int, int]:
    """Returns the number of a history's last row that tells something, and what it tells."""
    told = files.select(f"last_{name}_at", f"last_{name}").drop_nulls().sort(f"last_{name}_at")
    return told.row(-1) if len(told) else (0, 0)


def _edges(log: Log) -> pl.DataFrame:
    """Returns a lower bound of the window's edge in each segment: that at its begin, or 0 if the
    clock begins again inside of it.
    """
    edges = begins_of(log).select("h", "segment", pl.col("met_edge").alias("edge"))
    inside = [
        (history.h, segment_of(reset), 0) for history in log.histories for reset in history.resets
    ]
    lowered = pl.DataFrame(inside, schema=edges.schema, orient="row").unique()
    return pl.concat([lowered, edges.join(lowered, ["h", "segment"], "anti")])


def _collections(log: Log) -> dict[int, Collections]:
    """Returns the collections of the histories whose stable sets are versions.

    Cost: 16 bytes a collection.
    """
    found = {}
    for history in log.histories:
        numbers, versions = history.collections
        if len(numbers):
            # A collection that reaches no farther than one before it purges nothing.
            reached, firsts = np.unique(np.maximum.accumulate(versions), return_index=True)
            found[history.h] = Collections(reached, numbers[firsts])
    return found


def _collectors(written: pl.DataFrame, collections: dict[int, Collections]) -> pl.Series:
    """Returns for each version that was written the number of the collection that reaches it."""
    histories, versions = written["h"].to_numpy(), written["version"].to_numpy()
    found = np.full(len(written), -1, np.int64)
    for each, (reached, numbers) in collections.items():
        mine = histories == each
        at = np.searchsorted(reached, versions[mine], "left")
        # No collection reaches what lies behind the last one.
        found[mine] = np.append(numbers, -1)[at]
    return pl.Series(found).replace(-1, None)
