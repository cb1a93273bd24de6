"""Walks: functions that read rows in order, batch by batch, in Spark's Python workers.

Spark partitions and sorts, with its disk where memory does not hold the rows; a walk is a generator
over frames of Polars, which keeps between two batches what the next one needs to know. So a rule is
vectorized, its memory is bounded by a batch, and Spark's planner sees one step, whatever the rule.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""Spark's setting of how many rows it sends to a worker at a time."""
PARTITIONS = "spark.sql.shuffle.partitions"
"""Spark's setting of how many tasks rows are divided among."""
PARTITION_BYTES = 4 << 20
"""Bytes of files for each: a task sorts some ten times as many."""
PARTITIONS_MAX = 50_000
"""More ask too much of the driver; what memory does not hold of a task goes to its disk."""
BATCH_BYTES = 64 << 20
"""Bytes that these have, about: a column of 2 GB ends the audit, whatever memory there is."""
FRAME_ROWS = 65_536
"""Rows of a frame. A frame costs a walk milliseconds, however small it is: small batches become one
frame, up to `BATCH_BYTES`.
"""
WINDOW_ROWS = 64
Frames: TypeAlias = Iterator[pl.DataFrame]
Walk: TypeAlias = Callable[[Frames], Iterable[pl.DataFrame]]


def walk(rows: DataFrame, function: Walk, schema: pl.Schema) -> DataFrame:
    """Returns the rows that `function` yields for those of each partition, in the order that they
    have.

    Args:
        rows: columns of numbers, texts, truth values, and lists of them.
        function: takes the frames of a partition. The frames that it yields have columns of
            `schema`; those that a frame lacks are null.
    """
    empty = pl.DataFrame(schema=schema)
    lists = {name: _LISTS[kind] for name, kind in schema.items() if isinstance(kind, pl.List)}
    # Spark takes no lists with offsets of 64 bits, which Polars has.
    made = empty.to_arrow(compat_level=pl.CompatLevel.oldest()).schema
    target = pa.schema([(field.name, lists.get(field.name, field.type)) for field in made])

    def batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for frame in function(_frames(given)):
            if len(frame):
                table = shaped(frame, schema).to_arrow(compat_level=pl.CompatLevel.oldest())
                yield from (table.cast(target) if lists else table).to_batches()

    return rows.mapInArrow(batches, _spark_schema(empty))


def limit_batches(spark: SparkSession, window_bytes: int) -> None:
    """Limits the rows of batches that are made from now on, so that they have some `BATCH_BYTES`.

    Spark has a limit of bytes, but measures every column of a batch after each row then, which
    takes 20 times as long as all else that it does with the row.

    Args:
        window_bytes: most bytes that `WINDOW_ROWS` rows have that follow one another.
    """
    rows = max(WINDOW_ROWS * BATCH_BYTES // max(window_bytes, 1), 1)
    asked = spark.sparkContext.getConf().get(BATCH_ROWS) or FRAME_ROWS
    spark.conf.set(BATCH_ROWS, min(rows, FRAME_ROWS, int(asked)))


def divide(spark: SparkSession, size: int) -> None:
    """Has Spark divide the rows of files of `size` bytes among as many tasks as these ask for, from
    now on, unless somebody has set how many. Spark's own 200 are too many for a small log, and too
    few for that of a year.
    """
    if spark.sparkContext.getConf().get(PARTITIONS) is None:
        spark.conf.set(PARTITIONS, min(size // PARTITION_BYTES + 1, PARTITIONS_MAX))


def _frames(batches: Iterable[pa.RecordBatch]) -> Frames:
    """Yields the rows of batches, of several at once where they are small."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if held and (rows > FRAME_ROWS or size > BATCH_BYTES):
            yield pl.DataFrame(pa.Table.from_batches(held))
            held, rows, size = [], batch.num_rows, batch.nbytes
        held.append(batch)
    if held:
        yield pl.DataFrame(pa.Table.from_batches(held))


def in_order(rows: DataFrame, keys: Sequence[str], order: Sequence[str]) -> DataFrame:
    """Returns the rows partitioned by `keys`, and sorted by these and by `order` in each partition.

    Sorting is fastest if the first key has many values.
    """
    divided = rows.repartition(*keys) if is_divided(rows) else rows.coalesce(1)
    return divided.sortWithinPartitions(*keys, *order)


def gathered(rows: DataFrame) -> DataFrame:
    """Returns the rows in one partition; what makes them stays divided as it was."""
    return rows.repartition(1) if is_divided(rows) else rows.coalesce(1)


def is_divided(rows: DataFrame) -> bool:
    """Returns whether rows are divided among tasks; if not, one task reads, sorts and walks them,
    and nothing is moved.
    """
    return rows.sparkSession.conf.get(PARTITIONS) != "1"


def whole(frames: Frames, keys: Sequence[str]) -> Frames:
    """Yields frames that begin and end with whole groups: rows of equal keys are never parted.

    Memory: that of the largest group, and of a batch.
    """
    left: pl.DataFrame | None = None
    for frame in frames:
        both = frame if left is None else pl.concat([left, frame])
        last = both.row(-1, named=True)
        is_last = pl.all_horizontal(pl.col(key).eq_missing(last[key]) for key in keys)
        held = both.filter(is_last)
        done = both.head(len(both) - len(held))
        left = held
        if len(done):
            yield done
    if left is not None:
        yield left


def shaped(rows: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """Returns rows with the columns of a schema; those that they lack are null."""
    return rows.select(
        (pl.col(name) if name in rows.columns else pl.lit(None)).cast(kind).alias(name)
        for name, kind in schema.items()
    )


def of_kind(what: int, rows: pl.DataFrame) -> pl.DataFrame:
    """Returns rows that tell of which kind they are, for a walk that yields several."""
    return rows.with_columns(pl.lit(what).alias("what"))


def concatenated(*parts: DataFrame) -> DataFrame:
    """Returns the rows of several frames as one; columns that a part lacks are null there."""
    first, *others = parts
    for other in others:
        first = first.unionByName(other, allowMissingColumns=True)
    return first


def _spark_schema(frame: pl.DataFrame) -> StructType:
    """Returns the schema of a frame as Spark has it; as text Spark would have to parse it."""
    return StructType([StructField(name, _SPARK[kind]) for name, kind in frame.schema.items()])


_LISTS = {pl.List(pl.Int64): pa.list_(pa.int64()), pl.List(pl.String): pa.list_(pa.string())}
_SPARK: dict[pl.DataType, DataType] = {
    pl.Int32(): IntegerType(),
    pl.Int64(): LongType(),
    pl.String(): StringType(),
    pl.Boolean(): BooleanType(),
    pl.Binary(): BinaryType(),
    pl.Float64(): DoubleType(),
    pl.List(pl.Int64): ArrayType(LongType()),
    pl.List(pl.String): ArrayType(StringType()),
}
