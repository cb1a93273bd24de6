"""Stretches: histories cut into parts that follow one another, and what runs at once in each part.

A history is cut only where everything after the cut waits for everything before it, so that the
critical paths of its stretches add up to the exact one of the history. A stretch ends at the last
such place among `STRETCH_ROWS_MAX` rows; if there is none it is cut all the same ("forced"), and
that is counted: then paths and epochs are upper bounds, and the number of those that wait for more
is a lower one. Source: the logical clock of WL#8440 and WL#7165.
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import polars as pl
from pyspark.sql import DataFrame, Row

from ...history.schema import RecordKind, Source
from ..spark.walks import Frames, Walk, in_order, walk
from .certification_log import Log
from .coded_columns import (
    CERTIFIED,
    has_items,
    is_kind,
    is_remote,
    kind_number,
    verdict_number,
)
from .critical_path import Ints, chain, epochs, filled, waits
from .jobs import with_shares
from .once import once
from .pace import BUCKETS

STRETCH_ROWS_MAX = 500_000
"""Rows of a stretch at most: a task needs some 250 bytes of memory for each."""
TOTAL = -1
"""The bucket that stands for all of a stretch."""

FIELDS = ("h", "stretch", "bucket", "number", "transactions", "levels", "width")
TOTALS = ("work", "path", "epochs", "waiting", "forced")
MEASURED = pl.Schema(dict.fromkeys((*FIELDS, *TOTALS), pl.Int64()))
_NEVER = 1 << 62
_ALONE = -1
"""Not a key: a row that runs alone waits for all before it, as all after it wait for it."""


def scheduled_rows(log: Log) -> DataFrame:
    """Returns the rows that an applier schedules, and those that move its windows."""
    return log.rows.select(
        "h",
        "number",
        kind_number(),
        verdict_number(),
        "is_local",
        "sequence_number",
        "last_committed",
        "last_committed_global",
        has_items("write_set").alias("writes"),
        "decided_us",
        "started_us",
        "executed_us",
        "committed_us",
        "worker",
    )


class Lengths(NamedTuple):
    """The pace of each history, as a worker takes it: a row of `constants` each."""

    constants: pl.DataFrame

    def known(self, frames: Frames) -> Frames:
        """Yields rows in order with the `length` of each: its execution time if such times are
        known, else 1; and its `bucket`: which of `BUCKETS` parts of the time if known, else of the
        rows. Rows of one number are in one frame.
        """
        took = pl.coalesce("took_us", "unit")
        since = pl.col("decided_us") - pl.col("begin_us")
        at = (
            pl.when(pl.col("dated"))
            .then(since)
            .otherwise(pl.col("number") - pl.col("first_number"))
        )
        bucket = at.floordiv(pl.col("bucket_size")).clip(0, BUCKETS - 1).fill_null(0)
        length = pl.when(pl.col("measured")).then(took).otherwise(pl.col("unit"))
        for rows in with_shares(frames):
            told = rows.join(self.constants, "h", "left", maintain_order="left")
            yield told.with_columns(length.alias("length"), bucket.alias("bucket"))


def lengths_of(log: Log) -> Lengths:
    """Returns the paces of a log's histories, as a worker takes them."""
    rows = [
        {
            "h": history.h,
            "unit": history.pace.unit,
            "measured": history.pace.measured,
            "dated": history.pace.dated,
            "begin_us": history.pace.first_us or 0,
            "first_number": history.pace.first_number,
            "bucket_size": history.pace.bucket_size,
            "is_given": history.source is Source.BINARY_LOG,
        }
        for history in log.histories
    ]
    return Lengths(pl.DataFrame(rows, schema_overrides={"h": pl.Int32()}))


