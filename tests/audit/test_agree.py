"""Which histories and reports belong together, when not all files are there, or too many."""

from typing import Any

import pytest

from groupcert.certifier.audit.answers.findings import Code
from tests.audit.audited import Audited
from tests.audit.faults import integer


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_only_what_belongs_together_is_compared(audited: Audited) -> None:
    def shared(scene: str) -> int:
        """The places that all members' rows have: without that of START."""
        return len(next(iter(audited.faulty[scene].histories.values()))) - 1

    pairs: Any = audited.results["agree"].summary["pairs"]
    compared = {
        (each["one"], each["other"], *each["histories"]): (each["places"], each["differing"])
        for each in pairs
    }
    assert compared["without_common_places-m1", "without_common_places-m2", "1", "1"] == (0, 0)
    assert compared["twin-m1", "twin-m3", "1", "1"] == (shared("twin"), 0)
    assert compared["twin-m1", "twin-m3", "2", "2"] == (shared("other_twin"), 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_chain_is_proved_up_to_what_was_edited_and_reports_behind_the_end_are_counted(
    audited: Audited,
) -> None:
    proved: Any = audited.results["proof"].summary["observers"]
    (chained,) = [each for each in proved if each["observer"] == "edited-m1"]
    (wrong,) = [
        each
        for each in audited.told.findings
        if each.code is Code.RECORD_EDITED and each.observer == "edited-m1"
    ]
    places = [integer(row, "place") for row in audited.faulty["edited"].histories["m1"]]
    assert chained["rows"] - chained["chained"] == 1
    assert chained["last_place"] == max(place for place in places if place < wrong.place)
    behind = {
        (each["observer"], each["history"]): each["reports_behind"]
        for each in proved
        if each["reports_behind"]
    }
    assert behind == {
        ("cut_off-m3", "1"): 1,
        ("called_a_binary_log-m2", "1"): 1,
        ("called_an_export-m2", "1"): 1,
        ("cut_at_its_end-m1", "1"): 1,
        ("without_common_places-m1", "1"): 2,
        ("read_while_written-m1", "1"): 1,
        ("second_history_cut-m1", "2"): 1,
    }
