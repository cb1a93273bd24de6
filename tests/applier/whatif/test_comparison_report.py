"""The document and the page that holds it."""

import json
import re
from dataclasses import replace
from typing import Any

from groupcert.applier.whatif.comparison_report import Compared, document, page
from groupcert.applier.whatif.scheme_comparison import Line, bounds, run_line
from groupcert.applier.whatif.workload import Costs, Workload, load
from tests.applier.whatif.streams import Source, stream

WORKERS = (1, 2, 4)
LINES = (Line("logical-clock"), Line("jobs", conflicts="ignore"), Line("table"))


def report(workload: Workload, **source: object) -> Any:
    """The report of three lines."""
    compared = [
        Compared(line, [run_line(workload, line, workers) for workers in WORKERS]) for line in LINES
    ]
    return document(source, workload, bounds(workload), compared, WORKERS)


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
            assert 0 < run["bound_share"] <= 1


def test_a_run_accounts_for_all_time_of_its_workers() -> None:
    for scheme in report(chain())["schemes"]:
        for run in scheme["runs"]:
            times = run["worker_time_us"]
            busy = times["executing"] + times["committing"] + times["waiting_to_commit"]
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


def test_what_was_taken_from_windows_is_told_and_unseen_idle_time_with_it() -> None:
    workload = chain()
    run = replace(run_line(workload, LINES[0], 2), idle_us={None: 3}, unseen_us=4)
    compared = [Compared(LINES[0], [run])]
    windows = [range(1), range(4, 5)]
    found: Any = document({}, workload, bounds(workload), compared, [2], windows)
    assert found["windows"] == {"count": 2, "entries": 2, "share": 0.4, "first": [1, 5]}
    times = found["schemes"][0]["runs"][0]["worker_time_us"]
    assert times["idle"] == {"nothing_left": 3, "unseen": 4}
    assert found["causes"]["unseen"] == "in no window"
    assert report(workload)["windows"] is None


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
