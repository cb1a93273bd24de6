"""Snapshots that are GTID sets: whether one includes a writer, with all that the writer had read.

This is the subset test of WL#8440: the writer's snapshot version, which includes the writer's own
GTID, must be a subset of the transaction's. Sets are compared as intervals.
"""

from bisect import bisect_right
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from groupcert.certifier.audit.spark.arrow import arrow_function

Intervals: TypeAlias = dict[str, tuple[list[int], list[int]]]
"""By source, the first and the last numbers of its intervals, ascending."""


def is_included() -> Column:
    """Returns whether the last writer (`last_read`) is in the snapshot of a row (`snapshot_set`,
    which has all versions up to `whole_to`, if that is known).
    """
    return arrow_function(_included, BooleanType())(
        *("snapshot_set", "whole_to"),
        F.col("last_read.gtid_source"),
        F.col("last_read.gtid_number"),
        F.col("last_read.snapshot_set"),
        F.col("last_read.snapshot_version"),
    )


def is_in(gtid_set: str, source: str, number: str) -> Column:
    """Returns whether a column's GTID set has the GTID of two other columns; null if any is."""
    return arrow_function(_named, BooleanType())(gtid_set, source, number)


def is_subset(part: Column, whole: Column) -> Column:
    """Returns whether a GTID set is a subset of another; null if one is null."""
    return arrow_function(_subset, BooleanType())(part, whole)


@lru_cache(maxsize=4096)
def intervals(gtid_set: str) -> Intervals:
    """Returns the intervals of a GTID set as text.

    A tag holds for the intervals behind it; it is a part of their source's name, as in GTIDs.

    >>> intervals("a:1-5:7:backup:2,b:2")
    {'a': ([1, 7], [5, 7]), 'a:backup': ([2], [2]), 'b': ([2], [2])}
    """
    found: Intervals = {}
    for part in filter(None, gtid_set.replace("\n", "").replace(" ", "").split(",")):
        uuid, *pieces = part.split(":")
        source = uuid
        for each in pieces:
            if not each[0].isdigit():
                source = f"{uuid}:{each}"
                continue
            first, _, last = each.partition("-")
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


def _included(*columns: pa.Array) -> pa.Array:
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return pa.array([_includes(*row) for row in rows], pa.bool_())


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
    return whole_to is None or read_to is None or read_to <= whole_to


def _named(sets: pa.Array, sources: pa.Array, numbers: pa.Array) -> pa.Array:
    rows = zip(*(column.to_pylist() for column in (sets, sources, numbers)), strict=True)
    return pa.array(
        [
            None if each is None or source is None else has(intervals(each), source, number, number)
            for each, source, number in rows
        ],
        pa.bool_(),
    )


def _subset(parts: pa.Array, wholes: pa.Array) -> pa.Array:
    return pa.array(
        [
            None if part is None or whole is None else covers(whole, part)
            for part, whole in zip(parts.to_pylist(), wholes.to_pylist(), strict=True)
        ],
        pa.bool_(),
    )
