"""The document and the page that holds it."""

import json
import re
from typing import Any

import pytest

from groupcert.applier.whatif import scheme_comparison
from groupcert.applier.whatif.comparison_report import Compared, document, page
from groupcert.applier.whatif.costs import Costs
from groupcert.applier.whatif.scheme_comparison import LINES as ALL_LINES
from groupcert.applier.whatif.scheme_comparison import Line, run_line, sample_of
from groupcert.applier.whatif.server_settings import SETTINGS
from groupcert.applier.whatif.workload import Workload, load
from tests.applier.whatif.streams import Source, parse, stream

WORKERS = (1, 2, 4)
LINES = (Line("logical-clock"), Line("jobs", conflicts="ignore"), Line("table"))


def report(workload: Workload, **source: object) -> Any:
    """The report of three lines."""
    sample = sample_of(workload)
    compared = [
        Compared(line, [run_line(sample.windows, line, workers) for workers in WORKERS])
        for line in LINES
    ]
    return document(source, workload, sample, compared, WORKERS)


def chain() -> Workload:
    """Two chains of two, one longer, in two tables; something of unknown rows; commits of 1 us."""
    return stream("5us a.t/1", "3us b.u/1", "5us a.t/1 b.u/9", "2us b.u/1", "1us", commit_us=1)


def test_the_critical_path_names_its_ends_and_what_it_allows() -> None:
    found = report(chain())["critical_path"]
    assert (found["length_us"], found["transactions"]) == (14, 3)
    assert [name[-2:] for name in found["first"]] == [":1", ":3", ":5"]
    assert found["first"] == found["last"]
    assert found["speedup_max"] == round(21 / 14, 4)


def test_hot_rows_come_by_time_on_the_critical_path_then_by_writers() -> None:
    assert report(chain())["hot_items"] == [
        {"item": "a.t/1", "writers": 2, "critical_path_us": 6},
        {"item": "b.u/1", "writers": 2, "critical_path_us": 0},
    ]


def test_hot_tables_come_by_the_time_of_their_transactions() -> None:
    assert report(chain())["hot_tables"] == [
        {"table": "a.t", "transactions": 2, "work_us": 10, "critical_path_us": 6},
        {"table": "b.u", "transactions": 3, "work_us": 10, "critical_path_us": 0},
    ]


def test_the_bound_is_work_by_workers_or_the_critical_path() -> None:
    found = report(chain())
    assert [bound["makespan_us"] for bound in found["bounds"]] == [21, 14, 14]
    assert found["workload"]["serial_us"] == 21
    for scheme in found["schemes"]:
        for run in scheme["runs"]:
            assert 0 < run["bound_share"] <= 1 or run["overtakers"] != 0


def test_the_bound_counts_processors() -> None:
    lines = (f"100us a.t/{number}" for number in range(8))
    workload = load(parse(lines), Costs(commit_us=0, server_percent=50, cores=1))
    found = report(workload)
    assert [bound["makespan_us"] for bound in found["bounds"]] == [800, 400, 392]
    assert found["critical_path"]["speedup_max"] == round(800 / 392, 4)


def test_settings_of_servers_are_at_the_schemes_that_schedule_so() -> None:
    settings = {scheme["label"]: scheme["settings"] for scheme in report(chain())["schemes"]}
    [setting] = settings["logical-clock write sets"]
    assert setting["server"] == "MySQL" and "WRITESET" in setting["source"]
    assert settings["table"] == settings["jobs ignore"] == []
    assert set(SETTINGS) <= set(ALL_LINES), "no setting is left out of a comparison"


def test_a_run_accounts_for_all_time_of_its_workers() -> None:
    for scheme in report(chain())["schemes"]:
        for run in scheme["runs"]:
            times = run["worker_time_us"]
            busy = sum(times[name] for name in times if name != "idle")
            assert busy + sum(times["idle"].values()) == run["workers"] * run["makespan_us"]


