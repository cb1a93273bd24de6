"""Verify: derives every verdict and every stamp of each history again, and compares.

The expected value at a place is derived from the rows before it as they were recorded, so that one
wrong record is one finding, and its consequences are none.

Source: WL#8440 (AL1 with its examples), certification and garbage collection.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.answers.result import JsonObject, Result
from groupcert.certifier.audit.rows.checks import Check, item_name, merged, run_checks, words
from groupcert.certifier.audit.rows.clocks import is_behind_lost_reset
from groupcert.certifier.audit.rows.consequences import without_consequences
from groupcert.certifier.audit.rows.foreign import is_subset
from groupcert.certifier.audit.rows.items import has_foreign_snapshots, met_at_items
from groupcert.certifier.audit.rows.log import Log
from groupcert.certifier.audit.rows.order import makes_version, order_of_rows
from groupcert.certifier.audit.rows.prefixes import whole_to
from groupcert.certifier.audit.rows.sequence import (
    CERTIFIED,
    CONFLICT,
    REFUSED,
    TOO_OLD,
    VERDICT_NAMES,
    is_kind,
    last_sequences,
    walked,
)
from groupcert.certifier.audit.verify.doubts import without_doubted
from groupcert.certifier.audit.verify.gtids import check_blocks, check_duplicates, order_checks
from groupcert.certifier.audit.verify.purges import check_purges
from groupcert.certifier.audit.verify.stable_sets import check_stable_sets
from groupcert.certifier.history.schema import RecordKind, Source

_MISSED = {
    CONFLICT: Code.CONFLICT_MISSED,
    TOO_OLD: Code.TOO_OLD_MISSED,
    REFUSED: Code.REFUSAL_MISSED,
}
_FALSE = {CONFLICT: Code.CONFLICT_FALSE, TOO_OLD: Code.TOO_OLD_FALSE, REFUSED: Code.REFUSAL_FALSE}


def run(log: Log) -> Result:
    """Checks verdicts, winners, stamps, windows, view changes and GTIDs of each history."""
    met = met_at_items(log).drop("certified")
    rows = walked(log).join(met, ["h", "segment", "number"], "left")
    if has_foreign_snapshots(log):
        rows = rows.withColumn("whole_to", whole_to(log))
    rows = rows.withColumn("expected_verdict", _expected_verdict(has_foreign_snapshots(log)))
    checks = [
        *order_of_rows(CERTIFIED),
        *_versions(),
        *_verdicts(log),
        *_stamps(log),
        *_windows(log),
        *order_checks(log),
    ]
    found = [
        without_doubted(log, rows, checks, run_checks(log, rows, checks)),
        check_duplicates(log),
        check_blocks(log),
        check_purges(log),
        check_stable_sets(log),
    ]
    kept = without_consequences(log, merged(found))
    result = Result([each.finding for each in kept.found], kept.counts)
    result.summary = _summary(log)
    return result


def _decided(log: Log) -> Column:
    """Returns whether a history has decisions: a binary log has its own stamps, no verdicts."""
    return log.by_history(lambda each: each.source is not Source.BINARY_LOG)


def _versions() -> list[Check]:
    """Returns the check that versions count the certified transactions."""
    version, steps = F.col("previous_version"), makes_version(CERTIFIED)
    expected = version + F.when(steps, 1).otherwise(0)
    return [
        Check(
            Code.VERSION_WRONG,
            (F.col("number") == F.col("previous_number") + 1) & (F.col("version") != expected),
            expected,
            F.col("version"),
            words("the row before it has version ", version),
        )
    ]


def _expected_verdict(foreign: bool) -> Column:
    """Returns the verdict of the rule, in the order of its questions; null if the state before the
    history decides.
    """
    snapshot, has_items = F.col("snapshot_version"), F.col("writes") | F.col("reads")
    too_old = F.coalesce(snapshot < F.col("met_stable"), F.lit(False))
    newest = F.col("version") - F.when(makes_version(CERTIFIED), 1).otherwise(0)
    unknown = F.coalesce(snapshot > newest, F.lit(False))
    if foreign:
        is_foreign = F.col("snapshot_set").isNotNull()
        lacks = F.when(
            F.col("met_stable_set").isNull(), F.col("whole_to") < F.col("met_stable")
        ).otherwise(~is_subset(F.col("met_stable_set"), F.col("snapshot_set")))
        too_old = F.when(is_foreign, F.coalesce(lacks, F.lit(False))).otherwise(too_old)
        unknown = ~is_foreign & unknown
    return (
        F.when(unknown, REFUSED)
        .when(has_items & too_old, TOO_OLD)
        .when(F.col("outside").isNotNull(), CONFLICT)
        .otherwise(CERTIFIED)
    )


def _verdicts(log: Log) -> list[Check]:
    found, expected = F.col("verdict"), F.col("expected_verdict")
    at = is_kind(RecordKind.TRANSACTION) & _decided(log)
    is_foreign = F.col("snapshot_set").isNotNull()
    brought = F.col("gtid_number").isNotNull()  # For those that were not certified.
    not_known = {
        CONFLICT: F.col("winner_version") <= log.by_history(lambda each: each.start_version),
        TOO_OLD: F.when(is_foreign, F.col("met_stable_set").isNull()).otherwise(
            F.col("met_stable").isNull()
        ),
        # The own GTID of a transaction may have been used before the history.
        REFUSED: F.coalesce("is_large", F.lit(False))
        | is_foreign
        | (brought & log.by_history(lambda each: each.start_version > 0)),
    }
    saw = words(
        *("snapshot ", F.coalesce(F.col("snapshot_version").cast("string"), "snapshot_set")),
        *("; the last writer outside of it: version ", F.col("outside")),
        *(" of item ", item_name("outside_item"), "; stable: version ", F.col("met_stable")),
    )
    checks = []
    for verdict in (CONFLICT, TOO_OLD, REFUSED):
        names = (_name(expected), _name(found), saw)
        missed = at & (expected == verdict) & (found != verdict)
        missed &= found == CERTIFIED  # Otherwise the claim is reported.
        checks.append(Check(_MISSED[verdict], missed, *names, F.col("outside")))
        claimed = at & (found == verdict) & (expected != verdict)
        claimed &= ~F.coalesce(not_known[verdict], F.lit(False))
        low = F.col("gtid_number" if verdict == REFUSED else "winner_version")
        checks.append(Check(_FALSE[verdict], claimed, *names, low))
    wrong_winner = at & (found == CONFLICT) & (expected == CONFLICT)
    wrong_winner &= ~F.coalesce("winner_found", F.lit(False)) & ~not_known[CONFLICT]
    checks.append(
        Check(
            Code.WINNER_WRONG,
            wrong_winner,
            words("version ", F.col("outside"), " at item ", item_name("outside_item")),
            words("version ", F.col("winner_version")),
            saw,
            F.col("winner_version"),
        )
    )
    return checks


def _name(verdict: Column) -> Column:
    name = F.lit(None).cast("string")
    for number, text in VERDICT_NAMES.items():
        name = F.when(verdict == number, text).otherwise(name)
    return name


def _stamps(log: Log) -> list[Check]:
    decided = _decided(log)
    number, committed = F.col("sequence_number"), F.col("last_committed")
    certified = F.col("verdict") == CERTIFIED
    remote = certified & ~F.coalesce("is_local", F.lit(False))
    dependency = F.coalesce("dependency", F.lit(0))
    expected = F.when(
        decided,
        F.when(F.col("writes"), F.greatest("met_edge", dependency)).otherwise(number - 1),
    ).otherwise(dependency)
    before = log.by_history(lambda each: last_sequences(log)[each.h])
    is_late = log.by_history(lambda each: each.start_version > 0)
    not_known = is_late & ~F.col("met_reset") & (committed <= before)
    not_known |= F.col("met_edge").isNull()
    too_low = (committed < expected) & ~is_behind_lost_reset(log)
    why = words(
        *("the window's edge is ", F.col("met_edge"), ", the newest writer of its items has "),
        *(F.col("dependency"), ", its own number is ", number),
    )
    next_number = F.col("met_sequence") + 1
    follows = F.when(decided, number == next_number).otherwise(number >= next_number)
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
            remote & (~follows | (decided & number.isNull())),
            next_number,
            number,
            words("the last number assigned before it is ", F.col("met_sequence")),
            next_number,
            number - 1,
        ),
        Check(
            Code.SEQUENCE_WRONG,
            certified & F.col("is_local") & number.isNotNull(),
            F.lit("none"),
            number,
            F.lit("a local transaction is not in its member's relay queue"),
        ),
    ]


def _windows(log: Log) -> list[Check]:
    decided = _decided(log)
    view, edge = is_kind(RecordKind.VIEW_CHANGE), F.col("last_committed_global")
    collection, stable = is_kind(RecordKind.COLLECTION), is_kind(RecordKind.STABLE_SET)
    after_view = F.when(F.col("resets_clock"), 1).otherwise(F.col("met_edge"))
    closes = (F.col("purged_items") > 0) & ~F.col("met_closed")
    after_collection = F.when(closes, F.col("met_sequence")).otherwise(F.col("met_edge"))
    judged = F.col("met_closed").isNotNull() & ~F.col("met_tight")
    stamps = words(F.col("last_committed"), ", ", F.col("sequence_number"), "; edge ", edge)
    return [
        Check(
            Code.VIEW_CHANGE_WRONG,
            decided
            & view
            & (
                (F.col("last_committed") != 0)
                | (F.col("sequence_number") != 0)
                | (edge != after_view)
            ),
            words("0, 0; edge ", after_view),
            stamps,
            F.lit("a view change is applied alone, and only its joiner's clock begins again"),
        ),
        Check(
            Code.STABLE_SET_WRONG,
            stable
            & (
                (F.col("stable_version") < F.col("met_stable"))
                | (F.col("stable_version") > F.col("version"))
            ),
            words("from version ", F.col("met_stable"), " to ", F.col("version")),
            words("version ", F.col("stable_version")),
            F.lit("what all members have executed only grows, and is certified"),
        ),
        Check(
            Code.PURGED_TOO_EARLY,
            collection & (F.col("collected_version") > F.col("met_stable")),
            words("up to version ", F.col("met_stable"), " at most, which all had executed"),
            words("up to version ", F.col("collected_version")),
            words(F.col("purged_items"), " items were purged"),
        ),
        Check(
            Code.WINDOW_WRONG,
            collection & judged & (edge != after_collection),
            after_collection,
            edge,
            words(
                *("it purged ", F.col("purged_items"), " items; the last number assigned is "),
                *(F.col("met_sequence"), ", the edge before it ", F.col("met_edge")),
            ),
        ),
    ]


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
