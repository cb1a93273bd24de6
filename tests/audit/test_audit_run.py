"""What is around the jobs: what is counted, shown, written and refused."""

import io
import json
import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit import audit_run
from groupcert.certifier.audit.answers.errors import ForeignOutput, UnreadableLog
from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.audit_run import JOBS, Job, audit, has_findings
from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.audit.spark.audit_progress import AuditProgress, ProgressLines, tasks_text
from tests.audit.histories import OTHER, Workload, random_order, rows_of, write
from tests.audit.placeholder_jobs import FOUND


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The logs of two members, one of which begins late."""
    workload = Workload(transactions=60)
    order = random_order(3, workload)
    folder = tmp_path_factory.mktemp("logs")
    return write(folder, rows_of(order, "m1", workload), rows_of(order, "m2", workload)[20:])


@pytest.fixture
def placeholder(monkeypatch: pytest.MonkeyPatch) -> None:
    """One job, and none of the real ones."""
    job = Job("tests.audit.placeholder_jobs", "pretending")
    monkeypatch.setattr(audit_run, "JOBS", {"verify": job})


@pytest.fixture
def audited(spark: SparkSession, logs: list[str], placeholder: None, tmp_path: Path) -> Path:
    """The folder of an audit without jobs."""
    out = tmp_path / "out"
    audit(spark, logs, str(out), jobs=[])
    return out


def fail(spark: SparkSession, out: Path) -> None:
    """An audit of logs that are not there."""
    with pytest.raises(UnreadableLog, match="does not exist"):
        audit(spark, [str(out.parent / "none")], str(out))


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a table."""
    found: list[dict[str, Any]] = parquet.read_table(folder).to_pylist()
    return found


@pytest.mark.usefixtures("placeholder")
def test_findings_are_counted_shown_and_written(
    spark: SparkSession, logs: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    summary: Any = audit(spark, logs, str(out))
    assert json.loads((out / "summary.json").read_text()) == summary
    assert has_findings(summary)
    found = summary["findings"]
    assert (found["errors"], found["warnings"]) == (2, 41)
    assert [(code["code"], code["count"]) for code in found["by_code"]] == [
        ("STAMP_TOO_LOW", 2),
        ("STAMP_TOO_HIGH", 41),
    ]
    shown = [(each["log_sequence"], each["log_index"], each["kind"]) for each in found["first"]]
    assert shown == [(5, 0, "collection"), (7, 0, "transaction"), (9, 2, "transaction")]
    assert summary["jobs"] == [
        {"name": "verify", "seconds": summary["jobs"][0]["seconds"], "findings": 43}
    ]
    assert [tuple(row.values())[:-2] for row in rows(out / "tables" / "findings")] == [
        (finding.code, finding.severity, *finding[1:])
        for finding in sorted(FOUND, key=lambda finding: finding.place)
    ]
    verdicts = rows(out / "tables" / "verdicts")
    assert sum(row["count"] for row in verdicts) == sum(
        history["transactions"] for history in summary["histories"]
    )
    assert summary["compared"] is None
    again: Any = audit(spark, logs, str(out))["compared"]
    assert again["started_us"] == summary["started_us"] and again["jobs"] == ["verify"]
    assert again["codes"] == [
        {"code": "STAMP_TOO_HIGH", "before": 41, "now": 41},
        {"code": "STAMP_TOO_LOW", "before": 2, "now": 2},
    ]
    assert [each["name"] for each in again["figures"]] == ["decisions"]
    assert "<b>a key</b>" not in (out / "report.html").read_text()
    assert "a key" in (out / "report.html").read_text()


@pytest.mark.usefixtures("placeholder")
def test_histories_are_told_with_what_begins_late(
    spark: SparkSession, logs: list[str], tmp_path: Path
) -> None:
    summary: Any = audit(spark, logs, str(tmp_path / "out"), jobs=[])
    told = [
        (history["observer"], history["source"], history["begins_late"])
        for history in summary["histories"]
    ]
    assert told == [("m1", "member", False), ("m2", "member", True)]
    assert summary["histories"][0]["first_place"] == 1 << 24
    assert not any(history["ends_early"] for history in summary["histories"])
    mine = Log(spark, logs).histories[0]
    settings = {"group_source": OTHER}
    other = replace(mine, h=2, first_place=0, last_place=1 << 62, settings=settings)
    assert audit_run._history(mine, (mine, other)) == summary["histories"][0]
    ended = audit_run._history(mine, (mine, replace(mine, last_place=1 << 62)))
    assert ended["ends_early"] and not ended["begins_late"]
    assert not has_findings(summary)
    assert summary["verify"] == {} and summary["jobs"] == []


@pytest.mark.usefixtures("placeholder")
def test_earlier_audit_is_replaced_whole_and_anything_else_is_left_alone(
    spark: SparkSession, logs: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    audit(spark, logs, str(out))
    assert (out / "tables" / "verdicts").is_dir()
    audit(spark, logs, str(out), jobs=[])
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "summary.json", "tables"]
    assert [path.name for path in (out / "tables").iterdir()] == ["findings"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ForeignOutput, match=r"holds something else, notes\.txt: name a folder"):
        audit(spark, logs, str(out))
    assert (out / "notes.txt").read_text() == "mine"
    with pytest.raises(ForeignOutput, match="is a file"):
        audit(spark, logs, str(out / "notes.txt"))
    with pytest.raises(ForeignOutput, match="is among the logs"):
        audit(spark, logs, f"{logs[0]}/audit")


@pytest.mark.usefixtures("placeholder")
def test_folders_that_no_audit_has_marked_are_left_alone(
    spark: SparkSession, logs: list[str], tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    (mine / "tables" / "orders").mkdir(parents=True)
    with pytest.raises(ForeignOutput, match="holds something else, tables: name a folder"):
        audit(spark, logs, str(mine))
    (mine / "summary.json").write_text('{"profit": 0}')
    with pytest.raises(ForeignOutput, match="holds something else, summary"):
        audit(spark, logs, str(mine))
    assert (mine / "tables" / "orders").is_dir()
    for out in ("a:b", "none://host/out"):
        with pytest.raises(ForeignOutput, match="cannot be a folder"):
            audit(spark, logs, out)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ForeignOutput, match="cannot be written"):
        audit(spark, logs, f"{file}/out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "mine"]


def test_audit_that_was_killed_between_two_names_lost_nothing(
    spark: SparkSession, logs: list[str], audited: Path, tmp_path: Path
) -> None:
    replaced = tmp_path / "out.replaced"
    before = (audited / "summary.json").read_text()
    audited.rename(replaced)
    fail(spark, audited)
    assert (audited / "summary.json").read_text() == before
    shutil.copytree(audited, replaced)
    audit(spark, logs, str(audited))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_audit_that_fails_leaves_what_was_there(
    spark: SparkSession, logs: list[str], audited: Path, tmp_path: Path
) -> None:
    before = (audited / "summary.json").read_text()
    fail(spark, audited)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "m1-1-00.parquet").write_bytes(b"PAR1 this is not one")
    with pytest.raises(UnreadableLog, match=r"m1-1-00\.parquet: restore the file"):
        audit(spark, [str(broken)], str(audited))
    (broken / "m1-1-00.parquet").unlink()
    with pytest.raises(UnreadableLog, match=r"no certification log below .*broken: give"):
        audit(spark, [*logs, str(broken)], str(audited))
    for path in ("", "a:b"):
        with pytest.raises(UnreadableLog, match="is no path"):
            audit(spark, [*logs, path], str(audited))
    assert (audited / "summary.json").read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "out"]


