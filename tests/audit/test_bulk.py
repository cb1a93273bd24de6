"""Bulk transactions with long keys: batches of their rows are limited by bytes."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.audit.spark import walks
from groupcert.certifier.audit.spark.walks import Frames, walk
from groupcert.certifier.core import Certifier, CertifierOptions
from groupcert.certifier.history.recorder import HistoryRecorder
from groupcert.certifier.history.schema import Cursor, Row, Source
from groupcert.certifier.position import position_of
from groupcert.certifier.records import Transaction
from groupcert.members.certification_log.files import write_file
from tests.audit.histories import BEGIN_US, GROUP
from tests.audit.java_options import COLUMN_BYTES_MAX
from tests.audit.test_batches import JOBS

TRANSACTIONS, ROWS, KEY_BYTES = 40, 1_000, 1_100
BATCH_BYTES = 4 << 20


def bulk() -> Iterator[Row]:
    """A member's rows of transactions that change many rows each, with the names of these."""
    options = CertifierOptions(group_source=GROUP, collection_period_transactions=0)
    certifier = Certifier(options)
    recorder = HistoryRecorder(certifier, "m1", Source.MEMBER)
    yield recorder.start(position_of(1, 0))
    for number in range(1, TRANSACTIONS + 1):
        items = list(range(number * ROWS, (number + 1) * ROWS))
        snapshot = certifier.window.newest_version
        transaction = Transaction(position_of(number, 0), "m2", snapshot, items)
        keys = [f"shop.orders/{item:0{KEY_BYTES}}" for item in items]
        for row in recorder.transaction(transaction, certifier.certify(transaction)):
            yield row | {"decided_us": BEGIN_US + number, "write_keys": keys}


def test_long_rows_come_in_small_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one batch their keys would be larger than a column may be."""
    monkeypatch.setattr(walks, "BATCH_BYTES", BATCH_BYTES)
    write_file(tmp_path, bulk(), Cursor())
    log = Log(spark, [str(tmp_path)])
    keys = log.transactions.select("write_keys")
    assert len(log.histories) == 1
    sizes = pl.DataFrame(walk(keys, _sizes, pl.Schema({"bytes": pl.Int64()})).toArrow())["bytes"]
    assert TRANSACTIONS * ROWS * KEY_BYTES < sizes.sum() > COLUMN_BYTES_MAX
    assert max(sizes) < 2 * BATCH_BYTES
    for job in JOBS:
        assert not job.run(log).findings


def _sizes(frames: Frames) -> Frames:
    """Yields the bytes of the texts of each frame."""
    for frame in frames:
        yield frame.select(pl.col("write_keys").explode().str.len_bytes().sum().alias("bytes"))


def test_small_batches_become_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [pa.record_batch({"number": range(each)}) for each in (3, 4, 5, 1, 9)]
    monkeypatch.setattr(walks, "FRAME_ROWS", 8)
    assert [len(frame) for frame in walks._frames(batches)] == [7, 6, 9]
    monkeypatch.setattr(walks, "BATCH_BYTES", 5 * 8)
    assert [len(frame) for frame in walks._frames(batches)] == [3, 4, 5, 1, 9]
    assert not [*walks._frames([])]
