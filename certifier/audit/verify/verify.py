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

from ...history.schema import RecordKind
from ..answers.findings import Code
from ..answers.result import JsonObject, Result
from ..rows.certification_log import Log
from ..rows.checks import (
    FOUND,
    Check,
    as_kept,
    from_kept,
    is_true,
    item_name,
    merged,
    words,
    wrong_rows,
)
from ..rows.coded_columns import CERTIFIED, CONFLICT, REFUSED, TOO_OLD, is_kind, verdict_name
from ..rows.consequences import (
    behind_gaps,
    behind_to_keep,
    without_consequences,
)
from ..rows.foreign import WholeTo, named, subsets
from ..rows.items import facts
from ..rows.kept import AuditWhole
from ..rows.keys import has_foreign_snapshots
from ..rows.order import makes_version, order_of_rows
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
from .gtids import (
    AUDITED_PLACE,
    Elsewhere,
    elsewhere_at,
    gtid_checks,
    intervals_elsewhere,
    intervals_used,
    without_used,
)
from .stable_sets import TOLD_BY, purge_checks, window_checks, wrong_stable_sets

_ROW = ("h", "number")
_LARGEST = ("dependency", "gtid_used_at", "purged_sequence")
_OUTSIDE = ("outside", "outside_item")
_WRITER = ("outside_source", "outside_number")
"""Columns of a writer outside, in facts; its GTID, where snapshots are GTID sets."""
_MISSED = {
    CONFLICT: Code.CONFLICT_MISSED,
    TOO_OLD: Code.TOO_OLD_MISSED,
    REFUSED: Code.REFUSAL_MISSED,
}
_FALSE = {CONFLICT: Code.CONFLICT_FALSE, TOO_OLD: Code.TOO_OLD_FALSE, REFUSED: Code.REFUSAL_FALSE}


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
        result.rows |= {(note.h, note.number) for note in new.notes if note.code == TOLD_BY}
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
            _version_check(),
            *_verdict_checks(),
            *_stamp_checks(),
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
            yield wrong_rows(_with_expected_verdict(known_at, self.whole_to), checks)


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


def _version_check() -> Check:
    """Returns the check that versions count the certified transactions."""
    version, number = pl.col("previous_version"), pl.col("number")
    expected = version + makes_version().cast(pl.Int64)
    return Check(
        Code.VERSION_WRONG,
        (number == pl.col("previous_number") + 1) & (pl.col("version") != expected),
        expected,
        pl.col("version"),
        words("the row before it has version ", version),
    )


def _with_expected_verdict(rows: pl.DataFrame, whole_to: WholeTo) -> pl.DataFrame:
    """Returns the rows with `expected_verdict`, that of the rule, in the order of its questions;
    and `maybe_purged`, whether the snapshot has the last writer outside of it, and lacks only what
    that one had read, while a stable set has it: then its items may have been purged.
    """
    snapshot, has_items = pl.col("snapshot_version"), pl.col("writes") | pl.col("reads")
    is_foreign, sets = pl.col("snapshot_set").is_not_null(), pl.col("met_stable_set")
    newest = pl.col("version") - makes_version().cast(pl.Int64)
    lacks = (
        pl.when(sets.is_null())
        .then(pl.col("whole_to") < pl.col("met_stable"))
        .otherwise(~pl.col("has_stable"))
    )
    too_old = pl.when(is_foreign).then(lacks).otherwise(snapshot < pl.col("met_stable"))
    return _with_sets_compared(rows, whole_to).with_columns(
        expected_verdict=pl.when(~is_foreign & (snapshot > newest))
        .then(REFUSED)
        .when(has_items & is_true(too_old))
        .then(TOO_OLD)
        .when(pl.col("outside").is_not_null())
        .then(CONFLICT)
        .otherwise(CERTIFIED)
    )


def _with_sets_compared(rows: pl.DataFrame, whole_to: WholeTo) -> pl.DataFrame:
    """Returns the rows with what snapshots that are GTID sets have: `whole_to`, `has_stable`, and
    `maybe_purged`.
    """
    if rows["snapshot_set"].null_count() == len(rows):
        return rows.with_columns(
            pl.lit(None, pl.Int64).alias("whole_to"),
            pl.lit(None, pl.Boolean).alias("has_stable"),
            pl.lit(value=False).alias("maybe_purged"),
        )
    writer = rows["outside_source"], rows["outside_number"]
    in_both = named(rows["met_stable_set"], *writer) & named(rows["snapshot_set"], *writer)
    return rows.with_columns(
        whole_to(rows["h"], rows["snapshot_set"]).alias("whole_to"),
        subsets(rows["met_stable_set"], rows["snapshot_set"]).alias("has_stable"),
        in_both.fill_null(value=False).alias("maybe_purged"),
    )


