"""The rows of a history, each with the state that the rows before it have left.

The state comes from the rows that changed it (a stable set, a collection, a transaction without
write set, a view change), never from the row that is checked.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ...history.schema import RecordKind, Source
from ..spark.walks import Frames
from .certification_log import Log
from .clocks import Resets, clock, resets_of
from .coded_columns import CERTIFIED, has_items, is_kind, kind_number, verdict_number
from .once import once
from .order import STATE, STATE_KINDS
from .states import begins_of_long, segment
from .surveyed_history import History, block_size

_TOLD_KINDS = pl.Schema(
    {"h": pl.Int32(), "number": pl.Int64(), "met_tight": pl.Boolean(), "met_block_size": pl.Int64()}
)
_LOST_KINDS = pl.Schema({"h": pl.Int32(), "number": pl.Int64(), "behind_lost_reset": pl.Boolean()})
_STATE_KINDS = pl.Schema(
    {
        **STATE_KINDS,
        **dict.fromkeys(
            ("met_sequence", "met_edge", "met_stable", "met_collected", "met_gtid"), pl.Int64()
        ),
        "met_closed": pl.Boolean(),
        "met_stable_set": pl.String(),
    }
)
_NOT_LEFT = (
    "snapshot_version",
    "snapshot_set",
    "is_local",
    "is_large",
    "last_committed",
    "reads",
    "winner_version",
)
"""Columns of `base_rows` of which a row leaves nothing behind."""


def base_rows(log: Log) -> DataFrame:
    """Returns all rows of all histories, with the columns that the checks compare."""
    return log.rows.select(
        "h",
        segment(),
        "number",
        "place",
        kind_number(),
        "version",
        verdict_number(),
        "snapshot_version",
        "is_local",
        "is_large",
        "last_committed",
        "sequence_number",
        has_items("write_set").alias("writes"),
        has_items("read_set").alias("reads"),
        "gtid_source",
        "gtid_number",
        "gtid_brought",
        "winner_version",
        "last_committed_global",
        "stable_version",
        "collected_version",
        "purged_items",
        "resets_clock",
        "stable_set",
        F.when(F.col("kind") == RecordKind.TRANSACTION, F.col("snapshot_set")).alias(
            "snapshot_set"
        ),
    )


class Told(NamedTuple):
    """The driver's knowledge of each history, as a worker takes it: a row of `constants` each; its
    `settings` by the number of their row; where its clock began again, and where unseen.
    """

    constants: pl.DataFrame
    settings: pl.DataFrame
    resets: Resets
    lost_resets: pl.DataFrame

    def known(self, frames: Frames) -> Frames:
        """Yields the frames with the constants of their histories, the settings before each row
        (`met_tight`, `met_block_size`), whether the clock began again before it (`met_reset`), and
        whether it did so unseen (`behind_lost_reset`); whether its GTID was assigned by the group.
        """
        for frame in frames:
            told = frame.join(self.constants, "h", "left", maintain_order="left")
            told = told.join(
                self.lost_resets, ["h", "number"], "left", maintain_order="left"
            ).with_columns(pl.col("behind_lost_reset").fill_null(value=False))
            told = told.with_columns(
                *_settings_before(told["h"], told["number"], self.settings),
                (clock(told["h"], told["number"] - 1, self.resets) > 0).alias("met_reset"),
            )
            yield told.with_columns(
                (
                    ~pl.col("gtid_brought").fill_null(value=False)
                    & (pl.col("gtid_source") == pl.col("group_source"))
                ).alias("is_assigned")
            )


def told_of(log: Log) -> Told:
    """Returns the driver's knowledge of the histories of a log."""
    settings = [
        (history.h, number, _is_tight(settings), block_size(settings) or None)
        for history in log.histories
        for number, settings in history.told
    ]
    lost = [
        (history.h, number, True) for history in log.histories for number in history.lost_resets
    ]
    return Told(
        constants=pl.DataFrame(
            list(map(_constants, log.histories)), schema_overrides={"h": pl.Int32()}
        ),
        settings=pl.DataFrame(settings, schema=_TOLD_KINDS, orient="row"),
        resets=resets_of(log.histories),
        lost_resets=pl.DataFrame(lost, schema=_LOST_KINDS, orient="row"),
    )