def by_stamps(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows that an applier schedules by the history's own stamps, and those where a
    window closed; of rows with their `length`.

    Columns: h, number; key, awaited: the stamps; length; alone; counts: whether it is a
    transaction; bucket; closes: null, or the key after which all later rows might begin.
    """
    stamp, committed = pl.col("sequence_number"), pl.col("last_committed")
    view, transaction = is_kind(RecordKind.VIEW_CHANGE), _is_scheduled()
    shut = is_kind(RecordKind.COLLECTION) & (pl.col("last_committed_global") == stamp)
    behind_all = (committed == stamp - 1) & (~pl.col("writes") | pl.col("is_given"))
    return rows.filter(view | transaction | shut).select(
        "h",
        "number",
        pl.when(view).then(0).otherwise(stamp).alias("key"),
        committed.fill_null(0).alias("awaited"),
        pl.when(transaction).then(pl.col("length")).otherwise(0).alias("length"),
        (view | (transaction & (stamp == 0))).alias("alone"),
        transaction.alias("counts"),
        "bucket",
        pl.when(shut).then(stamp).when(transaction & behind_all).then(stamp - 1).alias("closes"),
        stamp.alias("sn"),
        committed.alias("lc"),
    )


def by_writers(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows that an applier would schedule if no item was ever purged; as `by_stamps`.

    Each waits for the last writers of its items, known by their rows' numbers: `follows` of rows
    that tell no more than that. A writer that was local is visible already, as are those before it.
    """
    told = pl.col("kind").is_null()
    followed = rows.filter(told).group_by("number").agg(pl.col("follows").max().alias("awaited"))
    view, transaction = is_kind(RecordKind.VIEW_CHANGE), _is_scheduled()
    scheduled = rows.filter(~told & (view | transaction)).join(
        followed, "number", "left", maintain_order="left"
    )
    return scheduled.select(
        "h",
        "number",
        pl.col("number").alias("key"),
        pl.col("awaited").fill_null(0),
        pl.when(view).then(0).otherwise(pl.col("length")).alias("length"),
        (view | ~pl.col("writes")).alias("alone"),
        (~view).alias("counts"),
        "bucket",
        pl.lit(None, pl.Int64).alias("closes"),
        pl.when(view).then(0).otherwise(pl.col("sequence_number")).alias("sn"),
        pl.col("last_committed").alias("lc"),
    )


def by_all_writers(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows that a replica of all certified transactions would schedule, those included
    that the member's own clients executed; as `by_writers`, with `follows_any`.

    How long a replica would execute these is not known: each takes as long as the others on
    average (`unit`).
    """
    told = pl.col("kind").is_null()
    latest = pl.col("follows_any").max().alias("awaited")
    followed = rows.filter(told).group_by("number").agg(latest)
    view, certified = is_kind(RecordKind.VIEW_CHANGE), pl.col("verdict") == CERTIFIED
    scheduled = rows.filter(~told & (view | certified.fill_null(value=False))).join(
        followed, "number", "left", maintain_order="left"
    )
    length = pl.when(is_remote()).then(pl.col("length")).otherwise(pl.col("unit"))
    return scheduled.select(
        "h",
        "number",
        pl.col("number").alias("key"),
        pl.col("awaited").fill_null(0),
        pl.when(view).then(0).otherwise(length).alias("length"),
        (view | ~pl.col("writes")).alias("alone"),
        (~view).alias("counts"),
        "bucket",
        *[pl.lit(None, pl.Int64).alias(name) for name in ("closes", "sn", "lc")],
    )


def _is_scheduled() -> pl.Expr:
    certified = (pl.col("verdict") == CERTIFIED).fill_null(value=False)
    return certified & is_remote() & pl.col("sequence_number").is_not_null()


@once
def measured_by_stamps(log: Log) -> Sequence[Row]:
    """Measures the parallelism of each stretch by the histories' own stamps; see `measure`."""
    lengths = lengths_of(log)

    def stretches(frames: Frames) -> Frames:
        return measured(by_stamps(rows) for rows in lengths.known(frames))

    return measure(scheduled_rows(log), stretches)


def measure(rows: DataFrame, stretches: Walk) -> Sequence[Row]:
    """Measures the parallelism of each stretch: rows of `MEASURED`, few in number.

    Each stretch has a row for all of it and one for each bucket that it touches. `work` and `path`
    are lengths, `waiting` how many transactions wait for more than `awaited`, `forced` 1 if
    a row in it might wait for less than all before it.
    Cost: one walk over each history; a stretch is in memory as columns of numbers.
    """
    measurements = walk(in_order(rows, ["h"], ["number"]), stretches, MEASURED)
    return sorted(measurements.collect(), key=itemgetter("h", "stretch", "bucket"))


def measured(frames: Frames) -> Frames:
    """Yields `MEASURED` of the stretches of frames that `by_stamps` or `by_writers` has made."""
    cut: Stretches | None = None
    for frame in frames:
        for (h,), rows in frame.group_by("h", maintain_order=True):
            if cut is None or cut.h != h:
                if cut is not None:
                    yield from cut.rest()
                cut = Stretches(int(str(h)))
            yield from cut.take(rows)
    if cut is not None:
        yield from cut.rest()


class Stretches:
    """The walk over one history: rows are held until a stretch of them is whole."""

    def __init__(self, h: int) -> None:
        """Holds nothing yet of the history `h`."""
        self.h = h
        self._held: pl.DataFrame | None = None
        self._count = 0
        self._forced = False
        self._closed = -1
        """Everything since the cut waits for this key at least, or the cut was wrong."""

    def take(self, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Takes the next rows; yields the stretches that end with them."""
        held = rows if self._held is None else pl.concat([self._held, rows])
        while len(held) and held["number"][-1] - held["number"][0] >= STRETCH_ROWS_MAX:
            end = held["number"][0] + STRETCH_ROWS_MAX
            number, closes = _cut(held, end)
            yield self._measured(held.filter(pl.col("number") < number))
            held = held.filter(pl.col("number") >= number)
            self._forced = closes is None
            # What earlier cuts promised holds on, unless a row that runs alone begins this part.
            self._closed = -1 if closes == _ALONE else max(self._closed, closes or -1)
        self._held = held

    def rest(self) -> Iterator[pl.DataFrame]:
        """Yields the last stretch, if there was any row."""
        if self._held is not None:
            yield self._measured(self._held)

    def _measured(self, rows: pl.DataFrame) -> pl.DataFrame:
        work = rows.filter(pl.col("counts") | pl.col("alone"))
        if not len(work):
            return pl.DataFrame(schema=MEASURED)
        alone = np.flatnonzero(work["alone"].to_numpy())
        # Up to the first row that runs alone, which waits for all before it, as all after it wait
        # for it.
        bound = work["awaited"].to_numpy()[: alone[0] if len(alone) else len(work)]
        # A row that waits for less than the key of the cut could have begun before it: the paths of
        # the two parts overlap, and their sum is only an upper bound.
        is_forced = self._forced or bool((bound < self._closed).any())
        # Behind that row no later one can break the promise.
        if len(alone):
            self._closed = -1
        self._count += 1
        return _measure_stretch(work, self._count - 1, is_forced=is_forced)


def _cut(rows: pl.DataFrame, end: int) -> tuple[int, int | None]:
    """Returns the number of the row before which rows are cut, at `end` or before it, and the key
    that all rows from there on wait for: `_ALONE` if the first of them runs alone, None if none is
    known.
    """
    number, alone = rows["number"].to_numpy(), rows["alone"].to_numpy()
    has_closed = rows["closes"].is_not_null().to_numpy()
    closes = rows["closes"].fill_null(0).to_numpy()
    inside = (number > number[0]) & (number <= end)
    certain = np.flatnonzero(inside & alone)
    if len(certain):
        return int(number[certain[-1]]), _ALONE
    bound = (rows["counts"] & ~rows["alone"]).to_numpy()
    awaited = np.where(bound, rows["awaited"].to_numpy(), _NEVER)
    until = np.append(np.flatnonzero(alone), len(rows))[0]
    # The least that any row from here on waits for, as far as rows are held; `_measured` looks at
    # those that come later.
    least = np.minimum.accumulate(awaited[:until][::-1])[::-1]
    valid = np.flatnonzero(inside[:until] & has_closed[:until] & (least >= closes[:until]))
    if len(valid):
        return int(number[valid[-1]]), int(closes[valid[-1]])
    return end, None


def _measure_stretch(rows: pl.DataFrame, stretch: int, *, is_forced: bool) -> pl.DataFrame:
    """Returns the rows of `MEASURED` of one stretch."""

    def column(name: str) -> Ints:
        return rows[name].cast(pl.Int64).fill_null(0).to_numpy()

    counts, lengths = column("counts"), column("length")
    keys, alone = filled(column("key")), rows["alone"].to_numpy()
    waited = waits(keys, column("awaited"), alone)
    path = chain(waited, lengths)
    heights = chain(waited, counts)
    is_counted = counts > 0
    levels = heights[waited]
    _, widths = np.unique(levels[is_counted], return_counts=True)
    begun = filled(column("sn"))
    reached = np.where(waited > 0, begun[waited - 1], begun[0] - 1)
    # Its last_committed is above the number of the last row that it has to wait for.
    waiting = is_counted & (column("lc") > np.maximum(reached, 1)) & ~alone
    head, first = (rows["h"][0], stretch), rows["number"][0]
    total = (
        *head,
        TOTAL,
        first,
        int(counts.sum()),
        int(heights[-1]),
        int(widths.max(initial=0)),
        int(lengths.sum()),
        int(path[-1]),
        epochs(waited, is_counted),
        int(waiting.sum()),
        int(is_forced),
    )
    parts = [
        (*head, bucket, first, *found, *(0 for _ in TOTALS))
        for bucket, *found in _by_bucket(column("bucket")[is_counted], levels[is_counted])
    ]
    return pl.DataFrame([total, *parts], schema=MEASURED, orient="row")


def _by_bucket(buckets: Ints, levels: Ints) -> Iterator[tuple[int, int, int, int]]:
    """Yields each bucket, its transactions, the number of levels and the size of the largest."""
    height = int(levels.max(initial=0)) + 1
    pairs, sizes = np.unique(buckets * height + levels, return_counts=True)
    owners = pairs // height
    for bucket in np.unique(owners).tolist():
        mine = sizes[owners == bucket]
        yield bucket, int(mine.sum()), len(mine), int(mine.max())


def totals(found: Iterable[Row]) -> dict[str, int]:
    """Returns the sums of a history over the rows of its stretches; of `width` the largest."""
    stretches = [row for row in found if row["bucket"] == TOTAL]
    names = ("transactions", "levels", *TOTALS)
    sums = {name: sum(int(row[name]) for row in stretches) for name in names}
    return sums | {"width": max((int(row["width"]) for row in stretches), default=0)}
