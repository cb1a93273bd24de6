"""The digests of certification state that members exchange, computed again from the rows.

The digest after a decision is the one before it times a constant, plus the decision's term, modulo
2^64. So a segment of rows is one step (factor and summand) whatever the digest before it; segments
are computed in parallel, and the driver combines them.

Source: `Certifier.digest` covers verdicts, versions, GTID numbers and write sets.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F

from ...history.schema import LOG_SEQUENCE_SHIFT, RecordKind, position_at
from ...position import log_sequence_of
from ..rows.certification_log import Log
from ..rows.checks import Note, notes
from ..rows.coded_columns import CERTIFIED, CONFLICT, TOO_OLD, is_kind, kind_number, verdict_number
from ..rows.foreign import intervals
from ..rows.kept import AuditWhole
from ..rows.sequence import begins_of
from ..rows.states import KEYS, segment
from ..rows.surveyed_history import History
from ..spark.walks import Frames, in_order, walk, whole

MASK = (1 << 64) - 1
MULTIPLIER = 0x9E3779B97F4A7C15
PARTS = 1 << 12
"""Parts of a history: at most so many digests of each member are compared."""
DIGEST = "digest"
"""The note of a reported digest."""
TOLD = pl.Schema(
    {"origin": pl.String(), "reported_sequence": pl.Int64(), "reported_digest": pl.Int64()}
)
"""The columns of a report."""
STEP = pl.Schema(
    {
        **dict.fromkeys(("h", "segment", "interval"), pl.Int32()),
        **dict.fromkeys(("factor", "summand"), pl.Int64()),
    }
)
_HALVES = ("low", "high")
_KINDS = (
    RecordKind.TRANSACTION,
    RecordKind.STABLE_SET,
    RecordKind.START,
    RecordKind.EXECUTED_ELSEWHERE,
)


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


class Compared(NamedTuple):
    """Each history's first digest that its rows contradict; how many were compared, by history; and
    the digests of what is kept, by history: of all decisions before its `whole_place`.
    """

    differing: list[Differing]
    counts: dict[int, int]
    ends: dict[int, int | None]


def differing_digests(
    log: Log, reported: Iterable[Note], kept: Mapping[int, int | None], ends: Mapping[int, int]
) -> Compared:
    """Compares the digests that members reported with those that the rows have.

    A history that begins late is compared from the first digest reported in it on.

    Args:
        reported: the notes of `told_digests`.
        kept: the digests that the audit before has kept.
        ends: by history the message as of which a digest is wanted for the next audit.
    Raises:
        AuditWhole: a digest was reported of what is not kept.
    """
    told = _told(log, reported)
    asked: dict[int, set[int]] = {}
    for h, mine in told.items():
        asked[h] = {each.sequence for each in mine}
    for h, sequence in ends.items():
        asked.setdefault(h, set()).add(sequence)
    for h in asked.keys() & kept.keys():
        asked[h].add(_kept_to(log.histories[h]))
    boundaries = {h: sorted(sequences) for h, sequences in asked.items()}
    steps = _steps(log, boundaries) if boundaries else {}
    compared = Compared([], {}, {})
    for h, sequences in boundaries.items():
        mine, begin = told.get(h, []), _begin(log.histories[h], kept)
        digests = _digests(steps.get(h, []), sequences, mine, begin)
        known = [each for each in mine if each.sequence in digests]
        compared.counts[h] = len(known)
        wrong = [each for each in known if digests[each.sequence] != each.digest]
        if wrong:
            first = min(wrong, key=lambda each: each.sequence)
            compared.differing.append(Differing(first, digests[first.sequence]))
        if h in ends:
            compared.ends[h] = digests.get(ends[h])
    return compared


def _kept_to(history: History) -> int:
    """Returns the last message of which no row has to be kept."""
    return kept_to(history.before.whole_place) if history.before else -1


def kept_to(whole_place: int) -> int:
    """Returns the message before a place from which on all rows are kept."""
    return (whole_place >> LOG_SEQUENCE_SHIFT) - 1


class _Begin(NamedTuple):
    """A digest, if it is known, and the message that it is as of."""

    sequence: int
    digest: int | None


def _begin(history: History, kept: Mapping[int, int | None]) -> _Begin:
    if history.h in kept:
        return _Begin(_kept_to(history), kept[history.h])
    from_zero = history.start is not None and not history.start_version
    return _Begin(-1, 0 if from_zero else None)


def parts_of(log: Log) -> dict[int, int]:
    """Returns by history how many rows each of its `PARTS` parts has."""
    return {history.h: history.rows // PARTS + 1 for history in log.histories}


def told_digests(rows: pl.DataFrame, parts: Mapping[int, int]) -> pl.DataFrame:
    """Returns as notes the digests that members reported in rows: of each member the last one in
    each part, because a digest covers all decisions before it.
    """
    told = rows.filter(
        is_kind(RecordKind.REPORT)
        & pl.col("reported_digest").is_not_null()
        & pl.col("reported_sequence").is_not_null()
    ).sort("number")
    size = pl.col("h").replace_strict(parts, return_dtype=pl.Int64)
    last = told.group_by("h", "origin", part=pl.col("number") // size).last()
    columns = {"witness": "origin", "low": "reported_digest", "high": "reported_sequence"}
    return notes(DIGEST, last.with_columns(**{name: pl.col(of) for name, of in columns.items()}))


def _told(log: Log, reported: Iterable[Note]) -> dict[int, list[Told]]:
    """Returns the reported digests of messages that a history has, of each part the last one."""
    sizes, last = parts_of(log), {}
    for note in sorted(reported, key=lambda note: note.number):
        history = log.histories[note.h]
        first = log_sequence_of(position_at(history.first_place))
        if first <= note.high < _kept_to(history):
            if note.number > history.since:
                name = history.observer
                raise AuditWhole(f"{name} has a report of message {note.high}, before what is kept")
        elif note.high >= first:
            last[note.h, note.text, note.number // sizes[note.h]] = note
    told: dict[int, list[Told]] = {}
    for (h, origin, _), note in last.items():
        told.setdefault(h, []).append(Told(h, note.place, origin, note.high, note.low & MASK))
    return told


def _digests(
    steps: Sequence[tuple[int, int, int]],
    boundaries: Sequence[int],
    told: Sequence[Told],
    begin: _Begin,
) -> dict[int, int]:
    """Returns the digest after each message in `boundaries`, from the steps (interval, factor,
    summand) in order. If it is not known at the begin, the first reported one is taken.
    """
    digest = begin.digest
    first = {each.sequence: each.digest for each in told}
    found = {}
    place = 0
    for interval, sequence in enumerate(boundaries):
        while place < len(steps) and steps[place][0] <= interval:
            # The digest at the begin has what is before it.
            if digest is not None and sequence > begin.sequence:
                digest = (digest * steps[place][1] + steps[place][2]) & MASK
            place += 1
        if digest is None:
            digest = first.get(sequence)
        if digest is not None:
            found[sequence] = digest
    return found


def _steps(
    log: Log, boundaries: Mapping[int, Sequence[int]]
) -> dict[int, list[tuple[int, int, int]]]:
    """Returns the effect on a digest of each part of a segment between boundaries, by history."""
    kinds = [kind.value for kind in _KINDS]
    covered = F.col("h").isin(list(boundaries)) & F.col("kind").isin(kinds)
    rows = log.rows.where(covered).select(
        "h",
        segment(),
        "number",
        "place",
        kind_number(),
        verdict_number(),
        "version",
        "stable_version",
        "winner_version",
        "winner_item",
        "gtid_number",
        "snapshot_set",
        _sum_of(lambda item: item.bitwiseAND(0xFFFFFFFF)).alias("low"),
        _sum_of(lambda item: F.shiftrightunsigned(item, 32)).alias("high"),
    )
    known = {h: np.array(each, np.int64) for h, each in boundaries.items()}
    stable = {(h, part): at or 0 for h, part, at in _stable_before(log).iter_rows()}

    def steps(frames: Frames) -> Frames:
        for frame in whole(frames, KEYS):
            for _, mine in frame.group_by(KEYS, maintain_order=True):
                yield _step(mine, known, stable)

    found: dict[int, list[tuple[int, int, int]]] = {}
    made = pl.DataFrame(walk(in_order(rows, KEYS, ["number"]), steps, STEP).toArrow(), schema=STEP)
    for h, _, interval, factor, summand in made.sort("h", "segment", "interval").iter_rows():
        found.setdefault(h, []).append((interval, factor & MASK, summand & MASK))
    return found


def _stable_before(log: Log) -> pl.DataFrame:
    """Returns the stable version at the begin of each segment, by history and segment."""
    return begins_of(log).select(*KEYS, "met_stable")


def _sum_of(part: Callable[[Column], Column]) -> Column:
    """Returns the sum of `part` of each written item; it cannot overflow."""
    return F.aggregate(
        F.coalesce("write_set", F.array().cast("array<bigint>")),
        F.lit(0).cast("bigint"),
        lambda total, item: total + part(item),
    )


def _step(
    rows: pl.DataFrame,
    boundaries: Mapping[int, NDArray[np.int64]],
    stable: Mapping[tuple[int, int], int],
) -> pl.DataFrame:
    """Returns the steps of a segment: rows between two boundaries are one factor and summand.

    `low`, `high`: the sums of the lower and the upper halves of the items that a row wrote.
    """
    h, part = rows["h"][0], rows["segment"][0]
    decided = _decisions(rows, stable.get((h, part), 0))
    sequence = decided["place"].to_numpy() >> LOG_SEQUENCE_SHIFT
    interval = np.searchsorted(boundaries[h], sequence)
    terms, folded = decided["term"].to_numpy(), decided["folded"].to_numpy().astype(np.uint64)
    sums = decided["low"].to_numpy().astype(np.uint64)
    sums += decided["high"].to_numpy().astype(np.uint64) << np.uint64(32)
    folded = folded + sums + terms.astype(np.uint64)
    # Products wrap at 64 bits, as those of the certifier's digest do (`MASK`).
    powers = np.cumprod(np.full(len(decided) + 1, MULTIPLIER, np.uint64))
    made = []
    for each in np.unique(interval):
        mine = folded[interval == each]
        count = len(mine)
        # Each decision is multiplied once for each one after it.
        weights = np.append(powers[: count - 1][::-1], np.uint64(1))
        summand = np.add.reduce(mine * weights)
        factor = powers[count - 1].view(np.int64)
        made.append((h, part, int(each), int(factor), int(summand.view(np.int64))))
    return pl.DataFrame(made, schema=STEP, orient="row")


def _decisions(rows: pl.DataFrame, stable: int) -> pl.DataFrame:
    """Returns the rows that a digest covers, with what each adds to it: the items it wrote (only
    of certified ones), a `term`, and its version with its verdict (`folded`).

    `stable`: the stable version before the rows.
    """
    verdict, version = pl.col("verdict").fill_null(0), pl.col("version").fill_null(0)
    elsewhere = is_kind(RecordKind.EXECUTED_ELSEWHERE)
    tells = is_kind(RecordKind.STABLE_SET) | is_kind(RecordKind.START)
    held = pl.when(tells).then(pl.col("stable_version")).cum_max().forward_fill()
    held = pl.max_horizontal(held.fill_null(stable), pl.lit(stable))
    certified, conflict = verdict == CERTIFIED, verdict == CONFLICT
    counts = pl.col("snapshot_set").map_elements(_count, return_dtype=pl.Int64).fill_null(0)
    covered = (
        pl.when(conflict)
        .then(pl.col("winner_version").fill_null(0))
        .when(verdict == TOO_OLD)
        .then(held)
        .otherwise(version)
    )
    written = [pl.when(certified).then(pl.col(half)).otherwise(0).alias(half) for half in _HALVES]
    return rows.with_columns(
        *written,
        pl.when(elsewhere)
        .then(counts)
        .when(certified)
        .then(pl.col("gtid_number"))
        .when(conflict)
        .then(pl.col("winner_item"))
        .fill_null(0)
        .alias("term"),
        (covered * 8 + pl.when(elsewhere).then(CERTIFIED).otherwise(verdict)).alias("folded"),
    ).filter(~tells)


def _count(gtid_set: str) -> int:
    """Returns the number of GTIDs in a set."""
    return sum(
        last - first + 1
        for firsts, lasts in intervals(gtid_set).values()
        for first, last in zip(firsts, lasts, strict=True)
    )