def _constants(history: History) -> dict[str, object]:
    one_by_one = {"gtid_assignment_block_size": 1}
    is_decided = history.source is not Source.BINARY_LOG
    return {
        "h": history.h,
        "decided": is_decided,
        "group_source": history.group_source or "",
        # The files of a binary log number from 1 on, a member that joins from 2 on.
        "last_at_reset": int(is_decided),
        "start_version": history.start_version,
        "last_before": history.last_sequence_before,
        "told_block_size": block_size({**one_by_one, **history.settings}),
    }


def _is_tight(settings: Mapping[str, object]) -> bool | None:
    window = settings.get("gc_window")
    return None if window is None else window == "tight"


def _settings_before(h: pl.Series, number: pl.Series, settings: pl.DataFrame) -> pl.DataFrame:
    """Returns the settings in force before each row; null if there are none before it."""
    histories, numbers = h.to_numpy(), number.to_numpy()
    at = np.full(len(h), -1, np.int64)
    begins = settings["number"].to_numpy()
    for each in np.intersect1d(histories, settings["h"].to_numpy()):
        mine, told = histories == each, np.flatnonzero(settings["h"].to_numpy() == each)
        before = np.searchsorted(begins[told], numbers[mine], "left") - 1
        at[mine] = np.where(before >= 0, told[before], -1)
    rows = pl.Series(at).replace(-1, None)
    return settings.select(pl.all().exclude("h", "number").gather(rows))


def states() -> Mapping[str, pl.Expr]:
    """Returns, by name, the state that a row leaves behind; null if it leaves it unchanged.

    `previous_number`, `previous_version`, `previous_place`: of the row before. `met_sequence`: the
    last sequence number assigned. `met_edge`: last_committed_global. `met_stable`,
    `met_stable_set`: what all members had executed. `met_collected`: up to which version items were
    purged. `met_closed`: whether a collection closed the window since the last stable set.
    `met_gtid`: the last number assigned to a GTID; -1 after other settings, which free reserved
    numbers.
    """
    start, view = is_kind(RecordKind.START), is_kind(RecordKind.VIEW_CHANGE)
    stable, collection = is_kind(RecordKind.STABLE_SET), is_kind(RecordKind.COLLECTION)
    resets = view & pl.col("resets_clock")
    begins = start & (pl.col("version") == 0)
    certified = pl.col("verdict") == CERTIFIED
    number, edge = pl.col("sequence_number"), pl.col("last_committed_global")
    stamped = certified & number.is_not_null()
    is_tight = pl.col("met_tight").fill_null(value=False)
    last_at_reset = pl.col("last_at_reset")
    return {
        **STATE,
        "met_sequence": pl.when(start | stamped).then(number).when(resets).then(last_at_reset),
        "met_edge": pl.when(start | collection | resets)
        .then(edge)
        .when(stamped & ~pl.col("writes"))
        .then(number)
        .when(pl.col("behind_lost_reset"))
        .then(last_at_reset),
        "met_stable": pl.when(start | stable).then(pl.col("stable_version")),
        "met_collected": pl.when(start | collection).then(pl.col("collected_version")),
        "met_closed": pl.when(stable)
        .then(statement=False)
        .when(collection & (pl.col("purged_items") > 0) & ~is_tight)
        .then(statement=True)
        # Before the first version there is nothing to collect, and a certifier begins with a closed
        # window.
        .when(begins)
        .then(statement=True),
        "met_stable_set": pl.when(stable).then(pl.col("stable_set")),
        "met_gtid": pl.when(certified & pl.col("is_assigned"))
        .then(pl.col("gtid_number"))
        .when(is_kind(RecordKind.SETTINGS))
        .then(-1)
        .when(begins)
        .then(0),
    }


@once
def begins_of(log: Log) -> pl.DataFrame:
    """Returns the state at the begin of each segment of `base_rows`."""
    rows = base_rows(log).drop(*_NOT_LEFT)
    return begins_of_long(log, rows, states(), _STATE_KINDS, told_of(log).known)
