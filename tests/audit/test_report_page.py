"""The audit's page in a real browser: what it draws is what the summary says, and it loads nothing.

The summaries are written by hand, so that each section has something to show.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome

from groupcert.certifier.audit.answers.result import JsonObject
from groupcert.certifier.audit.report import page
from tests.audit.summaries import (
    BEGIN_US,
    BUCKETS,
    HISTORIES,
    HOSTILE_KEY,
    HOURS,
    MEMBERS,
    clean_summary,
    empty_summary,
    summary_with_findings,
)
from tests.browser import asked_of_others, colours, count, logged, opened, pointed, resize, text

pytestmark = pytest.mark.slow
WIDTHS = (390, 420, 800, 1400)
Look = Callable[[JsonObject], Chrome]


@pytest.fixture
def look(browser: Chrome, tmp_path: Path) -> Look:
    """Opens the page of a summary."""

    return lambda summary: opened(browser, page(summary), tmp_path / "report.html", WIDTHS[-1])


def total(summary: JsonObject, observer: str) -> Any:
    """The decisions of a member."""
    histories = summary["histories"]
    assert isinstance(histories, list)
    return sum(each["transactions"] for each in histories if each["observer"] == observer)


SUMMARIES = {
    "clean": clean_summary,
    "findings": summary_with_findings,
    "empty": empty_summary,
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_page_draws_without_an_error_and_fits_every_width(look: Look, name: str) -> None:
    browser = look(SUMMARIES[name]())
    for width in WIDTHS:
        resize(browser, width)
        browser.refresh()
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width, f"{wide} pixels at {width}"
        assert browser.execute_script("return document.documentElement.dataset.drawn") == "yes"
        assert "NaN" not in browser.page_source.split("<script")[0]
        assert "[object" not in text(browser) and "undefined" not in text(browser)
    assert logged(browser, "browser") == []


def test_page_loads_nothing_but_itself(look: Look) -> None:
    assert asked_of_others(look(clean_summary())) == []


def test_verdict_says_first_how_much_was_proved(look: Look) -> None:
    summary = clean_summary()
    said = text(look(summary), "#verdict")
    decisions = sum(total(summary, member) for member in MEMBERS)
    assert said.startswith("No findings")
    assert f"{decisions:,} decisions of 3 members proved again" in said


def test_verdict_does_not_claim_what_was_not_looked_at(look: Look) -> None:
    assert text(look(empty_summary()), "#verdict").startswith("Nothing was looked at")
    some = clean_summary() | {"jobs": [{"name": "agree", "seconds": 1.0, "findings": 0}]}
    said = text(look(some), "#verdict")
    assert "the decisions themselves were not derived again" in said and "proved" not in said


def test_findings_are_shown_with_place_expected_found_and_witness(look: Look) -> None:
    summary: Any = summary_with_findings()
    summary["findings"]["first"][1]["kind"] = None
    browser = look(summary)
    said = text(browser, "#findings")
    assert text(browser, "#verdict").startswith("3 errors, 12,400 warnings")
    for words in ("STAMP_TOO_LOW", "log 124, record 4", "last_committed 809", "12,400"):
        assert words in said
    assert HOSTILE_KEY in said
    assert count(browser, ".finding") == 6


def test_a_history_is_named_where_its_observer_has_several(look: Look) -> None:
    named = [f"m2, history {history}" for history in HISTORIES]
    browser = look(summary_with_findings())
    for section in ("#findings", "#histories", "#trust", "#parallelism", "#appliers"):
        said = text(browser, section)
        assert all(name in said for name in named), section
        assert "m1, history" not in said
    script = """return [...document.querySelectorAll('#timeline text[x="0"]')]
      .map(node => node.textContent)"""
    assert browser.execute_script(script) == ["m1", "m2 · 6030", "m2 · 6f86", "m3"]
    assert "history" not in text(look(clean_summary()), "#trust table")


def test_checkpoints_behind_the_end_of_a_history_are_counted(look: Look) -> None:
    script = """return [...document.querySelectorAll('#trust table tr')]
      .map(row => row.children[4].innerText)"""
    browser = look(summary_with_findings())
    assert browser.execute_script(script) == ["behind the end", "0", "2", "0", "0"]
    assert "behind the end of a history, which ends early, are only counted" in text(
        browser, "#trust"
    )
    assert browser.execute_script(script.replace("4", "3"))[:3] == ["checkpoints", "214", "214"]
    assert "behind the end" not in text(look(clean_summary()), "#trust")


def test_texts_of_the_log_are_never_read_as_html(look: Look) -> None:
    browser = look(summary_with_findings())
    assert browser.title.startswith("3 errors")
    assert count(browser, "main script") == 0
    for section in ("#findings", "#conflicts"):
        assert HOSTILE_KEY in text(browser, section)


def test_item_without_a_key_is_shown_to_its_last_bit(look: Look) -> None:
    assert "item bfffffffffffffff" in text(look(clean_summary()), "#conflicts")


MARKS = {
    "#timeline rect.history": len(MEMBERS),
    "#by-time g[data-series=certified] rect": HOURS,
    "#by-time g[data-series='too old'] rect": 1,
    "#lost-by-time g[data-series=certified]": 0,
    "#pairs td.pair": len(MEMBERS) ** 2,
    "#whatif": 1,
    "#windows .track": 2,
    "#without-write-set .track": len(MEMBERS),
    "#width .curve": 2,
    "#lag-1 .curve": 3,
    "#running-0 .curve": 3,
    "#running-0 [data-series=possible] .curve": 1,
    "#workers-0 .track": 4,
    "#jobs .track": 6,
}


def test_each_plot_has_the_marks_of_its_data(look: Look) -> None:
    browser = look(clean_summary())
    assert {selector: count(browser, selector) for selector in MARKS} == MARKS


def test_a_curve_has_a_step_for_each_bucket_and_a_gap_where_nothing_is_known(look: Look) -> None:
    browser = look(clean_summary())
    script = """const line = document.querySelector('#lag-0 [data-series=p50] .curve');
      return line.getAttribute('d')"""
    path = browser.execute_script(script)
    assert path.count("H") == BUCKETS - 2
    assert path.count("M") == 2


def test_height_of_a_bar_is_its_share(look: Look) -> None:
    browser = look(clean_summary())
    script = """return [...document.querySelectorAll('#by-time [data-series=certified] rect')]
      .map(bar => Number(bar.getAttribute('height')))"""
    heights = browser.execute_script(script)
    profile = clean_summary()["profile"]
    assert isinstance(profile, dict)
    certified = [hour["certified"] for hour in profile["conflicts"]["by_time"]["parts"]]
    for height, each in zip(heights, certified, strict=True):
        assert height / heights[0] == pytest.approx(each / certified[0], abs=0.01)


@pytest.mark.parametrize(
    ("seconds", "title", "tip"),
    [
        (1, "each second", "20:30:00 UTC, one second"),
        (10, "each 10 seconds", "20:30:00 UTC, 10 seconds"),
        (600, "each 10 minutes", "20:30 UTC, 10 minutes"),
        (86_400, "each day", "20:30 UTC, one day"),
    ],
)
def test_bars_say_how_much_time_they_are_about(
    look: Look, seconds: int, title: str, tip: str
) -> None:
    summary: Any = clean_summary()
    counts = {"certified": 9, "conflict": 1, "too_old": 0, "refused": 0}
    width = seconds * 1_000_000
    parts = [{"begin_us": BEGIN_US + number * width, **counts} for number in range(3)]
    summary["profile"]["conflicts"]["by_time"] = {"width_us": width, "parts": parts}
    browser = look(summary)
    assert f"Decisions {title}" in text(browser, "#decisions")
    assert pointed(browser, "#by-time .pane", 0.1, 0.5).split("\n")[0].endswith(tip)


def test_what_was_measured_in_parts_is_a_bound(look: Look) -> None:
    browser = look(clean_summary())
    assert not set("≤≥") & set(text(browser, "#parallelism"))
    assert "at most" not in text(browser, "#appliers") and "least" not in text(browser, "#appliers")
    summary: Any = clean_summary()
    for measured in (*summary["profile"]["parallelism"][:2], *summary["apply"]["observers"]):
        measured["forced_cuts"] = 3
    summary["apply"]["observers"][1]["possible_mean"] = 5.0
    summary["profile"]["windows"]["forced_cuts"] = 1
    browser = look(summary)
    said = text(browser, "#parallelism")
    for words in ("≤ 3.4 h", "≥ 3.94", "Cut 6 times", "≤ 2.8 h", "≥ 21,408 transactions"):
        assert words in said
    assert "≥ 3.1\u00a0% of the critical path" in said
    said = text(browser, "#appliers")
    assert "where at least 3.94 could: at most 43\u00a0% of what these workers" in said
    assert "where at least 5.00 could: 43\u00a0% of what these workers" in said, "four workers"


def test_sections_without_data_say_why(look: Look) -> None:
    browser = look(empty_summary())
    assert count(browser, "section") == 7
    assert "the job profile did not run" in text(browser, "#parallelism")
    assert "the job apply did not run" in text(browser, "#appliers")
    silent = clean_summary() | {"apply": {"observers": [], "skipped": ["m1"]}}
    assert "do not say when transactions were executed" in text(look(silent), "#appliers")


def test_what_was_not_searched_is_told_and_not_ticked_off(look: Look) -> None:
    summary = clean_summary()
    isolation = summary["isolation"]
    assert isinstance(isolation, dict)
    assert "begins late, ends early" in text(look(summary), "#histories")
    ticks = count(look(summary), "#trust .pill.fine")
    isolation["unsearched"] = 3
    said = text(look(summary), "#trust")
    assert (
        "Cycles of 3 transactions were not looked for" in said and "none where looked for" in said
    )
    assert count(look(summary), "#trust .pill.fine") == ticks - len(isolation["anomalies"]) + 1


def test_dark_mode_is_drawn_in_its_own_colours(look: Look) -> None:
    browser = look(clean_summary())
    script = """const style = node => getComputedStyle(document.querySelector(node));
      return [style("body").backgroundColor, style("#by-time [data-series=certified] rect").fill]"""
    seen = {}
    for scheme in ("light", "dark"):
        colours(browser, scheme)
        seen[scheme] = browser.execute_script(script)
    colours(browser, "")
    assert seen["light"] == ["rgb(246, 246, 243)", "rgb(42, 114, 212)"]
    assert seen["dark"] == ["rgb(19, 19, 22)", "rgb(107, 164, 242)"]


def test_tooltip_tells_what_is_under_the_pointer(look: Look) -> None:
    browser = look(clean_summary())
    told = pointed(browser, "#timeline rect.history", 0.1, 0.5)
    assert told.startswith("m1: log 1, record 0 to log 9000, record 4")
    told = pointed(browser, "#by-time .pane", 0.01, 0.5)
    assert all(words in told for words in ("certified", "too old", "one hour"))
