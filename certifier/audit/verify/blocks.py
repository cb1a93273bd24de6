"""GTIDs that members assign in blocks: in the blocks' order, and each block behind another one.

A member takes the numbers of its block in order. Blocks are cut from the free numbers, from the
smallest on, and all are cut anew after as many numbers as a block has (a lap), and at a view
change, a change of settings, or the begin of all (a round).

Within a lap nothing depends on another one, so that each is checked by itself. Which one a number
is in follows from how many the group has given since the round began: all versions but those of
`others`, transactions that came with a GTID or were executed elsewhere. Segments count these.

Soundness: a block is reported if it begins neither after a used number nor after a block before.

Source: MySQL 8.4 Reference Manual, `group_replication_gtid_assignment_block_size`.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from ...history.schema import RecordKind, Verdict
from ..answers.findings import Code
from ..answers.result import JsonObject
from ..rows.certification_log import Log
from ..rows.checks import FOUND, Check, Note, is_true, notes, wrong_rows
from ..rows.clocks import clock
from ..rows.critical_path import Ints
from ..rows.once import once
from ..rows.states import KEYS, segment
from ..rows.survey import of_history
from ..rows.surveyed_history import History, block_size
from ..spark.arrow import arrow_function
from ..spark.walks import Frames, in_order, shaped, walk, whole
from .gtids import given_before

_BLOCKS = "blocks"
"""The note of what the last lap of a history leaves to know for the next rows."""
_KINDS = (RecordKind.VIEW_CHANGE.value, RecordKind.SETTINGS.value, RecordKind.START.value)
_GIVEN = pl.Schema(
    {
        "h": pl.Int32(),
        **dict.fromkeys(("number", "place"), pl.Int64()),
        "origin": pl.String(),
        **dict.fromkeys(("gtid_number", "size", "round", "lap"), pl.Int64()),
    }
)
_LAP = ("h", "round", "lap")
_MEMBER = (*_LAP, "origin")
_NONE = np.zeros(0, np.int64)


class _Round(NamedTuple):
    """A round: the number of the row that begins it, the version there, the size of its blocks; 0:
    not known. `others`: those in it that the audit before has counted.
    """

    number: int
    version: int
    size: int
    others: int = 0


class _Lap(NamedTuple):
    """What a lap leaves to know for the next rows: each member's last number, and all numbers as
    intervals (first, last).
    """

    round: int
    lap: int
    last: Sequence[tuple[str, int]] = ()
    numbers: Sequence[tuple[int, int]] = ()


class _Plan(NamedTuple):
    """The rounds of each history, ascending, and of each round the segments that have others,
    ascending, with how many there are up to each (int64[n]), by history and number of the round.
    """

    rounds: Mapping[int, Sequence[_Round]]
    others: Mapping[tuple[int, int], tuple[Ints, Ints]]

    def others_before(self, h: int, at: int, segment: int | None = None) -> int:
        """Returns the number of others of a round before a segment; of all by default."""
        before = self.rounds[h][at - 1].others
        segments, counts = self.others.get((h, at), (_NONE, _NONE))
        found = len(segments) if segment is None else int(np.searchsorted(segments, segment))
        return before + (int(counts[found - 1]) if found else 0)


def wrong_blocks(log: Log) -> list[DataFrame]:
    """Returns the numbers that do not follow in their blocks; nothing if no history has blocks.

    Cost: a count of the others by segment, a shuffle by segment of the rows that make versions, and
    one by lap of those that have a number. The numbers of a lap are held at once.
    """
    plan = _plan(log)
    if not plan.rounds:
        return []
    kept = {h: before.lap for h, before in _before(log).items() if before.lap}
    blocks = _Blocks(plan, kept, _last_laps(log, plan) if log.keeps else {})
    given = walk(in_order(_versions(log, plan.rounds), KEYS, ["number"]), blocks.laps, _GIVEN)
    return [walk(in_order(given, _LAP, ["number"]), blocks.findings, FOUND)]


def blocks_to_keep(log: Log, told: Iterable[Note]) -> JsonObject:
    """Returns each history's last round and lap as JSON, by history, for the next audit."""
    plan, before = _plan(log), _before(log)
    laps = {note.h: json.loads(note.text) for note in told if note.code == _BLOCKS}
    found: JsonObject = {}
    for h, rounds in plan.rounds.items():
        if not rounds:
            continue
        last = rounds[-1]._replace(others=plan.others_before(h, len(rounds)))
        lap = laps.get(h)
        if lap is None and h in before and before[h].round.number == last.number:
            lap = before[h].lap
        found[" ".join(log.histories[h].name)] = [last, lap]
    return found


