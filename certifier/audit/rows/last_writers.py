"""The last writer of each row's key, among rows sorted by key and number."""

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from .critical_path import Ints
from .keys import ITEM, KEY


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