def _verdict_checks() -> list[Check]:
    """Returns the checks of verdicts and winners, for rows with `expected_verdict`."""
    found, expected = pl.col("verdict"), pl.col("expected_verdict")
    at = is_kind(RecordKind.TRANSACTION) & pl.col("decided")
    is_foreign = pl.col("snapshot_set").is_not_null()
    winner, outside = pl.col("winner_version"), pl.col("outside")
    not_known = {
        # What was before the history's first row it does not show.
        CONFLICT: winner <= pl.col("start_version"),
        TOO_OLD: pl.when(is_foreign)
        .then(pl.col("met_stable_set").is_null())
        .otherwise(pl.col("met_stable").is_null()),
        # The own GTID of a transaction may have been used before the history, or before it.
        REFUSED: is_true(pl.col("is_large"))
        | is_foreign
        | (pl.col("gtid_number").is_not_null() & (pl.col("start_version") > 0))
        | is_true(pl.col("gtid_brought") & pl.col("gtid_used_at").is_not_null()),
    }
    saw = words(
        "snapshot ",
        pl.coalesce(pl.col("snapshot_version").cast(pl.String), "snapshot_set"),
        "; the last writer outside of it: version ",
        outside,
        " of item ",
        item_name("outside_item"),
        "; stable: version ",
        pl.col("met_stable"),
    )
    names = (verdict_name(expected), verdict_name(found), saw)
    checks = []
    for verdict in (CONFLICT, TOO_OLD, REFUSED):
        # Of those not certified, the claim is reported.
        missed = at & (expected == verdict) & (found == CERTIFIED)
        if verdict == CONFLICT:
            missed &= ~pl.col("maybe_purged")
        checks.append(Check(_MISSED[verdict], missed, *names, outside))
        claimed = at & (found == verdict) & (expected != verdict) & ~is_true(not_known[verdict])
        low = pl.col("gtid_number") if verdict == REFUSED else winner
        checks.append(Check(_FALSE[verdict], claimed, *names, low))
    wrong_winner = at & (found == CONFLICT) & (expected == CONFLICT)
    wrong_winner &= ~is_true(pl.col("winner_found")) & ~not_known[CONFLICT]
    checks.append(
        Check(
            Code.WINNER_WRONG,
            wrong_winner,
            words("version ", outside, " at item ", item_name("outside_item")),
            words("version ", winner),
            saw,
            winner,
        )
    )
    return checks


def _stamp_checks() -> list[Check]:
    """Returns the checks of last_committed and sequence_number."""
    decided, number, committed = map(pl.col, ("decided", "sequence_number", "last_committed"))
    certified = pl.col("verdict") == CERTIFIED
    remote = certified & ~is_true(pl.col("is_local"))
    edge, dependency = pl.col("met_edge"), pl.col("dependency").fill_null(0)
    by_items = pl.when(pl.col("writes")).then(pl.max_horizontal(edge, dependency))
    expected = pl.when(decided).then(by_items.otherwise(number - 1)).otherwise(dependency)
    not_known = (pl.col("start_version") > 0) & ~pl.col("met_reset")
    not_known &= committed <= pl.col("last_before")
    not_known |= edge.is_null()
    why = words(
        "the window's edge is ",
        edge,
        ", the newest writer of its items has ",
        pl.col("dependency"),
        ", its own number is ",
        number,
    )
    next_number = pl.col("met_sequence") + 1
    follows = pl.when(decided).then(number == next_number).otherwise(number >= next_number)
    too_low = (committed < expected) & ~pl.col("behind_lost_reset")
    return [
        Check(Code.STAMP_TOO_LOW, remote & too_low, expected, committed, why),
        Check(
            Code.STAMP_TOO_HIGH,
            remote & decided & (committed > expected) & ~not_known,
            expected,
            committed,
            why,
            committed,
        ),
        Check(
            Code.SEQUENCE_WRONG,
            remote & (~follows | (decided & number.is_null())),
            next_number,
            number,
            words("the last number assigned before it is ", pl.col("met_sequence")),
            next_number,
            number - 1,
        ),
        Check(
            Code.SEQUENCE_WRONG,
            certified & pl.col("is_local") & number.is_not_null(),
            pl.lit("none"),
            number,
            pl.lit("a local transaction is not in its member's relay queue"),
        ),
    ]


def _summary(log: Log) -> JsonObject:
    return {
        "observers": [
            {
                "observer": history.observer,
                "transactions": history.transactions,
                **{verdict.value: count for verdict, count in history.verdicts.items()},
                "begins_late": history.start_version > 0,
                "stamps_checked": history.stamped,
            }
            for history in log.histories
        ]
    }
