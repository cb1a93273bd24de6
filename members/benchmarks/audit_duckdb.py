"""The audit's check of stamps and verdicts as one query of DuckDB, on the same files.

The rule it keeps: the same question and the same answer as `audit/verify/verify.py`, for what
the benchmark's histories have: one history, all of it, no read sets, snapshots that are versions.
It is there to be compared with, and finds no other kind of error; `audit_duckdb_all.py` has the
query that does.
"""

from pathlib import Path
from time import time

import duckdb

from groupcert.members.benchmarks.audit_duckdb_all import QUERY

_QUERY = """
WITH history AS (
    SELECT number, kind, verdict, version, snapshot_version, write_set, last_committed,
           sequence_number, last_committed_global, resets_clock
    FROM read_parquet($files)
),
edges AS (
    SELECT number, last_committed_global AS edge FROM history
    WHERE kind IN ('start', 'collection') OR (kind = 'view_change' AND resets_clock)
    UNION ALL
    SELECT number, sequence_number FROM history
    WHERE verdict = 'certified' AND len(write_set) = 0
),
items AS (
    SELECT number, snapshot_version, unnest(list_distinct(write_set)) AS item,
           CASE WHEN verdict = 'certified' THEN version END AS version,
           CASE WHEN verdict = 'certified' THEN sequence_number END AS sequence_number
    FROM history WHERE kind = 'transaction'
),
seen AS (
    SELECT number, snapshot_version, max(version) OVER earlier AS writer,
           max(sequence_number) OVER earlier AS dependency
    FROM items
    WINDOW earlier AS (
        PARTITION BY item ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )
),
met AS (
    SELECT number, max(dependency) AS dependency, max(writer) > max(snapshot_version) AS outside
    FROM seen WHERE writer IS NOT NULL GROUP BY number
),
judged AS (
    SELECT verdict = 'certified' AS certified, coalesce(outside, false) AS outside, last_committed,
           CASE WHEN len(write_set) = 0 THEN sequence_number - 1
                ELSE greatest(edge, coalesce(dependency, 0)) END AS expected
    FROM (
        SELECT history.number, verdict, write_set, last_committed, sequence_number, edge
        FROM history ASOF JOIN edges ON history.number > edges.number
        WHERE kind = 'transaction'
    ) LEFT JOIN met USING (number)
)
SELECT count(*) FILTER (certified AND last_committed < expected) AS STAMP_TOO_LOW,
       count(*) FILTER (certified AND last_committed > expected) AS STAMP_TOO_HIGH,
       count(*) FILTER (certified AND outside) AS CONFLICT_MISSED,
       count(*) FILTER (NOT certified AND NOT outside) AS CONFLICT_FALSE
FROM judged
"""


def check_stamps(folder: Path, memory: str, scratch: str) -> tuple[dict[str, int], float]:
    """Returns which stamps and verdicts are wrong in the log below `folder`, by code, and when
    DuckDB was up.
    """
    return _counts(_QUERY, folder, memory, scratch)


def check_all(folder: Path, memory: str, scratch: str) -> tuple[dict[str, int], float]:
    """Returns all that is wrong in the log below `folder`, by code, and when DuckDB was up."""
    return _counts(QUERY, folder, memory, scratch)


def _counts(query: str, folder: Path, memory: str, scratch: str) -> tuple[dict[str, int], float]:
    settings: dict[str, str | int | float | list[str]] = {
        "threads": 2,
        "memory_limit": memory,
        "temp_directory": scratch,
        "preserve_insertion_order": False,
    }
    with duckdb.connect(config=settings) as engine:
        engine.execute("SET enable_progress_bar = false")  # It is drawn on standard output.
        ready = time()
        found = engine.execute(query, {"files": str(folder / "*.parquet")})
        names = [column[0] for column in found.description]
        given = zip(names, found.fetchone() or (), strict=True)
        return {name: count for name, count in given if count}, ready
