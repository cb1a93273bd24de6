"""Ages of snapshots, and distances of stamps: how far back a transaction reads, and has to wait.

An old snapshot is what conflicts, and holds the certification info's collection back. A short
distance from `sequence_number` to `last_committed` is what an applier cannot run beside others.
"""

from collections import Counter
from collections.abc import Mapping

import polars as pl

from ...history.schema import Verdict
from ..answers.result import JsonObject
from ..rows.coded_columns import is_remote

OLDEST = 10
"""Snapshots that are named."""
STEPS = 64
"""Steps of the histogram of ages between a value and its double: percentiles are to 1 %, those
below `STEPS` are exact.
"""
NO_AGE = -2
"""Step of those without a snapshot that is a version of the past."""


def age() -> pl.Expr:
    """Returns the number of transactions that were certified between the snapshot and the
    transaction; null if the snapshot is no version, or one of the future.
    """
    own = (pl.col("verdict") == Verdict.CERTIFIED.value).cast(pl.Int64)
    between = pl.col("version") - own - pl.col("snapshot_version")
    return pl.when(between >= 0).then(between)


def ages(frame: pl.DataFrame) -> pl.DataFrame:
    """Counts ages by origin (`name`) and step (`part`), with the largest in the step (`most`)."""
    step = (age().cast(pl.Float64).log(2) * STEPS).floor().clip(lower_bound=-1).cast(pl.Int64)
    rows = frame.select(name="origin", age=age(), part=step.fill_null(NO_AGE))
    return rows.group_by("name", "part").agg(
        pl.len().cast(pl.Int64).alias("count"), pl.col("age").max().alias("most")
    )


def oldest(frame: pl.DataFrame) -> pl.DataFrame:
    """Returns the oldest snapshots (`part`), each with the last transaction that had it: `most` is
    the age, `other` the GTID.
    """
    gtid = pl.concat_str("gtid_source", pl.lit(":"), "gtid_number")
    shown = frame.select("place", "verdict", name="origin", other=gtid, part="snapshot_version")
    rows = shown.with_columns(frame.select(most=age()))
    return first_of(rows.drop_nulls("most"))


def first_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the oldest of rows, each member's snapshot once: transactions that one client sends
    together have the same. Of two alike that which stands first in the order.
    """
    ordered = rows.sort("most", "place", descending=[True, False])
    return ordered.unique(("name", "part"), keep="first", maintain_order=True).head(OLDEST)


def distances(frame: pl.DataFrame) -> pl.DataFrame:
    """Counts the distances of what an applier executed by power of two (`part`)."""
    certified = pl.col("verdict") == Verdict.CERTIFIED.value
    distance = (pl.col("sequence_number") - pl.col("last_committed")).clip(lower_bound=1)
    power = distance.filter(certified & is_remote()).drop_nulls().cast(pl.Float64).log(2)
    rows = frame.select(part=power.floor().cast(pl.Int64))
    return rows.group_by("part").agg(pl.len().cast(pl.Int64).alias("count"))


def by_origin(
    steps: Mapping[tuple[str | None, int], tuple[int, int]], most: int
) -> list[JsonObject]:
    """Returns the ages of each origin's snapshots, the oldest first.

    Args:
        steps: by origin and step the transactions, and the largest age of them.
    """
    found: list[JsonObject] = []
    largest: dict[str | None, int] = {}
    for origin in {name for name, _ in steps}:
        mine = sorted(
            (step, *told)
            for (name, step), told in steps.items()
            if name == origin and step > NO_AGE
        )
        if mine:
            largest[origin] = mine[-1][2]
            found.append(
                {
                    "origin": origin,
                    "transactions": sum(count for _, count, _ in mine),
                    **{f"p{percent}": _at(mine, percent) for percent in (50, 95)},
                    "max": largest[origin],
                }
            )
    return sorted(found, key=lambda each: (-_int(each["max"]), str(each["origin"])))[:most]


def _at(steps: list[tuple[int, int, int]], percent: int) -> int:
    """Returns the age that `percent` of the transactions do not exceed, as its step has it."""
    left = -(-sum(count for _, count, _ in steps) * percent // 100)
    for _, count, most in steps:
        left -= count
        if left <= 0:
            return most
    raise AssertionError("the steps have all transactions")


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def by_power(counts: Counter[int]) -> list[JsonObject]:
    """Returns the distances, from 1 to the largest, by powers of two.

    >>> by_power(Counter({0: 3, 2: 1}))[1:]
    [{'from': 2, 'to': 3, 'transactions': 0}, {'from': 4, 'to': 7, 'transactions': 1}]
    """
    return [
        {"from": 2**power, "to": 2 ** (power + 1) - 1, "transactions": counts[power]}
        for power in range(max(counts, default=-1) + 1)
    ]
