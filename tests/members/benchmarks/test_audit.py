"""The audit's benchmark, in small: histories are those of a recorder, answers are checked."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from groupcert.certifier.errors import InvalidSetting
from groupcert.certifier.history.schema import Row
from groupcert.members.benchmarks import audit as bench_audit
from groupcert.members.benchmarks import audit_history
from groupcert.members.benchmarks.audit import BenchOptions, Peaks, main, measure
from groupcert.members.benchmarks.audit_duckdb import check_stamps
from groupcert.members.benchmarks.audit_history import Workload, make, rows, write
from groupcert.members.certification_log.files import SCHEMA
from tests.audit.java_options import FAST_START
from tests.members.certification_logs import read_log

FILE_ROWS = 200


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stable sets, view changes and batches within a few hundred rows, few items."""
    monkeypatch.setattr(audit_history, "_STABLE_PERIOD", 100)
    monkeypatch.setattr(audit_history, "_STABLE_LAG", 50)
    monkeypatch.setattr(audit_history, "_VIEW_PERIOD", 300)
    monkeypatch.setattr(audit_history, "_BATCH", 64)
    monkeypatch.setattr(audit_history, "_ALONE_SHARE", 0.03)
    for items in audit_history.ITEMS:
        monkeypatch.setitem(audit_history.ITEMS, items, 300)


def below(folder: Path) -> list[Row]:
    """Returns the rows of a log, whose numbers and chain are whole."""
    assert all(
        parquet.read_schema(path).equals(SCHEMA, check_metadata=False) for path in folder.iterdir()
    )
    return read_log(folder, "observer")


@pytest.mark.parametrize("items", ["uniform", "zipf", "hot"])
@pytest.mark.usefixtures("small")
def test_a_history_has_every_kind_of_row(items: str, tmp_path: Path) -> None:
    write(tmp_path, rows(Workload(transactions=700, items=items)), FILE_ROWS)
    made = below(tmp_path)
    assert len(list(tmp_path.iterdir())) > 2
    kinds = {str(row["kind"]) for row in made}
    assert kinds == {"start", "transaction", "stable_set", "collection", "view_change"}
    assert {row["verdict"] for row in made} >= {"certified", "conflict"}
    assert any(row["write_set"] == [] for row in made)
    assert sum(row["kind"] == "transaction" for row in made) == 700


