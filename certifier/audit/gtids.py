"""GTIDs: none is given twice, none is skipped, and each member's ascend.

The rule it keeps: the next number is the smallest free one; with blocks of numbers, the next one of
the member's block. A number that a transaction brought along, or that was executed elsewhere, is
not free.

Source: WL#8440; MySQL 8.4 Reference Manual, `group_replication_gtid_assignment_block_size`.
"""

from collections import Counter
from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from certifier.audit.checks import Check, Found, FoundAll, run_checks, words
from certifier.audit.findings import Code
from certifier.audit.foreign import has, intervals
from certifier.audit.log import History, Log
from certifier.audit.sequence import CERTIFIED, is_kind
from certifier.audit.states import segment_begins, with_states
from certifier.history import RecordKind, Source


def block_size(history: History) -> int:
    """How many numbers a member of the history's group reserves at a time."""
    size = history.settings.get("gtid_assignment_block_size", 1)
    return size if isinstance(size, int) else 1


def order_checks(log: Log) -> list[Check]:
    """Of rows with `met_gtid`: numbers that are given one by one follow each other."""
    one_by_one = log.by_history(
        lambda each: block_size(each) == 1 and each.source is not Source.BINARY_LOG
    )
    number, met = F.col("gtid_number"), F.col("met_gtid")
    given = one_by_one & (F.col("verdict") == CERTIFIED) & F.col("is_assigned")
    return _order(given, number, met)


def check_duplicates(log: Log) -> FoundAll:
    """GTIDs of two transactions of one history."""
    gtid = ["h", "gtid_source", "gtid_number"]
    twice = (
        log.certified.where(F.col("gtid_number").isNotNull())
        .groupBy(*gtid)
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.min("place").alias("first"),
            F.max("place").alias("place"),
            F.max_by("number", "place").alias("number"),
        )
        .where(F.col("count") > 1)
    )
    name = words(F.col("gtid_source"), ":", F.col("gtid_number"))
    return run_checks(
        log,
        twice,
        [
            Check(
                Code.GTID_DUPLICATE,
                F.lit(True),
                words("one transaction ", name),
                words(F.col("count"), " transactions"),
                words(name, " was given before, at place ", F.col("first")),
                F.col("gtid_number"),
            )
        ],
    )


def check_blocks(log: Log) -> FoundAll:
    """Of groups that number in blocks: each member's numbers ascend by one between two views, but
    where a block ends.
    """
    blocks = {each.h: block_size(each) for each in log.histories if block_size(each) > 1}
    if not blocks:
        return FoundAll([], Counter())
    assigned = ~F.coalesce("gtid_brought", F.lit(False))
    of_group = F.col("gtid_source") == log.by_history(
        lambda each: str(each.settings.get("group_source", ""))
    )
    given = (F.col("verdict") == "certified") & assigned & of_group
    free_again = is_kind(RecordKind.VIEW_CHANGE) | is_kind(RecordKind.SETTINGS)
    rows = log.rows.where(F.col("h").isin(list(blocks)) & (given | free_again)).select(
        "h", "number", "place", "version", "origin", "gtid_number", given.alias("given")
    )
    round_state = {"round": F.when(~F.coalesce("given", F.lit(False)), F.col("version"))}
    rows = with_states(rows, ["h"], round_state, segment_begins(rows, ["h"], round_state))
    rows = rows.where("given").drop("segment")
    met = {"met": F.struct("gtid_number", "version", F.coalesce("round", F.lit(0)).alias("round"))}
    keys = ["h", "origin"]
    rows = with_states(rows, keys, met, segment_begins(rows, keys, met))
    size = F.lit(0)
    for h, numbers in blocks.items():
        size = F.when(F.col("h") == h, numbers).otherwise(size)
    same_round = (F.coalesce("round", F.lit(0)) == F.col("met.round")) & (
        F.col("version") - F.coalesce("round", F.lit(0)) < size
    )
    return run_checks(log, rows, _order(same_round, F.col("gtid_number"), F.col("met.gtid_number")))


