"""Isolation: the anomalies that snapshot isolation and serializability rule out, with witnesses.

Transactions are ordered by their versions, and a snapshot is older than its transaction. So every
edge of the dependency graph points forward, except one kind: from a transaction to an earlier one
whose write it did not see. A cycle needs such an edge. These edges are found all at once (they are
the writers outside of a snapshot), and a graph is made only around each of them.

Soundness: a reported cycle is one, by the reads and writes in the log. Completeness: cycles among
certified transactions that logged their reads, and those that overwrote what they had not seen,
over fewer than `NEIGHBOURS_MAX` versions. A transaction that lacks only older writers, or comes
after the bounds below are reached, is counted as not searched.

Source: Adya, Liskov, O'Neil, Generalized Isolation Level Definitions (G0, G1, G-single, G2-item).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F

from groupcert.certifier.audit.answers.findings import Code, Finding
from groupcert.certifier.audit.answers.result import JsonObject, Result
from groupcert.certifier.audit.isolation.cycles import Cycle, Operation, cycles_through
from groupcert.certifier.audit.rows.checks import Check, item_name, run_checks, words
from groupcert.certifier.audit.rows.foreign import is_in
from groupcert.certifier.audit.rows.items import is_written, item_rows, met_at_items
from groupcert.certifier.audit.rows.log import Log
from groupcert.certifier.audit.rows.states import segment_begins, with_states

CANDIDATES_MAX = 1_000
"""Most transactions whose cycles are searched, in the order of places."""
NEIGHBOURS_MAX = 5_000
"""Versions that a cycle may span."""
OPERATIONS_MAX = 100_000
"""Most transactions that the driver holds for the search."""
ITEMS_MAX = 1_000_000
"""Most items that these may have written and read."""
_NAMES = {
    Code.WRITE_CYCLE: "G0: writes in different orders",
    Code.INFORMATION_CYCLE: "G1: read from the future",
    Code.LOST_UPDATE: "lost update",
    Code.READ_SKEW: "G-single: read skew",
    Code.WRITE_SKEW: "write skew",
    Code.SERIALIZATION_CYCLE: "G2: other cycles",
}


class Candidate(NamedTuple):
    """A certified transaction that did not see a writer before it.

    `first`: the oldest version within reach that its snapshot may lack.
    """

    h: int
    number: int
    place: int
    version: int
    first: int


def run(log: Log) -> Result:
    """Finds the anomalies of each history that its read sets show."""
    result = Result()
    future = run_checks(log, log.certified, [_reads_the_future()])
    result.add([each.finding for each in future.found])
    result.add(_write_cycles(log))
    met = met_at_items(log).where(F.col("certified") & F.col("outside").isNotNull())
    unsearched = met.count()
    for candidate, cycle in _searched(log, met) if unsearched else ():
        unsearched -= 1
        if cycle is not None:
            result.add([_finding(log, candidate, cycle)])
    result.summary = _summary(log, result.counts, unsearched)
    return result


def _reads_the_future() -> Check:
    """Returns the check of G1: commits are in order, so a snapshot's content was decided before its
    transaction.
    """
    own = F.col("version")
    return Check(
        Code.INFORMATION_CYCLE,
        F.col("snapshot_version") >= own,
        words("a snapshot before version ", own),
        words("version ", F.col("snapshot_version")),
        words("the transaction at version ", own, " read what was decided after it, or itself"),
    )


def _write_cycles(log: Log) -> list[Finding]:
    """Returns findings of G0: items whose writers became visible out of version order."""
    rows = log.certified.where(F.col("committed_tick").isNotNull()).select(
        "h", "number", "place", "committed_tick"
    )
    met = {"met_tick": F.col("committed_tick")}
    back = with_states(rows, ["h"], met, segment_begins(rows, ["h"], met)).where(
        F.col("committed_tick") < F.col("met_tick")
    )
    if back.limit(1).count() == 0:  # If commits are in order, items are, too.
        return []
    ticks = log.certified.select("h", "number", "place", "committed_tick")
    writes = item_rows(log).where(is_written()).join(ticks, ["h", "number"])
    before = (
        Window.partitionBy("item", "h").orderBy("number").rowsBetween(Window.unboundedPreceding, -1)
    )
    latest = F.max(F.struct("committed_tick", "version")).over(before).alias("met")
    seen = writes.select("*", latest)
    check = Check(
        Code.WRITE_CYCLE,
        F.col("committed_tick") < F.col("met.committed_tick"),
        words("visible after version ", F.col("met.version")),
        words("visible before it"),
        words("both wrote item ", item_name("item")),
    )
    return [each.finding for each in run_checks(log, seen, [check]).found]


def _searched(log: Log, met: DataFrame) -> Iterator[tuple[Candidate, Cycle | None]]:
    """Yields each candidate that was searched, with its cycle or None."""
    candidates = _within_bounds(_candidates(log, met))
    ranges = _joined((each.h, each.first, each.version) for each in candidates)
    operations = _operations(log, ranges)
    for h, first, last in ranges:
        near = [operations[h, at] for at in range(first, last + 1) if (h, at) in operations]
        mine = [each for each in candidates if each.h == h and first <= each.version <= last]
        mine = [each for each in mine if (h, each.version) in operations]
        cycles = cycles_through(near, [each.version for each in mine], NEIGHBOURS_MAX)
        yield from ((each, cycles.get(each.version)) for each in mine)


def _candidates(log: Log, met: DataFrame) -> list[Candidate]:
    """Returns, by place, certified transactions whose snapshot lacks a writer within reach."""
    rows = log.certified.select(
        "h", "number", "place", "version", "snapshot_version", "snapshot_set"
    )
    first = F.coalesce(F.col("snapshot_version") + 1, "outside")
    reached = F.col("version") - (NEIGHBOURS_MAX - 1)
    found = (
        met.select("h", "number", "outside")
        .join(rows, ["h", "number"])
        .where(F.col("outside") >= reached)
        .withColumn("first", F.greatest(F.least(first, "version"), reached))
        .orderBy("place", "h")
        .limit(CANDIDATES_MAX)
        .select("h", "number", "place", "version", "first", "snapshot_set")
        .collect()
    )
    lacked = _oldest_lacked(log, [row for row in found if row["snapshot_set"] is not None])
    candidates = [Candidate(*(row[name] for name in Candidate._fields)) for row in found]
    return [
        each._replace(first=min(each.first, lacked.get((each.h, each.number), each.first)))
        for each in candidates
    ]


def _oldest_lacked(log: Log, rows: Sequence[Row]) -> dict[tuple[int, int], int]:
    """Returns, by history and number, the oldest version within reach that a snapshot set lacks."""
    if not rows:
        return {}
    asked = log.spark.createDataFrame(
        [(row["h"], row["number"], row["version"], row["snapshot_set"]) for row in rows],
        "h int, number long, own long, snapshot_set string",
    )
    stretch = F.floor(F.col("own") / NEIGHBOURS_MAX)
    asked = asked.select("*", F.explode(F.array(stretch - 1, stretch)).alias("stretch"))
    near = log.certified.select(
        *("h", "version", "gtid_source", "gtid_number"),
        F.floor(F.col("version") / NEIGHBOURS_MAX).alias("stretch"),
    )
    back = F.col("own") - F.col("version")
    lacked = (
        near.join(F.broadcast(asked), ["h", "stretch"])
        .where((back > 0) & (back < NEIGHBOURS_MAX))
        .where(~is_in("snapshot_set", "gtid_source", "gtid_number"))
        .groupBy("h", "number")
        .agg(F.min("version").alias("first"))
    )
    return {(row["h"], row["number"]): row["first"] for row in lacked.collect()}


def _within_bounds(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Returns the first candidates, by place, whose neighbours together fit `OPERATIONS_MAX`."""
    ends: dict[int, int] = {}
    held = 0
    for count, each in enumerate(candidates):
        held += max(each.version - max(each.first - 1, ends.get(each.h, 0)), 0)
        if held > OPERATIONS_MAX:
            return list(candidates[:count])
        ends[each.h] = max(each.version, ends.get(each.h, 0))
    return list(candidates)


