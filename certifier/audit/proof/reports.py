"""The chains that members reported to the group, compared with their histories.

Somebody who edits a row and chains the rest anew is found by the chains that the members exchanged
while the group ran: the other histories have them.

A member reports nothing before it has joined, and nothing about a history that began later: one
whose store was lost reads on from the log's beginning, over the places of the history before. Until
it has joined again nothing was reported about that.
"""

from typing import NamedTuple

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ...history.schema import RecordKind, Source
from ..answers.findings import Code
from ..rows.checks import FOUND, Check, notes, words, wrong_rows
from ..rows.gaps import Gaps, in_gap
from ..rows.histories import History
from ..rows.log import Log
from ..spark.walks import Frames, concatenated, in_order, walk, whole
from .links import hexadecimal_of

COMPARED, BEHIND, CUT, UNKNOWN = "compared", "behind", "cut", "unknown"
"""Notes, by history: how many of its places were reported and compared (`low`); how many that are
behind its end and that of its member's other histories; and the last of these that was told before
the files were listed, since a log that is read while it is written may lack what was told later;
and whether a place was reported whose row was not kept.
"""
_PLACE = ("place", "observer", "group")
_TOLD = (*_PLACE, "told")


def wrong_reports(log: Log, gaps: Gaps) -> DataFrame:
    """Returns the findings about chains that members reported, but for those in gaps; and notes.

    Of rows and reports that were both audited before, nothing is told again.
    """
    group = log.by_history(_group).alias("group")
    is_new = (F.col("number") > log.by_history(lambda each: each.since)).alias("is_new")
    report = F.col("kind") == RecordKind.REPORT
    told = log.rows.where(report & F.col("reported_chain").isNotNull()).select(
        group,
        F.col("origin").alias("observer"),
        F.col("reported_place").alias("place"),
        F.col("reported_chain").alias("told"),
        F.col("place").alias("told_place"),
        F.col("decided_us").alias("told_us"),
        log.by_history(lambda each: each.observer).alias("recorder"),
        is_new,
    )
    own = log.rows.select(group, "observer", "place", "h", "number", "chain", is_new)
    rows = in_order(concatenated(own, told), _PLACE, ["number", "told_place"])
    return walk(rows, _Reports(_members(log), gaps, log.opened_us).findings, FOUND)


def _members(log: Log) -> pl.DataFrame:
    """Returns the histories that members have written, with columns to match reports to them."""
    rows = [
        (
            *(each.h, _group(each), each.observer, each.first_place, each.last_place),
            *(each.first_us, -1 if each.joined_place is None else each.joined_place),
            *((each.before.whole_place, each.before.last_place) if each.before else (0, -1)),
        )
        for each in log.histories
        if each.source is Source.MEMBER and not _is_before_joining(each)
    ]
    columns = {
        "h": pl.Int32(),
        "group": pl.String(),
        "observer": pl.String(),
        **dict.fromkeys(("first_place", "last_place", "first_us", "joined_place"), pl.Int64()),
        **dict.fromkeys(("whole_place", "audited_to"), pl.Int64()),
    }
    return pl.DataFrame(rows, schema=columns, orient="row")


def _group(history: History) -> str:
    """Returns the group whose members may report about a history; if unknown, one of its own."""
    return history.group_source or f"of history {history.h}"


def _is_before_joining(history: History) -> bool:
    """Returns whether a history's member reads the log from the beginning, and has not reached its
    own joining.
    """
    reads_anew = history.start is not None and not history.start_version
    return reads_anew and history.joined_place is None


class _Reports(NamedTuple):
    """The walk over places, each with the rows that histories have there, and what was reported."""

    members: pl.DataFrame
    gaps: Gaps
    opened_us: int

    def findings(self, frames: Frames) -> Frames:
        """Yields findings and notes."""
        for frame in whole(frames, _PLACE):
            told = frame.filter(pl.col("told").is_not_null())
            if not len(told):
                continue
            compared = self._compared(frame.filter(pl.col("told").is_null()), told)
            inside = compared.with_columns(in_gap(compared["h"], compared["place"], self.gaps))
            yield wrong_rows(inside.filter("is_new"), [_check()])
            is_not_kept = pl.col("told_new") & (pl.col("place") < pl.col("whole_place"))
            asks = pl.col("place") >= pl.col("first_place")
            yield notes(UNKNOWN, inside.filter(is_not_kept & asks).head(1).select("h", "place"))
            latest, place = pl.col("latest"), pl.col("place")
            behind = (place > latest) & (pl.col("last_place") == latest)
            is_cut = behind & (pl.col("told_us") < self.opened_us).fill_null(value=True)
            for code, those in ((COMPARED, place <= pl.col("last_place")), (BEHIND, behind)):
                counts = compared.filter(those).group_by("h").agg(place.n_unique().alias("low"))
                yield notes(code, counts)
            last = compared.filter(is_cut).sort("place", "told").group_by("h").last()
            yield notes(
                CUT,
                last.with_columns(
                    expected=hexadecimal_of(pl.col("told")),
                    witness=pl.col("recorder").list.join(", "),
                ),
            )

    def _compared(self, rows: pl.DataFrame, told: pl.DataFrame) -> pl.DataFrame:
        """Returns each chain that was reported, for each history that it can be about, with its row
        at the place: `number` is 0 if the history has none. `known`: whether any history has it;
        `latest`: where the last of these histories ends.
        """
        reported = told.group_by(_TOLD).agg(
            pl.col("told_place", "told_us").min(),
            pl.col("recorder").unique().sort(),
            pl.col("is_new").any().alias("told_new"),
        )
        candidates = reported.join(self.members, ["group", "observer"])
        # What its member had reported before it joined with this history is about an earlier one.
        is_later = pl.col("told_place") > pl.col("joined_place")
        is_later &= (pl.col("told_us") >= pl.col("first_us")).fill_null(value=True)
        candidates = candidates.filter(is_later & (pl.col("place") >= pl.col("first_place")))
        compared = candidates.join(
            rows.select("h", "place", "number", "chain", "is_new"), ["h", "place"], "left"
        )
        has_it = (pl.col("chain") == pl.col("told")).fill_null(value=False)
        return compared.with_columns(
            pl.col("number").fill_null(0),
            (
                pl.col("told_new")
                | pl.col("is_new").fill_null(value=False)
                | (pl.col("place") > pl.col("audited_to"))
            ).alias("is_new"),
            has_it.any().over(_TOLD).alias("known"),
            pl.col("last_place").max().over(_TOLD).alias("latest"),
        )


def _check() -> Check:
    inside = pl.col("place") <= pl.col("last_place")
    is_missing = (pl.col("number") == 0) & pl.col("in_gap")
    return Check(
        Code.REPORT_WRONG,
        inside & ~pl.col("known") & ~is_missing,
        hexadecimal_of(pl.col("told")),
        hexadecimal_of(pl.col("chain")).fill_null("no row"),
        words("so it was recorded in the histories of ", pl.col("recorder").list.join(", ")),
    )
