"""GTIDs: none is given twice, none is skipped.

Assigned one by one, the next number is the smallest free one. A number is not free if a transaction
came with it as its own GTID, or if it was executed elsewhere. Assigned in blocks, a member takes
the numbers of its block in order. Blocks are cut from the free numbers, from the smallest on, and
all are cut anew after as many numbers as a block has (a lap), and at a view change, a change of
settings, or the begin of all (a round).

Soundness: a gap is reported if the first or the last number of the skipped ones was free; a block,
if it begins neither after a used number nor after the block before.
Completeness: free numbers between used ones are not searched.

Source: WL#8440; MySQL 8.4 Reference Manual, `group_replication_gtid_assignment_block_size`.
"""

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ...history.schema import RecordKind
from ..answers.findings import Code
from ..answers.result import JsonObject
from ..rows.certification_log import Log
from ..rows.checks import (
    FOUND,
    Check,
    FoundAll,
    Note,
    collected,
    is_true,
    merged,
    notes,
    words,
    wrong_rows,
)
from ..rows.coded_columns import CERTIFIED, is_kind, kind_number, verdict_number
from ..rows.foreign import intervals
from ..rows.once import once
from ..rows.order import makes_version
from ..rows.sequence import Told, told_of
from ..spark.walks import Frames, concatenated, in_order, walk

Elsewhere = Mapping[tuple[int, str], tuple[NDArray[np.int64], ...]]
"""The intervals of GTIDs executed elsewhere, by history and source: first numbers, last numbers,
and the places from which on they are known; int64[n], ascending by number.
"""
AUDITED_PLACE = 0
"""Stands for the place of a row that is not kept; no transaction has it."""
_GTID = ("h", "gtid_source", "gtid_number")
_BLOCKS = "blocks"
"""The note of what the rows of a history leave to know for the next ones."""
_STATE = ("others", "met", "last", "lap", "numbers")
_GIVEN = pl.Schema(
    {
        "h": pl.Int32(),
        **dict.fromkeys(("number", "place"), pl.Int64()),
        "origin": pl.String(),
        **dict.fromkeys(("gtid_number", "size", "round", "lap"), pl.Int64()),
    }
)
_LAP = ("h", "round", "lap")
_MEMBER = ("h", "origin")


def gtid_checks() -> list[Check]:
    """Returns the checks that no GTID is given twice, for rows with `gtid_used_at` and
    `elsewhere_at`, and that numbers assigned one by one follow each other.
    """
    certified = pl.col("verdict") == CERTIFIED
    given = pl.col("decided") & certified & pl.col("is_assigned")
    given &= pl.coalesce("met_block_size", "told_block_size") == 1
    given &= pl.col("met_gtid") >= 0
    number, met = pl.col("gtid_number"), pl.col("met_gtid")
    before = pl.min_horizontal("gtid_used_at", "elsewhere_at")
    name = words(pl.col("gtid_source"), ":", number)
    return [
        Check(
            Code.GTID_DUPLICATE,
            certified & (before < pl.col("place")),
            words("one transaction ", name),
            pl.lit("2 transactions"),
            words(name, " was given before, at place ", before),
            number,
            before,
        ),
        Check(
            Code.GTID_GAP,
            given & (number > met + 1),
            met + 1,
            number,
            _given_before(met),
            met + 1,
            number - 1,
        ),
        Check(
            Code.GTID_ORDER,
            given & (number <= met),
            met + 1,
            number,
            _given_before(met),
            number,
        ),
    ]


def _given_before(met: pl.Expr) -> pl.Expr:
    """Returns the witness of a number that does not follow."""
    return words("the number given before is ", met)


def without_used(log: Log, wrong: DataFrame) -> FoundAll:
    """Collects findings, without the gaps that begin and end with numbers that were used before.

    Cost: another pass over the rows, if there is any gap.
    """
    found = collected(log, wrong)
    count = found.counts.pop(Code.GTID_GAP.value, 0)
    if not count:
        return found
    others = [each for each in found.found if each.finding.code is not Code.GTID_GAP]
    gaps = collected(log, _unused(log, wrong.where(F.col("code") == Code.GTID_GAP.value)))
    return merged([FoundAll(others, found.counts), gaps])._replace(notes=found.notes)


