"""Agree: compares the members' histories with each other, place by place.

Only columns that all members must have recorded alike are compared, not a member's own (stamps,
times). A history is compared only between its first and its last row. Segments are compared by
digests first, rows only where the digests differ.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from groupcert.certifier.audit.answers.findings import Code, Finding
from groupcert.certifier.audit.answers.result import JsonObject, Result
from groupcert.certifier.audit.rows.gaps import is_in_gap
from groupcert.certifier.audit.rows.log import History, Log
from groupcert.certifier.history.schema import RecordKind, Source

SHARED = (
    *("kind", "version", "origin", "session", "transaction_id", "gtid_source", "gtid_number"),
    *("gtid_brought", "snapshot_version", "snapshot_set", "write_set", "read_set", "verdict"),
    *("reason", "winner_item", "winner_version", "winner_origin", "is_large", "domain_id"),
    *("stable_version", "stable_set", "collected_version", "purged_items", "view_id", "members"),
    *("reported_sequence", "reported_digest", "reported_place", "reported_chain"),
)
"""The columns that all members record alike."""
SEGMENT_BITS = 36
"""Bits of a place below its segment, which is compared by one digest: 4,096 messages of the log."""
_SUM_BITS = 0xFFFFFFFF
_Digests: TypeAlias = dict[int, dict[int, tuple[int, int, int]]]
"""By segment and history: number of rows, exclusive or and sum of their hashes."""


def run(log: Log) -> Result:
    """Compares the histories of each group with each other."""
    result = Result()
    groups: dict[str, list[History]] = {}
    for each in log.histories:
        if each.source is not Source.BINARY_LOG and each.group_source is not None:
            groups.setdefault(each.group_source, []).append(each)
    rows = _hashed(log)
    digests = _digests(rows) if any(len(group) > 1 for group in groups.values()) else {}
    pairs: dict[tuple[int, int], _Compared] = {}
    compared = 0
    for histories in groups.values():
        if len(histories) > 1:
            suspects = _differing_segments(digests, histories)
            compared += sum(each.rows for each in histories)
            pairs |= _alike(digests, histories, suspects)
            _compare(log, rows, histories, suspects, result, pairs)
    result.summary = _summary(log, compared, pairs)
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
    """Returns a column that hashes a value and whether it is null, as hashes ignore nulls."""
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
    """Returns the segments in which the histories that reach over them are not all equal, or in
    which one begins or ends.
    """
    differing = []
    for segment, known in digests.items():
        reaching = [each.h for each in histories if _reaches(each, segment)]
        if len(reaching) > 1 and len({known.get(h) for h in reaching}) > 1:
            differing.append(segment)
    return sorted(differing)


def _reaches(history: History, segment: int) -> bool:
    return history.first_place >> SEGMENT_BITS <= segment <= history.last_place >> SEGMENT_BITS


class _Deviation(NamedTuple):
    """The first place where a history differs from most others, a history that it differs from, and
    the number of such places.
    """

    place: int
    model: int
    places: int


class _Compared(NamedTuple):
    """The number of places compared of two histories (both could have a record and one has), and
    the number of those at which they differ.
    """

    places: int = 0
    differing: int = 0


def _alike(
    digests: _Digests, histories: Sequence[History], differing: Sequence[int]
) -> dict[tuple[int, int], _Compared]:
    """Returns the places compared of each two histories in the segments that do not differ."""
    alike = digests.keys() - set(differing)
    pairs = {}
    for one, other in combinations(histories, 2):
        common = [part for part in alike if _reaches(one, part) and _reaches(other, part)]
        places = sum(digests[part].get(one.h, (0, 0, 0))[0] for part in common)
        pairs[one.h, other.h] = _Compared(places)
    return pairs


def _compare(
    log: Log,
    rows: DataFrame,
    histories: Sequence[History],
    segments: Sequence[int],
    result: Result,
    pairs: dict[tuple[int, int], _Compared],
) -> None:
    """Adds for each history its first place that differs from most others, and how many do."""
    if not segments:
        return
    numbers = [each.h for each in histories]
    mine = rows.where(F.col("h").isin(numbers) & F.col("segment").isin(list(segments)))
    # If a history has a place twice it is not in order, which the job `proof` reports.
    hashes = [F.max(F.when(F.col("h") == h, F.col("hash"))).alias(f"h{h}") for h in numbers]
    told = mine.groupBy("place").agg(*hashes).persist(StorageLevel.DISK_ONLY)
    try:
        if not _count_pairs(told, histories, pairs):
            return
        differing, absent = _deviations(log, told, histories)
    finally:
        told.unpersist()
    for h, found in differing.items():
        expected, value = _difference(log, found.place, h, found.model)
        witness = (
            f"{log.histories[found.model].observer} has recorded this place otherwise; "
            f"they differ at {found.places} places from here on"
        )
        name = log.histories[h].name
        result.add([Finding(Code.MEMBERS_DISAGREE, *name, found.place, expected, value, witness)])
    for h, found in absent.items():
        witness = (
            f"{found.places} places are missing from here on, and no row is missing by its "
            "number: the member has never recorded them"
        )
        name, expected = log.histories[h].name, "a record, as others have here"
        result.add([Finding(Code.RECORD_MISSING, *name, found.place, expected, "none", witness)])


def _count_pairs(
    told: DataFrame, histories: Sequence[History], pairs: dict[tuple[int, int], _Compared]
) -> int:
    """Adds the places compared of each two histories; returns how many differ."""
    counts = []
    for one, other in combinations(histories, 2):
        mine, its = _hash(one), _hash(other)
        place = _is_here(one) & _is_here(other) & F.coalesce(mine, its).isNotNull()
        counts += [F.count_if(place), F.count_if(place & ~mine.eqNullSafe(its))]
    row = told.agg(*counts).collect()[0]
    for n, (one, other) in enumerate(combinations(histories, 2)):
        before = pairs[one.h, other.h]
        places, differing = row[2 * n : 2 * n + 2]
        pairs[one.h, other.h] = _Compared(before.places + places, before.differing + differing)
    return sum(row[1::2])


def _deviations(
    log: Log, told: DataFrame, histories: Sequence[History]
) -> tuple[dict[int, _Deviation], dict[int, _Deviation]]:
    """Returns which histories differ from most at places, and which lack places; of two, the later
    one by name differs.
    """
    shared = [F.when(_is_here(each), _hash(each)) for each in histories]
    votes = [
        sum((F.coalesce(mine == its, F.lit(False)).cast("int") for its in shared), F.lit(0))
        for mine in shared
    ]
    usual = F.array_max(
        F.array(
            *[
                F.struct(count.alias("votes"), F.lit(-each.h).alias("h"), mine.alias("hash"))
                for each, count, mine in zip(histories, votes, shared, strict=True)
            ]
        )
    )
    judged = told.withColumn("usual", usual).where(F.col("usual.votes") > 0)
    stacked = F.array(
        *[
            F.struct(
                F.lit(each.h).alias("h"), _hash(each).alias("hash"), _is_here(each).alias("here")
            )
            for each in histories
        ]
    )
    each = judged.select("place", "usual", F.explode(stacked).alias("mine"))
    deviating = each.where("mine.here").where(~F.col("mine.hash").eqNullSafe(F.col("usual.hash")))
    rows = deviating.select(
        *("place", "mine.h", F.col("mine.hash").isNull().alias("is_absent")),
        (-F.col("usual.h")).alias("model"),
    )
    rows = rows.where(~F.col("is_absent") | ~is_in_gap(log)("h", "place"))
    found = rows.groupBy("h", "is_absent").agg(
        F.min("place").alias("place"),
        F.min_by("model", "place").alias("model"),
        F.count(F.lit(1)).alias("places"),
    )
    differing: dict[int, _Deviation] = {}
    absent: dict[int, _Deviation] = {}
    for row in found.orderBy("h").collect():
        notes = absent if row["is_absent"] else differing
        notes[row["h"]] = _Deviation(row["place"], row["model"], row["places"])
    return differing, absent


def _hash(history: History) -> Column:
    return F.col(f"h{history.h}")


def _is_here(history: History) -> Column:
    """Returns whether a history reaches over a place."""
    return F.col("place").between(history.first_place, history.last_place)


def _difference(log: Log, place: int, h: int, other: int) -> tuple[str, str]:
    """Returns what a history should have recorded at a place, by another one, and what it has."""
    rows = log.rows.where((F.col("place") == place) & F.col("h").isin([h, other]))
    found = {row["h"]: row for row in rows.select("h", *SHARED).collect()}
    names = [name for name in SHARED if found[h][name] != found[other][name]]
    return _told(found[other], names), _told(found[h], names)


def _told(row: Row, names: Sequence[str]) -> str:
    values: Mapping[str, object] = row.asDict()
    return ", ".join(f"{name}={values[name]}" for name in names)


def _summary(log: Log, compared: int, counted: Mapping[tuple[int, int], _Compared]) -> JsonObject:
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
                    "histories": [one.history, other.history],
                    "first_place": first,
                    "last_place": max(last, first),
                    **counted[one.h, other.h]._asdict(),
                }
            )
    return {
        "places": max((each.rows for each in histories), default=0),
        "compared": compared,
        "pairs": pairs,
    }
