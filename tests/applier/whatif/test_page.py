"""The page of a comparison in a real browser: all thirteen lines, on screens wide and narrow."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome

from groupcert.applier.whatif.comparison_report import Compared, document, page
from groupcert.applier.whatif.scheme_comparison import LINES, bounds, run_line, sample_of
from tests.applier.whatif.streams import stream
from tests.browser import asked_of_others, colours, count, logged, opened, pointed, resize, text

pytestmark = pytest.mark.slow
WORKERS = (1, 2, 4, 8)
WIDTHS = (420, 800, 1440)
NARROW, _, WIDE = WIDTHS
HOSTILE = "a.t/<script>document.body.remove()</script>"
Look = Callable[[Any], Chrome]


@cache
def report(*, of_windows: bool = False) -> Any:
    """All lines over sixty transactions, some of which write one row; or over two windows of them,
    if the log does not name all rows.
    """
    rows = [f"{3 + number % 5}us a.t{number % 4}/{number}" for number in range(40)]
    hot = [f"4us {HOSTILE} b.u/{number}" for number in range(20)]
    mixed = [text for pair in zip(rows[:20], hot, strict=True) for text in pair] + rows[20:]
    workload = stream(*mixed, commit_us=2)
    sample, source = sample_of(workload), {"files": ["trace"]}
    if of_windows:
        windows = [workload.window(start, start + 20) for start in (0, 40)]
        limits = [bounds(window) for window in windows]
        sample = replace(sample, windows=windows, limits=limits)
        source["tables_without_keys"] = ["a.t"]
    runs = [
        Compared(line, [run_line(sample.windows, line, each) for each in WORKERS]) for line in LINES
    ]
    return document(source, workload, sample, runs, WORKERS)


@pytest.fixture
def look(browser: Chrome, tmp_path: Path) -> Look:
    """Opens the page of a report."""
    return lambda report: opened(browser, page(report), tmp_path / "page.html", WIDE)


@pytest.mark.parametrize("of_windows", [False, True])
def test_page_draws_without_an_error_and_fits_every_width(look: Look, of_windows: bool) -> None:
    browser = look(report(of_windows=of_windows))
    for width in WIDTHS:
        resize(browser, width)
        browser.refresh()
        assert browser.execute_script("return document.documentElement.dataset.drawn") == "yes"
        # Nothing scrolls sideways, neither the page nor a table in it.
        wide = """return [document.documentElement, ...document.querySelectorAll(".scroll")]
          .filter(node => node.clientWidth && node.scrollWidth > node.clientWidth).length"""
        assert browser.execute_script(wide) == 0, f"at {width}"
        assert "NaN" not in browser.page_source.split("<script")[0]
        assert "[object" not in text(browser) and "undefined" not in text(browser)
    assert logged(browser, "browser") == []
    assert asked_of_others(browser) == []
    assert ("not known" in text(browser)) == of_windows
    assert ("Scheduled were 2 windows" in text(browser)) == of_windows
    assert count(browser, ".spread") == (len(LINES) if of_windows else 0)


def test_every_scheme_has_a_look_of_its_own(look: Look) -> None:
    browser = look(report())
    resize(browser, NARROW)
    browser.refresh()
    script = """return [...document.querySelectorAll("#speedups .legend button")].map(button => {
      const line = getComputedStyle(button.querySelector(".curve"));
      const mark = button.querySelector(".mark");
      return [button.dataset.series, mark ? mark.dataset.mark : "none",
        line.stroke + " " + line.strokeDasharray, button.getBoundingClientRect().height > 0]})"""
    looks = browser.execute_script(script)
    names, marks, lines, shown = zip(*looks, strict=True)
    assert set(names) == {"bound", *(line.label for line in LINES)}
    assert all(shown), "a legend stands below where names beside the lines have no room"
    assert len(set(marks)) == len(LINES) + 1, "the bound has none"
    assert len(set(lines)) == len(names)
    resize(browser, WIDE)
    browser.refresh()
    assert count(browser, "#speedups .legend:not([hidden])") == 0
    beside = "#curves g[data-series] > text"
    labels = browser.execute_script(
        f"return [...document.querySelectorAll({beside!r})].map(n => n.textContent)"
    )
    assert set(labels) == set(names)


def test_both_axes_are_logarithmic(look: Look) -> None:
    browser = look(report())
    script = """const bound = document.querySelector("#curves g[data-series=bound] .curve");
      const points = bound.getAttribute("d").slice(1).split("L");
      return points.map(point => point.split(" ").map(Number))"""
    points = browser.execute_script(script)
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(points)]
    assert gaps == pytest.approx([gaps[0]] * (len(WORKERS) - 1), abs=0.2)
    speedups = [each["speedup"] for each in report()["bounds"]]
    assert speedups[-1] > speedups[0]
    scale = (points[0][1] - points[-1][1]) / math.log(speedups[-1] / speedups[0])
    for (_, height), speedup in zip(points, speedups, strict=True):
        assert points[0][1] - height == pytest.approx(scale * math.log(speedup), abs=0.3)


def test_bound_is_seen_also_where_a_scheme_runs_along_it(look: Look) -> None:
    browser = look(report())
    script = """const band = document.querySelector("#curves .band");
      return [band.parentNode.dataset.series, parseFloat(getComputedStyle(band).strokeWidth)]"""
    name, width = browser.execute_script(script)
    assert (name, width > 4) == ("bound", True)


def test_lines_that_lie_on_each_other_take_turns(look: Look) -> None:
    found = report()
    one, other = found["schemes"][:2]
    assert [run["speedup"] for run in one["runs"]] == [run["speedup"] for run in other["runs"]]
    script = """return [...document.querySelectorAll("#curves .curve")]
      .filter(line => arguments[0].includes(line.parentNode.dataset.series))
      .map(line => getComputedStyle(line).strokeDashoffset)"""
    offsets = look(found).execute_script(script, [one["label"], other["label"]])
    assert len(set(offsets)) == 2


def test_table_is_sorted_by_speedup_and_marks_the_winner(look: Look) -> None:
    browser = look(report())
    rows = """return [...document.querySelectorAll("#results tbody tr")].map(row =>
      [row.dataset.scheme, row.classList.contains("winner")])"""
    for number, workers in enumerate(WORKERS):
        script = "document.querySelectorAll('.picker button')[arguments[0]].click()"
        browser.execute_script(script, number)
        runs = {each["label"]: each["runs"][number] for each in report()["schemes"]}
        shown = browser.execute_script(rows)
        speedups = [runs[name]["speedup"] for name, _ in shown]
        assert speedups == sorted(speedups, reverse=True) and len(speedups) == len(LINES)
        winners = [name for name, wins in shown if wins]
        assert len(winners) == 1 and runs[winners[0]]["overtakers"] == 0
        kept = [run["speedup"] for run in runs.values() if run["overtakers"] == 0]
        assert runs[winners[0]]["speedup"] == max(kept)
        assert f"With {workers} worker" in text(browser, "#results")


def test_answers_come_in_the_order_of_questions(look: Look) -> None:
    browser = look(report())
    script = """return [...document.querySelectorAll("main > h2, main > section")].map(node =>
      node.id || node.textContent)"""
    assert browser.execute_script(script) == [
        "What do I gain?",
        "speedups",
        "With which setting of my server?",
        "servers",
        "results",
        "What holds me back?",
        "held",
        "hot",
        "path",
        "widths",
        "How sure is this?",
        "certainty",
    ]


def test_settings_of_servers_have_the_speedup_of_their_scheme(look: Look) -> None:
    browser = look(report())
    script = "document.querySelectorAll('.picker button')[2].click()"
    browser.execute_script(script)
    rows = """return [...document.querySelectorAll("#servers tbody tr")].map(row =>
      [row.dataset.server, row.cells[0].innerText, row.cells[1].textContent,
        row.cells[2].textContent])"""
    shown = browser.execute_script(rows)
    found = {scheme["label"]: scheme for scheme in report()["schemes"]}
    assert {server for server, *_ in shown} == {"MySQL", "MariaDB"}
    assert len(shown) == sum(len(scheme["settings"]) for scheme in found.values())
    for server, told, label, speedup in shown:
        assert float(speedup.split()[0]) == round(found[label]["runs"][2]["speedup"], 2)
        [setting] = [each for each in found[label]["settings"] if each["server"] == server]
        assert setting["replica"] in told and setting["source"] in told


def test_pointer_and_table_tell_the_values(look: Look) -> None:
    browser = look(report())
    told = pointed(browser, "#curves .pane", 0.99, 0.5)
    best = report()["bounds"][-1]["speedup"]
    assert told.startswith("8") and "jobs graph" in told and f"{best:.2f}".rstrip("0") in told
    browser.execute_script("document.querySelector('#speedups details').open = true")
    cells = "return document.querySelectorAll('#speedups details td').length"
    waiting = "const done = arguments[0]; requestAnimationFrame(() => setTimeout(done, 0))"
    browser.execute_async_script(waiting)
    assert browser.execute_script(cells) == (len(LINES) + 1) * (len(WORKERS) + 1)


def test_texts_of_the_stream_are_never_read_as_html(look: Look) -> None:
    browser = look(report())
    assert browser.title == "What if: parallel schemes compared"
    assert HOSTILE in text(browser, "#hot")
    assert count(browser, "main script") == 0


def test_dark_mode_is_drawn_in_its_own_colours(look: Look) -> None:
    browser = look(report())
    script = """return [getComputedStyle(document.body).backgroundColor,
      getComputedStyle(document.querySelector("#curves .curve:not(.band)")).stroke]"""
    seen = []
    for scheme in ("light", "dark"):
        colours(browser, scheme)
        seen.append(browser.execute_script(script))
    colours(browser, "")
    assert all(light != dark for light, dark in zip(*seen, strict=True))
