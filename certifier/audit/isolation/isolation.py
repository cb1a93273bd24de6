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

import polars as pl
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F

from ...history.schema import Verdict
from ..answers.findings import Code, Finding
from ..answers.result import JsonObject, Result
from ..rows.certification_log import Log
from ..rows.checks import (
    FOUND,
    Check,
    Found,
    FoundAll,
    as_kept,
    collected,
    from_kept,
    item_name,
    merged,
    notes,
    words,
    wrong_rows,
)
from ..rows.foreign import is_in
from ..rows.items import facts
from ..rows.kept import AuditWhole
from ..rows.states import (
    KEYS,
    begins_of_long,
    segment,
    state_rows,
    with_states,
)
from ..rows.tails import VERSIONS, tails_of
from ..spark.walks import Frames, concatenated, in_order, walk
from .cycles import Cycle, Operation, cycles_through

CANDIDATES_MAX = 1_000
"""Most transactions whose cycles are searched, in the order of places."""
NEIGHBOURS_MAX = VERSIONS
"""Versions that a cycle may span."""
OPERATIONS_MAX = 100_000
"""Most transactions that the driver holds for the search."""
ITEMS_MAX = 1_000_000
"""Most items that these may have written and read."""
DRAWN_MAX = 50
"""Cycles of a code that are told as graphs: those of the first findings, by place."""
EDGES_MAX = 12
"""Edges that these have at most."""
_BACK, _LACKING = "back", "lacking"
"""Notes: a transaction was visible before one that stands before it; one lacks a writer."""
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
    is_new = F.col("number") > log.by_history(lambda history: history.since)
    lacking = facts(log).where(F.col("certified") & F.col("outside").isNotNull() & is_new)
    looked, begins = _looked_back(log)
    first = collected(log, concatenated(looked, walk(lacking, _counted, FOUND)))
    noted = Counter(note.code for note in first.notes)
    result, before = Result(), log.before("isolation")
    earlier = from_kept(log, before)
    result.findings, result.counts = [each.finding for each in earlier.found], +earlier.counts
    new = [*first.found]
    if noted[_BACK]:  # If commits are in order, items are, too.
        new += _write_cycles(log)
    unsearched, searched = (_number(before, name) for name in ("unsearched", "searched"))
    cycles: list[tuple[Finding, Cycle]] = []
    if noted[_LACKING]:
        met = lacking.groupBy("h", "number").agg(F.max("outside").alias("outside"))
        unsearched += met.count()
        # The bound is for all audits of a log together, so that an audit `--since` finds what one
        # of all rows finds.
        for candidate, cycle in _searched(log, met, CANDIDATES_MAX - searched):
            unsearched, searched = unsearched - 1, searched + 1
            if cycle is not None:
                new.append(_found(log, candidate, cycle))
                cycles.append((new[-1].finding, cycle))
    result.add([each.finding for each in new])
    drawn = list(_drawn(cycles, before))
    result.summary = _summary(log, result.counts, unsearched) | {"cycles": drawn}
    if log.keeps:
        counted = FoundAll(new, Counter(each.finding.code.value for each in new))
        result.kept = as_kept(merged([earlier, counted]))
        result.kept |= {"unsearched": unsearched, "searched": searched, "cycles": drawn}
        firsts = {h: tail.number for h, tail in tails_of(log).items()}
        result.rows = state_rows(begins, firsts)
    return result


def _number(kept: JsonObject, name: str) -> int:
    value = kept.get(name, 0)
    assert isinstance(value, int)
    return value


def _drawn(cycles: Sequence[tuple[Finding, Cycle]], before: JsonObject) -> Iterator[JsonObject]:
    """Yields the first cycles of each code as graphs, with what identifies their findings; first
    those that the audit before has drawn.
    """
    left = Counter(dict.fromkeys(_NAMES, DRAWN_MAX))
    known = before.get("cycles", [])
    assert isinstance(known, list)
    for each in known:
        left[Code(each["code"])] -= 1
        yield each
    for finding, cycle in sorted(cycles, key=_place):
        if left[finding.code] > 0 and len(cycle.edges) <= EDGES_MAX:
            left[finding.code] -= 1
            names = ("code", "observer", "history", "place")
            yield {name: getattr(finding, name) for name in names} | cycle.drawn()


def _place(found: tuple[Finding, Cycle]) -> tuple[int, str, str]:
    finding, _ = found
    return finding.place, finding.observer, finding.history


def _counted(frames: Frames) -> Frames:
    """Yields a note for each frame."""
    for frame in frames:
        yield notes(_LACKING, frame.head(1).select("h"))


