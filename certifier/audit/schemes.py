"""The schemes of the seeds on a sample of a history: what more workers bring with each of them.

The rule it keeps: a scheme whose question the log does not answer is told as not known, and why.
The sample is contiguous and bounded; what is simulated for it is spread over Spark's workers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from certifier.audit.critical_path import Flags, Ints, chain, filled, waits
from certifier.audit.log import Log
from certifier.audit.result import JsonObject
from certifier.audit.schedules import (
    Partitions,
    at_the_head,
    group_begins,
    in_lanes,
    newest_writers,
    until_conflict,
    whoever_may,
    with_owners,
)
from certifier.audit.stretches import Pace, is_remote, length_column
from certifier.history import RecordKind, Verdict

SAMPLE_ROWS_MAX = 200_000
SAMPLE_ITEMS_MAX = 4_000_000
"""Items that the transactions of a sample wrote, but for one that alone wrote more."""
WORKERS = (1, 2, 4, 8, 16, 32, 64)
UNLIMITED = 0


class Scheme(NamedTuple):
    """A scheme, as the page names it, where it comes from, and what it needs of the log."""

    scheme: str
    label: str
    worklog: str
    needs: str


SCHEMES = (
    Scheme("logical-clock", "logical clock", "WL#8440", "stamps"),
    Scheme("jobs-graph", "jobs, graph of conflicts", "WL#4648 C3", "write sets"),
    Scheme("jobs-barrier", "jobs, barrier at a conflict", "WL#4648 C2", "write sets"),
    Scheme("commit-parent", "commit parent", "WL#6314", "commit parents"),
    Scheme("group-commit", "group commit", "MDEV-4506", "commit ids"),
    Scheme("database", "one worker a database", "WL#5569", "databases"),
    Scheme("table", "one worker a table", "WL#4648 P2", "tables"),
)
SERIAL = Scheme("serial", "one after the other", "", "")


class Sample(NamedTuple):
    """Consecutive transactions of an applier, and the breaks between them, by column.

    `breaks`: what is no transaction and runs alone. `row_of_item` and the like: which row each
    entry of a list belongs to.
    """

    lengths: Ints
    breaks: Flags
    numbers: Ints
    awaited: Ints
    row_of_item: Ints
    items: Ints
    no_items: Flags
    parents: Ints
    commit_ids: Ints
    domains: Ints
    row_of_database: Ints
    databases: Ints
    no_databases: Flags
    row_of_table: Ints
    tables: Ints
    no_tables: Flags
    known: frozenset[str]
    """What `Scheme.needs` names."""


def curves(
    log: Log, told: Mapping[int, Pace], h: int, speedup_max: float | None
) -> list[JsonObject]:
    """The speedup under each scheme by the number of workers, for history `h`.

    `speedup_max`: with unlimited workers, of the whole history, under the logical clock. The curve
    of the logical clock stays below it where the head of the queue holds others back: its scheduler
    starts nothing else meanwhile.
    """
    sample = take_sample(log, told, h)
    transactions = int((~sample.breaks).sum())
    remote = told[h].remote
    share = round(transactions / remote, 4) if remote else 0.0
    answers: list[JsonObject] = []
    known = [each for each in SCHEMES if each.needs in sample.known]
    times = _simulated(log, sample, known) if known and transactions else {}
    work = int(sample.lengths.sum())
    for scheme in SCHEMES:
        head: JsonObject = {**scheme._asdict(), "transactions": transactions}
        head |= {"sampled_share": share, "known": scheme.scheme in times, "why": ""}
        head |= {"curve": [], "speedup_max": None}
        del head["needs"]
        mine = times.get(scheme.scheme)
        if mine is None:
            head["why"] = f"this log has no {scheme.needs} of transactions that an applier executed"
        else:
            head["curve"] = [
                {"workers": workers, "speedup": _speedup(work, mine[workers])}
                for workers in WORKERS
            ]
            best = _speedup(work, mine[UNLIMITED])
            if scheme.scheme == "logical-clock" and speedup_max is not None:
                best = speedup_max
            head["speedup_max"] = best
        answers.append(head)
    flat = [{"workers": workers, "speedup": 1.0} for workers in WORKERS]
    serial: JsonObject = {**SERIAL._asdict(), "known": True, "why": "", "curve": flat}
    del serial["needs"]
    serial |= {"speedup_max": 1.0, "transactions": transactions, "sampled_share": share}
    return [*answers, serial]


def take_sample(log: Log, told: Mapping[int, Pace], h: int) -> Sample:
    """The middle of a history, brought to the driver; less of it where there are many items."""
    pace = told[h]
    first = pace.first_number + max(0, (pace.numbers - SAMPLE_ROWS_MAX) // 2)
    stretch = log.rows.where(
        (F.col("h") == h) & F.col("number").between(first, first + SAMPLE_ROWS_MAX - 1)
    )
    size = F.greatest(F.size("write_set"), F.lit(0)).alias("size")
    sizes = stretch.select("number", size).toArrow().sort_by("number")
    whole = rows_within(sizes.column("size").to_numpy(), SAMPLE_ITEMS_MAX)
    last = pc.max(sizes.column("number")[:whole]).as_py()
    break_ = F.col("kind") == RecordKind.VIEW_CHANGE
    transaction = (F.col("verdict") == Verdict.CERTIFIED) & is_remote()
    key_tables = F.transform("write_keys", lambda key: F.substring_index(key, "/", 1))
    key_tables = F.when(F.size("write_keys") > 0, key_tables)
    tables = F.coalesce(key_tables, "tables")
    databases = F.coalesce(
        "databases",
        F.array_distinct(F.transform(tables, lambda name: F.substring_index(name, ".", 1))),
    )
    rows = (
        stretch.where(F.col("number") <= last)
        .where(break_ | transaction)
        .select(
            "number",
            break_.alias("break"),
            F.when(break_, F.lit(0)).otherwise(length_column(log, told)).alias("length"),
            *("sequence_number", "last_committed", "commit_parent", "commit_id", "domain_id"),
            F.array_distinct("write_set").alias("items"),
            databases.alias("databases"),
            tables.alias("tables"),
        )
        .toArrow()
        .sort_by("number")
    )
    return sample_of(rows)


def rows_within(sizes: Ints, items_max: int) -> int:
    """How many rows from the first on have so many items together at most; at least one.

    >>> rows_within(np.array([2, 3, 4]), 8), rows_within(np.array([9, 1]), 8)
    (2, 1)
    """
    return max(int(np.searchsorted(np.cumsum(sizes), items_max, side="right")), 1)


def sample_of(rows: pa.Table) -> Sample:
    """A sample out of the rows that Spark told."""

    def column(name: str) -> Ints:
        return cast(Ints, pc.fill_null(rows.column(name).cast(pa.int64()), 0).to_numpy())

    def is_known(name: str) -> bool:
        return bool(rows.column(name).null_count < len(rows))

    breaks = column("break") > 0
    item_rows, items, no_items = _lists(rows.column("items"))
    database_rows, databases, no_databases = _lists(rows.column("databases"))
    table_rows, tables, no_tables = _lists(rows.column("tables"))
    found = {
        "stamps": bool(column("sequence_number").any()),
        "write sets": len(items) > 0,
        "commit parents": is_known("commit_parent"),
        "commit ids": is_known("commit_id"),
        "databases": not (no_databases | breaks).all(),
        "tables": not (no_tables | breaks).all(),
    }
    counts = np.bincount(item_rows, minlength=len(breaks))
    return Sample(
        lengths=column("length"),
        breaks=breaks,
        numbers=column("sequence_number"),
        awaited=column("last_committed"),
        row_of_item=item_rows,
        items=items,
        no_items=no_items | (counts == 0),
        parents=column("commit_parent"),
        commit_ids=column("commit_id"),
        domains=column("domain_id"),
        row_of_database=database_rows,
        databases=databases,
        no_databases=no_databases,
        row_of_table=table_rows,
        tables=tables,
        no_tables=no_tables,
        known=frozenset(name for name, is_there in found.items() if is_there),
    )


def _lists(column: pa.ChunkedArray) -> tuple[Ints, Ints, Flags]:
    """Of a column of lists: the row of each entry, the entry as a number, and who has no list."""
    column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    rows = pc.list_parent_indices(column).to_numpy(zero_copy_only=False).astype(np.int64)
    entries = pc.list_flatten(column)
    if not pa.types.is_integer(entries.type):
        entries = entries.dictionary_encode().indices
    missing = column.is_null().to_numpy(zero_copy_only=False)
    return rows, entries.to_numpy(zero_copy_only=False).astype(np.int64), missing


Simulation = Callable[[int], int]
"""From a number of workers (`UNLIMITED` is one, too) to the time they take."""


def simulation(sample: Sample, scheme: str) -> Simulation:
    """What a scheme makes of a sample."""
    lengths, breaks = sample.lengths, sample.breaks
    rows = max(len(lengths), 1)
    alone = breaks | sample.no_items
    if scheme == "logical-clock":
        waited = waits(filled(sample.numbers), sample.awaited, breaks | (sample.numbers == 0))
    elif scheme == "commit-parent":
        waited = group_begins(np.where(breaks, 0, sample.parents))
    else:
        waited = newest_writers(sample.row_of_item, sample.items, len(lengths))
    if scheme in ("logical-clock", "commit-parent"):
        longest = int(chain(waited, lengths)[-1])
        return lambda workers: at_the_head(lengths, waited, workers) if workers else longest
    if scheme == "jobs-barrier":
        return lambda workers: until_conflict(lengths, waited, alone, workers or rows)
    if scheme == "jobs-graph":
        whole = waits(np.arange(1, len(lengths) + 1), waited, alone)
        longest = int(chain(whole, lengths)[-1])
        return lambda workers: whoever_may(lengths, whole, workers) if workers else longest
    if scheme == "group-commit":
        ids = sample.commit_ids
        return lambda workers: in_lanes(lengths, sample.domains, ids, breaks, workers or rows)
    if scheme == "database":
        unknown = sample.no_databases | breaks
        partitions = Partitions(sample.row_of_database, sample.databases, unknown, divided=False)
    else:
        unknown = sample.no_tables | breaks
        partitions = Partitions(sample.row_of_table, sample.tables, unknown, divided=True)
    return lambda workers: with_owners(lengths, partitions, workers or None)


def _simulated(log: Log, sample: Sample, known: Iterable[Scheme]) -> dict[str, dict[int, int]]:
    """The times under each scheme, by the number of workers."""
    names = [(scheme.scheme,) for scheme in known]

    def simulated(tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for task in tasks:
            for name in task.column("scheme").to_pylist():
                take = simulation(sample, name)
                counts = [*WORKERS, UNLIMITED]
                times = [take(workers) for workers in counts]
                columns = [pa.array([name] * len(counts)), pa.array(counts), pa.array(times)]
                yield pa.record_batch(columns, names=["scheme", "workers", "time"])

    tasks = log.spark.createDataFrame(names, "scheme string").repartition(len(names))
    times: dict[str, dict[int, int]] = {}
    for row in tasks.mapInArrow(simulated, "scheme string, workers long, time long").collect():
        times.setdefault(row["scheme"], {})[row["workers"]] = row["time"]
    return times


def _speedup(work: int, time: int) -> float:
    return round(work / time, 3) if time else 1.0