def _unused(log: Log, gaps: DataFrame) -> DataFrame:
    """Returns the gaps of which one end was free.

    Each end is asked for in a walk over GTIDs, which meets whoever was given it. A history that
    begins late does not show what was used before: there a number was free only if it is used
    later.
    """
    ends = gaps.select(
        "*", F.explode(F.array_distinct(F.array("low", "high"))).alias("gtid_number")
    )
    group = log.by_history(lambda history: history.group_source or "")
    asked = ends.withColumn("gtid_source", group).withColumn("is_asked", F.lit(True))
    given = log.certified.select(*_GTID, F.col("place"), F.lit(False).alias("is_asked"))
    keys = ("gtid_number", "h")
    rows = in_order(concatenated(asked, given), keys, ("gtid_source", "is_asked", "place"))
    late = [history.h for history in log.histories if history.start_version > 0]
    ends_of = _FreeEnds(intervals_elsewhere(log), intervals_used(log), late)
    free = walk(rows, ends_of.free, FOUND)
    return free.dropDuplicates(["h", "number"])


class _FreeEnds(NamedTuple):
    """The walk over GTIDs, each with the transactions that were given it before those that ask."""

    elsewhere: Elsewhere
    used: Elsewhere
    late: list[int]
    """The histories that begin late."""

    def free(self, frames: Frames) -> Frames:
        """Yields the rows whose number was free."""
        given: pl.DataFrame | None = None
        for frame in frames:
            both = frame if given is None else pl.concat([given, frame])
            is_given = ~pl.col("is_asked")
            first = (
                both.filter(is_given).group_by(_GTID).agg(pl.col("place").min().alias("used_at"))
            )
            asked = both.filter("is_asked").join(first, _GTID, "left", nulls_equal=True)
            asked = asked.with_columns(
                elsewhere_at(self.elsewhere, asked),
                elsewhere_at(self.used, asked).alias("kept_at"),
            )
            used_at = pl.min_horizontal("used_at", "elsewhere_at", "kept_at")
            used = (used_at < pl.col("place")).fill_null(value=False)
            not_shown = pl.col("h").is_in(self.late) & used_at.is_null()
            yield asked.filter(~(used | not_shown)).select(list(FOUND))
            last = frame.row(-1, named=True)
            is_last = pl.all_horizontal(pl.col(name).eq_missing(last[name]) for name in _GTID)
            # Those that ask for the frame's last GTID may come in the next one.
            given = both.filter(is_given & is_last)


@once
def intervals_elsewhere(log: Log) -> Elsewhere:
    """Returns the intervals of GTIDs that histories know to be executed elsewhere.

    Cost: 24 bytes an interval.
    """
    if not any(history.elsewhere for history in log.histories):
        return {}
    rows = log.rows.where(F.col("kind") == RecordKind.EXECUTED_ELSEWHERE)
    known: dict[tuple[int, str], list[tuple[int, int, int]]] = {}
    for row in rows.select("h", "place", "snapshot_set").collect():
        for source, ends in intervals(row["snapshot_set"] or "").items():
            for first, last in zip(*ends, strict=True):
                known.setdefault((row["h"], source), []).append((first, last, row["place"]))
    return {key: tuple(np.array(sorted(each), np.int64).T.copy()) for key, each in known.items()}


def intervals_used(log: Log) -> Elsewhere:
    """Returns the intervals of GTIDs that were used in rows which an audit before has seen; their
    place is `AUDITED_PLACE`.
    """
    found = {}
    for history in log.histories:
        for source, intervals_of in (history.before.used if history.before else {}).items():
            first, last = np.array(intervals_of, np.int64).reshape(-1, 2).T.copy()
            found[history.h, source] = first, last, np.full(len(first), AUDITED_PLACE)
    return found


def elsewhere_at(elsewhere: Elsewhere, rows: pl.DataFrame) -> pl.Series:
    """Returns the place at which each row's GTID became known to be executed elsewhere; null if it
    did not.

    Cost: a search in the intervals of its source.
    """
    h, source, number = (rows[name] for name in _GTID)
    found = np.full(len(rows), -1, np.int64)
    asked = number.fill_null(0).to_numpy()
    for (each, name), (first, last, place) in elsewhere.items():
        mine = np.flatnonzero(((h == each) & (source == name)).fill_null(value=False).to_numpy())
        at = np.searchsorted(first, asked[mine], "right") - 1
        inside = (at >= 0) & (asked[mine] <= last[at])
        found[mine[inside]] = place[at[inside]]
    return pl.Series("elsewhere_at", found).replace(-1, None)


