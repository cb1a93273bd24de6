"""The state before each row of a history, without one task that has to read all of it.

A history is cut into segments by the rows' numbers. Within a segment a walk looks back; the driver
computes the state at the begin of each segment, a few bytes a segment.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..spark.walks import Frames, Walk, walk
from .certification_log import Log
from .critical_path import Ints

SEGMENT_ROWS = 1 << 16
KEYS = ("h", "segment")
Number = TypeVar("Number", int, pl.Expr)
States = Mapping[str, pl.Expr]
"""By name, the state that a row leaves behind it; null if it leaves it unchanged."""


def segment() -> Column:
    """Returns the segment that a row is in."""
    return F.floor((F.col("number") - 1) / SEGMENT_ROWS).cast("int").alias("segment")


def segment_of(number: Number) -> Number:
    """Returns the segment that the row of a number is in."""
    return (number - 1) // SEGMENT_ROWS


def with_states(frames: Frames, states: States, begins: pl.DataFrame) -> Frames:
    """Yields the frames with a column for each state: its last value that is not null in an earlier
    row of the same segment, or else at the begin of the segment.

    Args:
        frames: rows in the order of `KEYS` and `number`.
        begins: `KEYS` and each state, see `begins_of_long`.
    """
    known = Begins.of(begins.select(*KEYS, *states))
    left: pl.DataFrame | None = None
    for frame in frames:
        here = known.within(frame)
        if left is not None:
            here = pl.concat([left, here.join(left, KEYS, "anti")])
        held = frame.with_columns(state.alias(_after(name)) for name, state in states.items())
        held = held.join(here, KEYS, "left", maintain_order="left").with_columns(
            pl.col(_after(name))
            .forward_fill()
            .over(KEYS)
            .fill_null(pl.col(name))
            .alias(_after(name))
            for name in states
        )
        yield held.with_columns(
            pl.col(_after(name)).shift(1).over(KEYS).fill_null(pl.col(name)).alias(name)
            for name in states
        ).drop([_after(name) for name in states])
        # A segment that goes on in the next frame begins there with what its last row here has
        # left.
        left = held.tail(1).select(*KEYS, *[pl.col(_after(name)).alias(name) for name in states])


class Begins(NamedTuple):
    """Rows that stand at the begin of segments. A frame has few segments, and a history may have
    millions, so that they are searched for, not joined.
    """

    rows: pl.DataFrame
    keys: Ints

    @classmethod
    def of(cls, rows: pl.DataFrame) -> "Begins":
        """Takes rows with `KEYS`, one a segment, in any order."""
        ordered = rows.sort(KEYS)
        return cls(ordered, _in_one(ordered))

    def within(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Returns the rows of the segments that a frame has rows of."""
        wanted = _in_one(frame.select(KEYS).unique())
        at = np.searchsorted(self.keys, wanted)
        at = at[at < len(self.keys)]
        return self.rows[at[np.isin(self.keys[at], wanted)]]


def _in_one(keys: pl.DataFrame) -> Ints:
    """Returns history and segment of rows as one number each."""
    h: Ints = keys["h"].to_numpy().astype(np.int64)
    in_one: Ints = h << 32 | keys["segment"].to_numpy()
    return in_one


def _after(name: str) -> str:
    return f"_{name}"


def begins_of_long(
    log: Log, rows: DataFrame, states: States, kinds: pl.Schema, prepared: Walk = iter
) -> pl.DataFrame:
    """Returns the state at the begin of each segment that has rows: `KEYS`, and each state, null if
    it has no value yet; and behind `_at` the number of the row that left it. Nothing is known
    before the first segment, so that a log whose histories have one each is not read for it.

    Args:
        rows: with `KEYS` and `number`, in any order.
        kinds: the type of each state.
        prepared: adds the columns that `states` ask for.
    Cost: a pass over the rows; the driver holds a few rows for each segment.
    """
    told = {name: pl.Int64() for name in map(_at, states)}
    schema = pl.Schema({"h": pl.Int32(), "segment": pl.Int32(), **kinds, **told})
    if all(segment_of(history.last_number) == 0 for history in log.histories):
        return pl.DataFrame(schema=schema)

    def last_of_each(frames: Frames) -> Frames:
        for frame in prepared(frames):
            held = frame.select(
                *KEYS, "number", *[state.alias(name) for name, state in states.items()]
            )
            yield held.sort(*KEYS, "number").group_by(KEYS).agg(_lasts(states))

    ended = pl.DataFrame(walk(rows, last_of_each, schema).toArrow(), schema=schema)
    ended = ended.group_by(KEYS).agg(
        # Rows were in no order, so a segment comes in parts: of each state the latest one counts.
        *[pl.col(name).sort_by(_at(name), nulls_last=False).last() for name in states],
        *[pl.col(_at(name)).max() for name in states],
    )
    return (
        ended.sort(KEYS)
        .with_columns(pl.col(name).forward_fill().shift(1).over("h") for name in [*states, *told])
        .select(*KEYS, *states, *told)
    )


def state_rows(begins: pl.DataFrame, firsts: Mapping[int, int]) -> set[tuple[int, int]]:
    """Returns the rows that have left the state at the begin of a segment, by history and number.

    Args:
        begins: see `begins_of_long`.
        firsts: by history the number of a segment's first row.
    """
    numbers = [name for name in begins.columns if name.endswith(_at(""))]
    found = set()
    for (h,), mine in begins.group_by("h"):
        first = firsts.get(int(str(h)), 1)
        here = mine.filter(pl.col("segment") >= segment_of(first)).sort("segment").head(1)
        if first > 1 and len(here):
            told = here.select(numbers).row(0)
            found |= {(int(str(h)), number) for number in told if number is not None}
    return found


def _at(name: str) -> str:
    return f"{name}_at"


def _lasts(states: Sequence[str] | States) -> list[pl.Expr]:
    values = [pl.col(name).drop_nulls().last() for name in states]
    places = [
        pl.col("number").filter(pl.col(name).is_not_null()).last().alias(_at(name))
        for name in states
    ]
    return [*values, *places]
