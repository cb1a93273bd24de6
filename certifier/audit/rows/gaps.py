"""Gaps of a history: the places where rows are missing by their number."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..spark.walks import Frames, in_order, walk
from .certification_log import Log
from .once import once
from .order import STATE
from .sequence import begins_of
from .states import KEYS, segment, with_states

Gaps = dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]
"""By history, the places before and after each gap, ascending: int64[n]."""
_GAP = pl.Schema({"h": pl.Int32(), "before": pl.Int64(), "after": pl.Int64()})


@once
def gaps_of(log: Log) -> Gaps:
    """Returns the gaps of all histories. If rows have moved, gaps may overlap: each one counts up
    to the end of those before it.

    Cost: a walk over all rows; 16 bytes a gap.
    """
    begins = begins_of(log)

    def wide(frames: Frames) -> Frames:
        for frame in with_states(frames, STATE, begins):
            found = frame.filter(pl.col("number") > pl.col("previous_number") + 1)
            yield found.select("h", before="previous_place", after="place")

    rows = log.rows.select("h", segment(), "number", "place", "version")
    walked = walk(in_order(rows, KEYS, ["number"]), wide, _GAP)
    found = pl.DataFrame(walked.toArrow(), schema=_GAP).sort("h", "before")
    return {
        int(str(h)): (mine["before"].to_numpy(), np.maximum.accumulate(mine["after"].to_numpy()))
        for (h,), mine in found.group_by("h", maintain_order=True)
    }


def in_gap(h: pl.Series, place: pl.Series, gaps: Gaps) -> pl.Series:
    """Returns whether each place lies in a gap of its history.

    Cost: a search among the gaps.
    """
    inside = np.zeros(len(h), np.bool_)
    histories, asked = h.to_numpy(), place.to_numpy()
    for each, (begins, ends) in gaps.items():
        rows = np.flatnonzero(histories == each)
        at = np.searchsorted(begins, asked[rows]) - 1
        inside[rows] = (at >= 0) & (asked[rows] < ends[at])
    return pl.Series("in_gap", inside)