def wrong_blocks(log: Log) -> list[DataFrame]:
    """Returns the numbers that do not follow in their blocks; nothing if no history has blocks.

    Cost: one walk over the rows of each such history. A lap's numbers are held at once.
    """
    histories = [history.h for history in log.histories if history.block_size_max > 1]
    if not histories:
        return []
    rows = log.rows.where(F.col("h").isin(histories)).select(
        "h",
        "number",
        "place",
        kind_number(),
        verdict_number(),
        "version",
        "origin",
        "gtid_source",
        "gtid_number",
        "gtid_brought",
        F.get_json_object("settings", "$.gtid_assignment_block_size").cast("bigint").alias("told"),
    )
    since = {history.h: history.since for history in log.histories}
    kept = log.before("verify").get("blocks", {})
    assert isinstance(kept, dict)
    known = {h: kept[name] for h in histories if (name := _name(log, h)) in kept}
    blocks = _Blocks(told_of(log), since, known)
    return [walk(in_order(rows, ["h"], ["number"]), blocks.findings, FOUND)]


def blocks_to_keep(log: Log, told: Iterable[Note]) -> JsonObject:
    """Returns the notes of the walk over blocks as JSON, by history, for the next audit."""
    return {_name(log, note.h): json.loads(note.text) for note in told if note.code == _BLOCKS}


def _name(log: Log, h: int) -> str:
    return " ".join(log.histories[h].name)


class _Blocks(NamedTuple):
    """The walk over the rows of each history with blocks, behind those that were audited before;
    `kept`: what these have left to know.
    """

    told: Told
    since: Mapping[int, int]
    kept: Mapping[int, JsonObject]

    def findings(self, frames: Frames) -> Frames:
        """Yields the findings; and as notes what each history leaves to know."""
        known = _BlockState(-1)
        for frame in self.told.known(frames):
            for (h,), rows in frame.group_by("h", maintain_order=True):
                number = int(str(h))
                if known.h != number:
                    yield known.noted()
                    known = _BlockState(number, self.kept.get(number))
                new = rows.filter(pl.col("number") > self.since[number])
                if len(new):
                    yield known.wrong(new)
        yield known.noted()


