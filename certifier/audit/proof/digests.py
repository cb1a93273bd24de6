"""The digests of certification state that members exchange, computed again from the rows.

The digest after a decision is the one before it times a constant, plus the decision's term, modulo
2^64. So a segment of rows is one step (factor and summand) whatever the digest before it; segments
are computed in parallel, and the driver combines them.

Source: `Certifier.digest` covers verdicts, versions, GTID numbers and write sets.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from groupcert.certifier.audit.rows.foreign import intervals
from groupcert.certifier.audit.rows.log import Log
from groupcert.certifier.audit.rows.sequence import (
    CERTIFIED,
    CONFLICT,
    TOO_OLD,
    is_kind,
    segment_edges,
    verdict_number,
)
from groupcert.certifier.audit.rows.states import segment
from groupcert.certifier.history.schema import LOG_SEQUENCE_SHIFT, RecordKind, position_at
from groupcert.certifier.position import log_sequence_of

MASK = (1 << 64) - 1
MULTIPLIER = 0x9E3779B97F4A7C15
PARTS = 1 << 12
"""Parts of a history: at most so many digests of each member are compared."""
_STABLE, _ELSEWHERE = 5, 6
_STEP = "h int, segment int, interval int, factor bigint, summand bigint"


class Told(NamedTuple):
    """A digest that a member reported: of its state after a message of the log."""

    h: int
    place: int
    origin: str
    sequence: int
    digest: int


class Differing(NamedTuple):
    """A digest that differs from the one computed from the rows; both as unsigned numbers."""

    told: Told
    computed: int


def differing_digests(log: Log) -> tuple[list[Differing], dict[int, int]]:
    """Returns each history's first digest that its rows contradict; how many were compared.

    A history that begins late is compared from the first digest reported in it on.
    """
    told = _told(log)
    boundaries = {h: sorted({each.sequence for each in mine}) for h, mine in told.items()}
    steps = _steps(log, boundaries)
    differing, compared = [], {}
    for h, mine in told.items():
        history = log.histories[h]
        digests = _digests(
            steps.get(h, []),
            boundaries[h],
            mine,
            from_zero=history.start is not None and not history.start_version,
        )
        known = [each for each in mine if each.sequence in digests]
        compared[h] = len(known)
        wrong = [each for each in known if digests[each.sequence] != each.digest]
        if wrong:
            first = min(wrong, key=lambda each: each.sequence)
            differing.append(Differing(first, digests[first.sequence]))
    return differing, compared


def _told(log: Log) -> dict[int, list[Told]]:
    """Returns the reported digests of messages that a history has: of each member the last one in
    each of `PARTS` parts, because a digest covers all decisions before it.
    """
    part = F.floor(F.col("number") / log.by_history(lambda each: each.rows // PARTS + 1))
    first = log.by_history(lambda each: log_sequence_of(position_at(each.first_place)))
    rows = log.rows.where(
        is_kind(RecordKind.CHECKPOINT)
        & F.col("reported_digest").isNotNull()
        & (F.col("reported_sequence") >= first)
    )
    names = ("place", "reported_sequence", "reported_digest")
    last = rows.groupBy("h", "origin", part.alias("part")).agg(
        *[F.max_by(name, "number").alias(name) for name in names]
    )
    told: dict[int, list[Told]] = {}
    for h, origin, _, place, sequence, digest in last.collect():
        told.setdefault(h, []).append(Told(h, place, origin, sequence, digest & MASK))
    return told


def _digests(
    steps: Sequence[tuple[int, int, int]],
    boundaries: Sequence[int],
    told: Sequence[Told],
    *,
    from_zero: bool,
) -> dict[int, int]:
    """Returns the digest after each message in `boundaries`, from the steps (interval, factor,
    summand) in order. If not `from_zero`, the first reported digest is the begin.
    """
    digest = 0 if from_zero else None
    first = {each.sequence: each.digest for each in told}
    found = {}
    place = 0
    for interval, sequence in enumerate(boundaries):
        while place < len(steps) and steps[place][0] <= interval:
            if digest is not None:
                digest = (digest * steps[place][1] + steps[place][2]) & MASK
            place += 1
        if digest is None:
            digest = first[sequence]
        found[sequence] = digest
    return found


def _steps(
    log: Log, boundaries: Mapping[int, Sequence[int]]
) -> dict[int, list[tuple[int, int, int]]]:
    """Returns the effect on a digest of each part of a segment between boundaries, by history."""
    verdict = F.coalesce(verdict_number(), F.lit(0))
    what = (
        F.when(is_kind(RecordKind.TRANSACTION), verdict)
        .when(is_kind(RecordKind.STABLE_SET) | is_kind(RecordKind.START), _STABLE)
        .when(is_kind(RecordKind.EXECUTED_ELSEWHERE), _ELSEWHERE)
    )
    version = F.when(verdict == CONFLICT, F.col("winner_version")).otherwise(F.col("version"))
    rows = log.rows.where(F.col("h").isin(list(boundaries)) & what.isNotNull()).select(
        *("h", "number", "place"),
        segment().alias("segment"),
        what.alias("what"),
        F.when(what == _STABLE, F.col("stable_version")).otherwise(version).alias("version"),
        F.when(verdict == CONFLICT, F.col("winner_item"))
        .when(verdict == CERTIFIED, F.col("gtid_number"))
        .alias("term"),
        _sum_of(lambda item: item.bitwiseAND(0xFFFFFFFF)).alias("low"),
        _sum_of(lambda item: F.shiftrightunsigned(item, 32)).alias("high"),
        F.when(what == _ELSEWHERE, F.col("snapshot_set")).alias("elsewhere"),
    )
    stable = {(row["h"], row["segment"]): row["stable"] for row in _stable_before(log)}
    known = {h: np.array(each, np.int64) for h, each in boundaries.items()}

    def step(table: pa.Table) -> pa.Table:
        return _step(table, known, stable)

    found: dict[int, list[tuple[int, int, int]]] = {}
    kept = (
        rows.groupBy("h", "segment").applyInArrow(step, _STEP).orderBy("h", "segment", "interval")
    )
    for row in kept.toLocalIterator():
        factor, summand = row["factor"] & MASK, row["summand"] & MASK
        found.setdefault(row["h"], []).append((row["interval"], factor, summand))
    return found


def _sum_of(part: Callable[[Column], Column]) -> Column:
    """Returns the sum of `part` of each written item; it cannot overflow."""
    return F.aggregate(
        F.coalesce("write_set", F.array().cast("array<bigint>")),
        F.lit(0).cast("bigint"),
        lambda total, item: total + part(item),
    )


def _stable_before(log: Log) -> list[dict[str, int]]:
    """Returns the stable version at the begin of each segment."""
    rows = segment_edges(log).select("h", "segment", F.col("met_stable").alias("stable")).collect()
    return [{**row.asDict(), "stable": row["stable"] or 0} for row in rows]


def _step(
    table: pa.Table, boundaries: Mapping[int, np.ndarray], stable: Mapping[tuple[int, int], int]
) -> pa.Table:
    """Returns the steps of a segment: rows between two boundaries are one factor and summand."""
    table = table.sort_by("number")
    h, part = table["h"][0].as_py(), table["segment"][0].as_py()
    column = {
        name: table[name].fill_null(0).to_numpy() for name in ("what", "version", "term", "place")
    }
    what, version = column["what"], column["version"].astype(np.uint64)
    stables = np.where(what == _STABLE, column["version"], -1)
    held = np.maximum(np.maximum.accumulate(stables), stable.get((h, part), 0))
    items = table["low"].to_numpy().astype(np.uint64)
    items += table["high"].to_numpy().astype(np.uint64) << np.uint64(32)
    term = column["term"].astype(np.uint64)
    terms = np.where(
        what == CERTIFIED, items + term, np.where(what == CONFLICT, term, np.uint64(0))
    )
    if _ELSEWHERE in what:
        counts = [_count(text) if text else 0 for text in table["elsewhere"].to_pylist()]
        terms += np.array(counts, np.uint64)
    version = np.where(what == TOO_OLD, held.astype(np.uint64), version)
    verdict = np.where(what == _ELSEWHERE, CERTIFIED, what).astype(np.uint64)
    decided = what != _STABLE
    sequence = column["place"] >> LOG_SEQUENCE_SHIFT
    interval = np.searchsorted(boundaries[h], sequence)[decided]
    folded = (terms + (version << np.uint64(3) | verdict))[decided]
    powers = np.cumprod(np.full(len(table), MULTIPLIER, np.uint64))
    made = []
    for each in np.unique(interval):
        mine = folded[interval == each]
        count = len(mine)
        weights = np.append(powers[: count - 1][::-1], np.uint64(1))
        summand = np.add.reduce(mine * weights)
        factor = powers[count - 1].view(np.int64)
        made.append((h, part, int(each), factor, summand.view(np.int64)))
    kinds = [pa.int32()] * 3 + [pa.int64()] * 2
    names = ["h", "segment", "interval", "factor", "summand"]
    return pa.table(
        {
            name: pa.array([int(values[place]) for values in made], kind)
            for place, (name, kind) in enumerate(zip(names, kinds, strict=True))
        }
    )


def _count(gtid_set: str) -> int:
    """Returns how many GTIDs a set has."""
    return sum(
        last - first + 1
        for firsts, lasts in intervals(gtid_set).values()
        for first, last in zip(firsts, lasts, strict=True)
    )
