"""The audit's questions as queries of DuckDB, on the same files: another engine's opinion of them.

The rule it keeps: `ALL` has every code of `verify`, by the same rules (`audit/verify/`), of one
history that is there from its start on, of a group without blocks of GTIDs, read sets, large
transactions and reports. It does not tell which findings follow from others. `STAMPS` asks about
stamps and verdicts alone, a fifth of that. Without `ALL` the audit would be compared with a query
that asks a fifth of what it asks.
"""

from pathlib import Path
from time import time

import duckdb

STAMPS = """
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

ALL = """
WITH history AS (
    SELECT number, place, kind, version, verdict, gtid_source, gtid_number, gtid_brought,
           snapshot_version, write_set, winner_item, winner_version, last_committed,
           sequence_number, last_committed_global, stable_version, collected_version,
           purged_items, resets_clock, settings, coalesce(is_local, false) AS is_local,
           coalesce(verdict = 'certified', false) AS certified,
           coalesce(len(write_set), 0) > 0 AS writes
    FROM read_parquet($files)
),
told AS (  -- What a row leaves behind that seldom changes; of all rows these are few.
    SELECT number,
           last_value(CASE WHEN kind IN ('start', 'collection')
                             OR (kind = 'view_change' AND resets_clock) THEN last_committed_global
                           WHEN certified AND NOT writes THEN sequence_number END
                      IGNORE NULLS) OVER so_far AS edge,
           last_value(CASE WHEN kind IN ('start', 'stable_set') THEN stable_version END
                      IGNORE NULLS) OVER so_far AS stable,
           last_value(CASE WHEN kind IN ('start', 'collection') THEN collected_version END
                      IGNORE NULLS) OVER so_far AS collected,
           last_value(CASE WHEN kind = 'stable_set' THEN false
                           WHEN kind = 'collection' AND purged_items > 0 AND NOT is_tight THEN true
                           WHEN kind = 'start' AND version = 0 THEN true END
                      IGNORE NULLS) OVER so_far AS closed,
           is_tight, group_source
    FROM (
        SELECT *, last_value(settings->>'$.gc_window' IGNORE NULLS) OVER so_far = 'tight'
                    AS is_tight,
               first_value(settings->>'$.group_source' IGNORE NULLS) OVER so_far AS group_source
        FROM history
        WHERE kind IN ('start', 'settings', 'collection', 'stable_set', 'view_change')
           OR (certified AND NOT writes)
        WINDOW so_far AS (ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
    )
    WINDOW so_far AS (ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
),
reached AS (  -- The collection that was the first to reach a version.
    SELECT version, min(number) AS collector
    FROM (
        SELECT number, max(collected_version) OVER (
            ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS version
        FROM history WHERE kind = 'collection'
    ) GROUP BY version
),
written AS (
    SELECT history.*, collector
    FROM (SELECT * FROM history WHERE kind = 'transaction') AS history
    ASOF LEFT JOIN reached ON history.version <= reached.version
),
items AS (
    SELECT number, snapshot_version, winner_item, winner_version,
           unnest(list_distinct(write_set)) AS item,
           CASE WHEN certified THEN version END AS version,
           CASE WHEN certified THEN sequence_number END AS sequence_number,
           CASE WHEN certified THEN number END AS writer,
           CASE WHEN certified THEN collector END AS collector
    FROM written
),
seen AS (
    SELECT number, snapshot_version, item, winner_item, winner_version, collector, writer,
           sequence_number, max(version) OVER earlier AS last_version,
           max(sequence_number) OVER earlier AS dependency,
           lead(writer IGNORE NULLS) OVER (PARTITION BY item ORDER BY number) AS overwritten_at
    FROM items
    WINDOW earlier AS (
        PARTITION BY item ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )
),
met AS (
    SELECT number, max(dependency) AS dependency,
           max(CASE WHEN last_version > snapshot_version THEN last_version END) AS outside,
           bool_or(last_version > snapshot_version AND item = winner_item
                   AND last_version = winner_version) AS winner_found
    FROM seen WHERE last_version IS NOT NULL GROUP BY number
),
purged AS (
    SELECT collector AS number, count(*) AS purged, max(sequence_number) AS purged_sequence
    FROM seen
    WHERE collector IS NOT NULL AND writer IS NOT NULL
      AND (overwritten_at IS NULL OR overwritten_at > collector)
    GROUP BY collector
),
gtids AS (
    SELECT number, max(CASE WHEN certified THEN place END) OVER (
        PARTITION BY gtid_source, gtid_number ORDER BY number
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS used_at
    FROM history
    WHERE gtid_number IS NOT NULL AND (certified OR verdict = 'refused')
),
twice AS (SELECT * FROM gtids WHERE used_at IS NOT NULL),
ordered AS (
    SELECT history.*, edge, stable, collected, closed, is_tight,
           certified AND NOT coalesce(gtid_brought, false) AND gtid_source = group_source
             AS assigned,
           lag(history.number) OVER so_far AS last_number, lag(place) OVER so_far AS last_place,
           lag(history.version) OVER so_far AS last_version,
           last_value(CASE WHEN kind = 'start' OR certified THEN sequence_number
                           WHEN kind = 'view_change' AND resets_clock THEN 1 END
                      IGNORE NULLS) OVER before AS last_sequence,
           last_value(CASE WHEN certified AND NOT coalesce(gtid_brought, false)
                             AND gtid_source = group_source THEN gtid_number
                           WHEN kind = 'settings' THEN -1
                           WHEN kind = 'start' AND version = 0 THEN 0 END
                      IGNORE NULLS) OVER before AS last_gtid
    FROM history ASOF LEFT JOIN told ON history.number > told.number
    WINDOW so_far AS (ORDER BY history.number),
           before AS (ORDER BY history.number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
judged AS (
    SELECT *, certified AND NOT is_local AS remote,
           CASE WHEN kind <> 'transaction' THEN NULL
                WHEN snapshot_version > version - certified::INT THEN 'refused'
                WHEN writes AND snapshot_version < stable THEN 'too_old'
                WHEN outside IS NOT NULL THEN 'conflict' ELSE 'certified' END AS ruled,
           CASE WHEN writes THEN greatest(edge, coalesce(dependency, 0))
                ELSE sequence_number - 1 END AS waits_for
    FROM ordered LEFT JOIN met USING (number) LEFT JOIN purged USING (number)
    LEFT JOIN twice USING (number)
)
SELECT count(*) FILTER (number > last_number + 1) AS RECORD_MISSING,
       count(*) FILTER (number <= last_number OR place <= last_place) AS RECORD_REORDERED,
       count(*) FILTER (number = last_number + 1 AND version <> last_version
           + (certified OR kind = 'executed_elsewhere')::INT) AS VERSION_WRONG,
       count(*) FILTER (certified AND ruled = 'conflict') AS CONFLICT_MISSED,
       count(*) FILTER (verdict = 'conflict' AND ruled <> 'conflict' AND winner_version > 0)
         AS CONFLICT_FALSE,
       count(*) FILTER (certified AND ruled = 'too_old') AS TOO_OLD_MISSED,
       count(*) FILTER (verdict = 'too_old' AND ruled <> 'too_old' AND stable IS NOT NULL)
         AS TOO_OLD_FALSE,
       count(*) FILTER (certified AND ruled = 'refused') AS REFUSAL_MISSED,
       count(*) FILTER (verdict = 'refused' AND ruled <> 'refused'
           AND NOT (coalesce(gtid_brought, false) AND used_at IS NOT NULL)) AS REFUSAL_FALSE,
       count(*) FILTER (verdict = 'conflict' AND ruled = 'conflict'
           AND NOT coalesce(winner_found, false) AND winner_version > 0) AS WINNER_WRONG,
       count(*) FILTER (remote AND last_committed < waits_for) AS STAMP_TOO_LOW,
       count(*) FILTER (remote AND last_committed > waits_for) AS STAMP_TOO_HIGH,
       count(*) FILTER (CASE WHEN remote THEN coalesce(sequence_number <> last_sequence + 1,
                                                       sequence_number IS NULL)
                             ELSE certified AND sequence_number IS NOT NULL END) AS SEQUENCE_WRONG,
       count(*) FILTER (certified AND used_at < place) AS GTID_DUPLICATE,
       count(*) FILTER (assigned AND last_gtid >= 0 AND gtid_number > last_gtid + 1) AS GTID_GAP,
       count(*) FILTER (assigned AND last_gtid >= 0 AND gtid_number <= last_gtid) AS GTID_ORDER,
       count(*) FILTER (kind = 'view_change' AND (last_committed <> 0 OR sequence_number <> 0
           OR last_committed_global <> CASE WHEN resets_clock THEN 1 ELSE edge END))
         AS VIEW_CHANGE_WRONG,
       count(*) FILTER (kind = 'stable_set' AND (stable_version < stable
           OR stable_version > version)) AS STABLE_SET_WRONG,
       count(*) FILTER (kind = 'collection' AND collected_version > stable) AS PURGED_TOO_EARLY,
       count(*) FILTER (kind = 'collection' AND collected >= 0
           AND purged_items <> coalesce(purged, 0)) AS COLLECTION_WRONG,
       count(*) FILTER (kind = 'collection' AND last_committed_global <>
           CASE WHEN is_tight THEN greatest(edge, coalesce(purged_sequence, edge))
                WHEN purged_items > 0 AND NOT closed THEN last_sequence ELSE edge END)
         AS WINDOW_WRONG
FROM judged
"""


def wrong_by(query: str, folder: Path, memory: str, scratch: str) -> tuple[dict[str, int], float]:
    """Returns what is wrong in the log below `folder`, by code, and when DuckDB was up.

    Args:
        query: `STAMPS` or `ALL`.
        memory: DuckDB's limit, such as 6GB.
        scratch: A folder for what does not fit.
    """
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
