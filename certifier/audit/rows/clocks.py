"""Resets of a history's logical clock: numbers before and after one cannot be compared.

A clock begins again when a member joins, and when a process continues a history anew. It has also
begun again if files are missing after which numbers are not greater than before: one of these
events is among the missing rows.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from .surveyed_history import History

Resets = dict[int, NDArray[np.int64]]
"""By history, the numbers of rows at which its clock began again, ascending."""


def resets_of(histories: Sequence[History]) -> Resets:
    """Returns the resets of the histories that have any."""
    return {
        history.h: np.array(history.resets, np.int64) for history in histories if history.resets
    }


def clock(h: pl.Series, number: pl.Series, resets: Resets) -> pl.Series:
    """Returns the number of resets of each row's clock up to row `number` of its history.

    Cost: O(log resets) a row, of histories that have any.
    """
    begun = np.zeros(len(h), np.int64)
    histories, numbers = h.to_numpy(), number.to_numpy()
    for history, at in resets.items():
        mine = histories == history
        begun[mine] = np.searchsorted(at, numbers[mine], "right")
    return pl.Series("clock", begun)
