"""GTIDs: none is given twice, none is skipped.

Assigned one by one, the next number is the smallest free one. A number is not free if a transaction
came with it as its own GTID, or if it was executed elsewhere. Those assigned in blocks are in
`blocks.py`.

Soundness: a gap is reported if the first or the last number of the skipped ones was free.
Completeness: free numbers between used ones are not searched.

Source: WL#8440.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ...history.schema import RecordKind
from ..answers.findings import Code
from ..rows.certification_log import Log
from ..rows.checks import (
    FOUND,
    Check,
    FoundAll,
    collected,
    merged,
    words,
)
from ..rows.coded_columns import CERTIFIED
from ..rows.foreign import intervals
from ..rows.once import once
from ..spark.walks import Frames, concatenated, in_order, walk

Elsewhere = Mapping[tuple[int, str], tuple[NDArray[np.int64], ...]]
"""The intervals of GTIDs executed elsewhere, by history and source: first numbers, last numbers,
and the places from which on they are known; int64[n], ascending by number.
"""
AUDITED_PLACE = 0
"""Stands for the place of a row that is not kept; no transaction has it."""
_GTID = ("h", "gtid_source", "gtid_number")


def gtid_checks() -> list[Check]:
    """Returns the checks that no GTID is given twice, for rows with `gtid_used_at` and
    `elsewhere_at`, and that numbers assigned one by one follow each other.
    """
    certified = pl.col("verdict") == CERTIFIED
    given = pl.col("decided") & certified & pl.col("is_assigned")
    given &= pl.coalesce("met_block_size", "told_block_size") == 1
    given &= pl.col("met_gtid") >= 0
    number, met = pl.col("gtid_number"), pl.col("met_gtid")
    before = pl.min_horizontal("gtid_used_at", "elsewhere_at")
    name = words(pl.col("gtid_source"), ":", number)
    return [
        Check(
            Code.GTID_DUPLICATE,
            certified & (before < pl.col("place")),
            words("one transaction ", name),
            pl.lit("2 transactions"),
            words(name, " was given before, at place ", before),
            number,
            before,
        ),
        Check(
            Code.GTID_GAP,
            given & (number > met + 1),
            met + 1,
            number,
            given_before(met),
            met + 1,
            number - 1,
        ),
        Check(
            Code.GTID_ORDER,
            given & (number <= met),
            met + 1,
            number,
            given_before(met),
            number,
        ),
    ]


def given_before(met: pl.Expr) -> pl.Expr:
    """Returns the witness of a number that does not follow."""
    return words("the number given before is ", met)


def without_used(log: Log, wrong: DataFrame) -> FoundAll:
    """Collects findings, without the gaps that begin and end with numbers that were used before.

    Cost: another pass over the rows, if there is any gap.
    """
    found = collected(log, wrong)
    count = found.counts.pop(Code.GTID_GAP.value, 0)
    if not count:
        return found
    others = [each for each in found.found if each.finding.code is not Code.GTID_GAP]
    gaps = collected(log, _unused(log, wrong.where(F.col("code") == Code.GTID_GAP.value)))
    return merged([FoundAll(others, found.counts), gaps])._replace(notes=found.notes)


def _unused(log: Log, gaps: DataFrame) -> DataFrame:
    """Returns the gaps of which one end was free.

    Each end is asked for in a walk over GTIDs, which meets whoever was given it. A history that
    begins late does not show what was used before: there a number was free only if it is used
    later.
    """
    ends = gaps.select(
        "*", F.explode(F.array_distinct(F.array("low", "high"))).alias("gtid_number")
    )
    group = log.by_history(lambda history: history.group_source or "")
    asked = ends.withColumn("gtid_source", group).withColumn("is_asked", F.lit(True))
    given = log.certified.select(*_GTID, F.col("place"), F.lit(False).alias("is_asked"))
    keys = ("gtid_number", "h")
    rows = in_order(concatenated(asked, given), keys, ("gtid_source", "is_asked", "place"))
    late = [history.h for history in log.histories if history.start_version > 0]
    ends_of = _FreeEnds(intervals_elsewhere(log), intervals_used(log), late)
    free = walk(rows, ends_of.free, FOUND)
    return free.dropDuplicates(["h", "number"])


class _FreeEnds(NamedTuple):
    """The walk over GTIDs, each with the transactions that were given it before those that ask."""

    elsewhere: Elsewhere
    used: Elsewhere
    late: list[int]
    """The histories that begin late."""

    def free(self, frames: Frames) -> Frames:
        """Yields the rows whose number was free."""
        given: pl.DataFrame | None = None
        for frame in frames:
            both = frame if given is None else pl.concat([given, frame])
            is_given = ~pl.col("is_asked")
            first = (
                both.filter(is_given).group_by(_GTID).agg(pl.col("place").min().alias("used_at"))
            )
            asked = both.filter("is_asked").join(first, _GTID, "left", nulls_equal=True)
            asked = asked.with_columns(
                elsewhere_at(self.elsewhere, asked),
                elsewhere_at(self.used, asked).alias("kept_at"),
            )
            used_at = pl.min_horizontal("used_at", "elsewhere_at", "kept_at")
            used = (used_at < pl.col("place")).fill_null(value=False)
            not_shown = pl.col("h").is_in(self.late) & used_at.is_null()
            yield asked.filter(~(used | not_shown)).select(list(FOUND))
            last = frame.row(-1, named=True)
            is_last = pl.all_horizontal(pl.col(name).eq_missing(last[name]) for name in _GTID)
            # Those that ask for the frame's last GTID may come in the next one.
            given = both.filter(is_given & is_last)


@once
def intervals_elsewhere(log: Log) -> Elsewhere:
    """Returns the intervals of GTIDs that histories know to be executed elsewhere.

    Cost: 24 bytes an interval.
    """
    if not any(history.elsewhere for history in log.histories):
        return {}
    rows = log.rows.where(F.col("kind") == RecordKind.EXECUTED_ELSEWHERE)
    known: dict[tuple[int, str], list[tuple[int, int, int]]] = {}
    for row in rows.select("h", "place", "snapshot_set").collect():
        for source, ends in intervals(row["snapshot_set"] or "").items():
            for first, last in zip(*ends, strict=True):
                known.setdefault((row["h"], source), []).append((first, last, row["place"]))
    return {key: tuple(np.array(sorted(each), np.int64).T.copy()) for key, each in known.items()}


def intervals_used(log: Log) -> Elsewhere:
    """Returns the intervals of GTIDs that were used in rows which an audit before has seen; their
    place is `AUDITED_PLACE`.
    """
    found = {}
    for history in log.histories:
        for source, intervals_of in (history.before.used if history.before else {}).items():
            first, last = np.array(intervals_of, np.int64).reshape(-1, 2).T.copy()
            found[history.h, source] = first, last, np.full(len(first), AUDITED_PLACE)
    return found


def elsewhere_at(elsewhere: Elsewhere, rows: pl.DataFrame) -> pl.Series:
    """Returns the place at which each row's GTID became known to be executed elsewhere; null if it
    did not.

    Cost: a search in the intervals of its source.
    """
    h, source, number = (rows[name] for name in _GTID)
    found = np.full(len(rows), -1, np.int64)
    asked = number.fill_null(0).to_numpy()
    for (each, name), (first, last, place) in elsewhere.items():
        mine = np.flatnonzero(((h == each) & (source == name)).fill_null(value=False).to_numpy())
        at = np.searchsorted(first, asked[mine], "right") - 1
        inside = (at >= 0) & (asked[mine] <= last[at])
        found[mine[inside]] = place[at[inside]]
    return pl.Series("elsewhere_at", found).replace(-1, None)