def without_used(log: Log, found: FoundAll) -> FoundAll:
    """The findings without gaps that numbers fill which were brought along or executed elsewhere,
    and without refusals of GTIDs that were used before.
    """
    gaps = [each for each in found.found if each.finding.code is Code.GTID_GAP]
    refusals = [each for each in found.found if each.finding.code is Code.REFUSAL_FALSE]
    if not gaps and not refusals:
        return found
    used = _used(log, gaps)
    refused = _refused_rightly(log) if refusals else set()
    counts = Counter(found.counts)
    kept = []
    for each in found.found:
        code = each.finding.code
        is_used = code is Code.GTID_GAP and _is_used(each, used)
        if is_used or (code is Code.REFUSAL_FALSE and (each.h, each.number) in refused):
            counts[code.value] -= 1
        else:
            kept.append(each)
    return FoundAll(kept, +counts)


def _order(given: Column, number: Column, met: Column) -> list[Check]:
    why = words("the number given before is ", met)
    return [
        Check(Code.GTID_GAP, given & (number > met + 1), met + 1, number, why, met + 1, number - 1),
        Check(Code.GTID_ORDER, given & (number <= met), met + 1, number, why, number),
    ]


def _used(log: Log, gaps: list[Found]) -> Mapping[int, list[tuple[int, int]]]:
    """By history intervals of the group's numbers that nobody was given."""
    used: dict[int, list[tuple[int, int]]] = {each.h: [] for each in log.histories}
    if not gaps:
        return used
    low = min(each.low or 0 for each in gaps)
    high = max(each.high or 0 for each in gaps)
    source = log.by_history(lambda each: str(each.settings.get("group_source", "")))
    brought = log.certified.where(
        (F.col("gtid_source") == source) & F.col("gtid_number").between(low, high)
    )
    for row in brought.select("h", "gtid_number").collect():
        used[row["h"]].append((row["gtid_number"], row["gtid_number"]))
    elsewhere = log.rows.where(is_kind(RecordKind.EXECUTED_ELSEWHERE))
    for row in elsewhere.select("h", "snapshot_set").collect():
        group = str(log.histories[row["h"]].settings.get("group_source", ""))
        firsts, lasts = intervals(row["snapshot_set"] or "").get(group, ([], []))
        used[row["h"]] += zip(firsts, lasts, strict=True)
    return used


def _is_used(gap: Found, used: Mapping[int, list[tuple[int, int]]]) -> bool:
    """Whether every number of a gap is used."""
    next_number = gap.low or 0
    for first, last in sorted(used[gap.h]):
        if first > next_number:
            break
        next_number = max(next_number, last + 1)
    return next_number > (gap.high or 0)


def _refused_rightly(log: Log) -> set[tuple[int, int]]:
    """Refused transactions, by history and number, whose GTID was used before."""
    names = ["h", "gtid_source", "gtid_number"]
    refused = log.transactions.where(
        (F.col("verdict") == "refused") & F.col("gtid_brought")
    ).select(*names, "number")
    earlier = log.certified.groupBy(*names).agg(F.min("number").alias("first"))
    known = refused.join(earlier, names).where(F.col("first") < F.col("number"))
    found = {(row["h"], row["number"]) for row in known.select("h", "number").collect()}
    elsewhere = log.rows.where(is_kind(RecordKind.EXECUTED_ELSEWHERE))
    sets = [
        (row["h"], row["number"], intervals(row["snapshot_set"] or ""))
        for row in elsewhere.select("h", "number", "snapshot_set").collect()
    ]
    for row in refused.collect():
        for h, number, known_set in sets:
            if h == row["h"] and number < row["number"]:
                if has(known_set, row["gtid_source"], row["gtid_number"], row["gtid_number"]):
                    found.add((row["h"], row["number"]))
    return found
