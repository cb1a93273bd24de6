"""Checks of the order of rows: none is missing, none has moved."""

import polars as pl

from ...history.schema import RecordKind
from ..answers.findings import Code
from .checks import Check, is_true, words
from .coded_columns import CERTIFIED, is_kind

STATE = {f"previous_{name}": pl.col(name) for name in ("number", "version", "place")}
"""The columns of the row before that these checks use."""
STATE_KINDS = pl.Schema(dict.fromkeys(STATE, pl.Int64()))


def makes_version() -> pl.Expr:
    """Returns whether a row makes a version."""
    elsewhere = is_kind(RecordKind.EXECUTED_ELSEWHERE)
    return is_true(pl.col("verdict") == CERTIFIED) | elsewhere


def order_of_rows() -> list[Check]:
    """Returns the checks that rows follow the row before: no gap in numbers, ascending places."""
    number, version, place = map(pl.col, STATE)
    mine = pl.col("number")
    return [
        Check(
            Code.RECORD_MISSING,
            mine > number + 1,
            words("row ", number + 1),
            words("row ", mine),
            words(mine - number - 1, " rows are missing between this one and ", place),
            version + 1,
            pl.col("version") - makes_version().cast(pl.Int64),
        ),
        Check(
            Code.RECORD_REORDERED,
            (mine <= number) | (pl.col("place") <= place),
            words("a place after ", place, ", as row ", number + 1),
            words("place ", pl.col("place"), ", as row ", mine),
            words("rows ", number, " and ", mine, " have changed places, or came twice"),
        ),
    ]
