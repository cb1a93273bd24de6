"""Checks of verdicts and stamps against what the rows before them, and their items, say.

Source: WL#8440 (AL1 with its examples), certification.
"""

import polars as pl

from ...history.schema import RecordKind
from ..answers.findings import Code
from ..rows.checks import Check, is_true, item_name, words
from ..rows.columns import (
    CERTIFIED,
    CONFLICT,
    REFUSED,
    TOO_OLD,
    is_kind,
    verdict_name,
)
from ..rows.foreign import WholeTo, named, subsets
from ..rows.order import makes_version

_MISSED = {
    CONFLICT: Code.CONFLICT_MISSED,
    TOO_OLD: Code.TOO_OLD_MISSED,
    REFUSED: Code.REFUSAL_MISSED,
}
_FALSE = {CONFLICT: Code.CONFLICT_FALSE, TOO_OLD: Code.TOO_OLD_FALSE, REFUSED: Code.REFUSAL_FALSE}


def version_check() -> Check:
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


def with_expected_verdict(rows: pl.DataFrame, whole_to: WholeTo) -> pl.DataFrame:
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


def verdict_checks() -> list[Check]:
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


def stamp_checks() -> list[Check]:
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
