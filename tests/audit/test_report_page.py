"""The audit's page in a real browser: what it draws is what the summary says, and it loads nothing.

The summaries are written by hand, so that each section has something to show.
"""

import json
from typing import Any

import pytest
from selenium.webdriver import Chrome

from groupcert.certifier.audit.answers.findings import MEANINGS, Code
from groupcert.certifier.audit.answers.result import JsonObject
from groupcert.certifier.audit.audit_run import compared
from tests.audit.cycle_summaries import summary_with_cycles
from tests.audit.report_pages import WIDTHS, Look
from tests.audit.summaries import (
    BEGIN_US,
    BUCKETS,
    GROUP,
    HISTORIES,
    HOSTILE_KEY,
    HOURS,
    MEMBERS,
    clean_summary,
    empty_summary,
    summary_with_findings,
)
from tests.browser import asked_of_others, colours, count, logged, pointed, resize, text

pytestmark = pytest.mark.slow


def total(summary: JsonObject, observer: str) -> Any:
    """The decisions of a member."""
    histories = summary["histories"]
    assert isinstance(histories, list)
    return sum(each["transactions"] for each in histories if each["observer"] == observer)


SUMMARIES = {
    "clean": clean_summary,
    "findings": summary_with_findings,
    "cycles": summary_with_cycles,
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


def resized_word(browser: Chrome, selector: str) -> float:
    """The height of an element where there is little room."""
    resize(browser, WIDTHS[1])
    script = "return document.querySelector(arguments[0]).getBoundingClientRect().height"
    return float(browser.execute_script(script, selector))


def test_page_loads_nothing_but_itself(look: Look) -> None:
    assert asked_of_others(look(clean_summary())) == []


def test_verdict_says_first_how_much_was_proved(look: Look) -> None:
    summary = clean_summary()
    said = text(look(summary), "#verdict")
    records = sum(total(summary, member) for member in MEMBERS)
    assert said.startswith("No findings")
    assert f"{total(summary, 'm1'):,} decisions in the logs of 3 members" in said
    assert f"({records:,} records of them) proved again" in said


def test_tiles_count_the_decisions_of_a_group_once(look: Look) -> None:
    summary: Any = clean_summary()
    tiles = text(look(summary), "#figures")
    assert (
        "391,204\ncertified\n97\u00a0% of the decisions" in tiles and "13,609\nconflicts" in tiles
    )
    assert f"{260_802 * 2 + 260_802 // 3:,}\nstamps derived again" in tiles, "each has its own"
    for member, group in zip(summary["histories"], (None, "one", "other"), strict=True):
        member["group"] = group
    tiles = text(look(summary), "#figures")
    assert f"{391_204 * 2 + 391_204 // 3:,}\ncertified" in tiles, "three groups"


def test_tile_of_the_lag_has_the_p95_of_a_history(look: Look) -> None:
    assert "15.5 ms\np95 lag of the slowest" in text(look(clean_summary()), "#figures")


def test_what_an_applier_did_is_told_with_its_idle_time(look: Look) -> None:
    summary: Any = clean_summary()
    said = text(look(summary), "#appliers")
    assert "1.71 ran at once on average where 3.94 could: 43\u00a0% of what" in said
    assert "It was idle in all but 0.4\u00a0% of the time: few at once means little to do" in said
    assert "95 of 100 within 9.7 ms, all within 361 ms" in said
    assert "about 2,608 transactions a point" in said
    for each in summary["apply"]["observers"]:
        each |= {"workers": 0, "used_share": None, "busy_share": None, "lag_us": None}
    said = text(look(summary), "#appliers")
    assert "by workers that the log does not name" in said
    assert not any(words in said for words in ("of what these workers", "idle", "95 of"))


def test_hot_items_have_two_orders(look: Look) -> None:
    said = text(look(clean_summary()), "#conflicts")
    by_conflicts, by_writers = said.split("Items with the most writers")
    assert "Items with the most conflicts" in by_conflicts
    assert "shop.visits/PRIMARY/0" in by_writers and "shop.visits" not in by_conflicts


def test_classes_ages_and_distances_are_told(look: Look) -> None:
    summary: Any = clean_summary()
    said = text(look(summary), "#transactions")
    for words in ("31 classes", "shop.orders, shop.stock", HOSTILE_KEY, "tables not known"):
        assert words in said
    assert "without write set" in said and "4 of 31 are shown" in said
    assert "5.92 s" in said, "740 us of each that was aborted"
    assert "8,811" in said and f"{GROUP}:90000" in said and "log 700, record 2" in said
    assert "Not known of 11 transactions" in said
    assert "does not name tables" not in said
    for each in summary["profile"]["classes"]["first"]:
        each["tables"] = None
    assert "does not name tables" in text(look(summary), "#transactions")


def test_certification_info_is_told_with_its_collections(look: Look) -> None:
    summary: Any = clean_summary()
    said = text(look(summary), "#info")
    assert "9,900 items at most, 5,000 at the end" in said
    assert "60 collections purged 55,000 items of the 60,000 that came" in said
    assert "is not known" not in said
    summary["profile"]["certification_info"]["since_start"] = True
    assert "before the history begins is not known" in text(look(summary), "#info")
    summary["profile"]["certification_info"] = None
    assert "does not tell times" in text(look(summary), "#info")


def test_a_share_is_rounded_neither_to_all_nor_to_none(look: Look) -> None:
    summary: Any = clean_summary()
    summary["proof"]["observers"][0]["chained"] -= 1
    tiles = text(look(summary), "#figures")
    assert ">\u00a099.9\u00a0%\nof the rows chained" in tiles


def test_what_was_not_looked_at_is_a_section_of_its_own(look: Look) -> None:
    said = text(look(clean_summary()), "#unseen")
    for words in (
        "m3\nbegins late and ends early",
        "write skew",
        "320,809 of 401,220 transactions",
    ):
        assert words in said
    assert "its log does not say what its applier ran when" in said and "did not run" not in said
    summary: Any = clean_summary()
    for each in ("apply", "agree", "isolation"):
        summary[each] = {}
    summary["jobs"] = [each for each in summary["jobs"] if each["name"] not in ("apply", "agree")]
    summary["histories"] = summary["histories"][:2]
    summary["proof"]["observers"][0]["chained"] -= 7
    said = text(look(summary), "#unseen")
    assert "agree and apply\nthese jobs did not run" in said and "7 rows not tied" in said
    summary["jobs"] = clean_summary()["jobs"]
    summary["proof"]["observers"][0]["chained"] += 7
    summary["profile"]["snapshots"]["unknown"] = 0
    assert count(look(summary), "#unseen") == 0


def test_words_do_not_lie_on_each_other_where_there_is_little_room(look: Look) -> None:
    browser = look(clean_summary())
    script = """const boxes = [...document.querySelectorAll('.checks li')].map(row =>
        [...row.children].slice(1).map(cell => {
          const range = document.createRange();
          range.selectNodeContents(cell);
          return range.getBoundingClientRect();
        }));
      return boxes.filter(([one, other]) =>
        one.right > other.left + 1 && one.bottom > other.top + 1).length"""
    for width in WIDTHS:
        resize(browser, width)
        assert browser.execute_script(script) == 0, width


def test_heat_of_items_tells_when_and_how_many(look: Look) -> None:
    browser = look(clean_summary())
    assert "9 conflicts where it is darkest" in text(browser, "#conflicts")
    told = pointed(browser, "#heat rect.heat", 0.5, 0.5)
    assert told.startswith(HOSTILE_KEY) and told.endswith(": 1 conflict")
    assert "item 0000000000000003" in text(browser, "#heat") or "…" in text(browser, "#heat")
    summary: Any = clean_summary()
    resize(browser, WIDTHS[1])
    script = """const right = node => node.getBoundingClientRect().right;
      const rows = [...document.querySelectorAll('#heat text[data-tip]')];
      return rows.every(text => right(text) < text.nextSibling.getBoundingClientRect().left)"""
    assert browser.execute_script(script), "names end before the bars"
    summary["profile"]["heat"] = None
    assert count(look(summary), "#heat") == 0


def test_the_audit_before_is_compared(look: Look) -> None:
    now: Any = summary_with_findings()
    assert count(look(now), "#compared") == 0
    now["compared"] = compared(json.dumps(clean_summary()).encode(), now)
    browser = look(now)
    said = text(browser, "#compared")
    assert "STAMP_TOO_HIGH\t0\t12,400\tnew" in said and "gone" not in said
    assert "p95 lag of the slowest\t15.5 ms\t15.5 ms" in said
    assert "could run at once at a replica of all\t8.00\t8.00" in said
    assert "Its jobs: agree, apply, isolation, profile, proof and verify" in said
    assert compared(b"{", now) is None and compared(b'{"written_by": "x"}', now) is None
    now["compared"] = compared(json.dumps(now).encode(), clean_summary())
    assert "STAMP_TOO_HIGH\t12,400\t0\tgone" in text(look(now), "#compared")


def test_an_audit_that_goes_on_says_what_is_new(look: Look) -> None:
    summary: Any = clean_summary()
    assert count(look(summary), "#since") == 0
    told = {"report": "monday", "whole_because": None, "new_files": 2, "new_rows": 1_200}
    summary["since"] = {**told, "files_gone": 3}
    browser = look(summary)
    assert "1,200 rows in 2 files are new since monday." in text(browser, "#since")
    assert "3 files\n" in text(browser, "#unseen").replace("\t", "\n")
    summary["since"]["whole_because"] = "m1.parquet has changed since the audit before"
    said = text(look(summary), "#since")
    assert said.startswith("Audited from the beginning") and "m1.parquet has changed" in said


def test_what_is_not_known_is_no_number(look: Look) -> None:
    summary: Any = clean_summary()
    summary["profile"]["parallelism"][0]["mean"] = 0.0
    summary["profile"]["sample"]["has_tables"] = False
    said = text(look(summary), "#parallelism")
    assert "0.00" not in said
    assert "the log names no tables" in said


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
    assert f"{GROUP}:0" in said
    assert count(browser, ".beside") == 1 and count(browser, ".beside tbody tr") == 2
    assert f"winner_origin\tm3\t{HOSTILE_KEY}" in said
    assert f"m1 and m2, history {HISTORIES[0]} have recorded the same here" in said
    assert resized_word(browser, ".beside td code") < 24, "one line"
    assert f"What to do {MEANINGS[Code.STAMP_TOO_LOW].advice}" in said
    assert count(browser, "#findings .advice") == 3, "one a code"


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


def test_reports_behind_the_end_of_a_history_are_counted(look: Look) -> None:
    script = """return [...document.querySelectorAll('#trust table tr')]
      .map(row => row.children[5].innerText)"""
    browser = look(summary_with_findings())
    assert browser.execute_script(script) == ["behind the end", "0", "2", "0", "0"]
    assert "told before this audit began are the warning HISTORY_CUT" in text(browser, "#trust")
    assert browser.execute_script(script.replace("5", "3"))[:3] == ["reports", "214", "214"]
    unvouched = browser.execute_script(script.replace("5", "4"))
    assert unvouched == ["rows behind the last", "96", "96", "96", "96"]
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
    "#classes tbody tr": 4,
    "#distances .track": 9,
    "#held .curve": 2,
    "#heat rect.heat": 9 + 8 + 7 + 6,
    "#held .mark": 10,
    "#held-back rect.heat": BUCKETS // 2 + 1,
    "#replica tbody tr": 3,
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
    assert count(browser, "section") == 10
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
