"""GTID numbers that members assign in blocks: a member's ascend by one until its block ends, and
blocks follow each other.

With blocks a member takes the numbers of its block in order. Blocks are cut from the free numbers,
from the smallest on, and all are cut anew after as many numbers as a block has (a lap), and at a
view change, a change of settings, or the begin of all (a round).

Soundness: a block is reported if it begins neither after a used number nor after the block before.

Source: MySQL 8.4 Reference Manual, `group_replication_gtid_assignment_block_size`.
"""

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ...history.schema import RecordKind
from ..answers.findings import Code
from ..answers.result import JsonObject
from ..rows.checks import FOUND, Check, Note, is_true, notes, wrong_rows
from ..rows.columns import CERTIFIED, is_kind, kind_number, verdict_number
from ..rows.log import Log
from ..rows.order import makes_version
from ..rows.sequence import Told, told_of
from ..spark.walks import Frames, in_order, walk
from .gtids import given_before

BLOCKS = "blocks"
"""The note of what the rows of a history leave to know for the next ones."""
_KEPT = ("others", "met", "last", "lap", "numbers")
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


def wrong_blocks(log: Log) -> list[DataFrame]:
    """Returns the numbers that do not follow in their blocks; nothing if no history has blocks.

    Cost: one walk over the rows of each such history. A lap's numbers are held at once.
    """
    histories = [each.h for each in log.histories if each.block_size_max > 1]
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
    since = {each.h: each.since for each in log.histories}
    kept = log.before("verify").get("blocks", {})
    assert isinstance(kept, dict)
    known = {h: kept[name] for h in histories if (name := _name(log, h)) in kept}
    blocks = _Blocks(told_of(log), since, known)
    return [walk(in_order(rows, ["h"], ["number"]), blocks.findings, FOUND)]


def blocks_to_keep(log: Log, told: Iterable[Note]) -> JsonObject:
    """Returns the notes of the walk over blocks as JSON, by history, for the next audit."""
    return {_name(log, note.h): json.loads(note.text) for note in told if note.code == BLOCKS}


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
        known = _Known(-1)
        for frame in self.told.known(frames):
            for (h,), rows in frame.group_by("h", maintain_order=True):
                number = int(str(h))
                if known.h != number:
                    yield known.noted()
                    known = _Known(number, self.kept.get(number))
                new = rows.filter(pl.col("number") > self.since[number])
                if len(new):
                    yield known.wrong(new)
        yield known.noted()


class _Known:
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
        return notes(BLOCKS, pl.DataFrame(text, schema_overrides={"h": pl.Int32()}))

    def _resume(self, kept: JsonObject) -> None:
        others, met, last, lap, numbers = (kept[name] for name in _KEPT)
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
        return wrong_rows(odd.join(ended, [*_LAP, "gtid_number"], "left"), _checks())

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


def _checks() -> list[Check]:
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
