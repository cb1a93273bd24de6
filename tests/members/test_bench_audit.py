"""The audit's benchmark, in small: histories are those of a recorder, answers are checked."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from certifier.core import Certifier, CertifierOptions
from certifier.errors import InvalidSetting
from certifier.history import Cursor, Row, Source, Value
from certifier.history_recorder import HistoryRecorder
from certifier.records import GarbageCollection, Transaction, Verdict, ViewChange
from members import bench_audit, bench_audit_history, bench_audit_progress, bench_audit_run
from members.bench_audit import BenchOptions, main
from members.bench_audit_duckdb import check_stamps
from members.bench_audit_history import Transactions, Workload, make, pieces, write
from members.bench_audit_run import Answer, OnLook, Run
from members.certification_log import SCHEMA, write_file
from tests.audit.java_options import FAST_START

GROUP = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stable sets, view changes and batches within a few hundred transactions, few items."""
    monkeypatch.setattr(bench_audit_history, "_STABLE_PERIOD", 100)
    monkeypatch.setattr(bench_audit_history, "_STABLE_LAG", 50)
    monkeypatch.setattr(bench_audit_history, "_VIEW_PERIOD", 300)
    monkeypatch.setattr(bench_audit_history, "_BATCH", 64)
    monkeypatch.setattr(bench_audit_history, "_ALONE_SHARE", 0.03)
    for items in bench_audit_history.ITEMS:
        monkeypatch.setitem(bench_audit_history.ITEMS, items, 300)