def test_widths_are_means_and_the_last_bucket_counts_for_its_own_length() -> None:
    workload = stream(*(f"100us a.t/{number}" for number in range(9)))
    found = report(workload)["schemes"][0]["runs"][1]
    assert (found["makespan_us"], found["width_max"]) == (500, 2)
    width = found["width"]
    assert width["workers"][0] == 2
    assert width["workers"][-1] == 1
    assert len(width["workers"]) == -(-500 // width["bucket_us"])


def test_causes_and_fallbacks_are_told_by_name() -> None:
    found = report(stream("1us a.t/1", "view change", "1us a.t/2"))
    run = found["schemes"][1]["runs"][1]
    assert run["fallbacks"] == {"alone": 1}
    assert run["held"]["alone"] == {"transactions": 2, "us": 1}, "it waits, then they wait for it"
    assert found["causes"]["alone"].startswith("it runs alone")


def test_where_durations_come_from_is_told() -> None:
    assert report(chain())["workload"]["durations"] == "source"
    assert report(stream())["workload"]["durations"] == "model"
    source = Source()
    works = [source.transaction(["a.t/1"], duration_us=2), source.transaction(["a.t/2"])]
    assert report(load(works, Costs()))["workload"]["durations"] == "mixed"


def test_an_empty_workload_divides_nothing_by_nothing() -> None:
    found = report(stream())
    assert found["critical_path"]["speedup_max"] == 1
    assert found["schemes"][0]["runs"][0]["worker_use"] == 0


def test_windows_are_told_with_their_share_and_how_far_they_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four transactions that are independent, one between them, then four of one row."""
    monkeypatch.setattr(scheme_comparison, "WINDOW_ENTRIES", 4)
    monkeypatch.setattr(scheme_comparison, "WINDOWS", 2)
    rows = ["a.t/1", "a.t/2", "a.t/3", "a.t/4", "a.t/5", *["a.t/6"] * 4]
    workload = stream(*(f"5us {row}" for row in rows))
    found = report(workload)
    assert found["windows"] == {
        "count": 2,
        "entries": 8,
        "share": 0.8889,
        "first": [1, 6],
        "spread": 1.5,
        "spread_of": "logical-clock write sets, 4 workers",
    }
    run = found["schemes"][0]["runs"][-1]
    assert (run["makespan_us"], run["speedup"], run["spread"]) == (5 + 20, 1.6, 1.5)
    assert (found["bounds"][-1]["makespan_us"], run["bound_share"]) == (25, 1)
    assert found["workload"]["serial_us"] == 45
    assert report(chain())["windows"] is None


def test_what_was_not_read_counts_among_transactions_and_has_a_share_of_the_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of twelve transactions one is passed over before the last three, and two behind them."""
    monkeypatch.setattr(scheme_comparison, "LEAD_ENTRIES", 1)
    works = list(parse(f"5us a.t/{number}" for number in range(9)))
    works[6:] = [work._replace(passed=1) for work in works[6:]]
    workload = load(works, Costs(commit_us=0))
    workload.passed += 2
    found = report(workload)
    entries = {"entries": 12, "transactions": 12, "read": 9, "serial_us": 45}
    assert entries.items() <= found["workload"].items()
    windows = found["windows"]
    assert (windows["count"], windows["entries"], windows["share"]) == (2, 7, 0.5833)
    assert windows["first"] == [2, 9]
    assert found["schemes"][0]["runs"][0]["makespan_us"] == 7 * 5


def test_a_bound_is_not_known_where_a_table_stands_for_its_rows() -> None:
    assert not report(chain(), tables_without_keys=["a.t"])["critical_path"]["is_known"]
    assert report(chain())["critical_path"]["is_known"]


def test_the_page_holds_the_report_and_refers_to_nothing_outside() -> None:
    found = report(chain(), files=["</script><b>&"], notes=["<i>"])
    text = page(found)
    embedded = re.search(r'<script id="data" type="application/json">(.*?)</script>', text)
    assert embedded
    assert json.loads(embedded[1]) == json.loads(json.dumps(found))
    assert "</script><b>" not in text
    policy = re.search(r'"Content-Security-Policy" content="(.*?)"', text)
    assert policy
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1] and "connect-src" not in policy[1]
    inside = ('<link rel="icon" href="data:,">', "http://www.w3.org/2000/svg")
    for known in inside:
        text = text.replace(known, "")
    assert not re.search(r"https?:|//\w+\.|\bsrc=|<link|@import|url\(|\bfetch\(|import\(", text)
