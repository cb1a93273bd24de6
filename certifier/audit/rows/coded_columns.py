"""Columns of a log as walks take them: kinds and verdicts as numbers, which are cheap to move."""

import polars as pl
from pyspark.sql import Column
from pyspark.sql import functions as F

from ...history.schema import RecordKind, Verdict

CERTIFIED, CONFLICT, TOO_OLD, REFUSED = range(1, 5)
VERDICT_NAMES = {number: verdict.value for number, verdict in enumerate(Verdict, 1)}
_KINDS = {kind: number for number, kind in enumerate(RecordKind, 1)}


def kind_number() -> Column:
    """Returns the kind of a row as a number; 0: one that no writer has."""
    return _number(F.col("kind"), [kind.value for kind in RecordKind]).alias("kind")


def verdict_number() -> Column:
    """Returns the verdict of a row as a number; 0: one that no writer has."""
    return _number(F.col("verdict"), list(VERDICT_NAMES.values())).alias("verdict")


def is_kind(kind: RecordKind) -> pl.Expr:
    """Returns whether a row, whose kind is a number, is of a kind."""
    return pl.col("kind") == _KINDS[kind]


def kind_name(number: pl.Expr) -> pl.Expr:
    """Returns the name of a kind from its number."""
    return number.replace_strict(
        {number: kind.value for kind, number in _KINDS.items()}, default=None
    )


def verdict_name(number: pl.Expr) -> pl.Expr:
    """Returns the name of a verdict from its number."""
    return number.replace_strict(VERDICT_NAMES, default=None)


def has_items(name: str) -> Column:
    """Returns whether a row's set is known and not empty."""
    return F.coalesce(F.size(name), F.lit(0)) > 0


def is_local() -> pl.Expr:
    """Returns whether a transaction's own client executed it, at the observer."""
    return pl.col("is_local").fill_null(value=False)


def is_remote() -> pl.Expr:
    """Returns whether an applier executed the transaction, not its client."""
    return ~is_local()


def is_applied() -> pl.Expr:
    """Returns whether an applier executed the transaction, and noted when it began."""
    return is_remote() & (pl.col("started_tick").fill_null(0) > 0)


def executed_at() -> pl.Expr:
    """Returns the time at which a transaction's execution ended, in microseconds since 1970, as far
    as its log has it.
    """
    return pl.coalesce("executed_us", "committed_us")


def _number(name: Column, names: list[str]) -> Column:
    return F.array_position(F.array(*map(F.lit, names)), name).cast("int")
