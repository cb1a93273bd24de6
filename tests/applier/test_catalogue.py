"""Schemes by the names that users give."""

import pytest

from applier.schemes import Consistency, Ordering
from applier.schemes.catalogue import SCHEMES, scheme
from certifier.errors import InvalidSetting


def test_every_name_makes_a_scheme_that_keeps_its_invariants() -> None:
    for name in SCHEMES:
        made = scheme(name)
        made.check_invariants()
        assert made.hold is None


def test_defaults_are_the_schemes_own() -> None:
    orderings = {name: scheme(name).ordering for name in SCHEMES}
    assert orderings == {
        "logical-clock": Ordering.SOURCE,
        "commit-parent": Ordering.SOURCE,
        "database": Ordering.NONE,
        "group-commit": Ordering.DOMAIN,
        "table": Ordering.NONE,
        "jobs": Ordering.SOURCE,
        "rows": Ordering.SOURCE,
    }


@pytest.mark.parametrize("name", ["logical-clock", "commit-parent", "database", "jobs"])
def test_commit_order_can_be_chosen_where_a_scheme_can_do_both(name: str) -> None:
    ordered = scheme(name, preserve_commit_order=True)
    assert (ordered.ordering, ordered.consistency) == (Ordering.SOURCE, Consistency.ANY_TIME)
    assert scheme(name, preserve_commit_order=False).ordering is Ordering.NONE


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("writeset", {}, "one of logical-clock, commit-parent, database, group-commit, table"),
        ("rows", {"conflicts": "graph"}, "none with the scheme rows: jobs has it"),
        ("jobs", {"policy": "at-most-one"}, "none with the scheme jobs: logical-clock has"),
        ("jobs", {"conflicts": "none"}, "one of ignore, ordered, barrier, graph, merge"),
        ("logical-clock", {"policy": "fair"}, "one of at-most-one, first-available"),
        ("jobs", {"job_transactions_max": 8}, "none with the scheme jobs: logical-clock has it"),
        ("logical-clock", {"job_transactions_max": 0}, "1 or more"),
        ("table", {"preserve_commit_order": True}, "False with the scheme table"),
        ("rows", {"preserve_commit_order": False}, "True with the scheme rows"),
        ("group-commit", {"preserve_commit_order": False}, "True with the scheme group-commit"),
        (
            "jobs",
            {"conflicts": "ignore", "preserve_commit_order": True},
            "False with the scheme jobs --conflicts ignore",
        ),
    ],
)
def test_a_setting_that_a_scheme_does_not_have_is_an_error(
    name: str, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidSetting, match=message):
        scheme(name, **settings)  # type: ignore[arg-type]  # wrong settings are what is tested


@pytest.mark.parametrize("conflicts", ["ignore", "ordered", "barrier", "graph", "merge"])
def test_jobs_has_five_conflict_controls(conflicts: str) -> None:
    assert scheme("jobs", conflicts=conflicts).hold is None


def test_a_setting_that_fits_is_taken() -> None:
    assert scheme("logical-clock", policy="first-available").ordering is Ordering.SOURCE
    assert scheme("logical-clock", job_transactions_max=8).ordering is Ordering.SOURCE
    assert scheme("table", preserve_commit_order=False).ordering is Ordering.NONE
