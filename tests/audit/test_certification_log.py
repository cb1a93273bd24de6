"""What is read as a certification log, and what is refused, with the files that it is about."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.answers.errors import UnreadableLog
from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.audit.rows.surveyed_history import _settings_at
from groupcert.certifier.history.schema import FORMAT_VERSION, Row, Source
from tests.audit.histories import GROUP, Workload, random_order, rows_of, write

pytestmark = pytest.mark.spark
WORKLOAD = Workload(transactions=40)
ROWS = rows_of(random_order(3, WORKLOAD), "m1", WORKLOAD)


def copied(folder: Path) -> str:
    """A backup of the second file lies below the logs."""
    write(folder, ROWS)
    last = max(folder.glob("*.parquet"))
    (folder / "backup").mkdir()
    shutil.copy(last, folder / "backup" / "old.parquet")
    return rf"history 1 of m1 has row \d+ twice, at .*old\.parquet and of .*{last.name}: leave one"


def two_exports(folder: Path) -> str:
    """Two exports of the same name in two folders, and one goes on longer."""
    write(folder / "a", ROWS)
    write(folder / "b", ROWS[:-10])
    return r"history 1 of m1 has row 1 twice, at .*a/m1-1-\S+ and of .*b/m1-1-\S+: .*--observer"


def foreign(folder: Path) -> str:
    """Something else beside good logs."""
    write(folder, ROWS)
    parquet.write_table(pa.table({"orders": [1, 2]}), folder / "orders.parquet")
    return r"/orders\.parquet is no certification log"


def newer(folder: Path) -> str:
    """A format that is not known."""
    write(folder, [{**row, "format_version": FORMAT_VERSION + 1} for row in ROWS])
    newer, known = FORMAT_VERSION + 1, FORMAT_VERSION
    return rf"m1-1-\S+ is of format {newer}, this release reads {known}: use the release"


def unnumbered(folder: Path) -> str:
    """A number was taken away from a row."""
    write(folder, ROWS)
    file = min(folder.glob("*.parquet"))
    table = parquet.read_table(file)
    numbers = [None, *table["number"].to_pylist()[1:]]
    index = table.schema.get_field_index("number")
    parquet.write_table(table.set_column(index, table.schema.field(index), [numbers]), file)
    return r"m1-1-\S+ has rows without number, place or kind: 1"


@pytest.mark.parametrize("make", [copied, two_exports, foreign, newer, unnumbered])
def test_files_that_are_no_log_together_are_named(
    spark: SparkSession, tmp_path: Path, make: Callable[[Path], str]
) -> None:
    message = make(tmp_path)
    with pytest.raises(UnreadableLog, match=message):
        assert Log(spark, [str(tmp_path)]).histories


@pytest.mark.parametrize("settings", ["{", "[]", '{"source": "nobody"}', None])
def test_settings_that_were_edited_are_those_of_the_group(
    spark: SparkSession, tmp_path: Path, settings: str | None
) -> None:
    edited: list[Row] = [{**ROWS[0], "settings": settings}, *ROWS[1:]]
    (history,) = Log(spark, write(tmp_path, edited)).histories
    assert history.source is Source.MEMBER
    assert history.group_source == GROUP
    assert history.start


def test_settings_are_those_of_the_group_at_the_place() -> None:
    def told(place: int, size: int, group: str = "g") -> tuple[int, dict[str, object]]:
        return place, {"group_source": group, "gtid_assignment_block_size": size}

    known = [[told(1, 1), told(50, 10)], [told(70, 100)], [told(60, 7, "other")]]
    sizes = [
        _settings_at(place, group, known)["gtid_assignment_block_size"]
        for place, group in ((49, "g"), (50, "g"), (80, "g"), (0, "g"), (80, "none"))
    ]
    assert sizes == [1, 10, 100, 1, 0]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_java_that_is_killed_is_told_as_spark_that_failed() -> None:
    program = """
import os, signal
from groupcert.certifier.audit.answers.errors import SparkFailed
from groupcert.certifier.audit.audit_run import audit
from groupcert.certifier.audit.spark.spark_session import spark_session
try:
    with spark_session() as spark:
        os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
        audit(spark, ["/none"], "/none/out")
except SparkFailed as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Spark failed while reading the logs")
