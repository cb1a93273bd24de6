"""Agree: the members' histories against each other, place by place.

The rule it keeps: what all members must have decided alike is compared, not what is each one's own
(stamps, times). A history is asked only for the places between its first and its last row. Segments
are compared by digests first, rows only where those differ.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from certifier.audit.findings import Code, Finding
from certifier.audit.gaps import Gaps
from certifier.audit.log import History, Log
from certifier.audit.result import JsonObject, Result
from certifier.history import RecordKind, Source

SHARED = (
    *("kind", "version", "origin", "session", "transaction_id", "gtid_source", "gtid_number"),
    *("gtid_brought", "snapshot_version", "snapshot_set", "write_set", "read_set", "verdict"),
    *("reason", "winner_item", "winner_version", "winner_origin", "is_large", "domain_id"),
    *("stable_version", "stable_set", "collected_version", "purged_items", "view_id", "members"),
    *("reported_sequence", "reported_digest", "reported_place", "reported_chain"),
)
"""What members record alike."""
SEGMENT_BITS = 36
"""Places that are compared by one digest: 4,096 messages of the log."""
_SUM_BITS = 0xFFFFFFFF
_Digests: TypeAlias = dict[int, dict[int, tuple[int, int, int]]]
"""By segment and history: rows, exclusive or and sum of their hashes."""


def run(log: Log) -> Result:
    """Histories of one group against each other."""
    result = Result()
    groups: dict[str, list[History]] = {}
    for each in log.histories:
        if each.source is not Source.BINARY_LOG and each.group_source is not None:
            groups.setdefault(each.group_source, []).append(each)
    rows = _hashed(log)
    digests = _digests(rows) if any(len(group) > 1 for group in groups.values()) else {}
    summary: Counter[tuple[str, str]] = Counter()
    compared = 0
    for histories in groups.values():
        if len(histories) > 1:
            suspects = _differing_segments(digests, histories)
            compared += sum(each.rows for each in histories)
            _compare(log, rows, histories, suspects, result, summary)
    result.summary = _summary(log, compared, summary)
    return result


def _hashed(log: Log) -> DataFrame:
    compared = log.rows.where(
        ~F.col("kind").isin(RecordKind.START.value, RecordKind.SETTINGS.value)
    )
    return compared.select(
        *("h", "number", "place"),
        F.shiftright("place", SEGMENT_BITS).alias("segment"),
        F.xxhash64(*[_hashable(name) for name in SHARED]).alias("hash"),
    )


def _hashable(name: str) -> Column:
    """A value, and whether there is one: hashes pass over what is null."""
    return F.struct(F.col(name).isNull(), F.col(name))


def _digests(rows: DataFrame) -> _Digests:
    digests = rows.groupBy("segment", "h").agg(
        F.count(F.lit(1)).alias("rows"),
        F.bit_xor("hash").alias("xor"),
        F.sum(F.col("hash").bitwiseAND(_SUM_BITS)).alias("sum"),
    )
    found: _Digests = {}
    for row in digests.collect():
        found.setdefault(row["segment"], {})[row["h"]] = (row["rows"], row["xor"], row["sum"])
    return found


def _differing_segments(digests: _Digests, histories: Sequence[History]) -> list[int]:
    """Segments in which not all histories that reach over them are equal, or that one begins or
    ends in.
    """
    differing = []
    for segment, known in digests.items():
        reaching = [each.h for each in histories if _reaches(each, segment)]
        if len(reaching) > 1 and len({known.get(h) for h in reaching}) > 1:
            differing.append(segment)
    return sorted(differing)


def _reaches(history: History, segment: int) -> bool:
    return history.first_place >> SEGMENT_BITS <= segment <= history.last_place >> SEGMENT_BITS


@dataclass(slots=True)
class _Deviation:
    """Where a history first differs from most others, from which one, and at how many places."""

    place: int
    model: int
    places: int = 0


def _compare(
    log: Log,
    rows: DataFrame,
    histories: Sequence[History],
    segments: Sequence[int],
    result: Result,
    summary: "Counter[tuple[str, str]]",
) -> None:
    """Adds the first place where each history differs from most others, and how many there are."""
    if not segments:
        return
    numbers = [each.h for each in histories]
    mine = rows.where(F.col("h").isin(numbers) & F.col("segment").isin(list(segments)))
    # A history that has a place twice is not in order, which the chain's job tells.
    hashes = [F.max(F.when(F.col("h") == h, F.col("hash"))).alias(f"h{h}") for h in numbers]
    told = mine.groupBy("place").agg(*hashes)
    differing: dict[int, _Deviation] = {}
    absent: dict[int, _Deviation] = {}
    gaps = Gaps(log)
    for row in told.where(_differs(histories)).toLocalIterator():
        _judge(row, histories, differing, absent, gaps, summary)
    for h, found in sorted(differing.items()):
        expected, value = _difference(log, found.place, h, found.model)
        witness = (
            f"{log.histories[found.model].observer} has recorded this place otherwise; "
            f"they differ at {found.places} places from here on"
        )
        name = log.histories[h].name
        result.add([Finding(Code.MEMBERS_DISAGREE, *name, found.place, expected, value, witness)])
    for h, found in sorted(absent.items()):
        witness = (
            f"{found.places} places are missing from here on, and no row is missing by its "
            "number: the member has never recorded them"
        )
        name, expected = log.histories[h].name, "a record, as others have here"
        result.add([Finding(Code.RECORD_MISSING, *name, found.place, expected, "none", witness)])


def _differs(histories: Sequence[History]) -> Column:
    """Whether the histories that reach over a place are not all equal there."""
    differs = F.lit(False)
    for one, other in combinations(histories, 2):
        both = F.lit(True)
        for each in (one, other):
            both &= F.col("place").between(each.first_place, each.last_place)
        equal = F.col(f"h{one.h}").eqNullSafe(F.col(f"h{other.h}"))
        differs |= both & ~equal
    return differs


def _judge(
    row: Row,
    histories: Sequence[History],
    differing: dict[int, _Deviation],
    absent: dict[int, _Deviation],
    gaps: Gaps,
    summary: "Counter[tuple[str, str]]",
) -> None:
    """Notes who differs from most at one place; of two, the later one by name."""
    place = row["place"]
    here = [each for each in histories if each.first_place <= place <= each.last_place]
    values = {each.h: row[f"h{each.h}"] for each in here}
    known = Counter(value for value in values.values() if value is not None)
    usual = known.most_common(1)[0][0]
    model = next(h for h, value in values.items() if value == usual)
    for h, value in values.items():
        if value == usual or (value is None and gaps.has(h, place)):
            continue
        notes = absent if value is None else differing
        found = notes.setdefault(h, _Deviation(place, model))
        found.places += 1
        if place < found.place:
            found.place, found.model = place, model
    for one, other in combinations(here, 2):
        if values[one.h] != values[other.h]:
            summary[one.observer, other.observer] += 1


def _difference(log: Log, place: int, h: int, other: int) -> tuple[str, str]:
    """What a history should have recorded at a place, by another one, and what it has."""
    rows = log.rows.where((F.col("place") == place) & F.col("h").isin([h, other]))
    found = {row["h"]: row for row in rows.select("h", *SHARED).collect()}
    names = [name for name in SHARED if found[h][name] != found[other][name]]
    return _told(found[other], names), _told(found[h], names)


def _told(row: Row, names: Sequence[str]) -> str:
    values: Mapping[str, object] = row.asDict()
    return ", ".join(f"{name}={values[name]}" for name in names)


def _summary(log: Log, compared: int, differing: "Counter[tuple[str, str]]") -> JsonObject:
    histories = [each for each in log.histories if each.source is not Source.BINARY_LOG]
    pairs = []
    for one, other in combinations(histories, 2):
        first = max(one.first_place, other.first_place)
        last = min(one.last_place, other.last_place)
        if one.group_source == other.group_source is not None:
            pairs.append(
                {
                    "one": one.observer,
                    "other": other.observer,
                    "first_place": first,
                    "last_place": max(last, first),
                    "places": min(one.rows, other.rows),
                    "differing": differing[one.observer, other.observer],
                }
            )
    return {
        "places": max((each.rows for each in histories), default=0),
        "compared": compared,
        "pairs": pairs,
    }
