"""Prefixes: up to which version a snapshot that is a GTID set contains everything.

A version is in a set if all its GTIDs are. This is needed for histories in which other snapshots
and the stable sets are versions; in traces all are sets.
"""

from typing import NamedTuple

import numpy as np
import polars as pl
from pyspark.sql import functions as F

from ...history.schema import RecordKind, Source
from ..spark.walks import Frames, walk
from .certification_log import Log
from .critical_path import Ints
from .foreign import Intervals, WholeTo, covers, intervals
from .once import once

_NEVER = 1 << 62
_RUN = pl.Schema(
    {
        "h": pl.Int32(),
        "gtid_source": pl.String(),
        **dict.fromkeys(("first", "last", "version"), pl.Int64()),
    }
)


class Numbers(NamedTuple):
    """The GTIDs of a source that a history executed, in runs: numbers that follow one another,
    whose versions do, too. Ascending by `firsts`: int64[runs]. `versions`: of the first numbers.
    `reach`: the largest of the `lasts` so far. `least`: the least of the versions from a run on;
    int64[runs + 1].
    """

    firsts: Ints
    lasts: Ints
    versions: Ints
    reach: Ints
    least: Ints

    def least_version(self, first: int, last: int | None) -> int:
        """Returns the least version of the numbers from `first` to `last`, None: to the end."""
        begun = int(np.searchsorted(self.firsts, first, "right"))
        # The runs that begin at `first` or before it, and may reach it.
        around = slice(int(np.searchsorted(self.reach, first)), begun)
        found = self.versions[around] + (first - self.firsts[around])
        least = int(found[self.lasts[around] >= first].min(initial=_NEVER))
        if last is None:
            return min(least, int(self.least[begun]))
        within = self.versions[begun : int(np.searchsorted(self.firsts, last, "right"))]
        return min(least, int(within.min(initial=_NEVER)))


class Executed(NamedTuple):
    """The transactions that a history has executed, by source; and versions that stand for sets."""

    sources: dict[str, Numbers]
    elsewhere: list[tuple[int, str]]


@once
def whole_to(log: Log) -> WholeTo:
    """Returns a function of histories and GTID sets: the newest version up to which the set has all
    that the history executed; null in traces, and without a set.

    Cost: a search for each interval of a set; 40 bytes a run, see `Numbers`. A group whose members
    reserve GTIDs in blocks may have one for each transaction, others have few.
    """
    asked = [
        history.h
        for history in log.histories
        if history.source is not Source.TRACE and history.gtid_snapshots
    ]
    executed = _executed(log, asked) if asked else {}

    def newest(h: pl.Series, sets: pl.Series) -> pl.Series:
        known = {
            (each, text): whole(executed[each], text)
            for each, text in set(zip(h, sets, strict=True))
            if text is not None and each in executed
        }
        found = [known.get(asked) for asked in zip(h, sets, strict=True)]
        return pl.Series("whole_to", found, dtype=pl.Int64)

    return newest


def whole(executed: Executed, gtid_set: str) -> int:
    """Returns the newest version up to which a set has all that was executed.

    >>> a = {"h": 0, "gtid_source": "a", "gtid_number": [1, 2, 3], "version": [1, 2, 4]}
    >>> runs = pl.concat(runs_of(iter([pl.DataFrame(a)])))
    >>> executed = Executed({"a": numbers_of(runs)}, [(3, "b:7-9")])
    >>> [whole(executed, each) for each in ("a:1-3", "a:1-2,b:1-9", "b:9", "a:1:3,b:7-9")]
    [2, 3, 0, 1]
    """
    known = intervals(gtid_set)
    missing = [
        _first_missing(numbers, known, source) for source, numbers in executed.sources.items()
    ]
    missing += [version for version, part in executed.elsewhere if not covers(gtid_set, part)]
    return min(missing, default=_NEVER) - 1


def numbers_of(runs: pl.DataFrame) -> Numbers:
    """Returns `Numbers` of the runs of a source, as `runs_of` has made them."""
    joined = _joined(runs)
    firsts, lasts, versions = (joined[each].to_numpy() for each in ("first", "last", "version"))
    least = np.minimum.accumulate(np.append(versions, _NEVER)[::-1])[::-1]
    return Numbers(firsts, lasts, versions, np.maximum.accumulate(lasts), least)


def _first_missing(executed: Numbers, known: Intervals, source: str) -> int:
    """Returns the least version of a number that is in no interval."""
    missing, start = _NEVER, 0
    for first, last in zip(*known.get(source, ((), ())), strict=True):
        if first > start:
            missing = min(missing, executed.least_version(start, first - 1))
        start = last + 1
    return min(missing, executed.least_version(start, None))


def _executed(log: Log, asked: list[int]) -> dict[int, Executed]:
    mine = F.col("h").isin(asked)
    certified = log.certified.where(mine & F.col("gtid_number").isNotNull())
    rows = certified.select("h", "gtid_source", "gtid_number", "version")
    runs = pl.DataFrame(walk(rows, runs_of, _RUN).toArrow(), schema=_RUN)
    found = {h: Executed({}, []) for h in asked}
    for (h, source), of_source in runs.group_by("h", "gtid_source"):
        found[int(str(h))].sources[str(source)] = numbers_of(of_source)
    elsewhere = log.rows.where(mine & (F.col("kind") == RecordKind.EXECUTED_ELSEWHERE))
    for row in elsewhere.select("h", "version", "snapshot_set").collect():
        found[row["h"]].elsewhere.append((row["version"], row["snapshot_set"] or ""))
    return found


def runs_of(frames: Frames) -> Frames:
    """Yields the runs of each frame, apart from those of others."""
    for frame in frames:
        number = pl.col("gtid_number")
        yield _joined(frame.select("h", "gtid_source", "version", first=number, last=number))


def _joined(runs: pl.DataFrame) -> pl.DataFrame:
    """Returns runs, ascending, and as one those of which one follows the other."""
    source = ("h", "gtid_source")
    first, last, version = pl.col("first"), pl.col("last"), pl.col("version")
    goes_on = (
        pl.all_horizontal(pl.col(name) == pl.col(name).shift() for name in source)
        & (first == last.shift() + 1)
        & (version - first == (version - first).shift())
    )
    run = (~goes_on.fill_null(value=False)).cum_sum().alias("run")
    return (
        runs.sort(*source, "first", "version")
        .group_by(*source, run, maintain_order=True)
        .agg(first.first(), last.last(), version.first())
        .drop("run")
    )
