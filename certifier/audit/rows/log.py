"""The certification log in Spark: rows with types, and the histories that there are.

Files are read by name of column, whatever wrote them; an unknown format is refused. Each history
(one observer's, until its state was replaced) has a small number `h` for the jobs.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TypeAlias

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

from groupcert.certifier.audit.answers.errors import UnreadableLog
from groupcert.certifier.audit.spark.session import first_line
from groupcert.certifier.history.schema import COLUMNS, FORMAT_VERSION, RecordKind, Source, Verdict

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
_BEGIN = (
    *("number", "version", "sequence_number", "last_committed_global"),
    *("stable_version", "collected_version", "place"),
)
_TELLING = (RecordKind.START.value, RecordKind.SETTINGS.value)
"""Kinds of rows that have settings."""
_Key: TypeAlias = tuple[str, str]
"""Observer and history."""
SCHEMA = StructType([StructField(column.name, _TYPES[column.kind]) for column in COLUMNS])


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One history: `h` is its number here, `rows` its rows, `first_place` where it begins.

    `start` is its first row if that is of kind START: else earlier files are not here, and what
    was before is not known. `settings` are those of its beginning, or of the first change; if
    neither is here, its group is that of the GTIDs which were assigned, and the rest is as the
    group's other histories have it then; one without any snapshot is of a binary log.
    `told`: the numbers of rows with settings, ascending, with these.
    `resets`: the numbers of rows at which its clock began again, ascending; `lost_resets`: those
    behind missing files in which it must have. `joined_place`: where its member first joined.
    `verdicts`: transactions by verdict; `stamped` of them have a sequence number, `read_sets` a
    read set, `gtid_snapshots` a snapshot that is a GTID set. `elsewhere`: rows of
    transactions executed elsewhere.
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
    joined_place: int | None
    start: Mapping[str, int] | None
    settings: Mapping[str, object]
    told: Sequence[tuple[int, Mapping[str, object]]]
    resets: Sequence[int]
    lost_resets: Sequence[int]
    verdicts: Mapping[Verdict, int]
    stamped: int
    read_sets: int
    gtid_snapshots: int
    elsewhere: int

    @property
    def name(self) -> tuple[str, str]:
        """Name in findings: observer and history."""
        return self.observer, self.history

    @property
    def source(self) -> Source:
        """Writer of the history; a member, if the settings do not have it."""
        told = self.settings.get("source")
        return next((source for source in Source if source == told), Source.MEMBER)

    @property
    def group_source(self) -> str | None:
        """UUID of its group, if that is known."""
        group = self.settings.get("group_source")
        return None if group is None else str(group)

    @property
    def block_size_max(self) -> int:
        """Most GTID numbers that members reserved at a time, as far as it is known."""
        return max((block_size(settings) for _, settings in self.told), default=0)

    @property
    def start_version(self) -> int:
        """Certified transactions before it begins, or an upper bound of them."""
        return self.start["version"] if self.start else self.first_version

    @property
    def start_sequence(self) -> int:
        """Last sequence number assigned before it begins."""
        return self.start["sequence_number"] if self.start else 0


def block_size(settings: Mapping[str, object]) -> int:
    """Returns how many GTID numbers members reserve at a time; 0: not known."""
    size = settings.get("gtid_assignment_block_size", 0)
    return size if isinstance(size, int) else 0


class Log:
    """All rows that an audit was given."""

    def __init__(self, spark: SparkSession, paths: Sequence[str]) -> None:
        """Opens the logs below `paths`; raises UnreadableLog if a path has none or is invalid."""
        self.spark = spark
        self.paths = tuple(paths)
        try:
            self._files = self._read(*paths)
            empty = [path for path in paths if not self._read(path).inputFiles()]
        except (AnalysisException, IllegalArgumentException) as error:
            raise UnreadableLog(problem=first_line(error), advice=_ADVICE) from error
        if empty:
            problem = f"no certification log below {', '.join(empty)}"
            raise UnreadableLog(problem=problem, advice=_ADVICE)

    def _read(self, *paths: str) -> DataFrame:
        reader = self.spark.read.schema(SCHEMA).option("recursiveFileLookup", "true")
        return reader.option("pathGlobFilter", "*.parquet").parquet(*paths)

    @cached_property
    def histories(self) -> tuple[History, ...]:
        """Histories, in the order of their names.

        Raises:
            UnreadableLog: a file is of another format, or two files have the same rows.
        """
        told = self._told_turns()
        files: dict[_Key, list[Row]] = {}
        for row in self._files_of_histories():
            files.setdefault((row["observer"], row["history"]), []).append(row)
        if not files:
            raise UnreadableLog(
                problem=f"no row of a certification log below {', '.join(self.paths)}",
                advice=_ADVICE,
            )
        for key, mine in files.items():
            _check_files(key, mine)
        settings = self._settings(told, files)
        keys = sorted(
            files, key=lambda key: (key[0], min(row["first_place"] for row in files[key]), key[1])
        )
        return tuple(
            _history(h, key, files[key], told.get(key, ()), settings[key])
            for h, key in enumerate(keys)
        )

    def _files_of_histories(self) -> list[Row]:
        """Returns one row for each file and history in it: counts, first and last numbers."""
        transaction = F.col("kind") == RecordKind.TRANSACTION
        is_stamped = transaction & F.col("sequence_number").isNotNull()
        stamped_at = F.when(is_stamped, F.col("number"))
        unplaced = F.col("number").isNull() | F.col("place").isNull() | F.col("kind").isNull()
        return (
            self._files.groupBy("observer", "history", F.col("_metadata.file_path").alias("file"))
            .agg(
                F.max("format_version").alias("format_version"),
                F.count(F.lit(1)).alias("rows"),
                F.count(F.when(unplaced, 1)).alias("unplaced"),
                F.count(F.when(transaction, 1)).alias("transactions"),
                *[
                    F.count(F.when(transaction & (F.col("verdict") == each), 1)).alias(each)
                    for each in Verdict
                ],
                F.count(F.when(transaction, F.col("sequence_number"))).alias("stamped"),
                F.min_by("sequence_number", stamped_at).alias("first_stamp"),
                F.max_by("sequence_number", stamped_at).alias("last_stamp"),
                F.count(F.when(transaction, F.col("read_set"))).alias("read_sets"),
                F.count(F.when(transaction, F.col("snapshot_set"))).alias("gtid_snapshots"),
                F.count(F.when(transaction, F.col("snapshot_version"))).alias("snapshots"),
                F.count(F.when(F.col("kind") == RecordKind.EXECUTED_ELSEWHERE, 1)).alias(
                    "elsewhere"
                ),
                F.min("number").alias("first_number"),
                F.max("number").alias("last_number"),
                F.min("place").alias("first_place"),
                F.max("place").alias("last_place"),
                F.min("version").alias("first_version"),
                F.min("decided_us").alias("first_us"),
                F.max("decided_us").alias("last_us"),
            )
            .collect()
        )

    def _told_turns(self) -> dict[_Key, list[Row]]:
        """Returns the rows that begin a history, or change its settings or clock, in order."""
        joins = (F.col("kind") == RecordKind.VIEW_CHANGE) & F.col("resets_clock")
        rows = (
            self._files.where(F.col("kind").isin(*_TELLING) | joins)
            .select("observer", "history", "kind", "settings", *_BEGIN)
            .collect()
        )
        told: dict[_Key, list[Row]] = {}
        for row in sorted(rows, key=lambda row: row["place"] or 0):
            told.setdefault((row["observer"], row["history"]), []).append(row)
        return told

    def _settings(
        self, told: Mapping[_Key, Sequence[Row]], files: Mapping[_Key, Sequence[Row]]
    ) -> dict[_Key, Mapping[str, object]]:
        """Returns the settings at the begin of each history."""
        known = {
            key: [
                (row["place"] or 0, _parsed(row["settings"]))
                for row in rows
                if row["kind"] in _TELLING
            ]
            for key, rows in told.items()
        }
        settings = {key: next((each for _, each in known.get(key, ())), {}) for key in files}
        silent = [key for key, mine in settings.items() if not _names_group(mine)]
        groups = self._assigned_sources() if silent else {}
        for key in silent:
            mine = files[key]
            if key in groups:
                place = min(row["first_place"] for row in mine)
                settings[key] = _settings_at(place, groups[key], known.values())
            elif _is_binary_log(mine):
                settings[key] = {"source": Source.BINARY_LOG.value}
        return settings

    def _assigned_sources(self) -> dict[_Key, str]:
        """Returns, by history, the source of most GTIDs that were assigned by the group."""
        assigned = F.col("verdict") == Verdict.CERTIFIED.value
        assigned &= F.col("gtid_source").isNotNull() & (F.col("gtid_brought") == F.lit(False))
        counts = self._files.where(assigned).groupBy("observer", "history", "gtid_source").count()
        rows = sorted(counts.collect(), key=lambda row: (row["count"], row["gtid_source"]))
        return {(row["observer"], row["history"]): row["gtid_source"] for row in rows}

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
        names = F.array(*[F.lit("\0".join(each.name)) for each in self.histories])
        name = F.concat_ws("\0", "observer", "history")
        return (F.array_position(names, name) - 1).cast("int")


def of_each(rows: Iterable[Row]) -> Mapping[int, list[Row]]:
    """Returns, by history `h`, its own rows among rows of the driver; empty if it has none."""
    found: Mapping[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["h"]].append(row)
    return found


def _check_files(key: _Key, files: Sequence[Row]) -> None:
    """Raises UnreadableLog if a file of a history is not one, or is there twice."""
    first: dict[int, str] = {}
    for row in sorted(files, key=lambda row: row["file"]):
        file = row["file"].removeprefix("file://")
        version = row["format_version"]
        if version is None or None in key:
            problem = f"{file} is no certification log: it has rows without format or observer"
            raise UnreadableLog(problem=problem, advice="restore the file, or leave it out")
        if version > FORMAT_VERSION:
            problem = f"{file} is of format {version}, this release reads up to {FORMAT_VERSION}"
            advice = "use the release that wrote it, or a newer one"
            raise UnreadableLog(problem=problem, advice=advice)
        if row["unplaced"]:
            problem = f"{file} has rows without number, place or kind: {row['unplaced']}"
            raise UnreadableLog(problem=problem, advice="restore the file, or leave it out")
        if row["first_number"] in first:
            raise UnreadableLog(
                problem=f"history {key[1]} of {key[0]} has row {row['first_number']} twice, at the "
                f"beginning of {first[row['first_number']]} and of {file}",
                advice="leave one out if it is a copy; else export one of them again under "
                "another name (--observer)",
            )
        first[row["first_number"]] = file


def _history(
    h: int,
    key: _Key,
    files: Sequence[Row],
    turns: Sequence[Row],
    settings: Mapping[str, object],
) -> History:
    """Returns a history from the rows of its files, and from the rows at which it turned."""
    start = next((row for row in turns if row["kind"] == RecordKind.START), None)
    joined = [row for row in turns if row["kind"] == RecordKind.VIEW_CHANGE]
    begun = {row["number"] for row in turns if row["kind"] != RecordKind.SETTINGS}
    lost = _lost_resets(files)

    def known(name: str) -> list[int]:
        return [row[name] for row in files if row[name] is not None]

    return History(
        h=h,
        observer=key[0],
        history=key[1],
        rows=sum(known("rows")),
        transactions=sum(known("transactions")),
        first_place=min(known("first_place")),
        last_place=max(known("last_place")),
        first_version=min(known("first_version"), default=0),
        first_us=min(known("first_us"), default=None),
        last_us=max(known("last_us"), default=None),
        joined_place=joined[0]["place"] if joined else None,
        start={name: start[name] for name in _BEGIN} if start else None,
        settings=settings,
        told=[
            (row["number"], _parsed(row["settings"])) for row in turns if row["kind"] in _TELLING
        ],
        resets=sorted(begun.union(lost) - {min(known("first_number"))}),
        lost_resets=lost,
        verdicts={verdict: sum(known(verdict.value)) for verdict in Verdict},
        stamped=sum(known("stamped")),
        read_sets=sum(known("read_sets")),
        gtid_snapshots=sum(known("gtid_snapshots")),
        elsewhere=sum(known("elsewhere")),
    )


def _lost_resets(files: Sequence[Row]) -> list[int]:
    """Returns the first row after each gap between files over which stamps do not ascend."""
    found, behind_gap, last_stamp, next_number = [], None, 0, None
    for row in sorted(files, key=itemgetter("first_number")):
        if next_number is not None and row["first_number"] > next_number:
            behind_gap = row["first_number"]
        if row["first_stamp"] is not None:
            if behind_gap is not None and row["first_stamp"] <= last_stamp:
                found.append(behind_gap)
            behind_gap, last_stamp = None, row["last_stamp"]
        next_number = row["last_number"] + 1
    return found


def _is_binary_log(files: Sequence[Row]) -> bool:
    """Returns whether a history without a named writer has transactions of which none has a
    snapshot, without which nothing is decided.
    """
    has_transactions = any(row["transactions"] for row in files)
    return has_transactions and not any(row["snapshots"] or row["gtid_snapshots"] for row in files)


def _names_group(settings: Mapping[str, object]) -> bool:
    """Returns whether settings name the history's group; a binary log belongs to none."""
    return "group_source" in settings or settings.get("source") == Source.BINARY_LOG


def _parsed(settings: str | None) -> Mapping[str, object]:
    """Returns the settings of a row, parsed; none if somebody has changed their form."""
    try:
        parsed = json.loads(settings or "{}")
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _settings_at(
    place: int, group: str, known: Iterable[Sequence[tuple[int, Mapping[str, object]]]]
) -> Mapping[str, object]:
    """Returns the settings of a group at a place, by its histories. If none has them, the block
    size is 0: not known.
    """
    told = [(at, each) for mine in known for at, each in mine if each.get("group_source") == group]
    earlier = [item for item in told if item[0] <= place] or sorted(told, key=itemgetter(0))[:1]
    latest = max(earlier, key=itemgetter(0), default=(0, {"gtid_assignment_block_size": 0}))[1]
    return {**latest, "group_source": group, "source": Source.MEMBER.value}
