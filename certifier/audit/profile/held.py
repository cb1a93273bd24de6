"""Items that the certification info held over time: those that were written and not yet purged.

A certification info that only grows is a member that has not executed, or a snapshot that is old.
An item enters with a write if it had no writer, or if a collection reached its last writer before;
it leaves with the collection that reaches its last writer.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import polars as pl

from ..answers.result import JsonObject
from ..rows.critical_path import Ints
from ..rows.pace import BUCKETS
from ..rows.surveyed_history import History

ENTERED = pl.Schema(dict.fromkeys(("part", "entered"), pl.Int64()))
_WRITER = pl.Schema(dict.fromkeys(("item", "number", "version", "part"), pl.Int64()))


class Parts(NamedTuple):
    """Equal parts of a history's time, `BUCKETS` of them."""

    first_us: int
    size_us: int

    def of(self, decided_us: pl.Expr) -> pl.Expr:
        """Returns the part of a time."""
        return ((decided_us - self.first_us) // self.size_us).clip(0, BUCKETS - 1)


def parts_of(history: History) -> Parts:
    """Returns the parts of a history's time."""
    first, last = history.first_us or 0, history.last_us or 0
    return Parts(first, (last - first) // BUCKETS + 1)


def is_known(history: History) -> bool:
    """Returns whether the log has times, and each collection the version that it reached."""
    numbers, _ = history.collections
    return history.first_us is not None and len(numbers) >= history.collected["collections"]


def entered(writers: Iterator[pl.DataFrame], collections: tuple[Ints, Ints]) -> pl.DataFrame:
    """Counts the items that entered the certification info, by part.

    Args:
        writers: frames of `item`, `number`, `version` and `part`, by item and number.
        collections: the numbers of their rows, ascending, and the versions that they reached.
    """
    numbers, versions = collections
    reached = np.maximum.accumulate(np.concatenate([np.full(1, -1, np.int64), versions]))
    left = pl.DataFrame(schema=_WRITER)
    counts = pl.DataFrame(schema=ENTERED)
    for frame in writers:
        both = pl.concat([left, frame.select(list(_WRITER))])
        met = reached[np.searchsorted(numbers, both["number"].to_numpy())]
        is_held = (pl.col("item") == pl.col("item").shift(1)) & (pl.col("version").shift(1) > met)
        new = both.with_columns(is_held=is_held.fill_null(value=False)).tail(len(frame))
        mine = new.filter(~pl.col("is_held") & pl.col("part").is_not_null()).group_by("part")
        counts = _added(pl.concat([counts, mine.agg(pl.len().cast(pl.Int64).alias("entered"))]))
        left = both.tail(1)
    return counts


def _added(counts: pl.DataFrame) -> pl.DataFrame:
    return counts.group_by("part").agg(pl.col("entered").sum())


def by_part(
    history: History, entries: pl.DataFrame, collections: Counter[int], purged: Counter[int]
) -> JsonObject | None:
    """Returns the items held at the end of each part, and its collections; None: not known.

    `since_start`: what was held before the history's first row is not known: numbers are relative
    to the least.

    Args:
        entries: rows of `ENTERED`.
        collections: how many there were, by part.
        purged: how many items these purged, by part.
    """
    if not is_known(history):
        return None
    new: Counter[int] = Counter()
    for part, count in entries.rows():
        new[part] += count
    parts, held = range(BUCKETS), 0
    series = [held := held + new[part] - purged[part] for part in parts]
    since_start = not (history.start is not None and history.start_version == 0)
    lift = -min(0, *series) if since_start else 0
    window = parts_of(history)
    return {
        "observer": history.observer,
        "history": history.history,
        "begin_us": window.first_us,
        "bucket_us": window.size_us,
        "since_start": since_start,
        "held": [count + lift for count in series],
        "entered": [new[part] for part in parts],
        "purged": [purged[part] for part in parts],
        "collections": [collections[part] for part in parts],
    }
