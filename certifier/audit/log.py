"""The certification log as Spark sees it: rows with types, and what histories there are.

The rule it keeps: files are read by name of column, whatever wrote them; a format that is not known
is refused. Each history (one observer's, until its state was replaced) has a small number `h` for
the jobs.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

from pyspark.errors import AnalysisException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from certifier.audit.errors import UnreadableLog
from certifier.audit.session import first_line
from certifier.history import COLUMNS, FORMAT_VERSION, RecordKind, Source, Verdict

_TYPES: Mapping[str, DataType] = {
    "int64": LongType(),
    "bool": BooleanType(),
    "string": StringType(),
    "binary": BinaryType(),
    "list<int64>": ArrayType(LongType()),
    "list<string>": ArrayType(StringType()),
}
_ADVICE = (
    "give the folders that members write to (setting certification_log), or those of "
    "groupcert export"
)
SCHEMA = StructType([StructField(column.name, _TYPES[column.kind]) for column in COLUMNS])


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One history: `h` is its number here, `rows` its rows, `first_place` where it begins.

    `start` is its first row where that is of kind START: else earlier files are not here, and what
    was before is not known. `settings` are those of its beginning, or of the first change.
    """

    h: int
    observer: str
    history: str
    rows: int
    transactions: int
    first_place: int
    last_place: int
    first_version: int
    first_us: int | None
    last_us: int | None
    start: Mapping[str, int] | None
    settings: Mapping[str, object]

    @property
    def source(self) -> Source:
        """Who wrote it."""
        return Source(str(self.settings.get("source", Source.MEMBER)))

    @property
    def start_version(self) -> int:
        """Certified transactions before it begins, or at most so many."""
        return self.start["version"] if self.start else self.first_version

    @property
    def start_sequence(self) -> int:
        """The last sequence number assigned before it begins."""
        return self.start["sequence_number"] if self.start else 0


class Log:
    """All rows that an audit was given."""

    def __init__(self, spark: SparkSession, paths: Sequence[str]) -> None:
        """Raises UnreadableLog if there is nothing, or something else."""
        self.spark = spark
        self.paths = tuple(paths)
        reader = spark.read.schema(SCHEMA).option("recursiveFileLookup", "true")
        try:
            self._files = reader.option("pathGlobFilter", "*.parquet").parquet(*paths)
        except AnalysisException as error:
            raise UnreadableLog(problem=first_line(error), advice=_ADVICE) from error

    @cached_property
    def histories(self) -> tuple[History, ...]:
        """The histories, in the order of their names."""
        files = self._files
        start = F.col("kind") == RecordKind.START
        begin = ("number", "version", "sequence_number", "last_committed_global")
        fields = (*begin, "stable_version", "collected_version", "place")
        begins = (  # By itself: Spark would sort all rows for what has no fixed width.
            files.where(F.col("kind").isin(RecordKind.START.value, RecordKind.SETTINGS.value))
            .groupBy("observer", "history")
            .agg(
                F.min_by(F.when(start, F.struct(*fields)), F.when(start, F.col("place"))).alias(
                    "start"
                ),
                F.min_by("settings", "place").alias("settings"),
            )
            .collect()
        )
        told = {(row["observer"], row["history"]): row for row in begins}
        found = (
            files.groupBy("observer", "history")
            .agg(
                F.max("format_version").alias("format_version"),
                F.count(F.lit(1)).alias("rows"),
                F.count(F.when(F.col("kind") == RecordKind.TRANSACTION, 1)).alias("transactions"),
                F.min("place").alias("first_place"),
                F.max("place").alias("last_place"),
                F.min("version").alias("first_version"),
                F.min("decided_us").alias("first_us"),
                F.max("decided_us").alias("last_us"),
            )
            .orderBy("observer", "first_place", "history")
            .collect()
        )
        if not found:
            raise UnreadableLog(
                problem=f"no certification log below {', '.join(self.paths)}", advice=_ADVICE
            )
        newest = max(row["format_version"] or 0 for row in found)
        if not all(row["format_version"] for row in found) or newest > FORMAT_VERSION:
            known = f"this release reads up to {FORMAT_VERSION}"
            raise UnreadableLog(
                problem=f"the files are of format {newest or 'unknown'}, {known}",
                advice="use the release that wrote them, or a newer one",
            )
        none = {"start": None, "settings": None}
        starts = [told.get((row["observer"], row["history"]), none) for row in found]
        return tuple(
            History(
                h=h,
                observer=row["observer"],
                history=row["history"],
                rows=row["rows"],
                transactions=row["transactions"],
                first_place=row["first_place"],
                last_place=row["last_place"],
                first_version=row["first_version"],
                first_us=row["first_us"],
                last_us=row["last_us"],
                start=begin["start"].asDict() if begin["start"] else None,
                settings=json.loads(begin["settings"] or "{}"),
            )
            for h, (row, begin) in enumerate(zip(found, starts, strict=True))
        )

    @cached_property
    def rows(self) -> DataFrame:
        """All rows, with the number `h` of their history."""
        return self._files.withColumn("h", self._h())

    @cached_property
    def transactions(self) -> DataFrame:
        """The rows of decided transactions."""
        return self.rows.where(F.col("kind") == RecordKind.TRANSACTION)

    @cached_property
    def certified(self) -> DataFrame:
        """Those that were certified."""
        return self.transactions.where(F.col("verdict") == Verdict.CERTIFIED)

    def by_history(self, value: Callable[[History], object]) -> SparkColumn:
        """What a function says of each row's history."""
        values = F.array(*[F.lit(value(history)) for history in self.histories])
        return F.element_at(values, F.col("h") + 1)

    def _h(self) -> SparkColumn:
        cases = (
            (
                (F.col("observer") == each.observer) & (F.col("history") == each.history),
                each.h,
            )
            for each in self.histories
        )
        first, *others = cases
        return reduce(lambda when, case: when.when(*case), others, F.when(*first)).cast("int")
