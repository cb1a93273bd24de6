"""Isolation: the anomalies that snapshot isolation and serializability rule out, with witnesses.

The rule it keeps: transactions are ordered by their versions, and a snapshot is older than its
transaction, so that every edge of the dependency graph points forward but one kind: from a
transaction to an earlier one whose write it did not see. A cycle needs such an edge. So those are
looked for, all at once (they are the writers outside of a snapshot), and only around each of them
is a graph made.

Soundness: a cycle that is reported is one, by what the log says was read and written. Completeness:
among certified transactions that logged what they read, and those that overwrote what they had not
seen; a cycle over more than `NEIGHBOURS_MAX` transactions is not looked for, and counted.

Source: Adya, Liskov, O'Neil, Generalized Isolation Level Definitions (G0, G1, G-single, G2-item).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyspark.sql import Row, Window
from pyspark.sql import functions as F

from certifier.audit.checks import Check, run_checks, words
from certifier.audit.cycles import Cycle, Operation, cycle_through
from certifier.audit.findings import Code, Finding
from certifier.audit.items import is_written, item_rows, met_at_items
from certifier.audit.log import Log
from certifier.audit.result import JsonObject, Result
from certifier.audit.states import segment_begins, with_states

CANDIDATES_MAX = 1_000
NEIGHBOURS_MAX = 5_000
_NAMES = {
    Code.WRITE_CYCLE: "G0: writes in different orders",
    Code.INFORMATION_CYCLE: "G1: read from the future, or from what was never certified",
    Code.LOST_UPDATE: "lost update",
    Code.READ_SKEW: "G-single: read skew",
    Code.WRITE_SKEW: "write skew",
    Code.SERIALIZATION_CYCLE: "G2: other cycles",
}


class Candidate(NamedTuple):
    """A certified transaction that did not see a writer before it."""

    h: int
    number: int
    place: int
    version: int
    snapshot: int

    @property
    def neighbours(self) -> int:
        """How many transactions may be on a cycle with it."""
        return self.version - self.snapshot


def run(log: Log) -> Result:
    """Anomalies of each history, as far as its read sets tell."""
    result = Result()
    future = run_checks(log, log.certified, [_reads_the_future()])
    result.add([each.finding for each in future.found])
    result.add(_write_cycles(log))
    candidates = _candidates(log)
    near = [each for each in candidates if each.neighbours <= NEIGHBOURS_MAX][:CANDIDATES_MAX]
    for candidate, operations in _neighbourhoods(log, near):
        cycle = cycle_through(operations, candidate.version)
        if cycle is not None:
            result.add([_finding(log, candidate, cycle)])
    unsearched = len(candidates) - len(near)
    result.summary = _summary(log, result.counts, unsearched)
    return result


def _reads_the_future() -> Check:
    """G1: with commits in order, what a snapshot has was decided before its transaction."""
    own = F.col("version")
    return Check(
        Code.INFORMATION_CYCLE,
        F.col("snapshot_version") >= own,
        words("a snapshot before version ", own),
        words("version ", F.col("snapshot_version")),
        words("the transaction at version ", own, " read what was decided after it, or itself"),
    )


def _write_cycles(log: Log) -> list[Finding]:
    """G0: an item whose writers became visible in another order than the versions have."""
    rows = log.certified.where(F.col("committed_tick").isNotNull()).select(
        "h", "number", "place", "committed_tick"
    )
    met = {"met_tick": F.col("committed_tick")}
    back = with_states(rows, ["h"], met, segment_begins(rows, ["h"], met)).where(
        F.col("committed_tick") < F.col("met_tick")
    )
    if back.limit(1).count() == 0:  # Commits in order cannot be in another order at an item.
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
        words("both wrote item ", F.col("item")),
    )
    return [each.finding for each in run_checks(log, seen, [check]).found]


def _candidates(log: Log) -> list[Candidate]:
    """Certified transactions with a writer outside of their snapshot, by place."""
    met = met_at_items(log).where(F.col("certified") & F.col("outside").isNotNull())
    rows = log.certified.select("h", "number", "place", "version", "snapshot_version")
    found = met.select("h", "number").join(rows, ["h", "number"]).orderBy("place", "h")
    return [
        Candidate(
            *(row["h"], row["number"], row["place"], row["version"]), row["snapshot_version"] or 0
        )
        for row in found.limit(10 * CANDIDATES_MAX).collect()
    ]


def _neighbourhoods(
    log: Log, candidates: Sequence[Candidate]
) -> Iterator[tuple[Candidate, list[Operation]]]:
    """Each candidate with what the transactions from its snapshot to itself did; of one history
    after the other.
    """
    for h in sorted({each.h for each in candidates}):
        mine = [each for each in candidates if each.h == h]
        is_near = F.lit(False)
        for first, last in _joined([(each.snapshot + 1, each.version) for each in mine]):
            is_near |= F.col("version").between(first, last)
        columns = ("version", "snapshot_version", "snapshot_set", "gtid_source", "gtid_number")
        rows = log.certified.where((F.col("h") == h) & is_near).select(
            *columns, "origin", "write_set", "read_set", "write_keys", "read_keys"
        )
        operations = {row["version"]: _operation(row) for row in rows.collect()}
        for each in mine:
            near = range(each.snapshot + 1, each.version + 1)
            yield each, [operations[version] for version in near if version in operations]


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same numbers as ranges that do not overlap.

    >>> _joined([(5, 9), (1, 3), (2, 4)])
    [(1, 4), (5, 9)]
    """
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


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
