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
from typer.testing import CliRunner

from groupcert.applier.errors import InvalidBinaryLog
from groupcert.certifier.core import CertifierOptions
from groupcert.certifier.errors import InvalidSetting, InvalidTrace
from groupcert.certifier.history.schema import FORMAT_VERSION
from groupcert.members.certification_log.export_folder import locked_work_folder
from groupcert.members.certification_log.files import SCHEMA
from groupcert.members.commands.cli import app
from groupcert.members.commands.export import ExportOptions, export_binary_log, export_trace
from groupcert.members.errors.usage import InvalidOption, MissingOption
from tests.applier.mysql_logs import log_writer
from tests.members.certification_logs import read_log, stamps

UUID = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
MYSQL = Path(__file__).parents[2] / "data" / "mysql-9.7.4-relay" / "trace.jsonl.gz"
OTHER = UUID.replace("a", "b")
BINLOG = ("--binlog", "binlog.000001")
CERTIFIER = CertifierOptions(
    group_source=UUID,
    gtid_assignment_block_size=1_000_000,
    collection_period_transactions=0,
    learn_snapshots=True,
    snapshot_lag_max=1 << 62,
)
KEY = [(1, b"\x80"), (4, b"\2id"), (8, b"\0")]


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


def mysql_log(*places: int, gtids_from: int = 100) -> bytes:
    """A file of transactions with these sequence numbers, which may all overlap."""
    events = []
    for place in places:
        table = log_writer.table_map("orders", [(log_writer.INT, b"")], KEY)
        row = log_writer.number_rows(30, [place])
        start = [log_writer.gtid(gtids_from + place, 0, place), log_writer.query("BEGIN")]
        events += [*start, table, row, log_writer.xid()]
    return log_writer.log(events)


