"""The audit's page for whoever has to act: what to do, how loaded it is, who holds memory back, and
how transactions depend on each other.
"""

from typing import Any

import pytest

from tests.audit.cycle_summaries import summary_with_cycles
from tests.audit.report_pages import WIDTHS, Look
from tests.audit.summaries import (
    BUCKETS,
    GROUP,
    HOSTILE_KEY,
    clean_summary,
    empty_summary,
    summary_with_findings,
)
from tests.browser import count, pointed, resize, text

pytestmark = pytest.mark.slow


def test_who_holds_the_collection_back_is_told_over_time(look: Look) -> None:
    summary: Any = clean_summary()
    browser = look(summary)
    assert "m2 holds the collection back most" in text(browser, "#figures")
    assert text(browser, "#holders tbody tr").split() == ["m2", "50", "%", "12,400", "6,200"]
    assert "9,900 versions behind the next where it is darkest" in text(browser, "#info")
    told = pointed(browser, "#held-back rect.heat", 0.5, 0.5)
    assert told.startswith("m2\n") and told.endswith(
        f"m2 was {100 * BUCKETS // 2:,} versions behind the next"
    )
    summary["profile"]["holders"]["members"] = []
    assert "all had always reported the same" in text(look(summary), "#info")
    summary["profile"]["holders"] = None
    assert "does not tell what all members of a view" in text(look(summary), "#info")


def test_a_replica_of_all_stands_beside_the_applier(look: Look) -> None:
    summary: Any = clean_summary()
    browser = look(summary)
    said = text(browser, "#parallelism")
    assert "130,402 transactions that no applier executed count as 740 µs each" in said
    rows = text(browser, "#replica tbody").split("\n")
    assert [row.split("\t")[0] for row in rows] == [
        "applier of m1",
        "the same, nothing purged",
        "replica of all",
    ]
    assert rows[-1].split("\t")[1:] == ["391,204", "20 h", "2.5 h", "8.00"]
    said = " ".join(text(browser, "#figures").split())
    assert "8.0 \u00d7 could run at once at a replica of all; 3.9 \u00d7 at the members'" in said
    summary["profile"]["replica"] |= {"rule": "stamps", "estimated": 0, "forced_cuts": 1}
    browser = look(summary)
    said = text(browser, "#parallelism")
    assert "By the stamps, which all transactions have" in said and "no applier" not in said
    assert "≥ 8.00" in said and count(browser, "#replica tbody tr") == 2
    summary["profile"]["replica"] = None
    assert count(look(summary), "#replica") == 0


def test_verdict_says_what_to_do(look: Look) -> None:
    browser = look(summary_with_findings())
    said = text(browser, "#verdict")
    assert "Keep the logs as they are, before anything else" in said
    assert (
        "STAMP_TOO_LOW 2 \u00d7 Let what reads this member's stamps apply with one worker" in said
    )
    links = "return [...document.querySelectorAll('.todo a')].map(link => link.hash)"
    targets = browser.execute_script(links)
    assert len(targets) == 3 and all(count(browser, target) == 1 for target in targets)
    browser.execute_script("""document.querySelectorAll('details').forEach(d => d.open = false);
      document.querySelector('.todo a').click()""")
    assert count(browser, "#findings details[open]") == 1, "where the link leads to"
    summary: Any = clean_summary()
    assert "Nothing has to be done." in text(look(summary), "#verdict")
    summary["apply"]["observers"][1] |= {
        "busy_share": 0.83,
        "lag_us": {"p50": 1, "p95": 2_000_000, "max": 3_000_000},
    }
    summary["profile"]["holders"]["members"][0]["share"] = 0.7
    for member in summary["verify"]["observers"]:
        member["conflict"] *= 3
    browser = look(summary)
    said = text(browser, "#verdict")
    for words in (
        "Nothing has to be repaired. Worth a look:",
        f"9.5\u00a0% of the decisions were to abort, most over {HOSTILE_KEY}",
        "m2: its applier executed in 83\u00a0% of the time",
        "5 of 100 transactions were visible 2 s after",
        "m2: it held the collection of the certification info back in 70\u00a0% of the time",
    ):
        assert words in said
    assert all(count(browser, target) == 1 for target in browser.execute_script(links))
    assert "Nothing has" not in text(look(empty_summary()), "#verdict")


def test_first_screen_has_verdict_advice_and_load(look: Look) -> None:
    """On a telephone too."""
    for summary in (clean_summary(), summary_with_findings()):
        browser = look(summary)
        resize(browser, WIDTHS[1])
        script = "return document.querySelectorAll('.tile')[3].getBoundingClientRect().bottom"
        assert browser.execute_script(script) < 900
        tiles = text(browser, "#figures")
        assert "3.21/s\ndecisions\n4.87/s in the busiest hour" in tiles
        assert "0.4\u00a0%\napplier busy\nof the time, at m1" in tiles


def test_cycles_are_drawn_as_graphs_with_a_text(look: Look) -> None:
    browser = look(summary_with_cycles())
    script = """return [...document.querySelectorAll('.cycle')].map(cycle => ({
      nodes: [...cycle.querySelectorAll('.node .gtid')].map(node => node.textContent),
      edges: [...cycle.querySelectorAll('.edge .kind')].map(edge => edge.textContent),
      told: cycle.querySelector('svg').getAttribute('aria-label')}))"""
    for width in WIDTHS:
        resize(browser, width)
        browser.refresh()
        drawn = browser.execute_script(script)
        assert [len(each["nodes"]) for each in drawn] == [2, 4, 2], width
        assert drawn[1]["edges"] == ["rw", "wr", "ww", "rw"]
        assert drawn[1]["nodes"] == ["version 7", *(f"3e11…9562:{100 + n}" for n in (1, 2, 3))]
        inside = """return [...document.querySelectorAll('.cycle')].every(cycle => {
          const box = cycle.getBoundingClientRect();
          return [...cycle.querySelectorAll('text, rect, path')].every(node =>
            node.getBoundingClientRect().right <= box.right + 1 &&
            node.getBoundingClientRect().left >= box.left - 1)})"""
        assert browser.execute_script(inside), width
    told = drawn[1]["told"]
    assert told.startswith(
        f"Cycle of 4 transactions: version 7 of m1 read item 07 as it was before {GROUP}:101"
    )
    assert f"{GROUP}:102 of m1 wrote {HOSTILE_KEY}, which {GROUP}:103 of m1 overwrote" in told
    assert f"{GROUP}:101 of m1 wrote {HOSTILE_KEY} as {GROUP}:102 of m1 read it" in told
    assert "What followed, as the job isolation found it: LOST_UPDATE" in text(browser, "#findings")
    assert pointed(browser, ".cycle .node", 0.5, 0.5) == "version 7 of m1"


def test_what_lies_in_a_drawing_of_a_cycle_is_apart(look: Look) -> None:
    browser = look(summary_with_cycles())
    script = """return [...document.querySelectorAll('.cycle')].every(cycle => {
      const boxes = [...cycle.querySelectorAll('text')].map(text => text.getBoundingClientRect());
      return boxes.every((one, i) => boxes.slice(i + 1).every(other =>
        one.right <= other.left + 1 || other.right <= one.left + 1 ||
        one.bottom <= other.top + 3 || other.bottom <= one.top + 3))})"""
    for width in WIDTHS:
        resize(browser, width)
        browser.refresh()
        assert browser.execute_script(script), width
