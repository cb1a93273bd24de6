"""The output of an audit: a folder on any file system that Spark reaches, local ones included.

The folder appears whole or stays as it was. Only an earlier audit's answers are replaced, which its
summary identifies; other files are left alone, and named in the error.
"""

import json
from collections.abc import Sequence

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession

from .answers.errors import ForeignOutput, SparkFailed, UnreadableLog
from .answers.result import SAMPLE, JsonObject
from .rows.kept import DOCUMENT, STATE
from .spark.spark_session import first_line

SUMMARY, REPORT, TABLES = "summary.json", "report.html", "tables"
_OURS = frozenset((SUMMARY, REPORT, TABLES, STATE, SAMPLE))
MARK: JsonObject = {"written_by": "groupcert audit"}
"""The begin of every summary, which identifies an audit's folder."""
_HEAD_BYTES = 1_024
_NOT_THERE = "name a folder that is not there, or that an earlier audit has written"
_WRITABLE = "name a folder that can be made and written, of a file system that Spark reaches"


class Output:
    """The folder of one audit; it is written beside its final place."""

    def __init__(self, spark: SparkSession, path: str, logs: Sequence[str]) -> None:
        """Checks the final place and begins the unfinished folder beside it.
        Raises:
            ForeignOutput: something else is there, or it would lie among the logs, or nothing can
                be written there.
            UnreadableLog: a log's path is not valid.
        """
        assert spark._jvm is not None and spark._jsc is not None
        self._path_of = spark._jvm.org.apache.hadoop.fs.Path
        self._settings = spark._jsc.hadoopConfiguration()
        try:
            place, self._files = self._located(path)
        except (IllegalArgumentException, Py4JJavaError) as error:
            problem = f"cannot be a folder ({first_line(error)})"
            raise ForeignOutput(path=path, problem=problem, advice=_WRITABLE) from error
        # Otherwise a local file system would write a file with checksums beside each file.
        self._files.setWriteChecksum(False)
        self.place = str(place)
        self._unfinished, self._replaced = f"{self.place}.unfinished", f"{self.place}.replaced"
        for log in logs:
            if f"{self.place}/".startswith(f"{self._above(log)}/"):
                raise ForeignOutput(
                    path=path, problem=f"is among the logs of {log}", advice=_NOT_THERE
                )
        try:
            self._begin()
        except Py4JJavaError as error:
            problem = f"cannot be written ({first_line(error)})"
            raise ForeignOutput(path=self.place, problem=problem, advice=_WRITABLE) from error

    def _begin(self) -> None:
        """Makes the unfinished folder anew, after checking that the remains of a killed audit are
        an audit's.
        """
        for folder in (self.place, self._unfinished, self._replaced):
            self._check_ours(folder)
        if self._exists(self._replaced):
            # An audit was killed between its two renames: what it was about to replace is the last
            # one.
            if not self._exists(self.place):
                self._rename(self._replaced, self.place)
            self._delete(self._replaced)
        self._delete(self._unfinished)
        self._files.mkdirs(self._path_of(self._unfinished))
        # If this audit is killed, the next one knows the remains for an audit's.
        self.write_text(SUMMARY, json.dumps(MARK))

    def summary_before(self) -> bytes | None:
        """Returns the summary of the audit that this one replaces; None if there is none."""
        if not self._exists(f"{self.place}/{SUMMARY}"):
            return None
        stream = self._files.open(self._path_of(f"{self.place}/{SUMMARY}"))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def abandon(self) -> None:
        """Deletes the unfinished folder."""
        self._delete(self._unfinished)

    def write_table(self, name: str, table: DataFrame) -> None:
        """Writes a table as Parquet files.

        Raises:
            SparkFailed: the executors wrote it to disks of their own.
        """
        self._write(f"{TABLES}/{name}", table)

    def write_state(self, name: str, table: DataFrame) -> None:
        """Writes a table of what is kept for the next audit; raises as `write_table` does."""
        self._write(f"{STATE}/{name}", table)

    def write_state_text(self, text: str) -> None:
        """Writes the document of what is kept."""
        self.write_text(f"{STATE}/{DOCUMENT}", text)

    def _write(self, name: str, table: DataFrame) -> None:
        folder = f"{self._unfinished}/{name}"
        table.write.mode("overwrite").parquet(folder)
        written = self._files.globStatus(self._path_of(f"{folder}/part-*"))
        if not len(written):
            cause = f"{self.place} is not the same folder at all executors, as hdfs://... would be"
            raise SparkFailed(task=f"writing table {name}", cause=cause)

    def write_text(self, name: str, text: str) -> None:
        """Writes a file."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        """Writes a file."""
        stream = self._files.create(self._path_of(f"{self._unfinished}/{name}"), True)
        try:
            stream.write(content)
        finally:
            stream.close()

    def finish(self) -> None:
        """Moves the folder to its place; at any moment an audit is there or beside it, whole."""
        if self._exists(self.place):
            self._rename(self.place, self._replaced)
        self._rename(self._unfinished, self.place)
        self._delete(self._replaced)

    def _rename(self, folder: str, name: str) -> None:
        if not self._files.rename(self._path_of(folder), self._path_of(name)):
            raise SparkFailed(task=f"renaming {folder}", cause=f"{name} is there")

    def _exists(self, folder: str) -> bool:
        return bool(self._files.exists(self._path_of(folder)))

    def _above(self, log: str) -> str:
        """Returns the qualified path of a log."""
        try:
            return str(self._located(log)[0])
        except (IllegalArgumentException, Py4JJavaError) as error:
            advice = "name a folder or a file as Spark names it"
            raise UnreadableLog(
                problem=f"{log!r} is no path ({first_line(error)})", advice=advice
            ) from error

    def _located(self, path: str) -> tuple[JavaObject, JavaObject]:
        """Returns a path with its scheme, and the file system that has it."""
        place = self._path_of(path)
        files = place.getFileSystem(self._settings)
        return files.makeQualified(place), files

    def _check_ours(self, folder: str) -> None:
        """Raises ForeignOutput if the folder has anything that no audit has written."""
        place = self._path_of(folder)
        if not self._files.exists(place):
            return
        if self._files.getFileStatus(place).isFile():
            raise ForeignOutput(path=folder, problem="is a file", advice=_NOT_THERE)
        held = {entry.getPath().getName() for entry in self._files.listStatus(place)}
        foreign = sorted(held - _OURS) or sorted(held)
        if not held <= _OURS or (held and not self._is_marked(folder, held)):
            problem = f"holds something else, {foreign[0]}"
            raise ForeignOutput(path=folder, problem=problem, advice=_NOT_THERE)

    def _is_marked(self, folder: str, held: set[str]) -> bool:
        """Returns whether the summary in the folder is one of an audit."""
        if SUMMARY not in held:
            return False
        stream = self._files.open(self._path_of(f"{folder}/{SUMMARY}"))
        try:
            head = bytes(stream.readNBytes(_HEAD_BYTES))
        finally:
            stream.close()
        return json.dumps(MARK)[1:-1].encode() in head

    def _delete(self, folder: str) -> None:
        self._files.delete(self._path_of(folder), True)
