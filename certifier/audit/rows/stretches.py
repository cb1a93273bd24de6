"""Stretches: histories cut into parts that follow one another, and what runs at once in each part.

A history is cut only where everything after the cut waits for everything before it, so that the
critical paths of its stretches add up to the exact one of the history. Only about `SEGMENTS` of
such places are cut, whatever the length; an uncut stretch is one group of numbers in one task. A
stretch of more than `STRETCH_ROWS_MAX` rows is cut all the same ("forced"), and that is counted:
then paths and epochs are upper bounds, and the number of those that wait for more is a lower one.
Source: the logical clock of WL#8440 and WL#7165.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, Row

from groupcert.certifier.audit.rows.critical_path import Ints, chain, epochs, filled, waits
from groupcert.certifier.audit.rows.log import History, Log
from groupcert.certifier.audit.spark.arrow import arrow_function
from groupcert.certifier.history.schema import RecordKind, Source, Verdict

SEGMENTS = 1_024
SEGMENT_ROWS_MIN = 20_000
STRETCH_ROWS_MAX = 500_000
"""Rows of a stretch at most: a task needs some 250 bytes of memory for each."""
BUCKETS = 120
TOTAL = -1
"""The bucket that stands for all of a stretch."""

FIELDS = ("h", "stretch", "bucket", "number", "transactions", "levels", "width")
TOTALS = ("work", "path", "epochs", "waiting", "forced")
MEASURED = pa.schema([(name, pa.int64()) for name in FIELDS + TOTALS])
_SCHEMA = ", ".join(f"{name} long" for name in FIELDS + TOTALS)


class Pace(NamedTuple):
    """The numbers of a history's certified transactions: how many, with which stamps and times.

    `remote`: executed by an applier, `stamped`, `timed` and `ticked` of these; `alone`: of these,
    those without write set. The times are of deciding, the sums of execution; None: not known. The
    numbers are those of the first and the last of their rows.
    """

    h: int
    rows: int
    certified: int
    remote: int
    stamped: int
    timed: int
    ticked: int
    alone: int
    first_us: int | None
    last_us: int | None
    work_us: int
    alone_us: int
    first_number: int
    last_number: int

    @property
    def measured(self) -> bool:
        """True if execution times are known, of half of the transactions at least."""
        return self.timed > 0 and 2 * self.timed >= self.remote

    @property
    def unit(self) -> int:
        """Time of a transaction whose time is not known: the mean of the others."""
        return max(self.work_us // self.timed, 1) if self.measured else 1

    @property
    def alone_work(self) -> int:
        """Execution time of those without write set."""
        return self.alone_us if self.measured else self.alone

    @property
    def numbers(self) -> int:
        """Number of rows from the first to the last of them."""
        return self.last_number - self.first_number + 1

    @property
    def dated(self) -> bool:
        """True if the times of the decisions are known."""
        return self.first_us is not None and self.last_us != self.first_us


@cache
def paces(log: Log) -> Mapping[int, Pace]:
    """Returns the pace of each history, by its number. Cost: one pass."""
    remote = is_remote()
    executed = execution_us()
    alone = remote & without_write_set()
    found = (
        log.certified.groupBy("h")
        .agg(
            F.count(F.lit(1)),
            F.count_if(remote),
            F.count_if(remote & F.col("sequence_number").isNotNull()),
            F.count_if(remote & executed.isNotNull()),
            F.count_if(F.col("committed_tick").isNotNull()),
            F.count_if(alone),
            F.min("decided_us"),
            F.max("decided_us"),
            F.coalesce(F.sum(F.when(remote, executed)), F.lit(0)),
            F.coalesce(F.sum(F.when(alone, executed)), F.lit(0)),
            F.min("number"),
            F.max("number"),
        )
        .collect()
    )
    told = {row[0]: row[1:] for row in found}
    nothing = (0, 0, 0, 0, 0, 0, None, None, 0, 0, 0, 0)
    return {
        history.h: Pace(history.h, history.rows, *told.get(history.h, nothing))
        for history in log.histories
    }


def segment_rows(history: History) -> int:
    """Returns how many rows of a history are a segment: about `SEGMENTS` of them, none small."""
    return max(SEGMENT_ROWS_MIN, history.rows // SEGMENTS)


def is_remote() -> Column:
    """Returns whether an applier executed the transaction, not its client."""
    return ~F.coalesce(F.col("is_local"), F.lit(False))


def without_write_set() -> Column:
    """Returns whether a transaction's write set is not known."""
    return F.coalesce(F.size("write_set"), F.lit(0)) <= 0


def execution_us() -> Column:
    """Returns a transaction's time from its start until it was visible; null if not known."""
    took = F.col("committed_us") - F.col("started_us")
    return F.when(took.isNotNull(), F.greatest(took, F.lit(0)))


def length_column(log: Log, told: Mapping[int, Pace]) -> Column:
    """Returns each transaction's length: its execution time if such times are known, else 1."""
    unit = log.by_history(lambda each: told[each.h].unit)
    measured = log.by_history(lambda each: told[each.h].measured)
    return F.when(measured, F.coalesce(execution_us(), unit)).otherwise(unit)


