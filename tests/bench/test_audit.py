"""The audit's benchmark, in small: each answer is checked, and a process is measured as a whole."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from groupcert.certifier.errors import InvalidSetting
from tests.audit.java_options import FAST_START
from tests.audit.long_history import Workload
from tests.bench import audit as audit_bench
from tests.bench.audit import Peaks, audit, measure
from tests.bench.harness import Run


def test_what_cannot_be_measured_is_refused() -> None:
    expected = "setting transactions is '999': expected 1000 or more"
    with pytest.raises(InvalidSetting, match=expected):
        audit(Run(), transactions=(999,))
    with pytest.raises(InvalidSetting, match="setting --memory is '4': expected such as 4g"):
        audit(Run(), memory="4")


def test_a_wrong_answer_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(audit_bench, "verified", _blind)
    monkeypatch.setattr(audit_bench, "stages", lambda events: [])
    run = Run()
    document = audit(run, transactions=(1_200,), items=("uniform",), folder=tmp_path)
    assert run.wrong == ["spark, uniform-1200-wrong100: {}"]
    right = [each["is_right"] for each in document["results"]]
    assert right == [False, True, True, True, True, True]


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_spark_and_duckdb_give_the_same_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", FAST_START)
    run = Run()
    document = audit(run, (20_000,), ("uniform",), memory="1g", folder=tmp_path)
    assert run.wrong == []
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
    workload = Workload(transactions=1)
    log = tmp_path / workload.name
    log.mkdir()
    with pytest.raises(ChildProcessError, match=f"checking {log} ended with exit code -9; it"):
        measure(workload, "duckdb", _killed, "4g", tmp_path)


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


def _blind(folder: Path, memory: str, spill: str) -> tuple[dict[str, int], float]:
    return {}, 0.0


def _killed(folder: Path, memory: str, spill: str) -> tuple[dict[str, int], float]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