class _BlockState:
    """The state that the rows of a history so far leave for the next ones."""

    def __init__(self, h: int, kept: JsonObject | None = None) -> None:
        """Knows what another one has noted of the rows before; nothing by default."""
        self.h = h
        self.others = 0
        """Versions that got no number here."""
        self.met = pl.DataFrame(
            [(None, None, None)],
            schema={"size": pl.Int64(), "round": pl.Int64(), "counted": pl.Int64()},
            orient="row",
        )
        """The size of blocks; the row at which the round began, and the numbers given by then."""
        self.last = pl.DataFrame()
        """Each member's last number, with its round and lap."""
        self.lap = pl.DataFrame()
        """All numbers of the last lap."""
        if kept:
            self._resume(kept)

    def noted(self) -> pl.DataFrame:
        """Returns the note of what is known; none of a history that has no rows."""
        if self.h < 0:
            return pl.DataFrame(schema=FOUND)
        numbers = self.lap["gtid_number"].sort() if len(self.lap) else pl.Series([], dtype=pl.Int64)
        begins = numbers.filter((numbers.diff() != 1).fill_null(value=True))
        ends = numbers.filter((numbers.diff().shift(-1) != 1).fill_null(value=True))
        told = {
            "others": self.others,
            "met": self.met.row(0),
            "last": self.last.to_dicts(),
            "lap": self.lap.row(-1, named=True) if len(self.lap) else None,
            "numbers": list(zip(begins, ends, strict=True)),
        }
        text = {"h": [self.h], "witness": [json.dumps(told)]}
        return notes(_BLOCKS, pl.DataFrame(text, schema_overrides={"h": pl.Int32()}))

    def _resume(self, kept: JsonObject) -> None:
        others, met, last, lap, numbers = (kept[name] for name in _STATE)
        assert isinstance(others, int) and isinstance(met, list) and isinstance(last, list)
        self.others = others
        self.met = pl.DataFrame([tuple(met)], schema=self.met.schema, orient="row")
        if last:
            self.last = pl.DataFrame([{**each, "h": self.h} for each in last], schema=_GIVEN)
        if isinstance(lap, dict) and isinstance(numbers, list):
            given = np.concatenate([np.arange(first, last + 1) for first, last in numbers])
            # Whatever the place of each was, it is before all that follow.
            row = {**lap, "h": self.h, "place": 0}
            self.lap = pl.DataFrame(
                {name: given if name == "gtid_number" else row[name] for name in _GIVEN},
                schema=_GIVEN,
            )

    def wrong(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Takes the next rows; returns the findings among them."""
        given = self._in_laps(rows)
        if not len(given):
            return pl.DataFrame(schema=FOUND)
        both = pl.concat([self.last, given]) if len(self.last) else given
        same = [pl.col(name).shift(1).over(_MEMBER) == pl.col(name) for name in ("round", "lap")]
        before = pl.when(*same).then(pl.col("gtid_number").shift(1).over(_MEMBER))
        walked = both.with_columns(before.alias("before")).tail(len(given))
        number = pl.col("gtid_number")
        # A member's first number of a lap begins a block: at 1, or where another block ended, which
        # the join below finds.
        odd = walked.filter(pl.coalesce(number != pl.col("before") + 1, number != 1))
        held = pl.concat([self.lap, given]) if len(self.lap) else given
        ended = held.select(*_LAP, number + pl.col("size"), pl.col("place").alias("begun_at"))
        ended = ended.group_by(*_LAP, "gtid_number").agg(pl.col("begun_at").min())
        self.last = both.group_by(_MEMBER, maintain_order=True).last().select(given.columns)
        last = given.row(-1, named=True)
        self.lap = held.filter(pl.all_horizontal(pl.col(name) == last[name] for name in _LAP))
        return wrong_rows(odd.join(ended, [*_LAP, "gtid_number"], "left"), _block_checks())

    def _in_laps(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Returns the numbers assigned in blocks of `size`, each with its round and lap. Rows
        without a known round are left out: those before the first view change of a history that
        begins late.
        """
        view, settings = is_kind(RecordKind.VIEW_CHANGE), is_kind(RecordKind.SETTINGS)
        begins = view | settings | (is_kind(RecordKind.START) & (pl.col("version") == 0))
        given = is_true((pl.col("verdict") == CERTIFIED) & pl.col("is_assigned"))
        other = (makes_version() & ~given).cast(pl.Int64).cum_sum() + self.others
        counted = rows.with_columns(
            given.alias("given"), (pl.col("version") - other).alias("given_count"), other=other
        )
        self.others = counted["other"][-1]
        after = counted.select(
            pl.col("told").alias("size"),
            pl.when(begins).then(pl.col("number")).alias("round"),
            pl.when(begins).then(pl.col("given_count")).alias("counted"),
        )
        known = pl.concat([self.met, after]).select(pl.all().forward_fill())
        self.met = known.tail(1)
        met = pl.concat([counted, known.head(len(rows))], how="horizontal")
        lap = (pl.col("given_count") - pl.col("counted") - 1).floordiv(pl.col("size"))
        is_known = pl.col("given") & (pl.col("size") > 1) & pl.col("round").is_not_null()
        return (
            met.filter(is_known)
            .with_columns(lap.alias("lap"))
            .select(pl.col(name).cast(kind) for name, kind in _GIVEN.items())
        )


def _block_checks() -> list[Check]:
    """Returns the checks of numbers that do not follow `before`, their member's last one."""
    number, before = pl.col("gtid_number"), pl.col("before")
    follows = is_true(pl.col("begun_at") < pl.col("place"))
    first, last = before + 1, pl.when(~follows).then(number - 1)
    low, high = pl.coalesce(first, last), pl.coalesce(last, first)
    goes_back = number <= before
    is_gap = ~is_true(goes_back) & low.is_not_null()
    why = _given_before(before)
    return [
        Check(Code.GTID_GAP, is_gap, low, number, why, low, high),
        Check(Code.GTID_ORDER, goes_back, first, number, why, number),
    ]