class _Before(NamedTuple):
    """The last round and lap of a history that the audit before has kept."""

    round: _Round
    lap: _Lap | None


def _before(log: Log) -> dict[int, _Before]:
    """Returns the rounds and laps that the audit before has kept, by history."""
    kept = log.before("verify").get("blocks", {})
    assert isinstance(kept, dict)
    names = {" ".join(history.name): history.h for history in log.histories}
    return {
        names[name]: _Before(_Round(*last), _Lap(*lap) if lap else None)
        for name, (last, lap) in kept.items()
    }


@once
def _plan(log: Log) -> _Plan:
    histories = {each.h: each for each in log.histories if each.block_size_max > 1}
    before = _before(log)
    rounds: dict[int, list[_Round]] = {
        h: [before[h].round] if h in before else [] for h in histories
    }
    if not rounds:
        return _Plan({}, {})
    is_begin = (F.col("kind") != RecordKind.START.value) | (F.col("version") == 0)
    begins = log.rows.where(F.col("h").isin(list(rounds)) & F.col("kind").isin(*_KINDS) & is_begin)
    for h, number, version in sorted(begins.select("h", "number", "version").collect()):
        if number > histories[h].since:
            rounds[h].append(_Round(number, version, _size_at(histories[h], number)))
    others = _versions(log, rounds).where(~F.col("given")).groupBy("h", "at", "segment").count()
    found: dict[tuple[int, int], tuple[Ints, Ints]] = {}
    table = pl.DataFrame(others.toArrow()).sort("h", "at", "segment")
    for (h, at), mine in table.group_by("h", "at"):
        counts = mine["count"].to_numpy().cumsum()
        found[int(str(h)), int(str(at))] = mine["segment"].to_numpy().astype(np.int64), counts
    return _Plan(rounds, found)


def _size_at(history: History, number: int) -> int:
    """Returns the size of blocks from a row on; 0: not known."""
    at = bisect_right(history.told, number, key=itemgetter(0))
    return block_size(history.told[at - 1][1]) if at else 0


def _versions(log: Log, rounds: Mapping[int, Sequence[_Round]]) -> DataFrame:
    """Returns the new rows that make versions, with the number `at` of their round, from 1 on (0:
    of none that is known); and whether they were given a number of the group.
    """
    begins = {h: np.array([each.number for each in mine]) for h, mine in rounds.items() if mine}

    def round_of(h: pa.Array, number: pa.Array) -> pa.Array:
        return clock(pl.Series(h), pl.Series(number), begins).to_arrow()

    certified = F.coalesce(F.col("verdict") == Verdict.CERTIFIED, F.lit(False))
    group = log.by_history(lambda history: history.group_source or "")
    is_assigned = ~F.coalesce("gtid_brought", F.lit(False)) & (F.col("gtid_source") == group)
    makes_version = certified | (F.col("kind") == RecordKind.EXECUTED_ELSEWHERE)
    is_new = F.col("number") > log.by_history(lambda history: history.since)
    return log.rows.where(F.col("h").isin(list(rounds)) & is_new & makes_version).select(
        "h",
        segment(),
        "number",
        "place",
        "version",
        "origin",
        "gtid_number",
        (certified & F.coalesce(is_assigned, F.lit(False))).alias("given"),
        arrow_function(round_of, LongType())("h", "number").alias("at"),
    )