def rows_below(folder: Path) -> list[Row]:
    """All rows of a log, without columns that have no value."""
    tables = [parquet.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    assert all(table.schema.equals(SCHEMA) for table in tables)
    return [
        {name: value for name, value in row.items() if value is not None}
        for table in tables
        for row in table.to_pylist()
    ]


def recorded(workload: Workload, folder: Path) -> list[Row]:
    """The rows that a recorder gives for the same records, decided once more and written."""
    options = CertifierOptions(group_source=GROUP, collection_period_transactions=0)
    certifier = Certifier(options)
    recorder = HistoryRecorder(certifier, "observer", Source.TOTAL_ORDER)
    rows: list[Row] = []
    for piece in pieces(workload):
        if isinstance(piece, Transactions):
            begin = 0
            for place, end in enumerate(piece.ends.tolist()):
                write_set = piece.items[begin:end].tolist()
                begin = end
                transaction = Transaction(
                    piece.positions[place],
                    piece.origins[place],
                    piece.snapshots[place],
                    write_set,
                )
                rows += recorder.transaction(transaction, certifier.certify(transaction))
            continue
        position = int(str(piece[0]["place"])) >> 4
        kind = piece[0]["kind"]
        if kind == "start":
            rows.append(recorder.start(position))
        elif kind == "stable_set":
            stable = piece[0]["stable_version"]
            assert isinstance(stable, int)
            record = GarbageCollection(position, stable)
            certifier.deliver(record)
            rows += recorder.garbage_collection(record)
        else:
            view = ViewChange(position, False)
            certifier.deliver(view)
            rows.append(recorder.view_change(view, str(piece[0]["view_id"]), ("m1", "m2", "m3")))
    assert write_file(folder, rows, Cursor())
    return rows_below(folder)


@pytest.mark.parametrize("items", ["uniform", "zipf", "hot"])
@pytest.mark.usefixtures("small")
def test_histories_have_the_rows_of_a_recorder(items: str, tmp_path: Path) -> None:
    workload = Workload(transactions=700, items=items)
    (tmp_path / "made").mkdir()
    write(tmp_path / "made", pieces(workload), file_rows=200)
    made = rows_below(tmp_path / "made")
    assert made == recorded(workload, tmp_path / "recorded")
    assert len(list((tmp_path / "made").iterdir())) > 2
    kinds = {str(row["kind"]) for row in made}
    assert kinds == {"start", "transaction", "stable_set", "collection", "view_change"}
    assert {row.get("verdict") for row in made} >= {"certified", "conflict"}
    assert any(row.get("write_set") == [] for row in made)


def test_a_history_is_made_once(tmp_path: Path) -> None:
    workload = Workload(transactions=300)
    folder = make(tmp_path, workload)
    written = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert make(tmp_path, workload) == folder
    assert written == {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert len(rows_below(folder)) == 301


@pytest.mark.usefixtures("small")
def test_as_many_stamps_are_lowered_as_raised(tmp_path: Path) -> None:
    (tmp_path / "wrong").mkdir()
    (tmp_path / "right").mkdir()
    workload = Workload(transactions=2_000, wrong_stamps=20)
    write(tmp_path / "wrong", pieces(workload))
    write(tmp_path / "right", pieces(Workload(transactions=2_000)))
    changes = [
        stamp(wrong) - stamp(right)
        for wrong, right in zip(
            rows_below(tmp_path / "wrong"), rows_below(tmp_path / "right"), strict=True
        )
        if wrong.get("last_committed") != right.get("last_committed")
    ]
    assert sorted(changes) == [-1] * 20 + [1] * 20


@pytest.mark.parametrize("items", ["uniform", "zipf", "hot"])
@pytest.mark.usefixtures("small")
def test_duckdb_finds_the_wrong_stamps_and_nothing_else(items: str, tmp_path: Path) -> None:
    for wrong, expected in ((0, {}), (20, {"STAMP_TOO_LOW": 20, "STAMP_TOO_HIGH": 20})):
        folder = tmp_path / str(wrong)
        folder.mkdir()
        write(folder, pieces(Workload(transactions=2_000, items=items, wrong_stamps=wrong)))
        assert check_stamps(folder, "1GB", str(tmp_path)).counts == expected


@pytest.mark.usefixtures("small")
def test_duckdb_finds_wrong_verdicts(tmp_path: Path) -> None:
    history = list(pieces(Workload(transactions=500)))
    flipped = 0
    for piece in history:
        if not isinstance(piece, Transactions) or flipped:
            continue
        for place, outcome in enumerate(piece.outcomes):
            if outcome.verdict is Verdict.CONFLICT:
                piece.snapshots[place] = piece.newest[place]
                flipped += 1
                break
    write(tmp_path, history)
    assert flipped
    assert check_stamps(tmp_path, "1GB", str(tmp_path)).counts == {"CONFLICT_FALSE": 1}


@pytest.mark.parametrize("items", bench_audit_history.ITEMS)
def test_the_smallest_history_has_place_for_all_wrong_stamps(items: str) -> None:
    size = bench_audit.TRANSACTIONS_MIN
    right = pieces(Workload(transactions=size, items=items))
    wrong = pieces(Workload(transactions=size, items=items, wrong_stamps=bench_audit.WRONG_STAMPS))
    changed = sum(
        one != other
        for piece, changed in zip(right, wrong, strict=True)
        if isinstance(piece, Transactions) and isinstance(changed, Transactions)
        for one, other in zip(piece.outcomes, changed.outcomes, strict=True)
    )
    assert changed == 2 * bench_audit.WRONG_STAMPS


def test_items_of_another_kind_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="zipf"):
        BenchOptions(items=("normal",))
    with pytest.raises(
        InvalidSetting, match="setting transactions is '999': expected 1000 or more"
    ):
        BenchOptions(transactions=(999,))
    with pytest.raises(InvalidSetting, match="setting --memory is '4': expected such as 4g"):
        BenchOptions(memory="4")


def run_of(engine: str, findings: dict[str, int], on_look: OnLook) -> Run:
    """One that takes no time."""
    on_look(77)
    return Run(
        engine=engine,
        seconds=1.5,
        seconds_in_session=1.0,
        cpu_seconds=2.0,
        memory_peak_mb=1_234,
        java_peak_mb=900,
        python_workers_peak_mb=0,
        shuffle_read_mb=None,
        shuffle_write_mb=None,
        spilled_to_disk_mb=None,
        findings=findings,
    )


@pytest.mark.parametrize("as_json", [False, True])
def test_each_history_and_each_run_is_told_beside_the_answer(
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def spark_run(folder: Path, memory: str, on_look: OnLook) -> Run:
        return run_of("spark", {}, on_look)

    def duckdb_run(folder: Path, memory: str, on_look: OnLook) -> Run:
        found = {"STAMP_TOO_LOW": 100, "STAMP_TOO_HIGH": 100} if "wrong" in folder.name else {}
        return run_of("duckdb", found, on_look)

    monkeypatch.setattr(bench_audit, "spark_run", spark_run)
    monkeypatch.setattr(bench_audit, "duckdb_run", duckdb_run)
    monkeypatch.setattr(bench_audit_history, "_BATCH", 500)
    monkeypatch.setattr(bench_audit_progress, "LINE_SECONDS", 0.0)
    options = BenchOptions(transactions=(1_200,), items=("uniform",), folder=tmp_path)
    assert main(options, as_json=as_json, output=None) == 1
    answer, told = capsys.readouterr()
    lines = [re.sub(r"\d+(\.\d)? s$", "T s", line) for line in told.splitlines()]
    assert lines == [
        "[1/6] history, 1,200 uniform, 200 wrong: begins",
        "[1/6] history, 1,200 uniform, 200 wrong: 500 transactions, T s",
        "[1/6] history, 1,200 uniform, 200 wrong: 1,000 transactions, T s",
        "[1/6] history, 1,200 uniform, 200 wrong: 1,200 transactions, T s",
        "[1/6] history, 1,200 uniform, 200 wrong: 0 MB, there after T s",
        "[2/6] spark, 1,200 uniform, 200 wrong: begins",
        "[2/6] spark, 1,200 uniform, 200 wrong: peak 77 MB, T s",
        "[2/6] spark, 1,200 uniform, 200 wrong: 1.5 s, 1,234 MB, 0 findings WRONG",
        "[3/6] duckdb, 1,200 uniform, 200 wrong: begins",
        "[3/6] duckdb, 1,200 uniform, 200 wrong: peak 77 MB, T s",
        "[3/6] duckdb, 1,200 uniform, 200 wrong: 1.5 s, 1,234 MB, 200 findings",
        *lines[11:],
    ]
    assert lines[-1] == "[6/6] duckdb, 1,200 uniform: 1.5 s, 1,234 MB, 0 findings"
    if as_json:
        assert len(json.loads(answer)["results"]) == 2
    else:
        assert "groupcert bench audit" in answer and "[1/6]" not in answer


@pytest.mark.spark
@pytest.mark.slow
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
    wrong, right = document["results"]
    assert wrong["spark"]["findings"] == {"STAMP_TOO_LOW": 100, "STAMP_TOO_HIGH": 100}
    assert wrong["duckdb"]["findings"] == wrong["spark"]["findings"]
    assert right["spark"]["findings"] == right["duckdb"]["findings"] == {}
    run = right["spark"]
    assert 0 < run["seconds_in_session"] < run["seconds"]
    assert 0 < run["java_peak_mb"] <= run["memory_peak_mb"]
    assert run["shuffle_write_mb"] is not None
    assert right["duckdb"]["shuffle_write_mb"] is None


def stamp(row: Row) -> int:
    """What a row has as `last_committed`."""
    value: Value = row["last_committed"]
    assert isinstance(value, int)
    return value


def test_a_check_that_is_killed_is_named_with_its_history(tmp_path: Path) -> None:
    """As the system does with what takes too much memory."""
    with pytest.raises(ChildProcessError, match=f"checking {tmp_path} ended with exit code -9; it"):
        bench_audit_run._measured(_killed, tmp_path, "4g", "", lambda megabytes: None)


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
        peaks = bench_audit_run._Peaks(os.getpid())
        peaks.look()
        process.stdin.write(b"\n\n")
    own = bench_audit_run._Peaks(os.getpid())
    own.look()
    assert 200_000_000 < peaks.all - own.all < 300_000_000
    assert peaks.java > 200_000_000


def test_a_check_that_fails_tells_why_and_nothing_else_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ChildProcessError, match=r"code 1; it(?s:.*)AssertionError: no such log"):
        bench_audit_run._measured(_failing, tmp_path, "4g", "", lambda megabytes: None)
    answer = bench_audit_run._measured(_noisy, tmp_path, "4g", "", lambda megabytes: None).answer
    assert answer.counts == {}
    assert capfd.readouterr() == ("", "")


def _failing(folder: Path, memory: str, scratch: str) -> Answer:
    raise AssertionError("no such log")


def _noisy(folder: Path, memory: str, scratch: str) -> Answer:
    sys.stderr.write("WARN: as Java does\n")
    return Answer({}, 0.0, 0.0)


def _killed(folder: Path, memory: str, scratch: str) -> Answer:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
