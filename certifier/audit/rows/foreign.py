"""Snapshots that are GTID sets: whether one includes a writer, with all that the writer had read.

This is the subset test of WL#8440: the writer's snapshot version, which includes the writer's own
GTID, must be a subset of the transaction's. Sets are compared as intervals.
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import TypeAlias

import polars as pl
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.types import BooleanType

from ..spark.arrow import arrow_function

Intervals: TypeAlias = dict[str, tuple[list[int], list[int]]]
"""By source, the first and the last numbers of its intervals, ascending."""
_PARSED_MAX = 4096
_PARSED: dict[str, Intervals] = {}
WholeTo: TypeAlias = Callable[[pl.Series, pl.Series], pl.Series]
"""A function of histories and GTID sets: see `prefixes.whole_to`."""


def includes(rows: pl.DataFrame, writers: pl.DataFrame, whole_to: WholeTo) -> pl.Series:
    """Returns whether each row's snapshot, a GTID set, includes the writer beside it; null if the
    snapshot is none, or the writer's GTID is not known.
    """
    read = writers.select("gtid_source", "gtid_number", "snapshot_set", "snapshot_version")
    known = zip(rows["snapshot_set"], whole_to(rows["h"], rows["snapshot_set"]), strict=True)
    return pl.Series(
        [
            _includes(*snapshot, *writer)
            for snapshot, writer in zip(known, read.iter_rows(), strict=True)
        ],
        dtype=pl.Boolean,
    )


def subsets(parts: pl.Series, wholes: pl.Series) -> pl.Series:
    """Returns whether each GTID set is a subset of the one beside it; null if one is null."""
    return pl.Series(
        [
            None if part is None or each is None else covers(each, part)
            for part, each in zip(parts, wholes, strict=True)
        ],
        dtype=pl.Boolean,
    )


def named(sets: pl.Series, sources: pl.Series, numbers: pl.Series) -> pl.Series:
    """Returns whether each GTID set has the GTID beside it; null if one of them is null."""
    return pl.Series(
        [
            None if each is None or source is None else has(intervals(each), source, number, number)
            for each, source, number in zip(sets, sources, numbers, strict=True)
        ],
        dtype=pl.Boolean,
    )


def is_in(gtid_set: str, source: str, number: str) -> Column:
    """Returns whether a column's GTID set has the GTID of two other columns; null if any is."""
    return arrow_function(_named, BooleanType())(gtid_set, source, number)


def intervals(gtid_set: str) -> Intervals:
    """Returns the intervals of a GTID set as text. The last ones are kept, as many rows have the
    same; not by `functools`, whose functions do not travel to executors by value.

    A tag holds for the intervals behind it; it is a part of their source's name, as in GTIDs.

    >>> intervals("a:1-5:7:backup:2,b:2")
    {'a': ([1, 7], [5, 7]), 'a:backup': ([2], [2]), 'b': ([2], [2])}
    """
    known = _PARSED.get(gtid_set)
    if known is None:
        if len(_PARSED) >= _PARSED_MAX:
            _PARSED.clear()
        known = _PARSED[gtid_set] = _parsed(gtid_set)
    return known


def _parsed(gtid_set: str) -> Intervals:
    found: Intervals = {}
    for part in filter(None, gtid_set.replace("\n", "").replace(" ", "").split(",")):
        uuid, *pieces = part.split(":")
        source = uuid
        for piece in pieces:
            if not piece[0].isdigit():
                source = f"{uuid}:{piece}"
                continue
            first, _, last = piece.partition("-")
            firsts, lasts = found.setdefault(source, ([], []))
            firsts.append(int(first))
            lasts.append(int(last or first))
    return found


def has(known: Intervals, source: str, first: int, last: int) -> bool:
    """Returns whether a set has all numbers of an interval.

    >>> has(intervals("a:1-5:7"), "a", 2, 5), has(intervals("a:1-5:7"), "a", 5, 7)
    (True, False)
    """
    firsts, lasts = known.get(source, ((), ()))
    place = bisect_right(firsts, first) - 1
    return place >= 0 and last <= lasts[place]


def covers(whole: str, part: str) -> bool:
    """Returns whether `part` is a subset of `whole`.

    >>> covers("a:1-5,b:1", "a:2-3"), covers("a:1-5", "a:4-6")
    (True, False)
    """
    known = intervals(whole)
    return all(
        has(known, source, first, last)
        for source, (firsts, lasts) in intervals(part).items()
        for first, last in zip(firsts, lasts, strict=True)
    )


def _includes(
    snapshot: str | None,
    whole_to: int | None,
    source: str | None,
    number: int,
    read: str | None,
    read_to: int | None,
) -> bool | None:
    if snapshot is None or source is None:
        return None
    if not has(intervals(snapshot), source, number, number):
        return False
    if read is not None:
        return covers(snapshot, read)
    # What is not known is not wrong.
    return whole_to is None or read_to is None or read_to <= whole_to


def _named(sets: pa.Array, sources: pa.Array, numbers: pa.Array) -> pa.Array:
    found = named(*(pl.Series(column) for column in (sets, sources, numbers)))
    return found.to_arrow()
