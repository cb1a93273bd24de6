"""What follows from another finding is not told twice.

The rule it keeps: where a record is missing, nobody can say what it wrote or which number it had;
what only it would explain is no finding of its own. What it may have moved (the stable set, the
window, which numbers are free) is not known until a later record says it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from ...history.schema import RecordKind, Verdict
from ..answers.causes import left_of
from ..answers.findings import Code
from ..answers.result import JsonObject
from ..spark.arrow import arrow_function
from .certification_log import Log
from .checks import Found, FoundAll
from .clocks import clock

NOWHERE = 1 << 63
_BY_VERSION = {Code.CONFLICT_FALSE, Code.WINNER_WRONG}
"""Findings whose `low` is the version of a writer that the history does not show."""
_BY_STATE = {
    Code.PURGED_TOO_EARLY,
    Code.TOO_OLD_FALSE,
    Code.WINDOW_WRONG,
    Code.VIEW_CHANGE_WRONG,
    Code.STAMP_TOO_HIGH,
    Code.SEQUENCE_WRONG,
    Code.GTID_GAP,
    Code.GTID_ORDER,
}
"""Findings that follow where a missing record moved what the next ones met."""


class _Behind(NamedTuple):
    """The first rows behind a gap, before the next one, that tell a state again: the last
    sequence number, the stable set, whether the window is closed, its edge, the last GTID number,
    that no number is reserved. NOWHERE: none does.
    """

    stamped: int = NOWHERE
    sequence_number: int = NOWHERE
    """Of the row `stamped`."""
    stable: int = NOWHERE
    closed: int = NOWHERE
    edge: int = NOWHERE
    assigned: int = NOWHERE
    freed: int = NOWHERE


Behind = Mapping[tuple[int, int], _Behind]


class _Gap(NamedTuple):
    """Missing records before the row `number`, and the versions that they had."""

    number: int
    versions: range
    behind: _Behind


class _Missing(NamedTuple):
    """The versions and numbers that a history's missing records had, and its duplicates."""

    place: int
    gaps: list[_Gap]
    versions: list[range]
    sequence_numbers: list[range]
    duplicates: set[tuple[int, int]]
    """GTID numbers that were given twice, with the place of the second."""
    moved: set[int]
    """Numbers of rows that are not where they were."""
    filled: set[int]
    """Numbers of rows that skip GTIDs which missing records may have."""
    has_blocks: bool
    """Whether members reserved GTID numbers, so that one alone does not tell the next."""


def without_consequences(log: Log, all_found: FoundAll, behind: Behind) -> FoundAll:
    """Removes from each history's findings those that other findings explain.

    Of a code with more findings than were kept, as large a part of the others is taken to be
    explained.

    Args:
        behind: see `behind_gaps`.
    """
    kept: list[Found] = []
    for history in log.histories:
        mine = [found for found in all_found.found if found.h == history.h]
        missing = _missing(mine, behind, history.block_size_max > 1)
        kept += [found for found in mine if not _is_explained(found, missing)]
    kept.sort(key=lambda found: (found.finding.place, found.h))
    told = [[each.finding for each in found] for found in (all_found.found, kept)]
    return FoundAll(kept, left_of(all_found.counts, *told))


def behind_gaps(log: Log, found: Sequence[Found], kept: JsonObject) -> Behind:
    """Returns, by history and number of the first row behind a gap, what may follow from the gap,
    if anything is found that may, or is kept for the next audit.

    Args:
        kept: what the audit before has kept of it (`behind_to_keep`).
    """
    gaps: dict[int, set[int]] = {}
    for each in found:
        if each.finding.code is Code.RECORD_MISSING:
            gaps.setdefault(each.h, set()).add(each.number)
    asked = log.keeps or any(each.h in gaps and each.finding.code in _BY_STATE for each in found)
    if not gaps or not asked:
        return {}
    before = kept.get("behind", [])
    assert isinstance(before, list)
    known = {(log.number_of(name), number): _Behind(*told) for name, number, told in before}
    numbers = {h: sorted(each) for h, each in gaps.items()}
    kind, certified = F.col("kind"), F.col("verdict") == Verdict.CERTIFIED
    stamped = certified & F.col("sequence_number").isNotNull()
    collection = kind == RecordKind.COLLECTION
    resets = (kind == RecordKind.VIEW_CHANGE) & F.col("resets_clock")
    writes = F.coalesce(F.size("write_set"), F.lit(0)) > 0
    is_of_group = F.col("gtid_source") == log.by_history(lambda history: history.group_source or "")
    is_assigned = ~F.coalesce("gtid_brought", F.lit(False)) & is_of_group
    firsts = {
        "stamped": stamped,
        "stable": kind == RecordKind.STABLE_SET,
        "closed": collection & (F.col("purged_items") > 0),
        "edge": collection | resets | (stamped & ~writes),
        "assigned": certified & is_assigned,
        "freed": kind.isin(RecordKind.VIEW_CHANGE.value, RecordKind.SETTINGS.value),
    }
    rows = log.rows.where(F.col("h").isin(list(numbers)))
    told = (
        rows.withColumn("gap", _gap_before(numbers))
        .where(F.col("gap") > 0)
        .groupBy("h", "gap")
        .agg(
            F.min_by("sequence_number", F.when(stamped, F.col("number"))).alias("sequence_number"),
            *[F.min(F.when(tells, F.col("number"))).alias(n) for n, tells in firsts.items()],
        )
    )
    behind = dict(known)
    for row in told.collect():
        gap = row["h"], numbers[row["h"]][row["gap"] - 1]
        first = {name: NOWHERE if row[name] is None else row[name] for name in _Behind._fields}
        behind[gap] = _earlier(_Behind(**first), known.get(gap, _Behind()))
    return behind


