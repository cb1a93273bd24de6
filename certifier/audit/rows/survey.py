"""One pass over all files: what each holds of which history, and the rows at which these turn.

Everything that an audit has to know before its jobs begin comes from here, in one step of Spark.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ...history.schema import RecordKind, Verdict
from ..spark.walks import WINDOW_ROWS, Frames, limit_batches, of_kind, walk
from .coded_columns import executed_at, has_items, is_applied, is_local, is_remote
from .foreign import intervals
from .jobs import BORDERS, JOB, executed, shared, shares

NAMES = ("observer", "history")
TELLING = (RecordKind.START.value, RecordKind.SETTINGS.value)
"""Kinds of rows that have settings."""
BEGIN = (
    "number",
    "version",
    "sequence_number",
    "last_committed_global",
    "stable_version",
    "collected_version",
    "place",
)
MILESTONE_ROWS = 1 << 14
"""Rows between two milestones of a history."""
_FILE, _TURN, _COLLECTION, _ASSIGNED, _MILESTONE, _USED, _REPORT, _CUT = range(8)
PACED = ("certified", "remote", "stamped", "timed", "ticked", "alone", "work_us", "alone_us")
"""Sums of `Pace`."""
_PACED = tuple(f"paced_{name}" for name in PACED)
_COLLECTED = ("collections", "purged_items", "closed")
_SUMS = (
    "rows",
    "unplaced",
    "transactions",
    *Verdict,
    "refused_gtids",
    "stamped",
    "read_sets",
    "certified_read_sets",
    "gtid_snapshots",
    "snapshots",
    "elsewhere",
    "of_member",
    "of_certifier",
    "locals",
    "foreign_locals",
    *_COLLECTED,
    *_PACED,
)
_LEAST = (
    "first_number",
    "first_place",
    "first_version",
    "first_us",
    "first_set",
    "first_tick",
    "paced_first_us",
    "paced_first_number",
    "applied_first_us",
)
_MOST = (
    "format_version",
    "window_bytes",
    "last_number",
    "last_place",
    "last_version",
    "last_us",
    "paced_last_us",
    "paced_last_number",
    "applied_last_us",
)
_FIRSTS = ("stamp", "foreign")
_STAMPS = ("first_stamp_at", "first_stamp", "first_foreign_at")
LASTS = ("stamp", "stable", "collected", "edge")
_LASTS = tuple(name for each in LASTS for name in (f"last_{each}_at", f"last_{each}"))
REPORTED = ("reported_place", "reported_sequence")
_INTERVAL = ("first", "last", "given")
_FILE_SAYS = ("file", "size", "modified_us")
_RAN = ("file_hash", *NAMES, "number", *JOB, "is_timed", "is_alone")
_READ = pl.Schema(
    {
        **dict.fromkeys(("what",), pl.Int32()),
        **dict.fromkeys((*NAMES, "file", "kind", "settings", "gtid_source"), pl.String()),
        "first_foreign": pl.String(),
        **dict.fromkeys((*map(str, _SUMS), *_LEAST, *_MOST, *_STAMPS, *_LASTS), pl.Int64()),
        **dict.fromkeys(("file_hash", "size", "modified_us"), pl.Int64()),
        **dict.fromkeys((*BEGIN, "assigned", "part", *_INTERVAL, *REPORTED), pl.Int64()),
        "origin": pl.String(),
        **dict.fromkeys(JOB, pl.Int64()),
        **dict.fromkeys(("is_timed", "is_alone", *BORDERS), pl.Boolean()),
    }
)


class Survey(NamedTuple):
    """`files`: a row for each file and history in it. `turns`: the rows that begin a history, or
    change its settings or clock, by place. `collections`: history, number and collected version.
    `assigned`: how many GTIDs of a source the group assigned, by history. `milestones`: number,
    version and place of each history's first row in each `MILESTONE_ROWS`. `used`: the GTIDs of
    transactions and of what was executed elsewhere, as intervals of their numbers (first, last),
    not merged; and how often those of transactions were `given`. `reports`: the newest place and
    message that each origin reported, by history.
    """

    files: pl.DataFrame
    turns: pl.DataFrame
    collections: pl.DataFrame
    assigned: pl.DataFrame
    milestones: pl.DataFrame
    used: pl.DataFrame
    reports: pl.DataFrame


def survey(files: DataFrame) -> Survey:
    """Reads all rows of the files once."""
    elsewhere = F.col("kind") == RecordKind.EXECUTED_ELSEWHERE.value
    said = (
        F.col("_metadata.file_path"),
        F.col("_metadata.file_size"),
        F.unix_micros("_metadata.file_modification_time"),
    )
    rows = files.select(
        *NAMES,
        "format_version",
        "kind",
        "verdict",
        "settings",
        *BEGIN,
        *_DECIDED,
        F.xxhash64("_metadata.file_path").alias("file_hash"),
        *[  # A text for each row takes as long as a dozen of its numbers: the first row is enough.
            F.when(F.col("_metadata.row_index") == 0, value).alias(name)
            for name, value in zip(_FILE_SAYS, said, strict=True)
        ],
        "gtid_number",
        "origin",
        *REPORTED,
        F.when(elsewhere, F.col("snapshot_set")).alias("executed_elsewhere"),
        *[F.col(name).isNotNull().alias(f"has_{name}") for name in _SETS],
        *[has_items(name).alias(f"has_items_{name}") for name in _ITEMS],
        *_APPLIED,
        _bytes().alias("bytes"),
    )
    read = pl.DataFrame(walk(rows, _read, _READ).toArrow(), schema=_READ)
    told = {kind: read.filter(pl.col("what") == kind) for kind in range(8)}
    of_files = pl.concat([told[_FILE], _work(shared(told[_CUT], NAMES))], how="diagonal")
    of_file = of_files.group_by("file_hash").agg(pl.col(_FILE_SAYS).max())
    parts = (
        of_files.group_by("file_hash", *NAMES)
        .agg(
            *[pl.col(str(name)).sum() for name in _SUMS],
            *[pl.col(name).min() for name in _LEAST],
            *[pl.col(name).max() for name in _MOST],
            *[
                pl.col(f"first_{name}").sort_by(f"first_{name}_at", nulls_last=True).first()
                for name in _FIRSTS
            ],
            pl.col("first_foreign_at").min(),
            *[
                pl.col(f"last_{name}").sort_by(f"last_{name}_at", nulls_last=False).last()
                for name in LASTS
            ],
            pl.col([f"last_{name}_at" for name in LASTS]).max(),
        )
        .join(of_file, "file_hash")
        .drop("file_hash")
    )
    limit_batches(files.sparkSession, max(parts["window_bytes"], default=0))
    assigned = told[_ASSIGNED].group_by(*NAMES, "gtid_source").agg(pl.col("assigned").sum())
    return Survey(
        files=parts.sort(*NAMES, "first_number"),
        turns=told[_TURN].select(*NAMES, "kind", "settings", *BEGIN).sort("place"),
        collections=told[_COLLECTION].select(*NAMES, "number", "collected_version"),
        assigned=assigned.sort("assigned", "gtid_source"),
        milestones=told[_MILESTONE]
        .group_by(*NAMES, "part")
        .agg(pl.col("number", "version", "place").min())
        .sort(*NAMES, "part"),
        used=told[_USED].select(*NAMES, "gtid_source", *_INTERVAL),
        reports=told[_REPORT].group_by(*NAMES, "origin").agg(pl.col(REPORTED).max()),
    )


def _bytes() -> Column:
    """Returns the bytes of the columns of a row that may be long."""
    items = [8 * F.coalesce(F.size(name).cast("long"), F.lit(0)) for name in _ITEMS]
    return F.octet_length(F.concat_ws("", *_TEXTS)) + items[0] + items[1]


_ITEMS = ("read_set", "write_set")
_TEXTS = ("write_keys", "read_keys", "snapshot_set", "stable_set", "settings", "tables")
_SETS = ("read_set", "snapshot_set", "stable_set")
_OF_ANY_SOURCE = tuple(
    kind.value for kind in (RecordKind.START, RecordKind.TRANSACTION, RecordKind.VIEW_CHANGE)
)
"""Kinds of rows that histories of all sources have."""
_DECIDED = ("decided_us", "resets_clock", "snapshot_version", "gtid_source", "gtid_brought")
_APPLIED = (
    "is_local",
    "started_us",
    "executed_us",
    "committed_us",
    "started_tick",
    "committed_tick",
    "purged_items",
    "worker",
)


def _read(frames: Frames) -> Frames:
    window = pl.col("bytes").rolling_sum(WINDOW_ROWS, min_samples=1).max().alias("window_bytes")
    for frame in frames:
        collection = pl.col("kind") == RecordKind.COLLECTION.value
        joins = (pl.col("kind") == RecordKind.VIEW_CHANGE.value) & pl.col("resets_clock")
        turns = frame.filter(pl.col("kind").is_in(TELLING) | joins)
        collections = frame.filter(collection & pl.col("collected_version").is_not_null())
        given = (pl.col("verdict") == Verdict.CERTIFIED.value) & ~pl.col("gtid_brought")
        assigned = frame.filter(given & pl.col("gtid_source").is_not_null())
        yield of_kind(_FILE, frame.group_by("file_hash", *NAMES).agg(*_counts(), window))
        ran = shares(_ran(frame), ("file_hash", *NAMES))
        yield of_kind(_FILE, _work(ran.known))
        yield of_kind(_CUT, ran.cut)
        yield of_kind(_TURN, turns.select(*NAMES, "kind", "settings", *BEGIN))
        yield of_kind(_COLLECTION, collections.select(*NAMES, "number", "collected_version"))
        counts = assigned.group_by(*NAMES, "gtid_source").agg(pl.len().alias("assigned"))
        yield of_kind(_ASSIGNED, counts)
        part = (pl.col("number") // MILESTONE_ROWS).alias("part")
        milestones = frame.group_by(*NAMES, part).agg(pl.col("number", "version", "place").min())
        yield of_kind(_MILESTONE, milestones)
        yield of_kind(_USED, _used(frame))
        reported = frame.filter(pl.col("kind") == RecordKind.REPORT.value)
        reports = reported.group_by(*NAMES, "origin").agg(pl.col(REPORTED).max())
        yield of_kind(_REPORT, reports)


def of_history(rows: pl.DataFrame, name: tuple[str, str]) -> pl.DataFrame:
    """Returns the rows of a survey that are of one history, by its observer and name."""
    return rows.filter((pl.col("observer") == name[0]) & (pl.col("history") == name[1]))


def _used(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the GTIDs that rows of a frame show as used, as intervals of their numbers; and how
    often they were `given`.
    """
    names = (*NAMES, "gtid_source")
    is_given = (pl.col("verdict") == Verdict.CERTIFIED.value) & pl.col("gtid_number").is_not_null()
    given = rows.filter(is_given).select(*names, "gtid_number")
    found = [
        (*name, *interval)
        for name, mine in given.group_by(names)
        for interval in _intervals_of(mine["gtid_number"].to_numpy())
    ]
    elsewhere = [
        (*name, source, first, last, 0)
        for *name, gtid_set in rows.filter(pl.col("executed_elsewhere").is_not_null())
        .select(*NAMES, "executed_elsewhere")
        .iter_rows()
        for source, ends in intervals(gtid_set).items()
        for first, last in zip(*ends, strict=True)
    ]
    kinds = {**dict.fromkeys(names, pl.String()), **dict.fromkeys(_INTERVAL, pl.Int64())}
    return pl.DataFrame([*found, *elsewhere], kinds, orient="row")


