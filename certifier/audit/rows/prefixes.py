"""Prefixes: up to which version a snapshot that is a GTID set contains everything.

A version is in a set if all its GTIDs are. This is needed for histories in which other snapshots
and the stable sets are versions; in traces all are sets.
"""

from typing import NamedTuple

import numpy as np
import polars as pl
from pyspark.sql import functions as F

from groupcert.certifier.audit.rows.foreign import Intervals, WholeTo, covers, intervals
from groupcert.certifier.audit.rows.log import Log
from groupcert.certifier.audit.rows.once import once
from groupcert.certifier.history.schema import RecordKind, Source

_NEVER = 1 << 62


class Numbers(NamedTuple):
    """The GTID numbers of a source, ascending; their versions; and for each the least version from
    it on: int64[n].
    """

    numbers: np.ndarray
    versions: np.ndarray
    least: np.ndarray


class Executed(NamedTuple):
    """The transactions that a history has executed, by source; and versions that stand for sets."""

    sources: dict[str, Numbers]
    elsewhere: list[tuple[int, str]]


@once
def whole_to(log: Log) -> WholeTo:
    """Returns a function of histories and GTID sets: the newest version up to which the set has all
    that the history executed; null in traces, and without a set.

    Cost: a search for each interval of a set. The driver, and each process that asks, hold 24 bytes
    a certified transaction of the histories that have such snapshots.
    """
    asked = [
        each.h for each in log.histories if each.source is not Source.TRACE and each.gtid_snapshots
    ]
    executed = _executed(log, asked) if asked else {}

    def newest(h: pl.Series, sets: pl.Series) -> pl.Series:
        known = {
            (each, text): whole(executed[each], text)
            for each, text in set(zip(h, sets, strict=True))
            if text is not None and each in executed
        }
        found = [known.get(asked) for asked in zip(h, sets, strict=True)]
        return pl.Series("whole_to", found, dtype=pl.Int64)

    return newest


def whole(executed: Executed, gtid_set: str) -> int:
    """Returns the newest version up to which a set has all that was executed.

    >>> a = numbers_of(np.array([1, 2, 3]), np.array([1, 2, 4]))
    >>> executed = Executed({"a": a}, [(3, "b:7-9")])
    >>> [whole(executed, each) for each in ("a:1-3", "a:1-2,b:1-9", "b:9", "a:1:3,b:7-9")]
    [2, 3, 0, 1]
    """
    known = intervals(gtid_set)
    missing = [
        _first_missing(numbers, known, source) for source, numbers in executed.sources.items()
    ]
    missing += [version for version, part in executed.elsewhere if not covers(gtid_set, part)]
    return min(missing, default=_NEVER) - 1


def numbers_of(numbers: np.ndarray, versions: np.ndarray) -> Numbers:
    """Returns `Numbers` of numbers, ascending, and their versions."""
    return Numbers(numbers, versions, np.minimum.accumulate(versions[::-1])[::-1])


def _first_missing(executed: Numbers, known: Intervals, source: str) -> int:
    """Returns the least version of a number that is in no interval."""
    missing, start = _NEVER, 0
    for first, last in zip(*known.get(source, ((), ())), strict=True):
        stop = int(np.searchsorted(executed.numbers, first))
        if stop > start:
            missing = min(missing, int(executed.versions[start:stop].min()))
        start = int(np.searchsorted(executed.numbers, last, "right"))
    return min(missing, int(executed.least[start])) if start < len(executed.least) else missing


def _executed(log: Log, asked: list[int]) -> dict[int, Executed]:
    mine = F.col("h").isin(asked)
    certified = log.certified.where(mine & F.col("gtid_number").isNotNull())
    found = {h: Executed({}, []) for h in asked}
    for row in certified.select("h", "gtid_source").distinct().collect():
        of_source = (F.col("h") == row["h"]) & (F.col("gtid_source") == row["gtid_source"])
        table = certified.where(of_source).select("gtid_number", "version").toArrow()
        numbers, versions = (table[name].to_numpy() for name in ("gtid_number", "version"))
        order = np.argsort(numbers, kind="stable")
        found[row["h"]].sources[row["gtid_source"]] = numbers_of(numbers[order], versions[order])
    elsewhere = log.rows.where(mine & (F.col("kind") == RecordKind.EXECUTED_ELSEWHERE))
    for row in elsewhere.select("h", "version", "snapshot_set").collect():
        found[row["h"]].elsewhere.append((row["version"], row["snapshot_set"] or ""))
    return found