def test_a_history_is_made_once(tmp_path: Path) -> None:
    workload = Workload(transactions=300)
    folder = make(tmp_path, workload)
    written = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert make(tmp_path, workload) == folder
    assert written == {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert len(below(folder)) == 301


def changes(workload: Workload) -> list[int]:
    """Returns by how much stamps of a history differ from the right ones, where they do."""
    right = rows(Workload(transactions=workload.transactions, items=workload.items))
    return [
        int(str(wrong["last_committed"])) - int(str(row["last_committed"]))
        for wrong, row in zip(rows(workload), right, strict=True)
        if wrong.get("last_committed") != row.get("last_committed")
    ]


@pytest.mark.usefixtures("small")
def test_as_many_stamps_are_lowered_as_raised() -> None:
    found = changes(Workload(transactions=2_000, wrong_stamps=20))
    assert sorted(found) == [-1] * 20 + [1] * 20


@pytest.mark.parametrize("items", audit_history.ITEMS)
def test_the_smallest_history_has_place_for_all_wrong_stamps(items: str) -> None:
    wrong, size = bench_audit.WRONG_STAMPS, bench_audit.TRANSACTIONS_MIN
    found = changes(Workload(transactions=size, items=items, wrong_stamps=wrong))
    assert len(found) == 2 * wrong


@pytest.mark.parametrize("items", ["uniform", "zipf", "hot"])
@pytest.mark.usefixtures("small")
def test_duckdb_finds_the_wrong_stamps_and_nothing_else(items: str, tmp_path: Path) -> None:
    for wrong, expected in ((0, {}), (20, {"STAMP_TOO_LOW": 20, "STAMP_TOO_HIGH": 20})):
        folder = tmp_path / str(wrong)
        write(
            folder, rows(Workload(transactions=2_000, items=items, wrong_stamps=wrong)), FILE_ROWS
        )
        assert check_stamps(folder, "1GB", str(tmp_path))[0] == expected


@pytest.mark.usefixtures("small")
def test_duckdb_finds_wrong_verdicts(tmp_path: Path) -> None:
    history = list(rows(Workload(transactions=500)))
    lost = next(row for row in history if row.get("verdict") == "conflict")
    lost["snapshot_version"] = lost["version"]
    write(tmp_path, history, FILE_ROWS)
    assert check_stamps(tmp_path, "1GB", str(tmp_path))[0] == {"CONFLICT_FALSE": 1}


def test_items_of_another_kind_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="zipf"):
        BenchOptions(items=("normal",))
    expected = "setting transactions is '999': expected 1000 or more"
    with pytest.raises(InvalidSetting, match=expected):
        BenchOptions(transactions=(999,))
    with pytest.raises(InvalidSetting, match="setting --memory is '4': expected such as 4g"):
        BenchOptions(memory="4")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_wrong_answer_is_told_and_progress_stays_beside_the_answer(
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bench_audit, "verified", _blind)
    options = BenchOptions(transactions=(1_200,), items=("uniform",), folder=tmp_path)
    monkeypatch.setattr(bench_audit, "stages", lambda events: [])
    assert main(options, as_json=as_json, output=None) == 1
    answer, told = capsys.readouterr()
    assert [line.partition(":")[0] for line in told.splitlines()] == [
        "[1/6] spark, uniform-1200-wrong100",
        "spark, uniform-1200-wrong100",
        "[2/6] duckdb, uniform-1200-wrong100",
        "duckdb, uniform-1200-wrong100",
        "[3/6] duckdb-all, uniform-1200-wrong100",
        "duckdb-all, uniform-1200-wrong100",
        "[4/6] spark, uniform-1200",
        "spark, uniform-1200",
        "[5/6] duckdb, uniform-1200",
        "duckdb, uniform-1200",
        "[6/6] duckdb-all, uniform-1200",
        "duckdb-all, uniform-1200",
    ]
    if as_json:
        results = json.loads(answer)["results"]
        assert [each["is_right"] for each in results] == [False, True, True, True, True, True]
    else:
        assert "groupcert bench audit" in answer and "0 WRONG" in answer


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_spark_and_duckdb_give_the_same_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", FAST_START)
    output = tmp_path / "audit.json"
    options = BenchOptions(transactions=(20_000,), items=("uniform",), memory="1g", folder=tmp_path)
    assert main(options, as_json=True, output=output) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document == json.loads(output.read_text())
    engines = ["spark", "duckdb", "duckdb-all"]
    assert [each["engine"] for each in document["results"]] == engines * 2
    wrong, right = {"STAMP_TOO_LOW": 100, "STAMP_TOO_HIGH": 100}, dict[str, int]()
    assert [each["findings"] for each in document["results"]] == [wrong] * 3 + [right] * 3
    spark, duckdb, _ = document["results"][3:]
    assert 0 < spark["seconds_in_session"] < spark["seconds"]
    assert spark["memory_peak_mb"] > 0 and spark["cpu_seconds"] > 0
    assert spark["shuffle_write_mb"] is not None and duckdb["stages"] == []
    assert duckdb["shuffle_write_mb"] is None


def test_a_check_that_is_killed_is_named_with_its_history(tmp_path: Path) -> None:
    """As the system does with what takes too much memory."""
    with pytest.raises(ChildProcessError, match=f"checking {tmp_path} ended with exit code -9; it"):
        measure(Workload(transactions=1), "duckdb", _killed, tmp_path, "4g")


def test_memory_of_a_java_that_starts_a_program_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its fork and the program the child shares all memory of its parent, and has the name
    of the thread that made it.
    """
    java = tmp_path / "java"
    shutil.copy(Path(sys.executable).resolve(), java)
    monkeypatch.setenv("PYTHONHOME", sys.base_prefix)
    script = (
        "import os, pathlib; held = b'1' * 200_000_000; "
        "os.fork() or pathlib.Path('/proc/self/comm').write_text('worker'); print(); os.read(0, 1)"
    )
    with subprocess.Popen(
        [java, "-uc", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin and process.stdout
        assert process.stdout.read(2) == b"\n\n", "both are there"
        peaks = Peaks(os.getpid())
        peaks.look()
        process.stdin.write(b"\n\n")
    own = Peaks(os.getpid())
    own.look()
    assert 200_000_000 < peaks.bytes - own.bytes < 300_000_000


def _blind(folder: Path, memory: str, scratch: str) -> tuple[dict[str, int], float]:
    return {}, 0.0


def _killed(folder: Path, memory: str, scratch: str) -> tuple[dict[str, int], float]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