def bucket_column(log: Log, told: Mapping[int, Pace]) -> Column:
    """Returns which of `BUCKETS` parts a row is in: of the time if known, else of the rows."""
    begin = log.by_history(lambda each: told[each.h].first_us or 0)
    dated = log.by_history(lambda each: told[each.h].dated)
    first = log.by_history(lambda each: told[each.h].first_number)
    at = F.when(dated, F.col("decided_us") - begin).otherwise(F.col("number") - first)
    bucket = F.floor(at / log.by_history(lambda each: bucket_size(told[each.h])))
    return F.coalesce(F.least(F.greatest(bucket, F.lit(0)), F.lit(BUCKETS - 1)), F.lit(0))


def bucket_size(pace: Pace) -> int:
    """Returns the length of a bucket, in microseconds or rows."""
    if pace.dated:
        assert pace.first_us is not None and pace.last_us is not None
        return (pace.last_us - pace.first_us) // BUCKETS + 1
    return pace.numbers // BUCKETS + 1


def stamped_rows(log: Log, told: Mapping[int, Pace]) -> DataFrame:
    """Returns the rows that an applier schedules by the history's own stamps, and those where a
    window closed.

    Columns: h, number; key, awaited: the stamps; length; alone; counts: whether it is a
    transaction; bucket; closes: null, or the key after which all later rows might begin.
    """
    view = F.col("kind") == RecordKind.VIEW_CHANGE
    transaction = F.coalesce(F.col("verdict") == Verdict.CERTIFIED, F.lit(False))
    transaction &= is_remote() & F.col("sequence_number").isNotNull()
    shut = (F.col("kind") == RecordKind.COLLECTION) & (
        F.col("last_committed_global") == F.col("sequence_number")
    )
    is_given = log.by_history(lambda each: each.source is Source.BINARY_LOG)
    behind_all = F.col("last_committed") == F.col("sequence_number") - 1
    behind_all &= without_write_set() | is_given
    closes = F.when(shut, F.col("sequence_number")).when(
        transaction & behind_all, F.col("sequence_number") - 1
    )
    return log.rows.where(view | transaction | shut).select(
        "h",
        "number",
        F.when(view, F.lit(0)).otherwise(F.col("sequence_number")).alias("key"),
        F.coalesce("last_committed", F.lit(0)).alias("awaited"),
        F.when(transaction, length_column(log, told)).otherwise(0).alias("length"),
        (view | (transaction & (F.col("sequence_number") == 0))).alias("alone"),
        transaction.alias("counts"),
        bucket_column(log, told).alias("bucket"),
        closes.alias("closes"),
        F.col("sequence_number").alias("sn"),
        F.col("last_committed").alias("lc"),
    )


@cache
def measured_by_stamps(log: Log) -> Sequence[Row]:
    """Returns what runs at once in each stretch by the histories' own stamps; see `measure`."""
    told = paces(log)
    return measure(log, stamped_rows(log, told), told)


def measure(log: Log, rows: DataFrame, told: Mapping[int, Pace]) -> list[Row]:
    """Returns what runs at once in each stretch: rows of `MEASURED`, few in number.

    Each stretch has a row for all of it and one for each bucket that it touches. `work` and `path`
    are lengths, `waiting` how many transactions wait for more than `awaited`, `forced` 1 if
    a row in it might wait for less than all before it.
    Cost: three passes, one of them with a shuffle; a stretch is in memory as columns of numbers.
    """
    cuts = _valid_cuts(rows, _candidates(log, rows))
    forced = {h: _forced_cuts(pace, cuts.get(h, [])) for h, pace in told.items()}
    marks = {h: sorted([*cuts.get(h, []), *mine]) for h, mine in forced.items()}
    begins = {(h, marks[h].index(number) + 1) for h, mine in forced.items() for number in mine}

    def measured(table: pa.Table) -> pa.Table:
        return _measure_stretch(table, begins)

    work = rows.where(F.col("counts") | F.col("alone"))
    return (
        work.withColumn("stretch", ordinal(marks))
        .drop("closes")
        .groupBy("h", "stretch")
        .applyInArrow(measured, _SCHEMA)
        .collect()
    )


def _forced_cuts(pace: Pace, cuts: Iterable[int]) -> list[int]:
    """Returns the numbers at which too long stretches are cut."""
    ends = [pace.first_number, *sorted(cuts), pace.last_number + 1]
    return [
        number
        for begin, end in pairwise(ends)
        for number in range(begin + STRETCH_ROWS_MAX, end, STRETCH_ROWS_MAX)
    ]


def ordinal(marks: Mapping[int, Sequence[int]]) -> Column:
    """Returns how many of its history's marks a row's number has reached; nothing is shuffled."""
    if not any(marks.values()):
        return F.lit(0).cast("long")
    arrays = {h: np.array(sorted(numbers), dtype=np.int64) for h, numbers in marks.items()}

    def reached(h: pa.Array, number: pa.Array) -> pa.Array:
        histories, numbers = h.to_numpy(), number.to_numpy()
        counts = np.zeros(len(numbers), dtype=np.int64)
        for each in np.unique(histories):
            mine = histories == each
            counts[mine] = np.searchsorted(arrays.get(int(each), ()), numbers[mine], "right")
        return pa.array(counts)

    return arrow_function(reached, LongType())(F.col("h").cast("long"), F.col("number"))