def _intervals_of(numbers: NDArray[np.int64]) -> Iterator[tuple[int, ...]]:
    """Yields the intervals of numbers: the first, the last, and how many of the numbers are in it.

    >>> list(_intervals_of(np.array([7, 1, 2, 2])))
    [(1, 2, 3), (7, 7, 1)]
    """
    ordered = np.sort(numbers)
    begins = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 2) > 1)
    ends = np.append(begins[1:], len(ordered))
    columns = ordered[begins], ordered[ends - 1], ends - begins
    yield from zip(*(column.tolist() for column in columns), strict=True)


def _ran(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows that an applier executed in a known time, and which count in `Pace`."""
    is_timed = pl.col("verdict") == Verdict.CERTIFIED.value
    is_timed &= pl.col("kind") == RecordKind.TRANSACTION.value
    ran = executed(rows).with_columns(is_timed=is_timed, is_alone=~pl.col("has_items_write_set"))
    return ran.select(_RAN)


def _work(ran: pl.DataFrame) -> pl.DataFrame:
    """Returns for each file and history in it the sums of `Pace` of execution times."""
    timed = ran.filter("is_timed")
    return timed.group_by("file_hash", *NAMES).agg(
        pl.col("took_us").sum().alias("paced_work_us"),
        pl.col("took_us").filter("is_alone").sum().alias("paced_alone_us"),
    )


def _counts() -> list[pl.Expr]:
    kind, number, stamp = pl.col("kind"), pl.col("number"), pl.col("sequence_number")
    transaction = (kind == RecordKind.TRANSACTION.value).fill_null(value=False)
    stamped = transaction & stamp.is_not_null()
    certified = pl.col("verdict") == Verdict.CERTIFIED.value
    sums = {
        "unplaced": number.is_null() | pl.col("place").is_null() | kind.is_null(),
        "transactions": transaction,
        **{str(each): transaction & (pl.col("verdict") == each.value) for each in Verdict},
        "refused_gtids": transaction
        & (pl.col("verdict") == Verdict.REFUSED.value)
        & pl.col("gtid_number").is_not_null(),
        "stamped": stamped,
        "read_sets": transaction & pl.col("has_read_set"),
        "certified_read_sets": transaction & certified & pl.col("has_items_read_set"),
        "gtid_snapshots": transaction & pl.col("has_snapshot_set"),
        "snapshots": transaction & pl.col("snapshot_version").is_not_null(),
        "elsewhere": kind == RecordKind.EXECUTED_ELSEWHERE.value,
        **_written_by(transaction),
    }
    stable = (kind == RecordKind.STABLE_SET.value) & pl.col("has_stable_set")
    starts = kind == RecordKind.START.value
    resets = (kind == RecordKind.VIEW_CHANGE.value) & pl.col("resets_clock")
    lasts = {
        "stamp": (stamped, "sequence_number"),
        "stable": ((kind == RecordKind.STABLE_SET.value) | starts, "stable_version"),
        "collected": ((kind == RecordKind.COLLECTION.value) | starts, "collected_version"),
        "edge": (
            (kind == RecordKind.COLLECTION.value) | starts | resets,
            "last_committed_global",
        ),
    }
    tick = pl.when(is_applied()).then("started_tick").otherwise("committed_tick")
    sums |= _paced_sums(transaction & certified)
    sums |= _collected()
    return [
        *_paced_ends(transaction & certified),
        *_locals(),
        pl.len().cast(pl.Int64).alias("rows"),
        *[where.sum().cast(pl.Int64).alias(name) for name, where in sums.items()],
        pl.col("format_version").max(),
        *[
            end.alias(f"{which}_{name}")
            for name in ("number", "place", "version")
            for which, end in (("first", pl.col(name).min()), ("last", pl.col(name).max()))
        ],
        pl.col("decided_us").min().alias("first_us"),
        pl.col("decided_us").max().alias("last_us"),
        number.filter(stable).min().alias("first_set"),
        number.filter(stamped).min().alias("first_stamp_at"),
        stamp.filter(stamped).sort_by(number.filter(stamped)).first().alias("first_stamp"),
        *[
            each
            for name, (where, what) in lasts.items()
            for each in (
                number.filter(where).max().alias(f"last_{name}_at"),
                pl.col(what)
                .filter(where)
                .sort_by(number.filter(where))
                .last()
                .alias(f"last_{name}"),
            )
        ],
        tick.filter(pl.col("committed_tick").is_not_null()).min().alias("first_tick"),
        pl.col(_FILE_SAYS).max(),
    ]


def _collected() -> dict[str, pl.Expr]:
    """Returns the sums over collections, by name."""
    collection = pl.col("kind") == RecordKind.COLLECTION.value
    return {
        "collections": collection,
        "closed": collection & (pl.col("last_committed_global") == pl.col("sequence_number")),
        "purged_items": pl.when(collection).then(pl.col("purged_items")),
    }


def _locals() -> list[pl.Expr]:
    """Returns the numbers of local transactions and of those that another member sent; place and
    sender of the first of these.
    """
    place, origin = pl.col("place"), pl.col("origin")
    foreign = is_local() & origin.ne_missing(pl.col("observer"))
    return [
        is_local().sum().cast(pl.Int64).alias("locals"),
        foreign.sum().cast(pl.Int64).alias("foreign_locals"),
        place.filter(foreign).min().alias("first_foreign_at"),
        origin.filter(foreign).sort_by(place.filter(foreign)).first().alias("first_foreign"),
    ]


def _written_by(transaction: pl.Expr) -> dict[str, pl.Expr]:
    """Returns, by name, which rows only a member writes: others have no clock, but for a binary
    log's transactions, which have no origin; and which rows only a certifier does: of a binary log
    everything was committed, and nothing is known but that.
    """
    kind, has_origin = pl.col("kind"), pl.col("origin").is_not_null()
    has_snapshot = pl.col("snapshot_version").is_not_null() | pl.col("has_snapshot_set")
    is_certified = pl.col("verdict") == Verdict.CERTIFIED.value
    return {
        "of_member": pl.col("decided_us").is_not_null() & (~transaction | has_origin),
        "of_certifier": ~kind.is_in(_OF_ANY_SOURCE)
        | (transaction & (has_origin | has_snapshot | ~is_certified)),
    }


def _paced_sums(certified: pl.Expr) -> dict[str, pl.Expr]:
    """Returns the counts of `Pace` among certified transactions, by name."""
    remote = certified & is_remote()
    timed = executed_at().is_not_null() & pl.col("started_us").is_not_null()
    sums = {
        "certified": certified,
        "remote": remote,
        "stamped": remote & pl.col("sequence_number").is_not_null(),
        "timed": remote & timed,
        "ticked": certified & pl.col("committed_tick").is_not_null(),
        "alone": remote & ~pl.col("has_items_write_set"),
    }
    return {f"paced_{name}": what for name, what in sums.items()}


def _paced_ends(certified: pl.Expr) -> list[pl.Expr]:
    """Returns the first and the last times and numbers of certified transactions; and the times
    that the applier took for those that became visible.
    """
    number, decided = pl.col("number").filter(certified), pl.col("decided_us").filter(certified)
    ran = certified & pl.col("committed_tick").is_not_null() & is_applied()
    begun = pl.min_horizontal("decided_us", "started_us").filter(ran)
    return [
        decided.min().alias("paced_first_us"),
        decided.max().alias("paced_last_us"),
        number.min().alias("paced_first_number"),
        number.max().alias("paced_last_number"),
        begun.min().alias("applied_first_us"),
        pl.col("committed_us").filter(ran).max().alias("applied_last_us"),
    ]