@pytest.mark.usefixtures("placeholder")
def test_progress_tells_each_step_and_its_end(
    spark: SparkSession, logs: list[str], tmp_path: Path
) -> None:
    told: list[AuditProgress] = []
    audit(spark, logs, str(tmp_path / "out"), on_progress=told.append)
    assert [each.name for each in told if each.is_done] == ["read", "verify"]
    assert {(each.number, each.steps) for each in told} == {(1, 2), (2, 2)}


def test_of_each_code_as_many_are_shown_as_of_the_others() -> None:
    many = [FOUND[0]._replace(place=place) for place in range(1_000)]
    codes = (Code.STAMP_TOO_LOW, Code.STAMP_TOO_HIGH)
    shown = audit_run._first([*many, *FOUND[1:]], codes)
    assert len(shown) == audit_run.SHOWN_MAX
    assert shown[:2] == [FOUND[2], FOUND[1]]
    assert [finding.place for finding in shown[2:]] == list(range(audit_run.SHOWN_MAX - 2))


def test_a_place_that_no_writer_gives_is_shown() -> None:
    """As an edited row may have."""
    shown = audit_run._shown(FOUND[0]._replace(place=(9 << 24) + 15))
    assert (shown["log_sequence"], shown["log_index"], shown["kind"]) == (9, 0, None)


def test_jobs_are_modules_of_their_name_in_packages_of_their_name() -> None:
    for name, job in JOBS.items():
        assert callable(import_module(job.module).run)
        assert job.module == f"groupcert.certifier.audit.{name}.{name}"


def test_progress_lines_are_few() -> None:
    stream = io.StringIO()
    lines = ProgressLines(stream)
    step = AuditProgress("verify", "deriving", 2, 7, 0.0)
    for tenth in range(120):
        lines(step._replace(seconds=tenth / 10, tasks=8, tasks_done=3, tasks_running=2))
    lines(step._replace(seconds=12.04, is_done=True))
    assert stream.getvalue().splitlines() == [
        "[2/7] verify: deriving",
        "[2/7] verify: 3 of 8 tasks, 5 s",
        "[2/7] verify: 3 of 8 tasks, 10 s",
        "[2/7] verify: done in 12.0 s",
    ]


def test_tasks_that_nobody_runs_are_told() -> None:
    step = AuditProgress("verify", "deriving", 2, 7, 0.0)
    assert tasks_text(step) == "planning"
    waiting = step._replace(tasks=8, tasks_done=1)
    assert tasks_text(waiting) == "1 of 8 tasks"
    assert tasks_text(waiting._replace(idle_seconds=10.2)) == "7 tasks wait for an executor"