class _Cut(NamedTuple):
    """A possible cut, before row `number`; `closes` None: it is certain."""

    number: int
    closes: int | None


def _candidates(log: Log, rows: DataFrame) -> dict[int, list[_Cut]]:
    """Returns for each segment of a history the first row that runs alone, else the first that
    might wait for everything before it.
    """

    alone = F.col("alone")
    found = (
        rows.where(alone | F.col("closes").isNotNull())
        .groupBy("h", F.floor(F.col("number") / log.by_history(segment_rows)).alias("segment"))
        .agg(
            F.min(F.when(alone, F.col("number"))).alias("alone"),
            F.min(F.when(~alone, F.struct("number", "closes"))).alias("shut"),
        )
        .collect()
    )
    cuts: dict[int, list[_Cut]] = {}
    for row in found:
        shut = row["shut"]
        cut = _Cut(row["alone"], None) if row["alone"] else _Cut(shut["number"], shut["closes"])
        cuts.setdefault(row["h"], []).append(cut)
    return {h: sorted(each) for h, each in cuts.items()}


def _valid_cuts(rows: DataFrame, candidates: Mapping[int, list[_Cut]]) -> dict[int, list[int]]:
    """Returns the cuts after which nothing waits for less than everything before."""
    numbers = {h: [cut.number for cut in cuts] for h, cuts in candidates.items()}
    if all(cut.closes is None for cuts in candidates.values() for cut in cuts):
        return numbers
    least: dict[tuple[int, int], int] = {
        (row["h"], row["stretch"]): row["awaited"]
        for row in rows.where(F.col("counts") & ~F.col("alone"))
        .withColumn("stretch", ordinal(numbers))
        .groupBy("h", "stretch")
        .agg(F.min("awaited").alias("awaited"))
        .collect()
    }
    valid: dict[int, list[int]] = {}
    for h, cuts in candidates.items():
        following: int | None = None
        for place, cut in reversed(list(enumerate(cuts, 1))):
            here = least.get((h, place))
            if here is not None:
                following = here if following is None else min(following, here)
            if cut.closes is None or following is None or following >= cut.closes:
                valid.setdefault(h, []).append(cut.number)
            if cut.closes is None:
                following = None
    return valid


def _measure_stretch(table: pa.Table, forced: Collection[tuple[int, int]]) -> pa.Table:
    """Returns the rows of `MEASURED` of one stretch. `forced`: histories and stretches that begin
    at a forced cut.
    """
    table = table.sort_by("number")

    def column(name: str) -> Ints:
        return cast(Ints, table.column(name).to_numpy())

    counts, lengths = column("counts").astype(np.int64), column("length").astype(np.int64)
    keys, buckets = filled(column("key")), column("bucket")
    alone = column("alone").astype(np.bool_)
    waited = waits(keys, column("awaited"), alone)
    path = chain(waited, lengths)
    heights = chain(waited, counts)
    is_counted = counts > 0
    levels = heights[waited]
    _, widths = np.unique(levels[is_counted], return_counts=True)
    begun = filled(column("sn"))
    reached = np.where(waited > 0, begun[waited - 1], begun[0] - 1)
    waiting = is_counted & (column("lc") > np.maximum(reached, 1)) & ~alone
    head = (int(column("h")[0]), int(column("stretch")[0]))
    first = int(column("number")[0])
    total = (
        *(*head, TOTAL, first, int(counts.sum()), int(heights[-1]), int(widths.max(initial=0))),
        *(int(lengths.sum()), int(path[-1]), epochs(waited, is_counted), int(waiting.sum())),
        int(head in forced),
    )
    parts = [
        (*head, bucket, first, *measured, *(0 for _ in TOTALS))
        for bucket, *measured in _by_bucket(buckets[is_counted], levels[is_counted])
    ]
    columns = zip(*[total, *parts], strict=True)
    return pa.table([pa.array(each, pa.int64()) for each in columns], schema=MEASURED)


def _by_bucket(buckets: Ints, levels: Ints) -> Iterator[tuple[int, int, int, int]]:
    """Yields each bucket, its transactions, the number of levels and the size of the largest."""
    height = int(levels.max(initial=0)) + 1
    pairs, sizes = np.unique(buckets * height + levels, return_counts=True)
    owners = pairs // height
    for bucket in np.unique(owners).tolist():
        mine = sizes[owners == bucket]
        yield bucket, int(mine.sum()), len(mine), int(mine.max())


def totals(measured: Iterable[Row]) -> dict[str, int]:
    """Returns the sums of a history over the rows of its stretches; of `width` the largest."""
    stretches = [row for row in measured if row["bucket"] == TOTAL]
    names = ("transactions", "levels", *TOTALS)
    sums = {name: sum(int(row[name]) for row in stretches) for name in names}
    return sums | {"width": max((int(row["width"]) for row in stretches), default=0)}
