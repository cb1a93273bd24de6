"""`groupcert whatif`: what it reads, what it prints, what page it writes, what it refuses."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupcert.applier.whatif.loops import engine, windows
from groupcert.applier.whatif.loops.state import NOW
from groupcert.applier.whatif.loops.windows import SchedulesDiffer
from groupcert.applier.whatif.scheme_comparison import chosen_lines
from groupcert.applier.whatif.workload import Costs
from groupcert.certifier.core import CertifierOptions
from groupcert.members.commands import whatif as schedules
from groupcert.members.commands.whatif import WhatIfOptions, whatif_trace

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


def test_the_page_has_the_numbers_of_the_document(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    whatif_trace(str(trace), CERTIFIER, options(), as_json=True, html=page)
    embedded = re.search(r'type="application/json">(.*?)</script>', page.read_text())
    assert embedded
    assert json.loads(embedded[1]) == json.loads(capsys.readouterr().out)


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
