"""What a row's own state does not show, looked up only where a check of rows has found something.

The rule it keeps: a finding that another row of the history explains is none; all others stay. Each
check is judged by itself, because one row may be wrong in several ways.
"""

from collections import Counter
from functools import reduce
from operator import or_

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.rows.checks import Check, FoundAll, merged, run_checks
from groupcert.certifier.audit.rows.foreign import is_in
from groupcert.certifier.audit.rows.log import Log
from groupcert.certifier.audit.verify.gtids import used_elsewhere, without_used

_DOUBTED = {Code.GTID_GAP, Code.REFUSAL_FALSE, Code.CONFLICT_MISSED}


def without_doubted(log: Log, rows: DataFrame, checks: list[Check], found: FoundAll) -> FoundAll:
    """Drops three false positives: GTID_GAP where a transaction with its own GTID filled the gap;
    REFUSAL_FALSE where the GTID had been used; CONFLICT_MISSED where a stable set had purged the
    item.

    Cost: another pass over the rows, if there is anything of that.
    """
    again = [each for each in checks if each.code in _DOUBTED and each.code.value in found.counts]
    if not again:
        return found
    doubted = rows.where(reduce(or_, map(_is_wrong, again))).persist(StorageLevel.DISK_ONLY)
    try:
        judged = [run_checks(log, _left(log, doubted, each), [each]) for each in again]
    finally:
        doubted.unpersist()
    kept = [each for each in found.found if each.finding.code not in _DOUBTED]
    counts = Counter({code: count for code, count in found.counts.items() if code not in _DOUBTED})
    return merged([FoundAll(kept, counts), *judged])


def _is_wrong(check: Check) -> Column:
    return F.coalesce(check.wrong, F.lit(False))


def _left(log: Log, rows: DataFrame, check: Check) -> DataFrame:
    """Returns the rows that a check finds and that nothing explains."""
    wrong = rows.where(_is_wrong(check))
    if check.code is Code.GTID_GAP:
        return without_used(log, wrong, check)
    if check.code is Code.REFUSAL_FALSE:
        return _unrefused(log, wrong)
    return _unpurged(log, wrong)


def _unrefused(log: Log, rows: DataFrame) -> DataFrame:
    """Removes the refused transactions whose GTID was used before."""
    gtid = ["h", "gtid_source", "gtid_number"]
    refused = log.transactions.where(
        (F.col("verdict") == "refused") & F.col("gtid_brought")
    ).select(*gtid, "number", "place", used_elsewhere(log)(*gtid).alias("elsewhere"))
    earlier = log.certified.groupBy(*gtid).agg(F.min("place").alias("used_at"))
    rightly = refused.join(earlier, gtid, "left").where(
        F.least("used_at", "elsewhere") < F.col("place")
    )
    return rows.join(rightly.select("h", "number"), ["h", "number"], "left_anti")


def _unpurged(log: Log, rows: DataFrame) -> DataFrame:
    """Removes the rows whose snapshot, a GTID set, has the last writer, and lacks only what that
    one had read: if a stable set has it as well, its items may have been purged.
    """
    writers = log.certified.select("h", F.col("version").alias("outside"), *_GTID)
    known = (
        rows.where(F.col("met_stable_set").isNotNull() & F.col("snapshot_set").isNotNull())
        .select("h", "number", "outside", "met_stable_set", "snapshot_set")
        .join(writers, ["h", "outside"])
        .where(is_in("met_stable_set", *_GTID) & is_in("snapshot_set", *_GTID))
    )
    return rows.join(known.select("h", "number"), ["h", "number"], "left_anti")


_GTID = ("gtid_source", "gtid_number")