def _last_laps(log: Log, plan: _Plan) -> dict[int, _Lap]:
    """Returns the last lap of each history that has one."""
    found = {}
    for h, rounds in plan.rounds.items():
        versions = of_history(log.files, log.histories[h].name)["last_version"]
        if rounds and rounds[-1].size > 1 and len(versions):
            last = rounds[-1]
            given = int(str(versions.max())) - last.version - plan.others_before(h, len(rounds))
            if given > 0:
                found[h] = _Lap(last.number, (given - 1) // last.size)
    return found


class _Blocks(NamedTuple):
    """The walks over rows: in segments, and in laps. `kept`: the lap that each history was in when
    it was audited before; `last`: the laps of which the next audit has to know.
    """

    plan: _Plan
    kept: Mapping[int, _Lap]
    last: Mapping[int, _Lap]

    def laps(self, frames: Frames) -> Frames:
        """Yields the numbers that were given in blocks, with their round and lap."""
        plan, keys = self.plan, (*KEYS, "at")
        for frame in whole(frames, KEYS):
            known = [
                (h, part, at, *plan.rounds[h][at - 1][:3], plan.others_before(h, at, part))
                for h, part, at in frame.select(keys).unique().iter_rows()
                if at
            ]
            names = (*keys, "round", "round_version", "size", "others")
            kinds = dict.fromkeys(KEYS, pl.Int32()) | dict.fromkeys(names[2:], pl.Int64())
            rows = frame.join(
                pl.DataFrame(known, kinds, orient="row"), keys, "inner", maintain_order="left"
            )
            others = (~pl.col("given")).cast(pl.Int64).cum_sum().over(keys) + pl.col("others")
            count = pl.col("version") - pl.col("round_version") - others
            given = rows.with_columns(((count - 1) // pl.col("size")).alias("lap"))
            yield given.filter(pl.col("given") & (pl.col("size") > 1)).select(list(_GIVEN))

    def findings(self, frames: Frames) -> Frames:
        """Yields the findings in whole laps; and as notes what the last ones leave to know."""
        for frame in whole(frames, _LAP):
            kept = [self._kept_rows(frame, h) for h in self.kept]
            before = [rows for rows, _ in kept]
            held = pl.concat([frame, *[rows for _, rows in kept]])
            both = pl.concat([*before, frame])
            met = pl.col("gtid_number").shift(1).over(_MEMBER)
            walked = both.with_columns(met.alias("before")).tail(len(frame))
            number = pl.col("gtid_number")
            # A member's first number of a lap begins a block: at 1, or where another block ended,
            # which the join below finds.
            odd = walked.filter(pl.coalesce(number != pl.col("before") + 1, number != 1))
            ended = held.select(*_LAP, number + pl.col("size"), pl.col("place").alias("begun_at"))
            ended = ended.group_by(*_LAP, "gtid_number").agg(pl.col("begun_at").min())
            yield wrong_rows(odd.join(ended, [*_LAP, "gtid_number"], "left"), _block_checks())
            for h, lap in self.last.items():
                yield _noted(_in_lap(both, h, lap), _in_lap(held, h, lap), lap)

    def _kept_rows(self, frame: pl.DataFrame, h: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Returns the last numbers of each member in a kept lap, and all numbers in it, as rows
        before all others; none if the frame has no rows of the lap.
        """
        lap = self.kept[h]
        mine = _in_lap(frame, h, lap).head(1).with_columns(number=0, place=0)
        shared = mine.drop("origin", "gtid_number")
        last = pl.DataFrame(lap.last, ["origin", "gtid_number"], orient="row")
        given = [np.arange(first, end + 1) for first, end in lap.numbers]
        numbers = pl.DataFrame({"gtid_number": np.concatenate([_NONE, *given])})
        return (
            shaped(shared.join(last, how="cross"), _GIVEN),
            shaped(shared.join(numbers, how="cross"), _GIVEN),
        )


def _in_lap(rows: pl.DataFrame, h: int, lap: _Lap) -> pl.DataFrame:
    is_mine = (pl.col("h") == h) & (pl.col("round") == lap.round) & (pl.col("lap") == lap.lap)
    return rows.filter(is_mine)


def _noted(last: pl.DataFrame, held: pl.DataFrame, lap: _Lap) -> pl.DataFrame:
    """Returns the note of a lap from the last rows of its members and all its numbers."""
    if not len(last):
        return pl.DataFrame(schema=FOUND)
    numbers = held["gtid_number"].sort()
    begins = numbers.filter((numbers.diff() != 1).fill_null(value=True))
    ends = numbers.filter((numbers.diff().shift(-1) != 1).fill_null(value=True))
    members = last.group_by("origin", maintain_order=True).agg(pl.col("gtid_number").last())
    told = (lap.round, lap.lap, members.rows(), list(zip(begins, ends, strict=True)))
    text = {"h": last["h"].head(1), "witness": [json.dumps(told)]}
    return notes(_BLOCKS, pl.DataFrame(text))


def _block_checks() -> list[Check]:
    """Returns the checks of numbers that do not follow `before`, their member's last one."""
    number, before = pl.col("gtid_number"), pl.col("before")
    follows = is_true(pl.col("begun_at") < pl.col("place"))
    first, last = before + 1, pl.when(~follows).then(number - 1)
    low, high = pl.coalesce(first, last), pl.coalesce(last, first)
    goes_back = number <= before
    is_gap = ~is_true(goes_back) & low.is_not_null()
    why = given_before(before)
    return [
        Check(Code.GTID_GAP, is_gap, low, number, why, low, high),
        Check(Code.GTID_ORDER, goes_back, first, number, why, number),
    ]
