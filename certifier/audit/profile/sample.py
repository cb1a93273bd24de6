"""A sample of a history as a trace, for `groupcert whatif`: what would more workers bring?

The rule it keeps: nothing here schedules. The sample is contiguous and bounded, and has what an
applier executed. Its transactions get GTIDs of their own, 1, 2, ..., so that a snapshot is a range;
of a snapshot before the sample nothing is left. Keys of rows are in it where the log has them; an
item without one is a row of the table `unknown`.
"""

import gzip
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import Row

from groupcert.certifier.audit.rows.critical_path import Ints
from groupcert.certifier.audit.rows.log import Log
from groupcert.certifier.audit.rows.stretches import Pace, is_remote, length_column
from groupcert.certifier.history.schema import RecordKind, Verdict

ROWS_MAX = 100_000
ITEMS_MAX = 1_000_000
"""Items that the transactions of a sample wrote, but for one that alone wrote more."""
SOURCE = "00000000-0000-4000-8000-000000000001"
"""Of the GTIDs in a sample."""
_NUMBERS = ("commit_parent", "commit_id", "domain_id", "duration_us")


def sample(log: Log, told: Mapping[int, Pace], h: int) -> tuple[bytes, int]:
    """Returns a trace of the middle of a history, compressed, and how many transactions it has."""
    rows = sampled_rows(log, told, h)
    transactions = sum(row["view"] is False for row in rows)
    return gzip.compress("".join(f"{line}\n" for line in lines(rows)).encode(), 6), transactions


def sampled_rows(log: Log, told: Mapping[int, Pace], h: int) -> list[Row]:
    """Brings the middle of a history to the driver; less of it where there are many items."""
    pace = told[h]
    first = pace.first_number + max(0, (pace.numbers - ROWS_MAX) // 2)
    stretch = log.rows.where(
        (F.col("h") == h) & F.col("number").between(first, first + ROWS_MAX - 1)
    )
    size = F.greatest(F.size("write_set"), F.lit(0)).alias("size")
    sizes = stretch.select("number", size).toArrow().sort_by("number")
    whole = rows_within(sizes.column("size").to_numpy(), ITEMS_MAX)
    last = pc.max(sizes.column("number")[:whole]).as_py()
    view = F.col("kind") == RecordKind.VIEW_CHANGE
    transaction = (F.col("verdict") == Verdict.CERTIFIED) & is_remote()
    found = (
        stretch.where(F.col("number") <= last)
        .where(view | transaction)
        .select(
            *("number", "version", "snapshot_version", "origin", "write_set", "write_keys"),
            *("commit_parent", "commit_id", "domain_id", "databases", "view_id", "members"),
            view.alias("view"),
            (length_column(log, told) if pace.measured else F.lit(None)).alias("duration_us"),
        )
        .collect()
    )
    return sorted(found, key=lambda row: row["number"])


def rows_within(sizes: Ints, items_max: int) -> int:
    """Returns how many rows from the first on have so many items together at most; at least one.

    >>> rows_within(np.array([2, 3, 4]), 8), rows_within(np.array([9, 1]), 8)
    (2, 1)
    """
    return max(int(np.searchsorted(np.cumsum(sizes), items_max, side="right")), 1)


def lines(rows: Iterable[Row]) -> Iterator[str]:
    """Yields the lines of a trace for the transactions and view changes of an applier."""
    versions: list[int] = []
    for row in rows:
        if row["view"]:
            members = row["members"] or []
            line = {"type": "view_change", "view_id": row["view_id"], "members": members}
        else:
            snapshot = row["snapshot_version"]
            read = len(versions) if snapshot is None else bisect_right(versions, snapshot)
            versions.append(row["version"])
            line = {
                "type": "transaction",
                "member": row["origin"] or "source",
                "gtid": f"{SOURCE}:{len(versions)}",
                "snapshot_version": f"{SOURCE}:1-{read}" if read else "",
                "write_set": _items(row["write_set"] or [], row["write_keys"] or []),
            }
            line |= {name: row[name] for name in _NUMBERS if row[name] is not None}
            if row["databases"] is not None:
                line["databases"] = row["databases"]
        yield json.dumps(line, separators=(",", ":"))


def _items(items: list[int], keys: list[str]) -> list[str]:
    """Returns the items of a row as a trace has them."""
    named = dict(zip(items, keys, strict=True)) if keys else {}
    return [named.get(item) or f"unknown/{item % (1 << 64):016x}" for item in items]