def test_a_history_is_cut_into_files_that_follow_each_other(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    exported(trace, out, file_rows=4)
    paths = sorted(out.iterdir())
    assert [parquet.read_metadata(path).num_rows for path in paths] == [4, 4, 3]
    assert all(parquet.read_schema(path).equals(SCHEMA) for path in paths)
    found = read_log(out, "trace")
    assert [row["kind"] for row in found] == ["start"] + ["transaction"] * 10
    assert {row["format_version"] for row in found} == {FORMAT_VERSION}
    assert [row["verdict"] for row in found[1:]] == ["certified"] * 8 + ["conflict"] * 2


def test_files_of_any_size_hold_the_same_rows(trace: Path, tmp_path: Path) -> None:
    exported(trace, tmp_path / "one")
    exported(trace, tmp_path / "many", file_rows=1)
    assert len(list((tmp_path / "many").iterdir())) == 11
    assert read_log(tmp_path / "one", "trace") == read_log(tmp_path / "many", "trace")


def test_the_document_says_what_was_written(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    exported(trace, out, "m1", file_rows=6, as_json=True)
    document = json.loads(capsys.readouterr().out)
    rows = read_log(out, "m1")
    assert document["verdicts"] == {"certified": 8, "conflict": 2, "too_old": 0, "refused": 0}
    assert [each["rows"] for each in document["files"]] == [6, 5]
    assert [Path(each["path"]) for each in document["files"]] == sorted(out.iterdir())
    assert (document["rows"], document["source"], document["observer"]) == (11, "trace", "m1")
    assert document["kinds"]["transaction"] == 10
    assert bytes.fromhex(document["chain"]) == rows[-1]["chain"]
    assert [row["is_local"] for row in rows[1:5]] == [False, True, False, True]
    assert document["notes"] == []


def test_an_observer_that_is_nobody_in_the_trace_is_noted(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(trace, tmp_path / "out", "m7", as_json=True)
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert note == "m7 is in none of its records: every transaction is told as another member's"
    exported(trace, tmp_path / "out", as_json=True)
    assert json.loads(capsys.readouterr().out)["notes"] == []


def test_people_get_a_table(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(trace, tmp_path / "out")
    shown = capsys.readouterr().out
    assert "transactions: conflict" in shown
    assert f"The log is in {tmp_path / 'out'}" in shown.replace("\n", "")


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


def test_a_log_that_is_there_is_not_touched(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    exported(trace, out)
    before = {path: path.read_bytes() for path in out.iterdir()}
    message = r"certification log of trace, but it has trace-1-0+\.parquet \(files: 1\): name"
    with pytest.raises(InvalidSetting, match=message):
        exported(trace, out)
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_observers_whose_names_begin_alike_share_a_folder(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    exported(trace, out, "m-1")
    exported(trace, out, "m")
    exported(trace, out, "m-1-2")
    assert len(list(out.iterdir())) == 3


@pytest.mark.parametrize("name", ["", "../m", "_m", ".m", "a b", "m" * 65])
def test_an_observer_that_no_file_can_be_named_after_is_refused(
    trace: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises(InvalidSetting, match="setting observer is"):
        export_trace(str(trace), CERTIFIER, name or " ", ExportOptions(out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_malformed_line_leaves_nothing_behind(trace: Path, tmp_path: Path) -> None:
    with trace.open("a") as file:
        file.write("{broken\n")
    out = tmp_path / "out"
    with pytest.raises(InvalidTrace, match="trace line 11: it is not JSON"):
        exported(trace, out, file_rows=2)
    assert list(out.iterdir()) == []


def test_what_a_killed_export_left_is_cleared_away(trace: Path, tmp_path: Path) -> None:
    left = tmp_path / "out" / ".trace.unfinished"
    left.mkdir(parents=True)
    (left / "trace-1-0000000000000000.parquet").write_bytes(b"half")
    exported(trace, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [
        "trace-1-0000000000000000.parquet"
    ]
    assert len(read_log(tmp_path / "out", "trace")) == 11


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


def test_a_folder_that_is_a_file_is_named(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(OSError, match="out"):
        exported(trace, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b""


def test_a_binary_log_keeps_its_stamps_over_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "binlog.000001", tmp_path / "binlog.000002"]
    paths[0].write_bytes(mysql_log(1, 2, 3))
    paths[1].write_bytes(mysql_log(1, 2, gtids_from=200)[:-5])
    out = tmp_path / "out"
    export_binary_log(paths, None, ExportOptions(out=out, as_json=True))
    document = json.loads(capsys.readouterr().out)
    found = read_log(out, "binary-log")
    assert [str(row["kind"])[0] for row in found] == ["s", "t", "t", "t", "v", "t"]
    assert stamps(found) == [(0, 1), (0, 2), (0, 3), (0, 1)]
    assert document["verdicts"]["certified"] == document["kinds"]["transaction"] == 4
    (note,) = document["notes"]
    assert "binlog.000002" in note


def test_a_log_of_nothing_and_a_file_that_is_none_are_errors(tmp_path: Path) -> None:
    empty, text = tmp_path / "empty", tmp_path / "text"
    empty.write_bytes(log_writer.log([]))
    text.write_text("no binary log")
    out = tmp_path / "out"
    with pytest.raises(InvalidBinaryLog, match="one at least to export"):
        export_binary_log([empty], None, ExportOptions(out=out))
    with pytest.raises(InvalidBinaryLog, match="text"):
        export_binary_log([text], None, ExportOptions(out=out))
    for content in ("", '\n{"type":"view_change"}\n'):
        text.write_text(content)
        with pytest.raises(InvalidTrace, match=r"line [02]: the trace ends without a transaction"):
            exported(text, out)
    assert list(out.iterdir()) == []


def test_files_of_a_log_are_given_once_and_those_out_of_order_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "binlog.1000000", tmp_path / "binlog.999999"]
    paths[0].write_bytes(mysql_log(3, 4))
    paths[1].write_bytes(mysql_log(1, 2))
    (tmp_path / "link").symlink_to(paths[0])
    out = tmp_path / "out"
    with pytest.raises(InvalidSetting, match=r"setting binlog is .*: expected each file once$"):
        export_binary_log([*paths, tmp_path / "link"], None, ExportOptions(out=out))
    assert not out.exists()
    export_binary_log(paths, None, ExportOptions(out=out, as_json=True))
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert note == f"{paths[1]} begins before the end of the file before it: " + (
        "are they in the log's order?"
    )


def test_a_table_without_a_key_is_noted_once_for_all_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = log_writer.table_map("orders", [(log_writer.INT, b"")], KEY[:2])
    paths = [tmp_path / "binlog.000001", tmp_path / "binlog.000002"]
    for number, path in enumerate(paths, 1):
        start = [log_writer.gtid(number, 0, 1), log_writer.query("BEGIN")]
        row = log_writer.number_rows(30, [number])
        path.write_bytes(log_writer.log([*start, table, row, log_writer.xid()]))
    out = tmp_path / "out"
    export_binary_log(paths, None, ExportOptions(out=out, as_json=True))
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert note.startswith("shop.orders: ")


def test_keys_of_a_binary_logs_rows_are_in_no_file_unless_that_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "binlog.000001"
    path.write_bytes(mysql_log(7))
    for keys, flags in ((None, []), (["shop.orders/PRIMARY/7"], ["--keys"])):
        out = tmp_path / f"out{len(flags)}"
        command = ["export", "--binlog", str(path), "--out", str(out), *flags]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        assert read_log(out, "binary-log")[1]["write_keys"] == keys


def test_the_flags_reach_the_certifier(trace: Path, tmp_path: Path) -> None:
    flags = ["--group-uuid", OTHER, "--gtid-assignment-block-size", "100", "--gc-window", "tight"]
    flags.append("--keys")
    out = ["--out", str(tmp_path / "out"), "--file-rows", "3", "--observer", "m1"]
    done = CliRunner().invoke(app, ["export", "--trace", str(trace), *out, *flags, "--json"])
    assert done.exit_code == 0, done.output
    start, first, second, *_ = read_log(tmp_path / "out", "m1")
    assert json.loads(str(start["settings"])) == {
        "source": "trace",
        "group_source": OTHER,
        "gtid_assignment_block_size": 100,
        "gc_window": "tight",
        "snapshot_lag_max": 1 << 62,
    }
    assert [row["gtid_number"] for row in (first, second)] == [1, 101]
    assert second["write_keys"] == ["shop.orders/PRIMARY/1"]
    assert len(json.loads(done.stdout)["files"]) == 4


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "one of --trace TRACE, --binlog FILE, --log-server"),
        ([], "source is missing: give it as one of"),
        (["--trace", "-", "--binlog", "binlog.000001"], "source is '--trace --binlog'"),
        ([*BINLOG, "--group", "shop"], "source is '--binlog --group': expected as one of"),
        (["--trace", "-", "--last", "7"], "--first, --last is '1, 7'"),
        ([*BINLOG, "--last", "7"], "--first, --last is '1, 7'"),
        ([*BINLOG, "--gc-window", "tight"], f"gc-window is '{UUID}, 1, tight'"),
        ([*BINLOG, "--group-uuid", OTHER], f"gc-window is '{OTHER}, 1, close': expected not "),
        (["--group", "a", "--gtid-assignment-block-size", "9"], ", 9, close': expected not given"),
    ],
)
def test_one_source_is_to_be_named(tmp_path: Path, flags: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["export", "--out", str(tmp_path / "out"), *flags])
    assert isinstance(done.exception, (InvalidOption, MissingOption))
    assert message in str(done.exception)


def test_a_log_without_its_group_says_what_is_missing(tmp_path: Path) -> None:
    flags = ["--log-server", "nats://127.0.0.1:1"]
    done = CliRunner().invoke(app, ["export", "--out", str(tmp_path / "out"), *flags])
    assert "give it as --group" in str(done.exception)
