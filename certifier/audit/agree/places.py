"""The places of a group, each with what its histories have recorded there: a walk over them.

A history takes part between its first and its last row. Most votes say what a place should have;
an export of the group's log outvotes all members: they have copies of what it was made of. Of two,
the later one by name differs.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..rows.critical_path import Ints
from ..rows.gaps import Gaps, in_gap
from ..spark.walks import Frames, whole

PLACE = ("group", "place")
COMPARED = pl.Schema(
    {
        **dict.fromkeys(("h", "other", "open"), pl.Int64()),
        **dict.fromkeys(("places", "differing"), pl.Int64()),
        "is_absent": pl.Boolean(),
        **dict.fromkeys(("place", "model"), pl.Int64()),
    }
)
"""Of each two histories how many places were compared, and at how many they differ; or, of a
history, the first place at which it differs from its `model`, or lacks a row, and how many such
places there are. `open`: 1 of places of which rows may still come.
"""
Flags = NDArray[np.bool_]


class Reach(NamedTuple):
    """The histories of a group by number, ascending: their first and last places, their votes."""

    h: Ints
    first: Ints
    last: Ints
    votes: Ints


class Places(NamedTuple):
    """The walk over the places of groups, in those parts of each in which its histories differ."""

    reach: Mapping[int, Reach]
    suspects: Mapping[int, Sequence[int]]
    gaps: Gaps
    """Where rows are missing by their number: they are no places that a history lacks."""

    def compared(self, frames: Frames) -> Frames:
        """Yields rows of `COMPARED`: pairs of histories, and deviations."""
        for frame in whole(frames, PLACE):
            for (group,), rows in frame.group_by("group", maintain_order=True):
                number = int(str(group))
                mine = rows.filter(pl.col("part").is_in(list(self.suspects[number])))
                if len(mine):
                    told = _Told.of(mine, self.reach[number])
                    yield from told.pairs()
                    yield from told.deviations(self.gaps)


class _Told(NamedTuple):
    """The records of histories at places: arrays of a row a history, a column a place."""

    reach: Reach
    places: Ints
    is_open: Ints
    hashes: Ints
    present: Flags
    here: Flags
    """Whether a history reaches over a place."""

    @classmethod
    def of(cls, rows: pl.DataFrame, reach: Reach) -> "_Told":
        # If a history has a place twice it is not in order, which the job `proof` reports.
        told = rows.group_by("place", "open", "h").agg(pl.col("hash").max())
        places, at = np.unique(told["place"].to_numpy(), return_inverse=True)
        own = np.searchsorted(reach.h, told["h"].to_numpy())
        is_open = np.zeros(len(places), np.int64)
        is_open[at] = told["open"].to_numpy()
        hashes = np.zeros((len(reach.h), len(places)), np.int64)
        hashes[own, at] = told["hash"].to_numpy()
        present = np.zeros(hashes.shape, np.bool_)
        present[own, at] = True
        here = (reach.first[:, None] <= places) & (places <= reach.last[:, None])
        return cls(reach, places, is_open, hashes, present, here)

    def pairs(self) -> Iterator[pl.DataFrame]:
        """Yields the number of places of each two histories that were compared, and that differ."""
        for one, other in combinations(range(len(self.reach.h)), 2):
            either = self.present[one] | self.present[other]
            both = self.here[one] & self.here[other] & either
            differs = both & ~self._alike(one, other)
            for is_open in np.unique(self.is_open).tolist():
                mine = self.is_open == is_open
                yield pl.DataFrame(
                    {
                        "h": int(self.reach.h[one]),
                        "other": int(self.reach.h[other]),
                        "open": is_open,
                        "places": int((both & mine).sum()),
                        "differing": int((differs & mine).sum()),
                    }
                )

    def deviations(self, gaps: Gaps) -> Iterator[pl.DataFrame]:
        """Yields the first place at which each history differs from most others, or lacks a row."""
        count = range(len(self.reach.h))
        shared = self.present & self.here
        votes = np.array(
            [
                sum(
                    self.reach.votes[its] * (shared[mine] & shared[its] & self._alike(mine, its))
                    for its in count
                )
                for mine in count
            ]
        )
        usual = votes.argmax(axis=0)
        judged = votes.max(axis=0) > 0
        expected = self.hashes[usual, np.arange(len(self.places))]
        for mine in count:
            fits = self.present[mine] & (self.hashes[mine] == expected)
            deviates = judged & self.here[mine] & ~fits
            lacks = deviates & ~self.present[mine]
            if lacks.any():
                h = pl.Series(np.full(len(self.places), self.reach.h[mine]))
                lacks &= ~in_gap(h, pl.Series(self.places), gaps).to_numpy()
            for is_absent, those in ((False, deviates & self.present[mine]), (True, lacks)):
                yield self._first(mine, usual, those, is_absent=is_absent)

    def _first(
        self, mine: int, usual: NDArray[np.intp], those: Flags, *, is_absent: bool
    ) -> pl.DataFrame:
        at = np.flatnonzero(those)
        told = pl.DataFrame(
            {
                "open": self.is_open[at],
                "place": self.places[at],
                "model": self.reach.h[usual[at]],
            }
        )
        first = told.group_by("open", maintain_order=True).agg(
            pl.col("place", "model").first(), pl.len().cast(pl.Int64).alias("places")
        )
        h = pl.lit(int(self.reach.h[mine])).alias("h")
        return first.with_columns(h, is_absent=pl.lit(is_absent))

    def _alike(self, one: int, other: int) -> Flags:
        both = self.present[one] & self.present[other]
        alike: Flags = both & (self.hashes[one] == self.hashes[other])
        return alike