def _earlier(one: _Behind, other: _Behind) -> _Behind:
    """Returns the first rows of two parts of what is behind a gap."""
    rows = map(min, one, other)
    stamped = min(one, other, key=lambda each: each.stamped)
    return _Behind(*rows)._replace(sequence_number=stamped.sequence_number)


def behind_to_keep(log: Log, behind: Behind) -> JsonObject:
    """Returns the rows behind gaps as JSON, as they are kept for the next audit."""
    return {
        "behind": [[log.histories[h].name, number, told] for (h, number), told in behind.items()]
    }


def _gap_before(numbers: Mapping[int, Sequence[int]]) -> Column:
    """Returns the number of gaps of its history before a row; `numbers`: of the rows behind
    them.
    """
    behind = {h: np.array(mine, np.int64) for h, mine in numbers.items()}

    def reached(h: pa.Array, number: pa.Array) -> pa.Array:
        return clock(pl.Series(h), pl.Series(number), behind).to_arrow()

    return arrow_function(reached, LongType())("h", "number")


def _missing(found: Sequence[Found], behind: Behind, has_blocks: bool) -> _Missing:
    places = [each.finding.place for each in found if each.finding.code is Code.RECORD_MISSING]
    first = min(places, default=NOWHERE)
    missing = _Missing(first, [], [], [], set(), set(), set(), has_blocks)
    for each in found:
        if each.finding.code is Code.RECORD_MISSING:
            versions = range(each.low or 0, (each.high or 0) + 1)
            told = behind.get((each.h, each.number), _Behind())
            missing.gaps.append(_Gap(each.number, versions, told))
    missing.gaps.sort(key=lambda gap: gap.number)
    for each in found:
        code, place, low, high = each.finding.code, each.finding.place, each.low, each.high
        if code is Code.GTID_DUPLICATE and low is not None:
            missing.duplicates.add((low, place))
        if code is Code.RECORD_REORDERED:
            missing.moved.update(range(each.number - 1, each.number + 3))
        if low is None or high is None:
            continue
        if code is Code.RECORD_MISSING:
            missing.versions.append(range(low, high + 1))
        elif code is Code.SEQUENCE_WRONG and _is_unknown(each, missing):
            missing.sequence_numbers.append(range(low, high + 1))
    missing.filled.update(_filled(found, missing))
    return missing


def _filled(found: Sequence[Found], missing: _Missing) -> Iterator[int]:
    """Returns the numbers of rows that skip GTIDs which missing records may have: each of these has
    one.

    Right behind missing records a gap is not known, and is taken to be theirs as far as they go.
    """
    gaps = [each for each in found if each.finding.code is Code.GTID_GAP]
    versions = list(accumulate((len(gap.versions) for gap in missing.gaps), initial=0))
    spent = 0
    for each in sorted(gaps, key=lambda gap: gap.number):
        if each.low is None or each.high is None:
            continue
        skipped = each.high - each.low + 1
        lost = versions[bisect_right(missing.gaps, each.number, key=lambda gap: gap.number)]
        if _is_unknown(each, missing):
            spent = spent if missing.has_blocks else min(spent + skipped, lost)
        elif spent + skipped <= lost:
            spent += skipped
            yield each.number


def _is_unknown(found: Found, missing: _Missing) -> bool:
    """Returns whether a row met what a record missing before it may have moved."""
    at = bisect_right(missing.gaps, found.number, key=lambda gap: gap.number)
    if not at:
        return False
    gap, code, low, high = missing.gaps[at - 1], found.finding.code, found.low, found.high
    if code is Code.SEQUENCE_WRONG and low is not None and high is not None:
        return found.number == gap.behind.stamped and high - low < len(gap.versions)
    if code is Code.STAMP_TOO_HIGH and low is not None:
        return found.number < gap.behind.edge and low < gap.behind.sequence_number
    if code is Code.WINDOW_WRONG:
        return high is None and found.number <= gap.behind.closed
    if code is Code.VIEW_CHANGE_WRONG:
        return found.number < gap.behind.edge
    if code is Code.STABLE_SET_WRONG and low is not None:
        return low < gap.number
    if code in (Code.PURGED_TOO_EARLY, Code.TOO_OLD_FALSE):
        return found.number < gap.behind.stable
    if code in (Code.GTID_GAP, Code.GTID_ORDER) and missing.has_blocks:
        return found.number < gap.behind.freed
    if code in (Code.GTID_GAP, Code.GTID_ORDER):
        return bool(gap.versions) and found.number == gap.behind.assigned
    return False


def _is_explained(found: Found, missing: _Missing) -> bool:
    code, place, low, high = found.finding.code, found.finding.place, found.low, found.high
    if found.number in missing.moved and code is not Code.RECORD_REORDERED:
        return True
    if _is_unknown(found, missing):
        return True
    if low is None:
        return False
    if code is Code.GTID_ORDER:
        return (low, place) in missing.duplicates
    if code is Code.GTID_GAP and any(low - 1 == number for number, _ in missing.duplicates):
        return True
    if place < missing.place:
        return False
    if code is Code.GTID_GAP:
        return found.number in missing.filled
    if code is Code.REFUSAL_FALSE:  # Of a GTID that was brought along.
        return any(missing.versions)
    if code is Code.STAMP_TOO_HIGH:
        return any(low in each for each in missing.sequence_numbers)
    if code is Code.COLLECTION_WRONG or (code is Code.WINDOW_WRONG and high is not None):
        return any(low <= span.stop for span in missing.versions)
    return code in _BY_VERSION and any(low in span for span in missing.versions)
