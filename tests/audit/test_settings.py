"""What Spark is set to: by the rows of a log, and with the same answers."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from groupcert.certifier.audit.spark import footers
from groupcert.certifier.audit.spark.footers import has_few_rows
from tests.audit.audited import write_scenes

AUDIT = """
import sys
from groupcert.certifier.audit.audit_run import audit
from groupcert.certifier.audit.spark.spark_session import spark_session

with spark_session(few_rows=sys.argv[1] == "few") as spark:
    audit(spark, [sys.argv[2]], sys.argv[3])
"""


def test_rows_are_counted_by_the_ends_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b/c"):
        file = tmp_path / f"{name}.parquet"
        file.parent.mkdir(exist_ok=True)
        parquet.write_table(pa.table({"number": range(10)}), file)
    one = tmp_path / "a.parquet"
    monkeypatch.setattr(footers, "FEW_ROWS", 20)
    assert has_few_rows([str(tmp_path)]) and has_few_rows([one.as_uri()])
    monkeypatch.setattr(footers, "FEW_ROWS", 19)
    assert has_few_rows([str(one)]) and not has_few_rows([str(tmp_path)])
    monkeypatch.setattr(footers, "FILES_MAX", 1)
    assert not has_few_rows([str(one), str(one)])


def test_items_and_bytes_are_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = pa.array([list(range(10)), [], None], pa.list_(pa.int64()))
    rows = pa.table({"write_set": items, "read_set": items, "other_set": items})
    parquet.write_table(rows, tmp_path / "a.parquet", row_group_size=2)
    size = sum(part.bytes for part in footers._sizes(tmp_path / "a.parquet"))
    monkeypatch.setattr(footers, "FEW_ITEMS", 24)
    monkeypatch.setattr(footers, "FEW_BYTES", size)
    assert has_few_rows([str(tmp_path)])
    monkeypatch.setattr(footers, "FEW_ITEMS", 23)
    assert not has_few_rows([str(tmp_path)])
    monkeypatch.setattr(footers, "FEW_ITEMS", 24)
    monkeypatch.setattr(footers, "FEW_BYTES", size - 1)
    assert not has_few_rows([str(tmp_path)])


def test_a_log_whose_rows_cannot_be_counted_quickly_has_many(tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"no Parquet")
    (tmp_path / "empty").mkdir()
    paths = ("hdfs://host/logs", "s3a://logs/m1", str(tmp_path), str(tmp_path / "empty"), "absent")
    assert [has_few_rows([path]) for path in paths] == [False] * len(paths)


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_answers_are_the_same_whether_plans_are_interpreted_or_compiled(tmp_path: Path) -> None:
    """Of every fault in the tree, and of right histories."""
    logs = tmp_path / "logs"
    write_scenes(logs)
    told = {}
    for rows in ("few", "many"):
        out = tmp_path / rows
        subprocess.run([sys.executable, "-c", AUDIT, rows, str(logs), str(out)], check=True)
        summary = json.loads((out / "summary.json").read_text())
        summary["profile"].pop("whatif")
        for timed in (summary, *summary["jobs"]):
            timed.pop("seconds")
        summary.pop("started_us")
        tables = {
            table.name: parquet.read_table(table).to_pylist()
            for table in sorted((out / "tables").iterdir())
        }
        told[rows] = json.dumps([summary, tables], default=str)
    assert told["few"] == told["many"]
