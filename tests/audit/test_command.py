"""`groupcert audit`: what it takes, refuses and shows; and the one file for spark-submit."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from groupcert.certifier.audit.answers.errors import UnreadableLog
from groupcert.certifier.audit.answers.findings import MEANINGS
from groupcert.certifier.audit.archive import submit_command, write_archive
from groupcert.certifier.audit.spark.audit_progress import ProgressLines
from groupcert.certifier.audit.spark.footers import check_paths
from groupcert.members.commands import audit
from groupcert.members.commands.audit import AuditOptions
from tests.audit.histories import Workload, random_order, rows_of, write

README = Path(__file__).parents[2] / "certifier" / "audit" / "README.md"


def options(**changed: Any) -> AuditOptions:
    """Options that are right, but for those that are changed."""
    right: dict[str, Any] = {"paths": ("logs",), "out": "out", "master": None, "memory": "4g"}
    return AuditOptions(**(right | {"jobs": (), "spark_settings": ()} | changed))


def test_settings_of_spark_may_have_an_equals_sign() -> None:
    settings = options(spark_settings=("spark.a=b=c",)).settings()
    assert settings == {"spark.a": "b=c"}


@pytest.mark.parametrize(
    ("name", "problem"), [("absent", "is not there"), (".", "has no Parquet file")]
)
def test_a_path_without_logs_is_told_before_java_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, problem: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # There is none: who looks for it would say so.
    path = str(tmp_path / name)
    with pytest.raises(UnreadableLog, match=f"^{re.escape(path)} {problem}: give the folders"):
        audit.main(options(paths=(path,), out=str(tmp_path / "out")), as_json=True)


def test_patterns_and_paths_of_other_machines_are_left_to_spark(tmp_path: Path) -> None:
    check_paths(["hdfs://host/absent", f"{tmp_path}/m*"])


def test_progress_is_bars_on_a_terminal_and_lines_elsewhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with audit._shown(sys.stderr) as show:
        assert isinstance(show, ProgressLines)


def test_archive_has_what_an_audit_needs_and_nothing_of_the_rule(tmp_path: Path) -> None:
    once, again = tmp_path / "groupcert-audit.py", tmp_path / "again.py"
    write_archive(once)
    write_archive(again)
    assert once.read_bytes() == again.read_bytes()
    names = ZipFile(once).namelist()
    assert {
        "__main__.py",
        "groupcert/certifier/history/schema.py",
        "groupcert/certifier/audit/report.js",
        "groupcert/certifier/pages/charts.js",
    } <= set(names)
    assert "groupcert/certifier/core.py" not in names
    assert str(once) in submit_command(once)
    helped = subprocess.run(
        [sys.executable, once, "--help"], cwd=tmp_path, env={}, capture_output=True, text=True
    )
    assert helped.returncode == 0, helped.stderr
    assert "--out DIR" in helped.stdout


def test_readme_lists_every_code_with_its_meaning_and_advice() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    listed = [line for line in lines if line.startswith("| `") and line.count("|") == 4]
    codes = [line for line in listed if line.split("|")[2].strip() in ("error", "warning")]
    assert codes == [
        f"| `{code.value}` | {meaning.severity.value} | {meaning.text} |"
        for code, meaning in MEANINGS.items()
    ]
    advised = [line for line in lines if line.startswith("| `") and line.count("|") == 3]
    shown = [line for line in advised if line.split("`")[1] in MEANINGS]
    assert shown == [f"| `{code.value}` | {meaning.advice} |" for code, meaning in MEANINGS.items()]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_command_reports_on_logs_and_keeps_standard_output_for_the_answer(tmp_path: Path) -> None:
    workload = Workload(transactions=40)
    logs = write(tmp_path, rows_of(random_order(1, workload), "m1", workload))
    out = tmp_path.with_name("out")
    command = [sys.executable, "-m", "groupcert.members", "audit", *logs, "--out", str(out)]
    asked = [*command, "--memory", "800m", "--json"]
    without_cache = {**os.environ, "XDG_CACHE_HOME": os.devnull}
    done = subprocess.run(asked, capture_output=True, text=True, timeout=800, env=without_cache)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((out / "summary.json").read_text())
    lines = done.stderr.splitlines()
    assert lines[0].endswith("read: reading the logs")
    assert all(line.startswith("[") for line in lines), "Java and Spark are not heard"


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_command_names_what_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "m1.parquet").write_bytes(b"PAR1 this is not one")
    command = [sys.executable, "-m", "groupcert.members", "audit", str(tmp_path), "--memory", "1g"]
    out = tmp_path.with_name("none")
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("groupcert: ") and "m1.parquet" in last
    assert not out.exists() and not done.stdout