def _joined(ranges: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Returns the same numbers of each history as ranges that do not overlap.

    >>> _joined([(0, 5, 9), (0, 1, 3), (0, 2, 4), (1, 4, 5)])
    [(0, 1, 4), (0, 5, 9), (1, 4, 5)]
    """
    joined: list[tuple[int, int, int]] = []
    for h, first, last in sorted(ranges):
        if joined and joined[-1][0] == h and first <= joined[-1][2]:
            joined[-1] = (h, joined[-1][1], max(last, joined[-1][2]))
        else:
            joined.append((h, first, last))
    return joined


def _operations(
    log: Log, ranges: Sequence[tuple[int, int, int]]
) -> dict[tuple[int, int], Operation]:
    """Returns the operations of the transactions in ranges of versions, by history and version;
    only the first ones, if they have more than `ITEMS_MAX` items.
    """
    if not ranges:
        return {}
    wanted = log.spark.createDataFrame(list(ranges), "h int, first long, last long")
    wanted = wanted.select("h", F.explode(F.sequence("first", "last")).alias("version"))
    rows = log.certified.join(F.broadcast(wanted), ["h", "version"]).select(
        *("h", "version", "snapshot_version", "snapshot_set", "gtid_source", "gtid_number"),
        *("origin", "write_set", "read_set", "write_keys", "read_keys"),
    )
    operations: dict[tuple[int, int], Operation] = {}
    items = 0
    for row in rows.orderBy("h", "version").toLocalIterator():
        items += len(row["write_set"] or ()) + len(row["read_set"] or ())
        if items > ITEMS_MAX:
            break
        operations[row["h"], row["version"]] = _operation(row)
    return operations


def _operation(row: Row) -> Operation:
    writes, reads = row["write_set"] or (), row["read_set"] or ()
    return Operation(
        version=row["version"],
        snapshot=row["snapshot_version"],
        snapshot_set=row["snapshot_set"],
        source=row["gtid_source"],
        number=row["gtid_number"],
        origin=row["origin"],
        writes=frozenset(writes),
        reads=frozenset(reads) | frozenset(writes),
        keys=dict(zip(writes, row["write_keys"] or (), strict=False))
        | dict(zip(reads, row["read_keys"] or (), strict=False)),
    )


def _finding(log: Log, candidate: Candidate, cycle: Cycle) -> Finding:
    return Finding(
        code=cycle.code,
        observer=log.histories[candidate.h].observer,
        history=log.histories[candidate.h].history,
        place=candidate.place,
        expected="no such cycle",
        found=_NAMES[cycle.code],
        witness=cycle.in_words(),
    )


def _summary(log: Log, counts: "Counter[str]", unsearched: int) -> JsonObject:
    reads = F.coalesce(F.size("read_set"), F.lit(0)) > 0
    row = log.certified.agg(
        F.count(F.lit(1)).alias("transactions"), F.count(F.when(reads, 1)).alias("with_read_set")
    ).collect()[0]
    return {
        "transactions": row["transactions"],
        "with_read_set": row["with_read_set"],
        "unsearched": unsearched,
        "anomalies": [
            {
                "name": name,
                "code": code.value,
                "found": counts[code.value],
                "checked": row["with_read_set"]
                if code in (Code.WRITE_SKEW, Code.SERIALIZATION_CYCLE)
                else row["transactions"],
            }
            for code, name in _NAMES.items()
        ],
    }
