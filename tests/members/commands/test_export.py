"""`groupcert export`: which files it makes of traces and binary logs, and what it refuses."""

import errno
import gzip
import json
import os
import signal
from collections.abc import Callable
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from groupcert.certifier.core import CertifierOptions
from groupcert.certifier.errors import InvalidSetting
from groupcert.members.certification_log.export_folder import locked_work_folder
from groupcert.members.certification_log.files import SCHEMA
from groupcert.members.commands.export import ExportOptions, export_binary_log, export_trace
from tests.members.certification_logs import read_log, stamps

UUID = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
MYSQL = Path(__file__).parents[2] / "data" / "mysql-9.7.4-relay" / "trace.jsonl.gz"
CERTIFIER = CertifierOptions(
    group_source=UUID,
    gtid_assignment_block_size=1_000_000,
    collection_period_transactions=0,
    learn_snapshots=True,
    snapshot_lag_max=1 << 62,
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Ten transactions at two members, of which the last ones conflict."""
    lines = [
        {
            "type": "transaction",
            "member": f"m{number % 2}",
            "session": "s",
            "snapshot_version": "",
            "write_set": [f"shop.orders/PRIMARY/{number % 8}"],
        }
        for number in range(10)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def exported(trace: Path, out: Path, observer: str | None = None, **more: Any) -> None:
    """Exports a trace."""
    export_trace(str(trace), CERTIFIER, observer, ExportOptions(out=out, **more))


def test_every_file_has_the_schema(trace: Path, tmp_path: Path) -> None:
    exported(trace, tmp_path, file_rows=4)
    schemas = [parquet.read_schema(path) for path in tmp_path.glob("*.parquet")]
    assert schemas == [SCHEMA] * 3


@pytest.mark.slow
def test_the_relay_log_of_a_real_group_keeps_its_stamps(tmp_path: Path) -> None:
    exported(MYSQL, tmp_path, file_rows=5_000)
    with gzip.open(MYSQL.with_name("expected.jsonl.gz"), "rt") as lines:
        expected = [line for text in lines if "gtid" in (line := json.loads(text))]
    found = read_log(tmp_path, "trace")
    assert stamps(found) == [(each["last_committed"], each["sequence_number"]) for each in expected]
    gtids = [each["gtid"].rpartition(":")[::2] for each in expected]
    named = [row for row in found if row["kind"] == "transaction"]
    assert [(row["gtid_source"], str(row["gtid_number"])) for row in named] == gtids
    assert len(gtids) == 11_280


def fail_at_the_third_name(out: Path, fail: Callable[[], None]) -> None:
    """Has something happen before the third file gets its name in the folder."""
    rename, names = Path.rename, count(1)

    def failing(self: Path, target: Path) -> Path:
        if target.parent == out and next(names) == 3:
            fail()
        return rename(self, target)

    Path.rename = failing  # type: ignore[assignment, method-assign]


def die() -> None:
    """Ends this process as nothing else does."""
    os.kill(os.getpid(), signal.SIGKILL)


def no_space() -> None:
    """Fails as a disk that is full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_names_that_a_killed_export_has_given_are_taken_back(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = get_context("spawn").Process(target=_export_and_die, args=(trace, out))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    left = sorted(path.name for path in out.glob("trace-*"))
    assert len(left) == 2
    assert "trace-1-0000000000000000.parquet" not in left, "it would look like a shorter history"
    exported(trace, out)
    (only,) = out.iterdir()
    assert only.name == "trace-1-0000000000000000.parquet"
    assert len(read_log(out, "trace")) == 11


def _export_and_die(trace: Path, out: Path) -> None:
    fail_at_the_third_name(out, die)
    exported(trace, out, file_rows=2)


def test_an_export_that_was_killed_when_all_had_its_name_is_kept(
    trace: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    exported(trace, out, file_rows=2)
    names = sorted(path.name for path in out.iterdir())
    work = out / ".trace.unfinished"
    work.mkdir()
    (work / "names").write_text("".join(f"{name}\n" for name in names))
    with pytest.raises(InvalidSetting, match=r"a folder without a .* \(files: 6\): name another"):
        exported(trace, out)
    assert sorted(path.name for path in out.iterdir()) == names


def test_a_name_that_cannot_be_given_takes_all_back(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    exported(trace, out, "other")
    monkeypatch.setattr(Path, "rename", Path.rename)
    fail_at_the_third_name(out, no_space)
    with pytest.raises(OSError, match=r"no space left .*: free some, or .* --out") as full:
        exported(trace, out, file_rows=2)
    assert full.value.filename == str(out)
    assert [path.name for path in out.iterdir()] == ["other-1-0000000000000000.parquet"]


def test_two_exports_of_one_observer_are_not_at_work_at_once(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with locked_work_folder(out, "trace") as work:
        (work / "trace-1-0000000000000000.parquet").write_bytes(b"half")
        with pytest.raises(InvalidSetting, match="no other export of trace is at work: wait"):
            exported(trace, out)
        exported(trace, out, "other")
        assert [path.name for path in work.iterdir()] == ["trace-1-0000000000000000.parquet"]
        (work / "trace-1-0000000000000000.parquet").unlink()
    assert len(list(out.iterdir())) == 1


def test_files_of_a_log_are_given_once(tmp_path: Path) -> None:
    log, link = tmp_path / "binlog.000001", tmp_path / "link"
    log.touch()
    link.symlink_to(log)
    out = tmp_path / "out"
    with pytest.raises(InvalidSetting, match=r"setting binlog is .*: expected each file once$"):
        export_binary_log([log, link], None, ExportOptions(out=out))
    assert not out.exists()
