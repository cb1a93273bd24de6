"""Gaps of a history: the places where rows are missing by their number."""

from functools import cache

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from groupcert.certifier.audit.rows.log import Log
from groupcert.certifier.audit.rows.sequence import walked
from groupcert.certifier.audit.spark.arrow import ColumnFunction, arrow_function


@cache
def is_in_gap(log: Log) -> ColumnFunction:
    """Returns a function of history and place: whether the place lies in a gap.

    Cost: a pass over all rows; then a search among the gaps.
    """
    wide = walked(log).where(F.col("number") > F.col("previous_number") + 1)
    found = wide.select("h", F.col("previous_place").alias("before"), F.col("place").alias("after"))
    table = found.orderBy("h", "before").toArrow()
    h, before, after = (table[name].to_numpy() for name in ("h", "before", "after"))
    # If rows have moved, gaps may overlap: each one counts up to the end of those before it.
    gaps = {
        int(each): (before[h == each], np.maximum.accumulate(after[h == each]))
        for each in np.unique(h)
    }

    def is_inside(histories: pa.Array, places: pa.Array) -> pa.Array:
        mine, asked = (each.to_numpy(zero_copy_only=False) for each in (histories, places))
        inside = np.zeros(len(asked), np.bool_)
        for each, (begins, ends) in gaps.items():
            rows = np.flatnonzero(mine == each)
            at = np.searchsorted(begins, asked[rows]) - 1
            inside[rows] = (at >= 0) & (asked[rows] < ends[at])
        return pa.array(inside)

    if not gaps:
        return lambda *_: F.lit(False)
    return arrow_function(is_inside, BooleanType())
