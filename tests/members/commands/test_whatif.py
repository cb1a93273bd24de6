"""`groupcert whatif`: what it reads, what it prints, what page it writes, what it refuses."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from groupcert.applier.whatif import binary_log_work, scheme_comparison
from groupcert.applier.whatif.costs import Costs
from groupcert.applier.whatif.scheme_comparison import chosen_lines
from groupcert.certifier.core import CertifierOptions
from groupcert.members.commands import whatif as schedules
from groupcert.members.commands.whatif import WhatIfOptions, whatif_binary_log, whatif_trace

UUID = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
MYSQL = Path(__file__).parents[2] / "data" / "mysql-9.7.4-relay" / "trace.jsonl.gz"
LOGS = Path(__file__).parents[2] / "data" / "server-logs"
CERTIFIER = CertifierOptions(
    group_source=UUID,
    gtid_assignment_block_size=1_000_000,
    collection_period_transactions=0,
    learn_snapshots=True,
    snapshot_lag_max=1 << 62,
)


def options(*schemes: str, workers: tuple[int, ...] = (1, 4), **more: Any) -> WhatIfOptions:
    """What is compared."""
    costs = Costs(execute_us=10, row_us=0, commit_us=0, spread_percent=0)
    chosen: dict[str, Any] = {
        "commit_group_transactions": 1,
        "processes": 1,
        "as_json": True,
        **more,
    }
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
    whatif_trace(str(trace), CERTIFIER, chosen)
    return json.loads(capsys.readouterr().out)


def test_several_processes_compute_the_same(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = printed(capsys, trace, options("jobs", "rows"))
    monkeypatch.setattr(schedules, "SHARED_ENTRIES_MIN", 0)
    assert printed(capsys, trace, options("jobs", "rows", processes=2)) == one


def log_of(metadata: str, tmp_path: Path) -> Path:
    """A real log of MariaDB: one load of 12 clients, written with such metadata."""
    path = tmp_path / "mariadb-bin.000001"
    path.write_bytes(gzip.decompress((LOGS / f"mariadb-10.11-{metadata}.binlog.gz").read_bytes()))
    return path


def of_a_log(metadata: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """The document of it."""
    chosen = options("jobs", "group-commit", workers=(8,))
    whatif_binary_log([log_of(metadata, tmp_path)], chosen)
    return json.loads(capsys.readouterr().out)


def test_a_log_that_names_no_keys_has_no_bound_and_its_group_commits_run_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = of_a_log("full-metadata", tmp_path, capsys)
    unnamed = of_a_log("default-metadata", tmp_path, capsys)
    assert named["critical_path"]["is_known"] and not unnamed["critical_path"]["is_known"]
    assert "binlog_row_metadata=FULL" in unnamed["source"]["notes"][-1]
    runs = {scheme["label"]: scheme["runs"][0] for scheme in unnamed["schemes"]}
    assert runs["jobs graph"]["speedup"] > runs["group-commit"]["speedup"] > 2
    assert runs["jobs graph"]["overtakers"] == runs["group-commit"]["overtakers"] == 0


@pytest.mark.slow
def test_the_trace_of_a_mysql_group_runs_under_every_scheme(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = printed(capsys, MYSQL, options(workers=(8,)))
    assert report["workload"]["transactions"] == 11_280
    runs = {scheme["label"]: scheme["runs"][0] for scheme in report["schemes"]}
    entries = report["workload"]["entries"]
    kept = [run for run in runs.values() if run["overtakers"] == 0 and run["jobs"] == entries]
    assert len(kept) > 5 and all(0 < run["bound_share"] <= 1 for run in kept)
    assert runs["logical-clock write sets"]["overtakers"] == 0
    assert runs["jobs graph"]["overtakers"] == runs["jobs barrier"]["overtakers"] == 0
    assert runs["jobs ignore"]["overtakers"] > 0
    assert runs["jobs graph"]["speedup"] >= runs["jobs barrier"]["speedup"] > 4


def test_the_page_has_the_numbers_of_the_document(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    whatif_trace(str(trace), CERTIFIER, options(html=page))
    embedded = re.search(r'type="application/json">(.*?)</script>', page.read_text())
    assert embedded
    assert json.loads(embedded[1]) == json.loads(capsys.readouterr().out)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two windows of three entries: a stream of eight is long, and so is each log."""
    monkeypatch.setattr(binary_log_work, "LONG_BYTES", 1)
    for module in (binary_log_work, scheme_comparison):
        monkeypatch.setattr(module, "WINDOW_ENTRIES", 3)
        monkeypatch.setattr(module, "WINDOWS", 2)


@pytest.mark.usefixtures("small_windows")
def test_windows_of_a_long_stream_are_scheduled_or_all_of_it(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = printed(capsys, trace, options("jobs"))
    windows = report["windows"]
    assert (windows["count"], windows["entries"], windows["share"]) == (2, 6, 0.75)
    assert windows["first"] == [1, 6]
    for scheme in report["schemes"]:
        if scheme["conflicts"] != "merge":
            assert [run["jobs"] for run in scheme["runs"]] == [6, 6]
    whole = printed(capsys, trace, options("jobs", whole=True))
    assert whole["windows"] is None
    assert whole["schemes"][0]["runs"][0]["jobs"] == 8


@pytest.mark.usefixtures("small_windows")
def test_people_are_told_how_much_was_scheduled(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whatif_trace(str(trace), CERTIFIER, options("jobs", as_json=False))
    told = " ".join(capsys.readouterr().out.split())
    assert "2 windows of the stream, 6 of its entries (75.0%); a window's speed-up differs" in told
    assert "hot rows are those of the 8 that were read; --whole takes all of it" in told


@pytest.mark.usefixtures("small_windows")
def test_of_a_long_log_windows_are_read_and_all_transactions_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = log_of("full-metadata", tmp_path)
    whatif_binary_log([path], options("jobs", as_json=False))
    told = " ".join(capsys.readouterr().out.split())
    assert re.search(r"transactions \W 1,206 .* read: what follows is theirs \W 518 ", told)
    assert "2 windows of the stream, 6 of its entries (0.5%)" in told
    assert "hot rows are those of the 518 that were read; --whole takes all of it" in told
    whatif_binary_log([path], options("jobs", whole=True))
    whole = json.loads(capsys.readouterr().out)
    assert whole["workload"]["read"] == whole["workload"]["transactions"] == 1_206
    assert whole["windows"] is None


def test_people_are_told_the_fastest_setting_of_each_kind_of_server(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whatif_trace(str(trace), CERTIFIER, options(as_json=False))
    told = " ".join(capsys.readouterr().out.split())
    assert "fastest setting of MySQL is replica_parallel_type=LOGICAL_CLOCK, and" in told
    assert "fastest setting of MariaDB is slave_parallel_mode=optimistic, as jobs ordered" in told
