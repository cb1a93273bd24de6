"""What an audit keeps for the next one, which then reads only files that are new.

Kept are rows, of the log's own shape: all from some row of each history on, and of those before
only the ones that later rows are judged by. They are the last writers of items that are not purged,
the rows that left a state (a stable set, a collection, settings), and the first ones. So a rule
needs no second form: it walks over kept and new rows alike, and findings of kept ones, which the
audit before has found, are dropped. What a job has found, and what it has added up, it keeps itself
(`Result.kept`).

Where a new row asks for something that is not kept, the audit begins again with all rows
(`AuditWhole`): its answers are never others than those of an audit of everything.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyarrow import ArrowException, parquet
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ..answers.errors import NoAuditBefore
from ..answers.result import JsonObject
from ..spark.footers import local_files, local_path
from ..spark.spark_session import first_line

STATE_VERSION = 2
"""Of what is kept; an audit of another version begins anew. It is raised with each change of a rule
or of what is kept.
"""
STATE, ROWS, FILES, DOCUMENT = "state", "rows", "files", "state.json"
"""The folder of what is kept, beside the answers; the tables in it, and the document."""
_OF_LOGS = {"recursiveFileLookup": "true", "pathGlobFilter": "*.parquet"}
Key = tuple[str, str]
"""Observer and history."""


class AuditWhole(Exception):  # No error: nothing of it reaches a caller.
    """Not all that is asked for was kept; `reason` says what, for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptHistory:
    """The state of a history that is kept beside its rows.

    `since`: the number of its last row, which was audited. `whole_from`: all rows from this number
    on are kept, and all versions from `whole_version` on. `whole_place`: the place from which on
    all rows of its group are. `tick`: the largest at which a row before `whole_from` became
    visible. `counts`: sums over all of its rows,
    by the names of `rows/survey.py`. `used`: the intervals of GTIDs that it shows as used, by
    source. `resumes`: whether it may go on; it ended too long before its group, else.
    """

    since: int
    last_place: int
    whole_from: int
    whole_version: int
    whole_place: int
    resumes: bool
    tick: int
    first_number: int
    first_place: int
    first_version: int
    first_us: int | None
    first_stamp: int | None
    last_stamp: int
    counts: Mapping[str, int]
    lost_resets: Sequence[int]
    settings: Mapping[str, object]
    used: Mapping[str, Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The state that an audit before has kept, and the files that are new since.

    `files`: paths of the new ones, `gone` how many of the others are no longer there.
    """

    place: str
    histories: Mapping[Key, KeptHistory]
    jobs: Mapping[str, JsonObject]
    shown: Mapping[str, JsonObject]
    files: Sequence[str] = ()
    gone: int = 0

    @property
    def rows_path(self) -> str:
        """Path of the rows."""
        return f"{self.place}/{STATE}/{ROWS}"

    @property
    def files_path(self) -> str:
        """Path of the table of files that were audited."""
        return f"{self.place}/{STATE}/{FILES}"


@dataclass(slots=True)
class Since:
    """An audit that goes on from one before: `reason` says why it was of everything after all."""

    report: str
    reason: str | None = None
    files: int = 0
    gone: int = 0
    rows: int = 0

    def as_json(self) -> JsonObject:
        """Returns the summary's part."""
        return {
            "report": self.report,
            "whole_because": self.reason,
            "new_files": self.files,
            "new_rows": self.rows,
            "files_gone": self.gone,
        }


def read_kept(spark: SparkSession, place: str, paths: Sequence[str]) -> Kept:
    """Returns the state that the audit at a place has kept, beside the logs as they are now.

    Raises:
        NoAuditBefore: there is no audit at that place.
        AuditWhole: it has kept nothing, or a file has changed since.
    """
    summary_at(spark, place)
    try:
        document = json.loads(_text(spark, f"{place}/{STATE}/{DOCUMENT}"))
    except AnalysisException:
        raise AuditWhole("the audit before has kept no state: not all of its jobs ran") from None
    if document["version"] != STATE_VERSION:
        raise AuditWhole("the audit before was one of another release")
    kept = Kept(
        place=place,
        histories={
            (stored["observer"], stored["history"]): KeptHistory(
                **{name: stored[name] for name in KeptHistory.__slots__}
            )
            for stored in document["histories"]
        },
        jobs=document["jobs"],
        shown=document["shown"],
    )
    return _with_files(spark, kept, paths)


def paths_to_read(paths: Sequence[str], since: str) -> Sequence[str]:
    """Returns the paths that an audit of `paths` reads which goes on from one at `since`, as far as
    can be told without Spark: the kept rows and the new files. All, if it may be of everything.
    """
    try:
        state = local_path(since) / STATE
        kept_files = {
            local_path(row["file"]): (row["size"], row["modified_us"] // 1_000)
            for row in parquet.read_table(state / FILES).to_pylist()
        }
        new = [str(state / ROWS)]
        for file in local_files(paths):
            kept, status = kept_files.get(file.absolute()), file.stat()
            if kept is None:
                new.append(str(file))
            # In milliseconds: Spark's file systems know a file's time no finer.
            elif kept != (status.st_size, status.st_mtime_ns // 1_000_000):
                return paths
    except (OSError, ArrowException, ValueError):
        return paths
    return new


def summary_at(spark: SparkSession, place: str) -> bytes:
    """Returns the summary of the audit at a place; raises NoAuditBefore if there is none."""
    advice = "name the folder of an audit: the --out of an earlier one"
    try:
        text = _text(spark, f"{place}/summary.json")
        summary = json.loads(text)
    except AnalysisException as error:
        raise NoAuditBefore(path=place, problem=first_line(error), advice=advice) from error
    except ValueError:
        summary = None
    if not isinstance(summary, dict) or summary.get("written_by") != "groupcert audit":
        raise NoAuditBefore(path=place, problem="no audit has written it", advice=advice)
    return text.encode()


def _text(spark: SparkSession, path: str) -> str:
    row = spark.read.text(path, wholetext=True).first()
    return row[0] if row else ""


def _with_files(spark: SparkSession, kept: Kept, paths: Sequence[str]) -> Kept:
    """Returns the same with the files that are new.

    Cost: a listing of all files; only those that are new or changed come to the driver.
    """
    listed = (
        spark.read.format("binaryFile")
        .options(**_OF_LOGS)
        .load(list(paths))
        .select(
            F.col("_metadata.file_path").alias("file"),
            "path",
            F.col("length").alias("new_size"),
            F.unix_micros("modificationTime").alias("new_us"),
        )
    )
    known = spark.read.parquet(kept.files_path)
    both = listed.join(known, "file", "full_outer")
    differs = (F.col("new_size") != F.col("size")) | (F.col("new_us") != F.col("modified_us"))
    state = (
        F.when(F.col("size").isNull(), "new")
        .when(F.col("new_size").isNull(), "gone")
        .when(differs, "changed")
    )
    found = both.withColumn("state", state).where(F.col("state").isNotNull())
    gone = found.where(F.col("state") == "gone").groupBy("state").count()
    others = found.where(F.col("state") != "gone").select("state", "path")
    rows = others.union(gone.select("state", F.col("count").cast("string"))).collect()
    told = {kind: sorted(row[1] for row in rows if row[0] == kind) for kind in _KINDS}
    if told["changed"]:
        more = len(told["changed"]) - 1
        others_too = f" and {more} more files have" if more else " has"
        raise AuditWhole(f"{told['changed'][0]}{others_too} changed since the audit before")
    return replace(kept, files=told["new"], gone=sum(map(int, told["gone"])))


_KINDS = ("new", "gone", "changed")
