"""`groupcert whatif`: what it reads, what it prints, what page it writes, what it refuses."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from groupcert.applier.errors import InvalidBinaryLog
from groupcert.applier.whatif.comparison import LINES, chosen_lines
from groupcert.applier.whatif.loops import engine, windows
from groupcert.applier.whatif.loops.state import NOW
from groupcert.applier.whatif.loops.windows import SchedulesDiffer
from groupcert.applier.whatif.workload import Costs
from groupcert.certifier.core import CertifierOptions
from groupcert.certifier.errors import InvalidRequest, InvalidTrace
from groupcert.members.commands import whatif as schedules
from groupcert.members.commands.cli import app
from groupcert.members.commands.whatif import WhatIfOptions, whatif_binary_log, whatif_trace
from groupcert.members.errors.usage import MissingOption
from tests.applier.mysql_logs import log_writer

UUID = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
MYSQL = Path(__file__).parents[2] / "data" / "mysql-9.7.4-relay" / "trace.jsonl.gz"
CERTIFIER = CertifierOptions(
    group_source=UUID,
    gtid_assignment_block_size=1_000_000,
    collection_period_transactions=0,
    learn_snapshots=True,
    snapshot_lag_max=1 << 62,
)


def options(*schemes: str, workers: tuple[int, ...] = (1, 4), **more: int) -> WhatIfOptions:
    """What is compared."""
    costs = Costs(execute_us=10, row_us=0, commit_us=0)
    chosen = {"commit_group_transactions": 1, "processes": 1, **more}
    return WhatIfOptions(lines=chosen_lines(schemes), workers=workers, costs=costs, **chosen)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Eight transactions on eight rows, and one that conflicts."""
    lines = [
        {
            "type": "transaction",
            "member": "m1",
            "snapshot_version": "",
            "write_set": [f"shop.orders/PRIMARY/{number % 8}"],
        }
        for number in range(9)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def printed(capsys: pytest.CaptureFixture[str], trace: Path, chosen: WhatIfOptions) -> Any:
    """The document."""
    whatif_trace(str(trace), CERTIFIER, chosen, as_json=True, html=None)
    return json.loads(capsys.readouterr().out)


def test_every_scheme_is_compared_at_every_number_of_workers(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = printed(capsys, trace, options())
    assert [scheme["label"] for scheme in report["schemes"]] == [line.label for line in LINES]
    for scheme in report["schemes"]:
        assert [run["workers"] for run in scheme["runs"]] == [1, 4]
    speedups = {scheme["label"]: scheme["runs"][1]["speedup"] for scheme in report["schemes"]}
    assert speedups["logical-clock write sets"] == speedups["jobs graph"] == 4
    assert speedups["database"] == speedups["group-commit"] == 1
    assert report["source"]["conflicts"] == 1
    assert report["workload"]["transactions"] == 8


def test_group_commits_are_made_where_the_trace_has_none(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = printed(capsys, trace, options("group-commit"))
    assert "runs every transaction alone" in alone["source"]["notes"][0]
    grouped = printed(capsys, trace, options("group-commit", commit_group_transactions=4))
    assert grouped["source"]["notes"] == [
        "the stream has no commit ids: groups of up to 4 were made"
    ]
    assert grouped["schemes"][0]["runs"][1]["speedup"] == 4


def test_commit_ids_of_the_trace_are_taken_as_they_are(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    for line in lines:
        line["commit_id"] = 3
    trace.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    report = printed(capsys, trace, options("group-commit"))
    assert report["source"]["notes"] == []
    assert report["schemes"][0]["runs"][1]["speedup"] == 4


def test_several_processes_compute_the_same(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = printed(capsys, trace, options("jobs", "rows"))
    monkeypatch.setattr(schedules, "SHARED_ENTRIES_MIN", 0)
    assert printed(capsys, trace, options("jobs", "rows", processes=2)) == one


@pytest.mark.slow
def test_the_trace_of_a_mysql_group_runs_under_every_scheme(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = printed(capsys, MYSQL, options(workers=(8,)))
    assert report["workload"]["transactions"] == 11_280
    runs = {scheme["label"]: scheme["runs"][0] for scheme in report["schemes"]}
    assert all(0 < run["bound_share"] <= 1 for run in runs.values())
    assert runs["logical-clock write sets"]["overtakers"] == 0
    assert runs["jobs graph"]["overtakers"] == runs["jobs barrier"]["overtakers"] == 0
    assert runs["jobs ignore"]["overtakers"] > 0
    assert runs["jobs graph"]["speedup"] >= runs["jobs barrier"]["speedup"] > 4


def test_people_get_a_table_of_speedups(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whatif_trace(str(trace), CERTIFIER, options(), as_json=False, html=None)
    shown = capsys.readouterr().out
    cells = [re.split(r" *│ *", line.strip("│ ")) for line in shown.splitlines()]
    rows = {row[0]: row[1:] for row in cells if len(row) > 1}
    assert rows["bound"][:2] == ["1.00", "4.00"]
    assert rows["jobs graph"][:3] == ["1.00", "4.00", "100%"]
    assert rows["database"][1] == "1.00"
    assert rows["left out, because they were not certified"] == ["1"]
    assert "Note: the stream has no commit ids" in shown


def test_the_page_has_the_numbers_of_the_document(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    whatif_trace(str(trace), CERTIFIER, options(), as_json=True, html=page)
    embedded = re.search(r'type="application/json">(.*?)</script>', page.read_text())
    assert embedded
    assert json.loads(embedded[1]) == json.loads(capsys.readouterr().out)


def test_a_trace_of_nothing_and_a_log_of_nothing_are_errors(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(InvalidTrace, match="without a certified transaction"):
        whatif_trace(str(empty), CERTIFIER, options(), as_json=True, html=None)
    with pytest.raises(InvalidBinaryLog):
        whatif_binary_log([empty], options(), as_json=True, html=None)


def inserts(*numbers: int, mysql: bool = True) -> list[bytes]:
    """Events of transactions that insert these rows: as MySQL's stamps have it all overlap, as
    MariaDB's commit id has it they are one group commit.
    """
    key = [(1, b"\x80"), (4, b"\2id"), (8, b"\0")]
    events = []
    for place, number in enumerate(numbers, 1):
        start = [log_writer.mariadb_gtid(number, commit_id=9, standalone=False)]
        if mysql:
            start = [log_writer.gtid(number, 0, place), log_writer.query("BEGIN")]
        table = log_writer.table_map("orders", [(log_writer.INT, b"")], key)
        row = log_writer.number_rows(30, [number])
        events += [*start, table, row, log_writer.xid()]
    return events


def test_a_binary_log_of_mysql_is_read_over_its_files_and_says_where_it_is_cut_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "binlog.000001", tmp_path / "binlog.000002"]
    paths[0].write_bytes(log_writer.log(inserts(1, 2, 3, 4)))
    paths[1].write_bytes(log_writer.log([log_writer.xid(), *inserts(5, 6, 7, 8, 9)])[:-5])
    whatif_binary_log(paths, options("logical-clock"), as_json=True, html=None)
    report = json.loads(capsys.readouterr().out)
    assert report["workload"]["transactions"] == 8
    assert report["workload"]["entries"] == 9, "the rotation between the files"
    assert report["stamps"]["lock intervals"]["interval_mean"] == 2.5
    cut_short, dropped, no_groups = report["source"]["notes"]
    assert "binlog.000002" in cut_short
    assert "1 transactions are not whole" in dropped
    assert "no commit ids" in no_groups
    assert [scheme["runs"][1]["speedup"] for scheme in report["schemes"]] == [4, 4, 4]


def test_a_binary_log_of_mariadb_brings_its_group_commits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mariadb-bin.000001"
    path.write_bytes(log_writer.log(inserts(1, 2, 3, 4, mysql=False), version="10.11.6-MariaDB"))
    whatif_binary_log([path], options("group-commit", "commit-parent"), as_json=True, html=None)
    report = json.loads(capsys.readouterr().out)
    assert report["source"]["notes"] == []
    assert [scheme["runs"][1]["speedup"] for scheme in report["schemes"]] == [4, 4]
    assert report["critical_path"]["first"] == ["0-7-1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "numbers from 1 to 1024 with commas"),
        (["--scheme", "writeset"], "one of logical-clock, commit-parent"),
        (["--binlog", "log.000001"], "expected none beside --binlog"),
    ],
)
def test_wrong_flags_say_what_is_expected(arguments: list[str], message: str, trace: Path) -> None:
    result = CliRunner().invoke(app, ["whatif", str(trace), *arguments])
    assert isinstance(result.exception, InvalidRequest)
    assert message in str(result.exception)


def test_neither_trace_nor_log_is_wrong_usage() -> None:
    result = CliRunner().invoke(app, ["whatif"])
    assert isinstance(result.exception, MissingOption)


def test_the_command_takes_its_costs_from_flags(trace: Path) -> None:
    flags = ["--execute-us", "5", "--row-us", "2", "--commit-us", "1", "--workers", "2"]
    result = CliRunner().invoke(app, ["whatif", str(trace), "--json", "--scheme", "rows", *flags])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["workload"]["costs"] == {"execute_us": 5, "row_us": 2, "commit_us": 1}
    assert report["workload"]["serial_us"] == 8 * (5 + 2 + 1)
    assert [scheme["scheme"] for scheme in report["schemes"]] == ["rows"]


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two windows of three entries: a stream of eight is long."""
    monkeypatch.setattr(windows, "WINDOW_ENTRIES", 3)
    monkeypatch.setattr(windows, "WINDOWS", 2)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_long_stream_is_scheduled_by_loops_and_held_to_its_windows(
    processes: int,
    trace: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    whole = printed(capsys, trace, options())
    assert whole["windows"] is None
    request.getfixturevalue("small_windows")
    monkeypatch.setattr(schedules, "find_spec", lambda name: None)
    report = printed(capsys, trace, options(processes=processes))
    assert report["windows"] == {"count": 2, "entries": 6, "share": 0.75, "first": [1, 6]}
    for scheme, expected in zip(report["schemes"], whole["schemes"], strict=True):
        for run, known in zip(scheme["runs"], expected["runs"], strict=True):
            times, known_times = run.pop("worker_time_us"), known.pop("worker_time_us")
            assert sum(times.pop("idle").values()) == sum(known_times.pop("idle").values())
            assert times == known_times
            for name in ("held", "fallbacks"):
                del run[name], known[name]
            assert run == known


@pytest.mark.usefixtures("small_windows")
def test_people_are_told_what_is_of_windows_alone(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "find_spec", lambda name: None)
    whatif_trace(str(trace), CERTIFIER, options("jobs"), as_json=False, html=None)
    told = " ".join(capsys.readouterr().out.split())
    assert "2 windows of the stream, 6 of its entries (75.0%)" in told
    assert "pip install 'groupcert[whatif]'" in told


@pytest.mark.in_turns
@pytest.mark.slow
@pytest.mark.usefixtures("small_windows")
def test_compiled_loops_are_kept_in_the_users_cache(
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = printed(capsys, trace, options("jobs", processes=2))
    assert list((tmp_path / "groupcert" / "loops").rglob("*.nbc"))
    assert report["schemes"][-1]["runs"][1]["makespan_us"] > 0


def test_a_cache_that_cannot_be_made_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert schedules._loops().is_compiled


@pytest.mark.usefixtures("small_windows")
def test_loops_that_are_wrong_end_the_command_with_both_figures(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "find_spec", lambda name: None)
    monkeypatch.setattr(engine, "_executed", broken(engine._executed))
    with pytest.raises(SchedulesDiffer, match=r"by the coordinator, and .* by the loops"):
        whatif_trace(str(trace), CERTIFIER, options("jobs"), as_json=True, html=None)


def broken(executed: Callable[..., None]) -> Callable[..., None]:
    """Commits take a microsecond less than they should."""

    def wrong(settings: Any, columns: Any, state: Any, job: int) -> None:
        state.counters[NOW] += 1
        executed(settings, columns, state, job)

    return wrong
