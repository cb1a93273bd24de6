"""The state before each row of a history, without one task that has to read all of it.

A history is cut into segments by the rows' numbers. Within a segment a window looks back; the
driver computes the state at the begin of each segment, a few bytes a segment.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType

SEGMENT_ROWS = 1 << 16


def segment() -> Column:
    """Returns the segment that a row is in."""
    return F.floor((F.col("number") - 1) / SEGMENT_ROWS).cast("int")


def segment_of(number: int) -> int:
    """Returns the segment that the row of a number is in."""
    return (number - 1) // SEGMENT_ROWS


def with_states(
    rows: DataFrame, keys: Sequence[str], states: Mapping[str, Column], begins: DataFrame
) -> DataFrame:
    """Returns the rows with a column for each state: its last value that is not null in an earlier
    row of the same keys.

    Args:
        rows: with `number` and the keys.
        states: by the name of the new column, from the columns of `rows`.
        begins: the result of `segment_begins` for the same rows, keys and states.
    """
    names = list(states)
    held = rows.select(
        "*", segment().alias("segment"), *[states[name].alias(f"_{name}") for name in names]
    )
    window = (
        Window.partitionBy(*keys, "segment")
        .orderBy("number")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    looked = held.select(
        *rows.columns,
        "segment",
        *[F.last(f"_{name}", ignorenulls=True).over(window).alias(f"_{name}") for name in names],
    )
    begun = begins.select(*keys, "segment", *[F.col(n).alias(f"begin_{n}") for n in names])
    joined = looked.join(F.broadcast(begun), [*keys, "segment"], "left")
    return joined.select(
        *[joined[name] for name in rows.columns],
        "segment",
        *[F.coalesce(f"_{name}", f"begin_{name}").alias(name) for name in names],
    )


def segment_begins(rows: DataFrame, keys: Sequence[str], states: Mapping[str, Column]) -> DataFrame:
    """Returns the state at the begin of each segment: keys, `segment`, and each state, null if it
    has no value yet.

    Cost: a pass over the rows; the driver holds a row for each segment.
    """
    names = list(states)
    held = rows.select(
        *keys,
        "number",
        segment().alias("segment"),
        *[states[name].alias(name) for name in names],
    )
    ended = _ended(held, keys, names)
    known: dict[tuple[object, ...], dict[str, object]] = {}
    begins = []
    for row in sorted(ended.collect(), key=lambda row: row["segment"]):
        before = known.setdefault(tuple(row[key] for key in keys), dict.fromkeys(names))
        begins.append((*[row[key] for key in keys], row["segment"], *before.values()))
        before.update({name: row[name] for name in names if row[name] is not None})
    schema = StructType([StructField(field.name, field.dataType) for field in ended.schema])
    return rows.sparkSession.createDataFrame(begins, schema)


def _ended(held: DataFrame, keys: Sequence[str], names: Sequence[str]) -> DataFrame:
    """Returns the last value of each state in each segment.

    Texts are found by themselves, among the rows that have one, and structs by field: Spark
    hashes rows while all that it keeps of them has a fixed width, and else sorts them.
    """
    kinds = {name: held.schema[name].dataType for name in names}
    texts = [name for name, kind in kinds.items() if isinstance(kind, StringType)]
    ended = _last(held, keys, {name: kind for name, kind in kinds.items() if name not in texts})
    if texts:
        have_text = reduce(or_, [F.col(name).isNotNull() for name in texts])
        told = _last(held.where(have_text), keys, {name: kinds[name] for name in texts})
        ended = ended.join(told, [*keys, "segment"], "left")
    return ended.select(*keys, "segment", *names)


def _last(held: DataFrame, keys: Sequence[str], kinds: Mapping[str, DataType]) -> DataFrame:
    aggregates, whole = [], []
    for name, kind in kinds.items():
        at = F.when(F.col(name).isNotNull(), F.col("number"))
        if not isinstance(kind, StructType):
            aggregates.append(F.max_by(name, at).alias(name))
            whole.append(F.col(name))
            continue
        aggregates.append(F.max(at).alias(f"{name}_at"))
        fields = [F.col(f"{name}_{field}").alias(field) for field in kind.names]
        aggregates += [
            F.max_by(f"{name}.{field}", at).alias(f"{name}_{field}") for field in kind.names
        ]
        whole.append(F.when(F.col(f"{name}_at").isNotNull(), F.struct(*fields)).alias(name))
    return held.groupBy(*keys, "segment").agg(*aggregates).select(*keys, "segment", *whole)
