"""A sample of a history as a trace, for `groupcert whatif`: what would more workers bring?

The rule it keeps: nothing here schedules. The sample is contiguous and bounded, and has what an
applier executed. Its transactions get GTIDs of their own, 1, 2, ..., so that a snapshot is a range;
of a snapshot before the sample nothing is left. Keys of rows are in it where the log has them; an
item without one is a row of the table `unknown`.
"""

import gzip
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import polars as pl
from pyspark.sql import Row
from pyspark.sql import functions as F

from ...history.schema import RecordKind, Verdict
from ..rows.certification_log import Log
from ..rows.coded_columns import is_remote
from ..rows.critical_path import Ints
from ..rows.stretches import lengths_of
from ..rows.surveyed_history import History
from ..spark.walks import Frames, in_order, walk

ROWS_MAX = 100_000
ITEMS_MAX = 1_000_000
"""Items that the transactions of a sample wrote, but for one that alone wrote more."""
KEY_BYTES = 64
"""A longer key counts as several items: the driver holds them all."""
SOURCE = "00000000-0000-4000-8000-000000000001"
"""Of the GTIDs in a sample."""
_NUMBERS = ("commit_parent", "commit_id", "domain_id", "duration_us")
_SAMPLED = pl.Schema(
    {
        **dict.fromkeys(("number", "version", "snapshot_version"), pl.Int64()),
        "origin": pl.String(),
        "write_set": pl.List(pl.Int64),
        **dict.fromkeys(("write_keys", "databases", "members"), pl.List(pl.String)),
        **dict.fromkeys(_NUMBERS, pl.Int64()),
        "view_id": pl.String(),
        "view": pl.Boolean(),
    }
)
_MADE = ("view", "duration_us")


class Sample(NamedTuple):
    """A trace, compressed; how many transactions it has, and whether it names tables or databases
    of any.
    """

    trace: bytes
    transactions: int
    has_tables: bool


def sample(log: Log, history: History) -> Sample:
    """Returns a trace of the middle of a history."""
    rows = sampled_rows(log, history)
    return Sample(
        gzip.compress("".join(f"{line}\n" for line in lines(rows)).encode(), 6),
        sum(row["view"] is False for row in rows),
        any(row["write_keys"] or row["databases"] for row in rows),
    )


def sampled_rows(log: Log, history: History) -> Sequence[Row]:
    """Brings the middle of a history to the driver; less of it where there are many items."""
    pace, lengths = history.pace, lengths_of(log)
    first = pace.first_number + max(0, (pace.numbers - ROWS_MAX) // 2)
    stretch = (F.col("h") == history.h) & F.col("number").between(first, first + ROWS_MAX - 1)
    rows = log.rows.where(stretch).select(
        "h",
        "kind",
        "verdict",
        "is_local",
        "started_us",
        "executed_us",
        "committed_us",
        "decided_us",
        "worker",
        *[name for name in _SAMPLED if name not in _MADE],
    )

    def sampled(frames: Frames) -> Frames:
        left, is_first = ITEMS_MAX, True
        for frame in lengths.known(frames):
            sizes = frame.select(_size()).to_series().to_numpy()
            # The first row of all is taken whatever its size: an empty sample would tell nothing.
            taken = rows_within(sizes, left) if is_first or sizes[0] <= left else 0
            yield _as_sampled(frame.head(taken))
            left, is_first = left - int(sizes[:taken].sum()), False
            if taken < len(frame):
                return

    found = walk(in_order(rows, ["h"], ["number"]), sampled, _SAMPLED)
    return sorted(found.collect(), key=itemgetter("number"))


def _as_sampled(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the view changes, and what an applier executed, with what a trace has of them."""
    view = (pl.col("kind") == RecordKind.VIEW_CHANGE.value).alias("view")
    transaction = (pl.col("verdict") == Verdict.CERTIFIED.value) & is_remote()
    length = pl.when("measured").then("length").alias("duration_us")
    return rows.filter(view | transaction).with_columns(view, length).select(list(_SAMPLED))


def _size() -> pl.Expr:
    """Returns the number of items that a transaction wrote; more, if their keys are long."""
    long = pl.col("write_keys").list.eval(pl.element().str.len_bytes()).list.sum() // KEY_BYTES
    return pl.max_horizontal(pl.col("write_set").list.len(), long, pl.lit(0)).cast(pl.Int64)


def rows_within(sizes: Ints, items_max: int) -> int:
    """Returns the number of rows, from the first on, that have at most `items_max` items together;
    at least one.

    >>> rows_within(np.array([2, 3, 4]), 8), rows_within(np.array([9, 1]), 8)
    (2, 1)
    """
    return max(int(np.searchsorted(np.cumsum(sizes), items_max, side="right")), 1)


def lines(rows: Iterable[Row]) -> Iterator[str]:
    """Yields the lines of a trace for the transactions and view changes of an applier."""
    versions: list[int] = []
    for row in rows:
        if row["view"]:
            members = row["members"] or []
            line = {"type": "view_change", "view_id": row["view_id"], "members": members}
        else:
            snapshot = row["snapshot_version"]
            read = len(versions) if snapshot is None else bisect_right(versions, snapshot)
            versions.append(row["version"])
            line = {
                "type": "transaction",
                "member": row["origin"] or "source",
                "gtid": f"{SOURCE}:{len(versions)}",
                "snapshot_version": f"{SOURCE}:1-{read}" if read else "",
                "write_set": _items(row["write_set"] or [], row["write_keys"] or []),
            }
            line |= {name: row[name] for name in _NUMBERS if row[name] is not None}
            if row["databases"] is not None:
                line["databases"] = row["databases"]
        yield json.dumps(line, separators=(",", ":"))


def _items(items: list[int], keys: list[str]) -> list[str]:
    """Returns the items of a row as a trace has them."""
    named = dict(zip(items, keys, strict=True)) if keys else {}
    return [named.get(item) or f"unknown/{item % (1 << 64):016x}" for item in items]
