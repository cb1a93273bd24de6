"""Where an audit writes: a folder on any file system that Spark reaches, local ones among them.

The rule it keeps: the folder appears whole or stays as it was. Only what an earlier audit has
written is replaced; anything else is left alone, and named.
"""

from collections.abc import Sequence

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from certifier.audit.errors import ForeignOutput, SparkFailed

SUMMARY, REPORT, TABLES = "summary.json", "report.html", "tables"
_OURS = frozenset((SUMMARY, REPORT, TABLES))


class Output:
    """The folder of one audit, while it is written beside its place."""

    def __init__(self, spark: SparkSession, path: str, logs: Sequence[str]) -> None:
        """Raises ForeignOutput if something else is there, or if it would lie among the logs."""
        assert spark._jvm is not None and spark._jsc is not None
        self._path_of = spark._jvm.org.apache.hadoop.fs.Path
        self._settings = spark._jsc.hadoopConfiguration()
        place, self._files = self._located(path)
        # Beside each file, a local file system would leave another one with its checksums.
        self._files.setWriteChecksum(False)
        self.place = str(place)
        self._unfinished = f"{self.place}.unfinished"
        for log in logs:
            above = str(self._located(log)[0])
            if f"{self.place}/".startswith(f"{above}/"):
                raise ForeignOutput(path=path, problem=f"is among the logs of {log}")
        for folder in (self.place, self._unfinished):
            self._check_ours(folder)
        self._delete(self._unfinished)

    def write_table(self, name: str, table: DataFrame) -> None:
        """Writes a table as Parquet files.

        Raises:
            SparkFailed: The executors wrote it to disks of their own.
        """
        folder = f"{self._unfinished}/{TABLES}/{name}"
        table.write.parquet(folder)
        written = self._files.globStatus(self._path_of(f"{folder}/part-*"))
        if not len(written):
            cause = f"{self.place} is not the same folder at all executors, as hdfs://... would be"
            raise SparkFailed(task=f"writing table {name}", cause=cause)

    def write_text(self, name: str, text: str) -> None:
        """Writes a file."""
        stream = self._files.create(self._path_of(f"{self._unfinished}/{name}"), True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def finish(self) -> None:
        """Puts the folder to its place."""
        self._delete(self.place)
        if not self._files.rename(self._path_of(self._unfinished), self._path_of(self.place)):
            raise SparkFailed(task=f"renaming {self._unfinished}", cause=f"{self.place} is there")

    def _located(self, path: str) -> tuple[JavaObject, JavaObject]:
        """A path with its scheme, and the file system that has it."""
        place = self._path_of(path)
        files = place.getFileSystem(self._settings)
        return files.makeQualified(place), files

    def _check_ours(self, folder: str) -> None:
        """Raises ForeignOutput if there is anything that no audit has written."""
        place = self._path_of(folder)
        if not self._files.exists(place):
            return
        if self._files.getFileStatus(place).isFile():
            raise ForeignOutput(path=folder, problem="is a file")
        try:
            held = {entry.getPath().getName() for entry in self._files.listStatus(place)}
        except Py4JJavaError as error:
            raise ForeignOutput(path=folder, problem="cannot be read") from error
        if foreign := sorted(held - _OURS):
            raise ForeignOutput(path=folder, problem=f"holds something else, {foreign[0]}")

    def _delete(self, folder: str) -> None:
        self._files.delete(self._path_of(folder), True)
