"""Jobs: transactions that a worker executed as one, whose time is that of all of them.

The time counts once, so each transaction has an equal share of it, which is known only with all of
its job. A batch or a file may end within a job: taken by itself, each of the two parts would count
the whole time. A walk in the order of numbers therefore holds the last job back until it is whole
(`with_shares`). One in the order of files shares out the jobs that it has whole, and leaves the
rows of the others to the driver, which joins them (`shared`).

A job has the transactions that an applier executed one after the other by number with the same
worker and times, those of local clients and of rows that execute nothing left aside.
"""

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from ..spark.walks import Frames
from .coded_columns import executed_at, is_remote

JOB = ("worker", "started_us", "executed_us")
"""The columns that the transactions of a job have alike."""
ROWS_MAX = 1 << 14
"""Rows from one transaction of a job to the next one: so many are held at most. An applier's job
has some hundred transactions, but others and their conflicts may lie between two of them."""
BORDERS = ("is_begun", "is_ended")
"""Whether a job is known to begin with a row, and to end with it."""


class Shares(NamedTuple):
    """The rows whose jobs are whole, with their share of its time (`took_us`); and the others,
    with their `BORDERS`.
    """

    known: pl.DataFrame
    cut: pl.DataFrame


def executed(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the rows of what an applier executed in a known time; `executed_us`: as far as the
    log has it.
    """
    ran = is_remote() & pl.col("started_us").is_not_null() & executed_at().is_not_null()
    return rows.filter(ran).with_columns(executed_at().alias("executed_us"))


def share_us(*job: str) -> pl.Expr:
    """Returns the execution time of a transaction in microseconds: its share of its job's, without
    the wait for its turn to commit; `job` are the columns that name a job.
    """
    took = (pl.col("executed_us") - pl.col("started_us")).clip(lower_bound=0)
    return (took // pl.len().over(job)).alias("took_us")


def shares(rows: pl.DataFrame, history: Sequence[str]) -> Shares:
    """Returns the rows of `executed`, in the order of files, as a frame of them knows their shares.

    Args:
        history: the columns that name a row's history and, if frames have several, its file.
    """
    follows, alike = _neighbours(history)
    begun = rows.with_columns(is_begun=follows & ~alike)
    told = begun.with_columns(is_ended=pl.col("is_begun").shift(-1).fill_null(value=False))
    job = (~(follows & alike)).cum_sum().alias("job")
    is_whole = pl.col("is_begun").first() & pl.col("is_ended").last()
    jobs = told.with_columns(job).with_columns(is_whole=is_whole.over("job"))
    known = jobs.filter("is_whole").with_columns(share_us("job"))
    return Shares(known, jobs.filter(~pl.col("is_whole")).drop("job", "is_whole"))


def shared(cut: pl.DataFrame, history: Sequence[str]) -> pl.DataFrame:
    """Returns all rows that frames have cut off, with their share of their job's time."""
    follows, alike = _neighbours(history)
    goes_on = follows & alike & ~pl.col("is_begun") & ~pl.col("is_ended").shift(1)
    job = (~goes_on.fill_null(value=False)).cum_sum().alias("job")
    return cut.sort(*history, "number").with_columns(job).with_columns(share_us("job"))


def with_shares(frames: Frames) -> Frames:
    """Yields frames with `took_us`: null if an applier did not execute the row, or its time is not
    known. Jobs are whole in each, and so are rows of one number.

    Args:
        frames: rows in the order of `h` and `number`.
    Memory: that of a batch, of a job and of `ROWS_MAX` rows.
    """
    left: pl.DataFrame | None = None
    for frame in frames:
        both = frame if left is None else pl.concat([left, frame])
        is_held = (pl.col("h") == both["h"][-1]) & (pl.col("number") >= _held_from(both))
        left = both.filter(is_held)
        done = both.filter(~is_held)
        if len(done):
            yield _with_shares(done)
    if left is not None:
        yield _with_shares(left)


def _held_from(rows: pl.DataFrame) -> int:
    """Returns the number of the first row that may be in a job with rows that follow: of the last
    job, or of the last row.
    """
    h, number = (rows[name][-1] for name in ("h", "number"))
    ran = executed(rows.filter(pl.col("h") == h))
    if not len(ran) or number - ran["number"][-1] >= ROWS_MAX:
        return int(number)
    follows, alike = _neighbours(("h",))
    return int(ran.filter(~(follows & alike))["number"][-1])


def _with_shares(rows: pl.DataFrame) -> pl.DataFrame:
    follows, alike = _neighbours(("h",))
    job = (~(follows & alike)).cum_sum().alias("job")
    ran = executed(rows.with_row_index("at")).with_columns(job).select("at", share_us("job"))
    return rows.with_row_index("at").join(ran, "at", "left", maintain_order="left").drop("at")


def _neighbours(history: Sequence[str]) -> tuple[pl.Expr, pl.Expr]:
    """Returns whether the row before is one of the same history, near enough to be in a job with
    this one; and whether both have the same worker and times.
    """
    number = pl.col("number")
    same = [pl.col(name).eq_missing(pl.col(name).shift(1)) for name in history]
    near = (number - number.shift(1)).is_between(1, ROWS_MAX).fill_null(value=False)
    alike = [pl.col(name).eq_missing(pl.col(name).shift(1)) for name in JOB]
    return pl.all_horizontal(*same, near), pl.all_horizontal(alike)
