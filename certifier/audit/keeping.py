"""Writes what an audit keeps for the next one; `rows/kept.py` reads it, and says what it is."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..history.schema import RecordKind
from .answers.result import JsonObject, Result
from .output import Output
from .rows.histories import History
from .rows.items import facts
from .rows.kept import DOCUMENT, FILES, ROWS, STATE_VERSION
from .rows.log import SCHEMA, Log
from .rows.survey import TELLING, of_history
from .rows.tails import Tail, tails_of

_COUNTS = (
    *("rows", "transactions", "stamped", "read_sets", "gtid_snapshots", "elsewhere"),
    "certified_read_sets",
)
"""The sums of a history that go on, beside those of its verdicts."""
_FILE = "file string, size long, modified_us long"


def to_keep(
    log: Log, results: Mapping[str, Result], shown: Mapping[str, JsonObject], output: Output
) -> dict[str, Callable[[], None]]:
    """Returns, by names, what writes rows, files and what the jobs keep; any order will do.

    Args:
        results: of all jobs, by name.
        shown: what the summary has beside its findings, by their names.
    Cost: a pass over the rows, and a second one of histories that are not kept whole.
    """
    tails = tails_of(log)
    needed = {row for result in results.values() for row in result.rows}

    def write_document() -> None:
        ends = _ends(log, tails)
        document: JsonObject = {
            "version": STATE_VERSION,
            "histories": [_history(log, each, tails[each.h], ends) for each in log.histories],
            "jobs": {name: result.kept for name, result in results.items()},
            "shown": shown,
        }
        output.write_state_text(json.dumps(document, allow_nan=False))

    return {
        ROWS: lambda: output.write_state(ROWS, _rows(log, tails, needed)),
        FILES: lambda: output.write_state(FILES, _files(log)),
        DOCUMENT: write_document,
    }


def _rows(log: Log, tails: Mapping[int, Tail], needed: Iterable[tuple[int, int]]) -> DataFrame:
    """Returns the rows that are kept: those of the tails, and of the others those that tell a
    history's turns, the last writers of items, and what the jobs need.
    """
    columns = SCHEMA.fieldNames()
    first = log.by_history(lambda each: tails[each.h].number)
    in_tail = F.col("number") >= first
    joins = (F.col("kind") == RecordKind.VIEW_CHANGE.value) & F.col("resets_clock")
    tells = F.coalesce(F.col("kind").isin(*TELLING) | joins, F.lit(False))
    kept = log.rows.where(in_tail | tells)
    if all(tail.number == 1 for tail in tails.values()):
        return kept.select(columns).coalesce(1)
    earlier = {(h, number) for h, number in needed if number < tails[h].number}
    told = log.spark.createDataFrame(sorted(earlier), "h int, number long")
    writers = facts(log).where("is_kept").select("h", "number")
    asked = F.broadcast(told).union(writers).distinct()
    others = log.rows.where(~in_tail & ~tells).join(asked, ["h", "number"], "left_semi")
    return kept.union(others.select(kept.columns)).select(columns)


def _files(log: Log) -> DataFrame:
    """Returns all files that were read, by this audit or one before, as they were then."""
    names = ("file", "size", "modified_us")
    read = log.files.select(names).unique("file").sort("file")
    new = log.spark.createDataFrame(read.rows(), _FILE).coalesce(1)
    if not log.kept:
        return new
    return log.spark.read.parquet(log.kept.files_path).select(*names).union(new).coalesce(1)


def _ends(log: Log, tails: Mapping[int, Tail]) -> dict[int, tuple[int, int]]:
    """Returns by history the largest tick and version of the rows that are not all kept."""
    before = {each.h: each.before for each in log.histories}
    ends = {
        h: (each.tick, each.whole_version - 1) if each else (0, 0) for h, each in before.items()
    }
    if all(tail.number == 1 for tail in tails.values()):
        return ends
    first = log.by_history(lambda each: tails[each.h].number)
    found = log.rows.where(F.col("number") < first).groupBy("h")
    for h, tick, version in found.agg(F.max("committed_tick"), F.max("version")).collect():
        ends[h] = max(ends[h][0], tick or 0), max(ends[h][1], version or 0)
    return ends


def _history(
    log: Log, history: History, tail: Tail, ends: Mapping[int, tuple[int, int]]
) -> JsonObject:
    """Returns a `KeptHistory` as JSON: the part of a history that is kept beside its rows."""
    files, before = of_history(log.files, history.name), history.before
    stamps = files.filter(pl.col("last_stamp").is_not_null()).sort("last_stamp_at")["last_stamp"]
    tick, version = ends[history.h]
    return {
        "observer": history.observer,
        "history": history.history,
        "since": history.last_number,
        "last_place": history.last_place,
        "whole_from": tail.number,
        "whole_version": version + 1,
        "whole_place": tail.place,
        "resumes": tail.resumes,
        "tick": tick,
        "first_number": before.first_number if before else files["first_number"].min(),
        "first_place": history.first_place,
        "first_version": history.first_version,
        "first_us": history.first_us,
        "first_stamp": history.first_stamp,
        "last_stamp": stamps[-1] if len(stamps) else before.last_stamp if before else 0,
        "counts": {
            **{name: getattr(history, name) for name in _COUNTS},
            **{verdict.value: count for verdict, count in history.verdicts.items()},
        },
        "lost_resets": list(history.lost_resets),
        "settings": history.settings,
        "used": _used(of_history(log.surveyed.used, history.name), before.used if before else {}),
    }


def _used(
    new: pl.DataFrame, before: Mapping[str, Sequence[tuple[int, int]]]
) -> dict[str, list[tuple[int, int]]]:
    """Returns the intervals of GTIDs that a history shows as used, by source: joined, ascending."""
    found = {source: [(first, last) for first, last in each] for source, each in before.items()}
    for source, first, last in new.select("gtid_source", "first", "last").iter_rows():
        found.setdefault(source, []).append((first, last))
    return {source: joined(intervals) for source, intervals in found.items()}


def joined(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the same numbers as intervals that neither overlap nor touch, ascending.

    >>> joined([(5, 9), (1, 3), (4, 4), (12, 12), (6, 7)])
    [(1, 9), (12, 12)]
    """
    found: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found