def _looked_back(log: Log) -> tuple[DataFrame, pl.DataFrame]:
    """Returns the findings of G1, and notes of transactions that were visible before one that
    stands before them; and who was visible last before each segment, see `begins_of_long`.
    """
    since = {history.h: history.since for history in log.histories}
    rows = log.certified.select(
        "h", segment(), "number", "place", "version", "snapshot_version", "committed_tick"
    )
    met, kinds = {"met_tick": pl.col("committed_tick")}, pl.Schema({"met_tick": pl.Int64()})
    begins = begins_of_long(log, rows, met, kinds)

    def looked_back(frames: Frames) -> Frames:
        for frame in with_states(frames, met, begins):
            yield wrong_rows(frame, [_reads_the_future()])
            is_new = pl.col("number") > pl.col("h").replace_strict(since, return_dtype=pl.Int64)
            back = frame.filter(is_new & (pl.col("committed_tick") < pl.col("met_tick")))
            yield notes(_BACK, back.head(1).select("h"))

    return walk(in_order(rows, KEYS, ["number"]), looked_back, FOUND), begins


def _reads_the_future() -> Check:
    """Returns the check of G1: commits are in order, so a snapshot's content was decided before its
    transaction.
    """
    own, read = pl.col("version"), pl.col("snapshot_version")
    return Check(
        Code.INFORMATION_CYCLE,
        read >= own,
        words("a snapshot before version ", own),
        words("version ", read),
        words("the transaction at version ", own, " read what was decided after it, or itself"),
    )


def _write_cycles(log: Log) -> list[Found]:
    """Returns findings of G0: items whose writers became visible out of version order."""
    writes = log.certified.select(
        "h",
        "number",
        "place",
        "committed_tick",
        "version",
        F.explode(F.array_distinct("write_set")).alias("item"),
    )
    before = (
        Window.partitionBy("item", "h").orderBy("number").rowsBetween(Window.unboundedPreceding, -1)
    )
    latest = F.max(F.struct("committed_tick", "version")).over(before).alias("met")
    seen = writes.select("*", latest).where(F.col("committed_tick") < F.col("met.committed_tick"))
    wrong = seen.select("h", "number", "place", "item", F.col("met.version").alias("met"))
    return collected(log, walk(wrong, _turned, FOUND)).found


def _turned(frames: Frames) -> Frames:
    """Yields each row as a finding."""
    check = Check(
        Code.WRITE_CYCLE,
        pl.lit(value=True),
        words("visible after version ", pl.col("met")),
        words("visible before it"),
        words("both wrote item ", item_name("item")),
    )
    for frame in frames:
        yield wrong_rows(frame, [check])


def _searched(
    log: Log, met: DataFrame, candidates_max: int
) -> Iterator[tuple[Candidate, Cycle | None]]:
    """Yields each candidate that was searched, with its cycle or None.

    Raises:
        AuditWhole: a cycle may reach over transactions that are not kept.
    """
    candidates = _within_bounds(_candidates(log, met, candidates_max))
    for each in candidates:
        before = log.histories[each.h].before
        if before and each.first < before.whole_version:
            name = log.histories[each.h].observer
            raise AuditWhole(f"a snapshot of {name} lacks version {each.first}, which is not kept")
    ranges = _joined((each.h, each.first, each.version) for each in candidates)
    operations = _operations(log, ranges)
    for h, first, last in ranges:
        near = [operations[h, at] for at in range(first, last + 1) if (h, at) in operations]
        mine = [each for each in candidates if each.h == h and first <= each.version <= last]
        # `_operations` may have ended before them, at `ITEMS_MAX`.
        mine = [each for each in mine if (h, each.version) in operations]
        cycles = cycles_through(near, [each.version for each in mine], NEIGHBOURS_MAX)
        yield from ((each, cycles.get(each.version)) for each in mine)


def _candidates(log: Log, met: DataFrame, candidates_max: int) -> list[Candidate]:
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
        .limit(max(candidates_max, 0))
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
    # All versions within reach are in the own stretch or the one before it: a join by equal
    # stretches need not compare a snapshot with every version.
    asked = asked.select("*", F.explode(F.array(stretch - 1, stretch)).alias("stretch"))
    near = log.certified.select(
        "h",
        "version",
        "gtid_source",
        "gtid_number",
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
        # Versions that an earlier candidate of the history has, too, are held once.
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
        "h",
        "version",
        "snapshot_version",
        "snapshot_set",
        "gtid_source",
        "gtid_number",
        "origin",
        "write_set",
        "read_set",
        "write_keys",
        "read_keys",
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


def _found(log: Log, candidate: Candidate, cycle: Cycle) -> Found:
    finding = Finding(
        code=cycle.code,
        observer=log.histories[candidate.h].observer,
        history=log.histories[candidate.h].history,
        place=candidate.place,
        expected="no such cycle",
        found=_NAMES[cycle.code],
        witness=cycle.in_words(),
    )
    return Found(finding, candidate.h, candidate.number, None, None)


def _summary(log: Log, counts: "Counter[str]", unsearched: int) -> JsonObject:
    transactions = sum(history.verdicts[Verdict.CERTIFIED] for history in log.histories)
    with_read_set = sum(history.certified_read_sets for history in log.histories)
    return {
        "transactions": transactions,
        "with_read_set": with_read_set,
        "unsearched": unsearched,
        "anomalies": [
            {
                "name": name,
                "code": code.value,
                "found": counts[code.value],
                "checked": with_read_set
                if code in (Code.WRITE_SKEW, Code.SERIALIZATION_CYCLE)
                else transactions,
            }
            for code, name in _NAMES.items()
        ],
    }
