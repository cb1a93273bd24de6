"""Verify: derives every verdict and every stamp of each history again, and compares.

The expected value at a place is derived from the rows before it as they were recorded, so that one
wrong record is one finding, and its consequences are none.

Two walks do it: over the items, each with the transactions that touched it, which tells rows what
they have to know of them; and over the rows in order, each with the state before it.

Source: WL#8440 (AL1 with its examples), certification and garbage collection.
"""

from typing import NamedTuple

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..answers.findings import Code
from ..answers.result import JsonObject, Result
from ..rows.checks import FOUND, as_kept, from_kept, merged, wrong_rows
from ..rows.consequences import (
    behind_gaps,
    behind_to_keep,
    without_consequences,
)
from ..rows.foreign import WholeTo
from ..rows.items import facts
from ..rows.kept import AuditWhole
from ..rows.keys import has_foreign_snapshots
from ..rows.log import Log
from ..rows.order import order_of_rows
from ..rows.prefixes import whole_to
from ..rows.sequence import (
    Told,
    base_rows,
    begins_of,
    states,
    told_of,
)
from ..rows.states import KEYS, segment, state_rows, with_states
from ..rows.tails import tails_of
from ..spark.walks import Frames, concatenated, in_order, walk, whole
from .blocks import blocks_to_keep, wrong_blocks
from .collections import purge_checks, window_checks
from .decisions import (
    stamp_checks,
    verdict_checks,
    version_check,
    with_expected_verdict,
)
from .gtids import (
    AUDITED_PLACE,
    Elsewhere,
    elsewhere_at,
    gtid_checks,
    intervals_elsewhere,
    intervals_used,
    without_used,
)
from .stable_sets import TOLD_BY, wrong_stable_sets

_ROW = ("h", "number")
_LARGEST = ("dependency", "gtid_used_at", "purged_sequence")
_OUTSIDE = ("outside", "outside_item")
_WRITER = ("outside_source", "outside_number")
"""Columns of a writer outside, in facts; its GTID, where snapshots are GTID sets."""


def run(log: Log) -> Result:
    """Checks verdicts, winners, stamps, windows, view changes and GTIDs of each history."""
    parts = [_wrong_decisions(log), *wrong_stable_sets(log), *wrong_blocks(log)]
    new = without_used(log, concatenated(*parts))
    for each in new.found:
        if each.finding.code is Code.GTID_DUPLICATE and each.high == AUDITED_PLACE:
            raise AuditWhole(f"a GTID is used again ({each.finding.expected})")
    before = log.before("verify")
    found = merged([from_kept(log, before), new])
    behind = behind_gaps(log, found.found, before)
    kept = without_consequences(log, found, behind)
    result = Result([each.finding for each in kept.found], kept.counts)
    result.summary = _summary(log)
    if log.keeps:
        firsts = {h: tail.number for h, tail in tails_of(log).items()}
        result.rows = state_rows(begins_of(log), firsts)
        result.rows |= {(each.h, each.number) for each in new.notes if each.code == TOLD_BY}
        result.kept = {
            **as_kept(found),
            **behind_to_keep(log, behind),
            "blocks": blocks_to_keep(log, new.notes),
        }
    return result


def _wrong_decisions(log: Log) -> DataFrame:
    """Returns the findings of the walk over all rows, which meets a row's facts just before it."""
    writer = _WRITER if has_foreign_snapshots(log) else ()
    names = (*_ROW, *_LARGEST, *_OUTSIDE, *writer, "winner_found", "purged")
    of_rows = facts(log).where(F.col("is_kept").isNull())
    told = of_rows.select(*names, segment(), F.lit(True).alias("is_fact"))
    rows = base_rows(log).withColumn("is_fact", F.lit(False))
    # A fact has no place, and nulls come first: it stands right before its row.
    order = ("number", "place")
    known = _Rows(
        told_of(log),
        begins_of(log),
        whole_to(log),
        intervals_elsewhere(log),
        intervals_used(log),
    )
    return walk(in_order(concatenated(rows, told), KEYS, order), known.findings, FOUND)


class _Rows(NamedTuple):
    """The walk over rows in order, each behind its facts."""

    told: Told
    begins: pl.DataFrame
    whole_to: WholeTo
    elsewhere: Elsewhere
    used: Elsewhere

    def findings(self, frames: Frames) -> Frames:
        """Yields the findings of all checks."""
        checks = [
            *order_of_rows(),
            version_check(),
            *verdict_checks(),
            *stamp_checks(),
            *window_checks(),
            *purge_checks(),
            *gtid_checks(),
        ]
        known = (_with_facts(frame) for frame in whole(frames, (*KEYS, "number")))
        for rows in with_states(self.told.known(known), states(), self.begins):
            known_at = rows.with_columns(
                elsewhere_at(self.elsewhere, rows),
                pl.col("gtid_used_at").fill_null(elsewhere_at(self.used, rows)),
            )
            yield wrong_rows(with_expected_verdict(known_at, self.whole_to), checks)


def _with_facts(frame: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows of a frame with what its facts say of them."""
    outside = [name for name in (*_OUTSIDE, *_WRITER) if name in frame.columns]
    names = (*_LARGEST, *outside, "winner_found", "purged")
    rows = frame.filter(~pl.col("is_fact")).drop(*names, "is_fact")
    told = frame.filter("is_fact").select(*_ROW, *names).sort(*_ROW, *_OUTSIDE)
    met = told.group_by(_ROW).agg(
        *[pl.col(name).max() for name in _LARGEST],
        *[pl.col(name).last() for name in outside],
        pl.col("winner_found").any(),
        pl.col("purged").sum(),
    )
    return rows.join(met, _ROW, "left", maintain_order="left")


def _summary(log: Log) -> JsonObject:
    return {
        "observers": [
            {
                "observer": each.observer,
                "transactions": each.transactions,
                **{verdict.value: count for verdict, count in each.verdicts.items()},
                "begins_late": each.start_version > 0,
                "stamps_checked": each.stamped,
            }
            for each in log.histories
        ]
    }
