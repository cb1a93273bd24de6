"""The rows of a history, each with the state that the rows before it have left.

The state comes from the rows that changed it (a stable set, a collection, a transaction without
write set, a view change), never from the row that is checked.
"""

from collections.abc import Mapping
from functools import cache, partial, reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from groupcert.certifier.audit.rows.clocks import clock, is_behind_lost_reset
from groupcert.certifier.audit.rows.log import History, Log, block_size
from groupcert.certifier.audit.rows.states import segment_begins, with_states
from groupcert.certifier.history.schema import INTEGER_MAX, RecordKind, Source, Verdict

CERTIFIED, CONFLICT, TOO_OLD, REFUSED = range(1, 5)
"""Verdicts as numbers, which are cheaper to move than names."""
_VERDICTS = dict(zip(Verdict, (CERTIFIED, CONFLICT, TOO_OLD, REFUSED), strict=True))
VERDICT_NAMES = {number: verdict.value for verdict, number in _VERDICTS.items()}


def is_kind(kind: RecordKind) -> Column:
    """Returns whether a row is of a kind."""
    return F.col("kind") == kind.value


def verdict_number() -> Column:
    """Returns the verdict of a row as a number."""
    number = F.lit(None).cast("int")
    for verdict, value in _VERDICTS.items():
        number = F.when(F.col("verdict") == verdict.value, value).otherwise(number)
    return number


def told_block_size() -> Column:
    """Returns how many GTID numbers members reserve at a time, from a row with settings on."""
    return F.get_json_object("settings", "$.gtid_assignment_block_size").cast("bigint")


def of_group(log: Log) -> Column:
    """Returns whether a row's GTID has the group's UUID."""
    return F.col("gtid_source") == log.by_history(lambda each: each.group_source or "")


def base_rows(log: Log) -> DataFrame:
    """Returns all rows of all histories, with the columns that the checks compare."""
    assigned = ~F.coalesce("gtid_brought", F.lit(False))
    return log.rows.select(
        *("h", "number", "place", "kind", "version"),
        verdict_number().alias("verdict"),
        *("snapshot_version", "is_local", "is_large", "last_committed", "sequence_number"),
        (F.coalesce(F.size("write_set"), F.lit(0)) > 0).alias("writes"),
        (F.coalesce(F.size("read_set"), F.lit(0)) > 0).alias("reads"),
        F.col("gtid_number"),
        (assigned & of_group(log)).alias("is_assigned"),
        *("winner_version", "last_committed_global", "stable_version", "collected_version"),
        *("purged_items", "resets_clock", "stable_set"),
        F.when(F.col("kind") == RecordKind.TRANSACTION, F.col("snapshot_set")).alias(
            "snapshot_set"
        ),
    )


def _states(log: Log) -> dict[str, Column]:
    """Returns, by name, the state that a row leaves behind; null if it leaves it unchanged."""
    # The files of a binary log number from 1 on, a member that joins from 2 on.
    last_at_reset = log.by_history(lambda each: int(each.source is not Source.BINARY_LOG))
    start, view = is_kind(RecordKind.START), is_kind(RecordKind.VIEW_CHANGE)
    stable, collection = is_kind(RecordKind.STABLE_SET), is_kind(RecordKind.COLLECTION)
    resets = view & F.col("resets_clock")
    certified = F.col("verdict") == CERTIFIED
    stamped = certified & F.col("sequence_number").isNotNull()
    is_tight = F.coalesce(_settings_met(log)["met_tight"], F.lit(False))
    return {
        **{f"previous_{name}": F.col(name) for name in ("number", "version", "place")},
        "met_sequence": F.when(start | stamped, F.col("sequence_number")).when(
            resets, last_at_reset
        ),
        "met_edge": F.when(start | collection | resets, F.col("last_committed_global"))
        .when(stamped & ~F.col("writes"), F.col("sequence_number"))
        .when(is_behind_lost_reset(log), last_at_reset),
        "met_stable": F.when(start | stable, F.col("stable_version")),
        "met_collected": F.when(start | collection, F.col("collected_version")),
        "met_closed": F.when(stable, F.lit(False))
        .when(collection & (F.col("purged_items") > 0) & ~is_tight, F.lit(True))
        .when(start & (F.col("version") == 0), F.lit(True)),
        "met_stable_set": F.when(stable, F.col("stable_set")),
        "met_gtid": F.when(certified & F.col("is_assigned"), F.col("gtid_number"))
        .when(is_kind(RecordKind.SETTINGS), F.lit(-1))
        .when(start & (F.col("version") == 0), F.lit(0)),
    }


