"""The certification log in Spark: rows with types, and the histories that there are.

Files are read by name of column, whatever wrote them; an unknown format is refused. Each history
(one observer's, until its state was replaced) has a small number `h` for the jobs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from time import time_ns

import polars as pl
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Row, SparkSession
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

from ...history.schema import (
    COLUMNS,
    RecordKind,
    Verdict,
)
from ..answers.errors import NO_LOG_ADVICE, UnreadableLog
from ..answers.result import JsonObject
from ..spark.spark_session import first_line
from ..spark.walks import divide, is_divided
from .kept import ROWS, STATE, AuditWhole, Kept
from .survey import Survey, survey
from .surveyed_history import (
    History,
    Key,
    by_name,
    check_files,
    check_goes_on,
    history_of,
    least,
    settings_of,
)

_TYPES: Mapping[str, DataType] = {
    "int64": LongType(),
    "bool": BooleanType(),
    "string": StringType(),
    "binary": BinaryType(),
    "list<int64>": ArrayType(LongType()),
    "list<string>": ArrayType(StringType()),
}
SCHEMA = StructType([StructField(column.name, _TYPES[column.kind]) for column in COLUMNS])


class Log:
    """All rows that an audit was given; or those that are new, behind what an audit before kept."""

    def __init__(
        self,
        spark: SparkSession,
        paths: Sequence[str],
        kept: Kept | None = None,
        *,
        keeps: bool = False,
    ) -> None:
        """Opens the logs below `paths`.

        Args:
            kept: what an audit of earlier rows has kept; only files that are new are read then.
            keeps: whether the jobs keep something for the next audit.

        Raises:
            UnreadableLog: a path has no log, or is invalid.
        """
        self.spark = spark
        self.paths = tuple(paths)
        self.kept, self.keeps = kept, keeps
        self.made: dict[Callable[[Log], object], object] = {}
        """Results that several jobs ask for, by the function that makes them, see `once.py`."""
        self.opened_us = time_ns() // 1_000
        """Since then files may have appeared that are not read."""
        try:
            read = self._read(*([*kept.files, kept.rows_path] if kept else paths))
            self._files = read if is_divided(read) else read.coalesce(1)
            if kept:
                return
            # Counted by Java: a list of them all would be as long as the history.
            each = [read] if len(paths) == 1 else map(self._read, paths)
            counts = [len(files._jdf.inputFiles()) for files in each]
        except (AnalysisException, IllegalArgumentException) as error:
            raise UnreadableLog(problem=first_line(error), advice=NO_LOG_ADVICE) from error
        empty = [path for path, count in zip(paths, counts, strict=True) if not count]
        if empty:
            problem = f"no certification log below {', '.join(empty)}"
            raise UnreadableLog(problem=problem, advice=NO_LOG_ADVICE)

    def _read(self, *paths: str) -> DataFrame:
        reader = self.spark.read.schema(SCHEMA).option("recursiveFileLookup", "true")
        return reader.option("pathGlobFilter", "*.parquet").parquet(*paths)

    @cached_property
    def surveyed(self) -> Survey:
        """The result of one pass over all files."""
        surveyed = survey(self._files)
        divide(self.spark, int(surveyed.files.unique("file")["size"].sum()))
        return surveyed

    @cached_property
    def files(self) -> pl.DataFrame:
        """A row for each file that was read and history in it; kept rows are in none of them."""
        files = self.surveyed.files
        if not self.kept:
            return files
        above = f"/{STATE}/{ROWS}/"
        return files.filter(~pl.col("file").str.contains(above, literal=True))

    @cached_property
    def histories(self) -> tuple[History, ...]:
        """Histories, in the order of their names.

        Raises:
            UnreadableLog: a file is of another format, or two files have the same rows.
            AuditWhole: a new file begins before what is kept.
        """
        before = self.kept.histories if self.kept else {}
        files = {**dict.fromkeys(before, ()), **by_name(self.files)}
        if not files:
            raise UnreadableLog(
                problem=f"no row of a certification log below {', '.join(self.paths)}",
                advice=NO_LOG_ADVICE,
            )
        for key, mine in files.items():
            check_files(key, mine)
        turns = by_name(self.surveyed.turns)
        settings = settings_of(files, turns, self.surveyed.assigned, before)
        if before:
            for key, mine in files.items():
                check_goes_on(key, mine, settings[key], before)

        def order(key: Key) -> tuple[str, int, str]:
            return key[0], least(files[key], "first_place", before.get(key)), key[1]

        histories = tuple(
            history_of(
                h,
                key,
                files[key],
                turns.get(key, ()),
                settings[key],
                self.surveyed.collections,
                before.get(key),
            )
            for h, key in enumerate(sorted(files, key=order))
        )
        for history in histories:
            if history.before and (history.joined_place or 0) > history.before.last_place:
                raise AuditWhole(
                    f"{history.observer} has joined only now: what was told before may be about "
                    f"the history before {history.history}"
                )
        return histories

    @cached_property
    def recent(self) -> "Log":
        """The same without what was audited before: its rows, times and sums are of new rows."""
        return _Recent(self) if self.kept else self

    def before(self, job: str) -> JsonObject:
        """Returns the state that a job has kept in the audit before; nothing if there was none."""
        return self.kept.jobs.get(job, {}) if self.kept else {}

    def number_of(self, name: Sequence[str]) -> int:
        """Returns the number `h` of the history of an observer and a name."""
        return self._numbers[name[0], name[1]]

    @cached_property
    def _numbers(self) -> Mapping[Key, int]:
        return {history.name: history.h for history in self.histories}

    @cached_property
    def rows(self) -> DataFrame:
        """All rows, with the number `h` of their history."""
        return self._files.withColumn("h", self._h())

    @cached_property
    def transactions(self) -> DataFrame:
        """Rows of decided transactions."""
        return self.rows.where(F.col("kind") == RecordKind.TRANSACTION)

    @cached_property
    def certified(self) -> DataFrame:
        """Rows of certified transactions."""
        return self.transactions.where(F.col("verdict") == Verdict.CERTIFIED)

    def by_history(self, value: Callable[[History], object]) -> SparkColumn:
        """Returns a column with the value of a function for each row's history."""
        values = F.array(*[F.lit(value(history)) for history in self.histories])
        return F.element_at(values, F.col("h") + 1)

    def _h(self) -> SparkColumn:
        """Returns a row's history by its place among the names, for which one expression does,
        whatever the number of histories.
        """
        names = F.array(*[F.lit("\0".join(history.name)) for history in self.histories])
        name = F.concat_ws("\0", "observer", "history")
        return (F.array_position(names, name) - 1).cast("int")


class _Recent(Log):
    """The new rows of a log, and its histories as these have them."""

    def __init__(self, log: Log) -> None:
        self.spark, self.paths, self.opened_us = log.spark, log.paths, log.opened_us
        self.kept, self.keeps, self.made = None, False, {}
        files, turns = by_name(log.files), by_name(log.surveyed.turns)
        since = {history.name: history.since for history in log.histories}
        is_new = F.col("number") > log.by_history(lambda history: history.since)
        self.rows = log.rows.where(is_new)
        self.histories = tuple(
            history_of(
                history.h,
                history.name,
                files.get(history.name, ()),
                [row for row in turns.get(history.name, ()) if row["number"] > since[history.name]],
                history.settings,
                log.surveyed.collections,
                None,
            )
            for history in log.histories
        )


def of_each(rows: Iterable[Row]) -> Mapping[int, list[Row]]:
    """Returns, by history `h`, its own rows among rows of the driver; empty if it has none."""
    found: Mapping[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["h"]].append(row)
    return found
