"""Spark's Python workers on this machine: what they have before their first walk."""

from collections.abc import Iterator

import polars as pl
import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.spark.daemon import NEEDED
from groupcert.certifier.audit.spark.walks import Frames, walk

pytestmark = pytest.mark.spark


def test_a_worker_has_what_walks_need_and_reads_no_archive(spark: SparkSession) -> None:
    needed = list(NEEDED)

    def told(frames: Frames) -> Iterator[pl.DataFrame]:
        import sys

        import pyspark

        for _ in frames:
            has_all = all(name in sys.modules for name in needed)
            archives = [each for each in sys.path_importer_cache if each.endswith("pyspark.zip")]
            lines = [str(has_all), str(pyspark.__file__), *archives]
            yield pl.DataFrame({"line": lines})

    rows = spark.range(1).coalesce(1)
    has_all, file, *archives = [
        row["line"] for row in walk(rows, told, pl.Schema({"line": pl.String})).collect()
    ]
    assert (has_all, archives) == ("True", [])
    assert "pyspark.zip" not in file