def _settings_met(log: Log) -> dict[str, Column]:
    """Returns the settings before a row; null if there are none before it."""
    tight = sizes = F.lit(None)
    for step in range(max(len(each.told) for each in log.histories)):
        is_behind = F.col("number") > log.by_history(partial(_told_at, step))
        tight = F.when(is_behind, log.by_history(partial(_is_tight, step))).otherwise(tight)
        sizes = F.when(is_behind, log.by_history(partial(_block_size, step))).otherwise(sizes)
    return {"met_tight": tight.cast("boolean"), "met_block_size": sizes.cast("bigint")}


def _told_at(step: int, history: History) -> int:
    """Returns the row with a history's settings number `step`; INTEGER_MAX if there are fewer."""
    return history.told[step][0] if step < len(history.told) else INTEGER_MAX


def _is_tight(step: int, history: History) -> bool | None:
    window = history.told[step][1].get("gc_window") if step < len(history.told) else None
    return None if window is None else window == "tight"


def _block_size(step: int, history: History) -> int | None:
    return (block_size(history.told[step][1]) or None) if step < len(history.told) else None


@cache
def segment_edges(log: Log) -> DataFrame:
    """Returns the state at the begin of each segment of each history."""
    return segment_begins(base_rows(log), ["h"], _states(log)).cache()


@cache
def last_sequences(log: Log) -> Mapping[int, int]:
    """Returns for each history the last sequence number assigned before it begins; if that is not
    recorded, the one before its first.
    """
    begun = {each.h: each.start_sequence for each in log.histories}
    silent = [each.h for each in log.histories if not each.start]
    if silent:
        stamped = F.col("h").isin(silent) & F.col("sequence_number").isNotNull()
        first = F.min_by("sequence_number", "number").alias("first")
        for row in log.certified.where(stamped).groupBy("h").agg(first).collect():
            begun[row["h"]] = row["first"] - 1
    return begun


def walked(log: Log) -> DataFrame:
    """Returns `base_rows` with the state before each row.

    `previous_number`, `previous_version`, `previous_place`: of the row before. `met_sequence`: the
    last sequence number assigned. `met_edge`: last_committed_global. `met_stable`,
    `met_stable_set`: what all members had executed. `met_collected`: up to which version items were
    purged. `met_closed`: whether a collection closed the window since the last stable set.
    `met_tight`: whether collections leave it open. `met_reset`: whether the clock began again since
    the history did. `met_gtid`: the last number assigned to a GTID; -1 after other settings, which
    free reserved numbers. `met_block_size`: how many members reserve at a time.
    """
    rows = with_states(base_rows(log), ["h"], _states(log), segment_edges(log))
    has_reset = clock(log, F.col("number") - 1) > 0
    return rows.withColumns({**_settings_met(log), "met_reset": has_reset})


def walked_collections(log: Log) -> DataFrame:
    """Returns the collections among `base_rows`, with the state before them of the window, of
    stable sets and of collections, as in `walked`; only rows that change these are read.
    """
    names = ("met_edge", "met_collected", "met_stable_set")
    states = {name: column for name, column in _states(log).items() if name in names}
    moves = reduce(or_, [column.isNotNull() for column in states.values()])
    rows = base_rows(log).where(moves | is_kind(RecordKind.COLLECTION))
    walked = with_states(rows, ["h"], states, segment_edges(log))
    return walked.where(is_kind(RecordKind.COLLECTION)).withColumns(_settings_met(log))
